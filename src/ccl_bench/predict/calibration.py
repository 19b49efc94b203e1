"""Calibration: the physical model fitted to measured steps, with the uncertainty of what it predicts.

Logarithms of step times are the model's, plus a Gaussian process for what the model lacks, plus noise. Around
the best constants the model is linear, so that all three are Gaussian, and so is the prediction (Rasmussen
and Williams, Gaussian Processes for Machine Learning, sections 2.2 and 2.7). Amplitude, length and noise are
averaged over a grid by their evidence, which keeps intervals wide where few measurements leave them open.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from ccl_bench.base.lazy_imports import np
from ccl_bench.predict.step_model import constants, microbatches, model_data, step_s
from ccl_bench.result.forecast import Percentiles

if TYPE_CHECKING:
    from ccl_bench.predict.step_model import Columns, Floats

MOST_ROWS = 400
"""Rows that calibrate; of more, as many are drawn, because the cost grows with their cube."""

_SEED = 0

_AMPLITUDES = (0.05, 0.1, 0.2)
_LENGTHS = (1.0, 2.0, 4.0)
"""Doublings over which the model's error stays alike."""
_NOISES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.3)
_AMPLITUDE, _NOISE, _HYPER_SPREAD = 0.15, 0.05, 0.8
"""Medians of both before measurements, and their spread: models miss by 15 %, repeats differ by 5 %."""

_WHOLES = (0.05, 0.15, 0.4, 0.8)
_WHOLE, _WHOLE_SPREAD = 0.3, 1.0
"""Median and spread of the error that depends on all settings, beside the one of a layer's shape.

Configurations that share no setting may be far from the model: with less, intervals after the first trials
of a search held a half of what was measured instead of 80 %.
"""
_WHOLE_LENGTH = 2.0
"""Doublings over which it stays alike."""

BETWEEN_NODES = "communication between nodes"
"""Group of the constants that only matter between nodes."""

_Z90 = 1.2815515655446004
"""The 90th percentile of the normal distribution."""


class _Error(NamedTuple):
    """How far logarithms of steps are from the model's."""

    amplitude: float
    """Of what depends on the shape of a layer."""
    length: float
    noise: float
    whole: float
    """Amplitude of what depends on everything."""

    @property
    def expected(self) -> float:
        """Logarithm of the probability before measurements, without its constant."""
        alike = np.log(self.amplitude / _AMPLITUDE) ** 2 + np.log(self.noise / _NOISE) ** 2
        return float(
            -alike / (2 * _HYPER_SPREAD**2) - np.log(self.whole / _WHOLE) ** 2 / (2 * _WHOLE_SPREAD**2)
        )

    @property
    def variance(self) -> float:
        """Variance of one measurement."""
        return self.amplitude**2 + self.whole**2 + self.noise**2

    def shared(self, distances: tuple[Floats, Floats]) -> Floats:
        """Return what configurations at these distances share: of layers, and squares of all settings."""
        layer, whole = distances
        covariance: Floats = self.amplitude**2 * np.exp(-layer / self.length) + self.whole**2 * np.exp(
            -whole / (2 * _WHOLE_LENGTH**2)
        )
        return covariance


_FIRST = _Error(0.05, 1.0, 0.3, 0.05)
"""For the first fit, which single measurements must not bend."""


def _features(columns: Columns) -> tuple[Floats, Floats]:
    """Return what shapes the time of a layer, and all that differs between configurations, in doublings."""
    count, batch = microbatches(columns)
    layer = np.stack(
        [*(np.log2(each) for each in (batch, columns["tp"], columns["hidden"])), 2 * columns["recompute"]], 1
    )
    rest = [np.log2(each) for each in (count, columns["dp"], columns["pp"], columns["layers"])]
    return layer, np.concatenate([layer, np.stack([*rest, 2 * columns["compiled"]], 1)], 1)


def _squares(one: Floats, other: Floats) -> Floats:
    squares: Floats = ((one[:, None] - other[None]) ** 2).sum(-1)
    return squares


