"""Two serving sweeps compared: throughput at equal interactivity, where both were measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.analysis.serving.sweep import are_same_length, throughput_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.comparison.run_results import RunResults
    from ccl_bench.result.sweep import Sweep


@dataclass(frozen=True, slots=True)
class AtInteractivity:
    """The throughput of both sides at one interactivity."""

    interactivity: float
    """Tokens/s per user; at least one side has a measured point there."""
    baseline: float
    """Output tokens per second, per GPU if both sides know their number."""
    other: float
    is_baseline_measured: bool
    """Whether the baseline was measured there; else it is interpolated."""
    is_other_measured: bool

    @property
    def ratio(self) -> float:
        """Throughput of the run over that of the baseline."""
        return self.other / self.baseline


@dataclass(frozen=True, slots=True)
class SweepChange:
    """One sweep against that of the baseline."""

    points: tuple[AtInteractivity, ...] = ()
    """By rising interactivity."""
    per_gpu: bool = True
    """Whether throughput is per GPU; else it is that of all."""
    refused: str = ""
    """Why they are not compared."""


def compare_sweeps(baseline: RunResults, other: RunResults) -> SweepChange | None:
    """Return the comparison of two sweeps; None if neither side has several serving results."""
    sides = {"the baseline": baseline, "the run": other}
    if not any(side.sweep or side.why_no_sweep for side in sides.values()):
        return None
    for name, side in sides.items():
        if side.sweep is None:
            why = side.why_no_sweep or "it holds fewer than two results of a serving benchmark"
            return SweepChange(refused=f"{name} is no sweep: {why}")
    if baseline.sweep is None or other.sweep is None:
        return None
    if difference := next(_differences(baseline.sweep, other.sweep), ""):
        return SweepChange(refused=difference)
    points = tuple(_points(baseline.sweep, other.sweep))
    refused = "" if points else "their measured ranges of interactivity do not overlap"
    return SweepChange(points, baseline.sweep.devices is not None, refused)


def _differences(baseline: Sweep, other: Sweep) -> Iterator[str]:
    """Yield why two sweeps are not comparable."""
    models = [sweep.configuration.get("model") for sweep in (baseline, other)]
    if None not in models and models[0] != models[1]:
        yield f"they serve different models: {models[0]} and {models[1]}"
    for name in ("input_tokens", "output_tokens"):
        one, two = (getattr(sweep, name) for sweep in (baseline, other))
        words = name.replace("_", " ")
        if one is None or two is None:
            yield f"the {words} of a request are unknown"
        elif not are_same_length(one, two):
            yield f"the {words} of a request differ: {one:.4g} and {two:.4g}"
    if baseline.objectives_s != other.objectives_s:
        limits = (
            ", ".join(f"{name} {value:g} s" for name, value in sorted(sweep.objectives_s.items())) or "none"
            for sweep in (baseline, other)
        )
        yield f"their objectives differ: {' and '.join(limits)}"
    if (baseline.devices is None) != (other.devices is None):
        yield baseline.why_no_devices or other.why_no_devices


def _points(baseline: Sweep, other: Sweep) -> Iterator[AtInteractivity]:
    """Yield both throughputs at each measured point of either front where both have one."""
    measured = [
        {
            point.interactivity.median
            for point in (sweep.points[place] for place in sweep.front)
            if point.interactivity is not None
        }
        for sweep in (baseline, other)
    ]
    for interactivity in sorted(measured[0] | measured[1]):
        one, two = throughput_at(baseline, interactivity), throughput_at(other, interactivity)
        if one is not None and two is not None:
            yield AtInteractivity(interactivity, one, two, *(interactivity in side for side in measured))
