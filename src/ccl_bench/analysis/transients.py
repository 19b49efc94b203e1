"""Steps that are not like the others: warm-up at the beginning of a recording window, outliers in it.

The first steps of a program compile, allocate, tune and open connections, and starting a profiler costs
time too. They are steps all the same, and stay in every mean; what the mean is without them is said.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.analysis.step_times import slowest, step_times
from ccl_bench.base.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccl_bench.base.lazy_polars import pl

WARM_UP_FACTOR = 1.5
"""Times the median of the other steps that a first step must take to be warm-up."""

OUTLIER_FACTOR = 2.0
"""Times longer or shorter than the median that a step must be to be an outlier."""

DEVIATIONS = 6.0
"""Standard deviations from the median that an outlier must lie away."""

OUTLIER_SHARE = 0.2
"""Share of the steps above which those that differ are no outliers: the run has several kinds of steps."""

_FEWEST_OTHERS = 2
_FEWEST_FOR_OUTLIERS = 5
_WORTH = 0.01
"""Relative change of the mean from which warm-up is more than a note."""

_SHOWN = 3
_SECOND_NS = 1_000_000_000
_OF_NORMAL = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of the run: how it is called and how long it took on its slowest rank."""

    label: str
    length_ns: int


def warm_up(lengths: Sequence[float]) -> int:
    """Return how many steps at the beginning are warm-up.

    Each takes longer than 1.5 times the median of the steps after them, and is further above the longest of
    those than that is above the shortest. At least half of the steps are no warm-up.
    """
    most = min(len(lengths) // 2, len(lengths) - _FEWEST_OTHERS)
    for count in range(most, 0, -1):
        others = lengths[count:]
        longest = max(others)
        limit = max(WARM_UP_FACTOR * statistics.median(others), 2 * longest - min(others))
        if min(lengths[:count]) > limit:
            return count
    return 0


def outliers(lengths: Sequence[float]) -> list[int]:
    """Return the places of steps that are at least twice as long or short as the median, beyond all noise.

    Where more than a fifth are, none is: the run has several kinds of steps.
    """
    if len(lengths) < _FEWEST_FOR_OUTLIERS:
        return []
    middle = statistics.median(lengths)
    noise = _OF_NORMAL * statistics.median(abs(length - middle) for length in lengths)
    found = [
        place
        for place, length in enumerate(lengths)
        if not middle / OUTLIER_FACTOR <= length <= OUTLIER_FACTOR * middle
        and abs(length - middle) > DEVIATIONS * noise
    ]
    return found if len(found) <= OUTLIER_SHARE * len(lengths) else []


def transient_findings(steps: pl.DataFrame | None, recorded: pl.DataFrame | None) -> list[Finding]:
    """Return what is to be said of steps unlike the others, in the traces and in a file of step times."""
    found: list[Finding] = []
    if steps is not None:
        found += _findings(step_times(steps), "steps")
    if recorded is not None:
        found += _findings(recorded, "step_times")
    return found


def _findings(times: pl.DataFrame, touches: str) -> Iterator[Finding]:
    windows = _by_window(times)
    counts = [warm_up([step.length_ns for step in window]) for window in windows]
    if any(counts):
        yield _of_warm_up(windows, counts, touches)
    rest = [window[count:] for window, count in zip(windows, counts, strict=True)]
    unlike = [window[place] for window in rest for place in outliers([step.length_ns for step in window])]
    if unlike:
        usual = statistics.median(step.length_ns for window in rest for step in window)
        message = f"{_told(unlike)}, where the median step takes {_seconds(usual)}"
        yield Finding("outlier-steps", "note", message, count=len(unlike), touches=(touches,))


def _of_warm_up(windows: list[list[_Step]], counts: list[int], touches: str) -> Finding:
    every = [step.length_ns for window in windows for step in window]
    first = [step for window, count in zip(windows, counts, strict=True) for step in window[:count]]
    others = [step.length_ns for window in windows for step in window[max(counts) :]]
    mean, without = statistics.fmean(every), statistics.fmean(others)
    message = (
        f"{_told(first)}, the median of the others {_seconds(statistics.median(others))}: warm-up, it seems; "
        f"the mean step is {_seconds(mean)}, without it (--skip-steps {max(counts)}) {_seconds(without)}"
    )
    severity = "warning" if mean > (1 + _WORTH) * without else "note"
    return Finding("warmup-steps", severity, message, count=len(first), touches=(touches,))


def _by_window(times: pl.DataFrame) -> list[list[_Step]]:
    """Return the steps of each recording window in order, as long as on the slowest rank."""
    windows: dict[int | None, list[_Step]] = {}
    several = times["iteration"].n_unique() > 1
    for window, step, length_ns in slowest(times).select("iteration", "step", "duration_ns").iter_rows():
        label = f"{window}:{step}" if several else str(step)
        windows.setdefault(window, []).append(_Step(label, length_ns))
    return list(windows.values())


def _told(steps: Sequence[_Step]) -> str:
    named = [f"step {step.label} takes {_seconds(step.length_ns)}" for step in steps[:_SHOWN]]
    more = [f"{len(steps) - _SHOWN} more differ as well"] if len(steps) > _SHOWN else []
    return ", ".join([*named, *more])


def _seconds(length_ns: float) -> str:
    return f"{length_ns / _SECOND_NS:.4g} s"