class Calibration:
    """The model with constants fitted to measured steps, ready to predict others.

    `columns` has a row for each measured step (see `trials.columns`); `seconds` are their times. Without rows
    the prediction is what any system is expected to do.
    """

    def __init__(self, columns: Columns, seconds: Floats) -> None:
        if len(seconds) > MOST_ROWS:
            chosen = np.random.default_rng(_SEED).choice(len(seconds), MOST_ROWS, replace=False)
            columns, seconds = {name: each[chosen] for name, each in columns.items()}, seconds[chosen]
        self._columns = columns
        self._measured = np.log(seconds)
        unknown = model_data()["unknown_device"]["spread"] if np.any(columns["unknown_device"] > 0) else 0.0
        self._median = np.log([each.median for each in constants()])
        # What the catalog does not have may be a CPU, whose host, network and latency are unlike a GPU's too.
        spread = np.array([max(each.spread, unknown) for each in constants()])
        self._prior = spread**2
        self._distances = self._distances_to(columns)
        grid = [_Error(*each) for each in product(_AMPLITUDES, _LENGTHS, _NOISES, _WHOLES)]
        self._logarithms = self._fitted(self._median, self._covariance(self._distances, _FIRST))
        value, slope = self._linear(columns)
        excess = self._measured - value - slope @ (self._median - self._logarithms)
        shared = slope * self._prior @ slope.T
        evidence = np.array(
            [
                self._evidence(shared + self._covariance(self._distances, each), excess) + each.expected
                for each in grid
            ]
        )
        weights = np.exp(evidence - evidence.max())
        best = grid[int(weights.argmax())]
        self._logarithms = self._fitted(self._logarithms, self._covariance(self._distances, best))
        self._grid = [(each, weight) for each, weight in zip(grid, weights, strict=True) if weight > 1e-3]

    @property
    def constants(self) -> dict[str, float]:
        """The fitted constants by name, in the units of step_model.toml."""
        return dict(zip((each.name for each in constants()), np.exp(self._logarithms).tolist(), strict=True))

    def predict(self, columns: Columns) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of the logarithm of each configuration's next measured step."""
        value, slope = self._linear(columns)
        own_value, own_slope = self._linear(self._columns)
        shift = self._median - self._logarithms
        excess = self._measured - own_value - own_slope @ shift
        distances = self._distances_to(columns)
        total = 0.0
        mean, square = np.zeros(len(value)), np.zeros(len(value))
        for error, weight in self._grid:
            covariance = own_slope * self._prior @ own_slope.T + self._covariance(self._distances, error)
            between = slope * self._prior @ own_slope.T + error.shared(distances)
            gain = np.linalg.solve(covariance, between.T).T
            each = value + slope @ shift + gain @ excess
            variance = (slope**2 * self._prior).sum(1) + error.variance - (gain * between).sum(1)
            total, mean = total + weight, mean + weight * each
            square = square + weight * (variance + each**2)
        mean = mean / total
        return mean, np.sqrt(np.maximum(square / total - mean**2, 0))

    def intervals(self, columns: Columns) -> list[Percentiles]:
        """Return percentiles of the next measured step of each configuration."""
        return [
            Percentiles(*np.exp([m - _Z90 * s, m, m + _Z90 * s]).tolist())
            for m, s in zip(*self.predict(columns), strict=True)
        ]

    def bounds(self, columns: Columns) -> list[dict[str, float]]:
        """Return for each configuration the shares of the step that constants are worth, which add up to 1.

        A share is how much shorter the step is, per cent, if the constant gets better by one per cent.
        They add up (Euler's theorem), because a step takes half the time if all are twice as good.
        """
        names = [each.name for each in constants()]
        shares = np.abs(self._linear(columns)[1])
        # The share of the network holds what tensor parallelism reaches of it.
        shares[:, names.index("node_bandwidth")] -= shares[:, names.index("tensor_parallel_outside")]
        return [dict(zip(names, row, strict=True)) for row in shares.tolist()]

    def grouped_bounds(self, columns: Columns) -> list[dict[str, float]]:
        """Return these shares by what a step is bound by, in the order of step_model.toml."""
        by_group = []
        for shares, crosses in zip(
            self.bounds(columns), (columns["tp"] > columns["gpus_per_node"]).tolist(), strict=True
        ):
            grouped = {each.group: 0.0 for each in constants()}
            for each in constants():
                # Only tensor-parallel collectives wait for the latency; theirs is that of where they run.
                group = BETWEEN_NODES if each.name == "latency_s" and crosses else each.group
                grouped[group] += max(shares[each.name], 0.0)
            by_group.append(grouped)
        return by_group

    def _distances_to(self, columns: Columns) -> tuple[Floats, Floats]:
        layer, whole = _features(columns)
        own_layer, own_whole = _features(self._columns)
        return np.sqrt(_squares(layer, own_layer)), _squares(whole, own_whole)

    @staticmethod
    def _covariance(distances: tuple[Floats, Floats], error: _Error) -> Floats:
        """Return the covariance of measured steps: what they share by distance, and noise of each alone."""
        return error.shared(distances) + error.noise**2 * np.eye(len(distances[0]))

    @staticmethod
    def _evidence(covariance: Floats, excess: Floats) -> float:
        """Return the logarithm of the probability of the measurements, without its constant."""
        factor = np.linalg.cholesky(covariance)
        scaled = np.linalg.solve(factor, excess)
        return float(-scaled @ scaled / 2 - np.log(np.diag(factor)).sum())

    def _linear(self, columns: Columns) -> tuple[Floats, Floats]:
        """Return the model's logarithms at the fitted constants, and their slopes by constant."""
        return _value_and_slope(self._logarithms, columns)

    def _fitted(self, start: Floats, covariance: Floats) -> Floats:
        """Return the most probable constants, by Levenberg's and Marquardt's method."""
        inverse = np.linalg.inv(covariance)
        current, damping = start, 1e-3

        def loss(logarithms: Floats) -> float:
            excess = self._measured - np.log(step_s(logarithms, self._columns))
            return float(excess @ inverse @ excess + ((logarithms - self._median) ** 2 / self._prior).sum())

        best = loss(current)
        for _ in range(60):
            value, slope = _value_and_slope(current, self._columns)
            curvature = slope.T @ inverse @ slope + np.diag(1 / self._prior)
            gradient = slope.T @ inverse @ (self._measured - value) - (current - self._median) / self._prior
            while True:
                step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), gradient)
                candidate = loss(current + step)
                if candidate <= best or damping > 1e6:
                    break
                damping *= 4
            if candidate > best:
                break
            improvement, best, current = best - candidate, candidate, current + step
            damping = max(damping / 4, 1e-9)
            if improvement < 1e-4:
                break
        return current


def _value_and_slope(logarithms: Floats, columns: Columns) -> tuple[Floats, Floats]:
    width = 1e-5
    value = np.log(step_s(logarithms, columns))
    slope = np.empty((len(value), len(logarithms)))
    for index in range(len(logarithms)):
        moved = logarithms.copy()
        moved[index] += width
        slope[:, index] = (np.log(step_s(moved, columns)) - value) / width
    return value, slope
