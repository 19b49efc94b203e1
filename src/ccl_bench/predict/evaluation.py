"""Evaluation: how good predictions are on measured steps that did not calibrate them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.base.errors import UsageError
from ccl_bench.base.lazy_imports import np, pl
from ccl_bench.predict.calibration import Calibration
from ccl_bench.predict.trials import columns, configurations

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccl_bench.predict.trials import Trials
    from ccl_bench.result.forecast import Percentiles


@dataclass(frozen=True)
class Evaluation:
    """Measured steps with their predictions; `rows` and `intervals` are in one order."""

    rows: pl.DataFrame
    intervals: list[Percentiles]
    calibrated_on: str

    @property
    def errors(self) -> list[float]:
        """Differences of median and measurement, as shares of the measurement."""
        return [
            abs(each.p50 / measured - 1)
            for each, measured in zip(self.intervals, self.rows["step_s"], strict=True)
        ]

    @property
    def within_interval_ratio(self) -> float:
        """Share of the measurements between the 10th and the 90th percentile."""
        return float(
            np.mean(
                [
                    each.p10 <= measured <= each.p90
                    for each, measured in zip(self.intervals, self.rows["step_s"], strict=True)
                ]
            )
        )

    @property
    def regret_ratio(self) -> float | None:
        """How much longer the step of the best predicted configuration is than the best, mean over groups.

        A group is of one model, number of devices, global batch and sequence length; None where none has two
        rows.
        """
        groups = (
            self.rows.with_columns(p50=np.array([each.p50 for each in self.intervals]))
            .group_by(
                "study", "model", "layers", "hidden", "gpus", "global_batch", "seq_len", maintain_order=True
            )
            .agg("step_s", "p50")
        )
        regrets = [
            measured[int(np.argmin(predicted))] / min(measured) - 1
            for measured, predicted in groups.select("step_s", "p50").iter_rows()
            if len(measured) > 1
        ]
        return float(np.mean(regrets)) if regrets else None


def leave_one_out(trials: Trials, progress: Callable[[int, int], object] | None = None) -> Evaluation:
    """Predict each configuration from all others; repeats of it are left out with it."""
    rows = trials.measured
    keys = configurations(rows)
    distinct = list(dict.fromkeys(keys))
    if len(distinct) < 2:
        raise UsageError(
            f"{trials.source} has {len(distinct)} measured configuration",
            fix="leaving one out takes two configurations at least",
        )
    intervals: list[Percentiles | None] = [None] * rows.height
    for done, key in enumerate(distinct, 1):
        chosen = np.array([each == key for each in keys])
        others = rows.filter(~chosen)
        calibration = Calibration(columns(others), others["step_s"].to_numpy())
        for index, interval in zip(
            np.flatnonzero(chosen), calibration.intervals(columns(rows.filter(chosen))), strict=True
        ):
            intervals[index] = interval
        if progress:
            progress(done, len(distinct))
    return Evaluation(
        rows, [each for each in intervals if each], f"{len(distinct) - 1} other configurations each"
    )


def joined(evaluations: list[Evaluation]) -> Evaluation:
    """Return evaluations of several studies as one."""
    return Evaluation(
        pl.concat([each.rows for each in evaluations], how="diagonal_relaxed"),
        [interval for each in evaluations for interval in each.intervals],
        " and ".join(dict.fromkeys(each.calibrated_on for each in evaluations)),
    )


def split(trials: Trials, count: int, seed: int) -> Evaluation:
    """Predict all rows from `count` that are drawn at random with `seed`."""
    rows = trials.measured
    if not 0 < count < rows.height:
        raise UsageError(
            f"{count} rows cannot calibrate of {rows.height} measured ones",
            fix=f"choose between 1 and {rows.height - 1}",
        )
    order = np.random.default_rng(seed).permutation(rows.height)
    calibrating, rest = rows[np.sort(order[:count])], rows[np.sort(order[count:])]
    calibration = Calibration(columns(calibrating), calibrating["step_s"].to_numpy())
    return Evaluation(rest, calibration.intervals(columns(rest)), f"{count} rows drawn with seed {seed}")
