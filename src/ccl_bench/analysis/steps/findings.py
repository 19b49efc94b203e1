"""Findings about steps: unmarked or unequal ones, warm-up, outliers; and the steps that all ranks have."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from ccl_bench.analysis.steps.marks import PROFILER_RANGE
from ccl_bench.analysis.steps.steps import host_range_ns, mean_step_ns, slowest, step_times
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.base.units import SECOND_NS
from ccl_bench.result import WHOLE_TRACE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_STEPS = ("steps",)
"""What these findings touch: everything that is measured in a step."""

LAUNCHES_MISSING = 0.01
"""Share of a device's work in steps that may lack its launch without a warning: numbers change by no more."""


def step_findings(steps: pl.DataFrame) -> list[Finding]:
    """Return the findings about the steps that were found in the traces of a run."""
    looks = (_not_marked, _unequal, _without_launch, _host_ahead, _skipped, _amid_operators)
    return [finding for look in looks for finding in look(steps)]


def _not_marked(steps: pl.DataFrame) -> list[Finding]:
    whole = steps.filter(pl.col("source") == WHOLE_TRACE)
    if whole.is_empty():
        return []
    message = f"nothing marks a step in {_traces(whole)}: the whole trace counts as one step"
    return [Finding("steps-not-found", "warning", message, count=whole.height, touches=_STEPS)]


def _unequal(steps: pl.DataFrame) -> list[Finding]:
    """Report which traces have steps that communicate more often than others of theirs."""
    counts = steps.group_by("trace", "rank", maintain_order=True).agg(pl.col("calls"))
    unequal = counts.filter(pl.col("calls").list.n_unique() > 1)
    if unequal.is_empty():
        return []
    calls = unequal["calls"].list.unique().list.sort()[0].to_list()
    seen = ", ".join(map(str, calls if len(calls) <= _LISTED else [*calls[: _LISTED - 1], "...", calls[-1]]))
    message = (
        f"steps of {_traces(unequal)} have different numbers of communication calls, such as {seen}: they "
        "may not be the program's steps, or may be incomplete"
    )
    return [Finding("steps-unequal", "warning", message, count=unequal.height, touches=_STEPS)]


_LISTED = 5
"""Numbers that a message lists."""


def _without_launch(steps: pl.DataFrame) -> list[Finding]:
    missing, work = (int(steps[name].sum()) for name in ("unlaunched", "work"))
    if not missing:
        return []
    severity = "warning" if missing > LAUNCHES_MISSING * work else "note"
    message = (
        f"{missing:,} of {work:,} kernels, copies and sets in steps have no recorded launch: they count in "
        "the step in which they ran, although another step may have launched them"
    )
    return [Finding("launches-missing", severity, message, count=missing, touches=_STEPS)]


HOST_AHEAD = 0.05
"""Share by which ranges of the host may be shorter than steps without a finding, as two files may differ."""


def _host_ahead(steps: pl.DataFrame) -> list[Finding]:
    """Report that ranges on the host are shorter than the steps of the device that they launch."""
    times = step_times(steps)
    host_ns = host_range_ns(times)
    if host_ns is None:
        return []
    step_ns = mean_step_ns(times)
    if host_ns >= (1 - HOST_AHEAD) * step_ns:
        return []
    message = (
        f"the host runs ahead of the device: its ranges last {_seconds(host_ns)}, but a step takes "
        f"{_seconds(step_ns)} from the completion of the one before to its own, which is the length used"
    )
    return [Finding("host-ahead", "note", message, touches=_STEPS)]


def _skipped(steps: pl.DataFrame) -> list[Finding]:
    """Report traces whose numbers of steps go on by more than they usually do."""
    of_trace = pl.col("step").diff().over("trace")
    distances = steps.sort("trace", "start_ns").with_columns(distance=of_trace).drop_nulls("distance")
    usual = pl.when(pl.col("source") == PROFILER_RANGE).then(1).otherwise(pl.col("distance").min())
    skipped = distances.filter(pl.col("distance") > usual)
    if skipped.is_empty():
        return []
    first = skipped.row(0, named=True)
    message = (
        f"{_traces(skipped.unique('trace'))} lack steps between others, such as those between "
        f"{first['step'] - first['distance']} and {first['step']}: they are in no number"
    )
    return [Finding("steps-skipped", "note", message, count=skipped.height, touches=_STEPS)]


def _amid_operators(steps: pl.DataFrame) -> list[Finding]:
    amid = steps.filter("cuts_operator")
    if amid.is_empty():
        return []
    message = (
        f"{amid.height:,} of {steps.height:,} steps begin within operators of their own thread: the marks of "
        "steps, or the operators, have damaged times"
    )
    return [Finding("steps-amid-operators", "warning", message, count=amid.height, touches=_STEPS)]


def _traces(rows: pl.DataFrame) -> str:
    """Return of which trace, or of how many, rows are."""
    if rows.height > 1:
        return f"{rows.height} traces"
    rank = rows["rank"][0]
    return "the trace" if rank is None else f"the trace of rank {rank}"


def common_steps(
    steps: pl.DataFrame, left_out: Collection[int] = ()
) -> tuple[dict[int, frozenset[int]], list[Finding]]:
    """Return the common steps of each trace that has others too, and the finding about them.

    Traces are compared within one recording window; those `left_out` are not.
    """
    compared_steps = steps.filter(~pl.col("trace").is_in([*left_out]))
    each = compared_steps.group_by("iteration", "trace", maintain_order=True).agg(pl.col("step").unique())
    common_by_trace: dict[int, frozenset[int]] = {}
    for _, traces in each.group_by("iteration"):
        numbers = {
            trace: frozenset(recorded) for trace, recorded in traces.select("trace", "step").iter_rows()
        }
        common = frozenset.intersection(*numbers.values())
        common_by_trace |= {trace: common for trace, recorded in numbers.items() if recorded != common}
    if not common_by_trace:
        return {}, []
    counts = each.filter(pl.col("trace").is_in([*common_by_trace])).select(pl.col("step").list.len())
    lost = sum(counts.to_series()) - sum(map(len, common_by_trace.values()))
    if not all(common_by_trace.values()):
        message = "the ranks recorded different steps and have none in common"
        return common_by_trace, [Finding("no-common-step", "error", message, touches=_STEPS)]
    which = counted(lost, "step that some ranks lack is", "steps that some ranks lack are")
    message = f"the ranks recorded different steps: {which} left out"
    return common_by_trace, [Finding("steps-differ", "warning", message, count=lost, touches=_STEPS)]


WARM_UP_FACTOR = 1.5
"""Times the median of the other steps that a first step must take to be warm-up: compiling takes longer."""

OUTLIER_FACTOR = 2.0
"""Times longer or shorter than the median that a step must be to be an outlier: it did other work."""

DEVIATIONS = 6.0
"""Standard deviations from the median that an outlier must lie away: normal noise never reaches them."""

OUTLIER_SHARE = 0.2
"""Share of the steps above which those that differ are no outliers: the run has several kinds of steps."""

_FEWEST_OTHERS = 2
"""Steps after warm-up, at least: of one nothing shows how much steps differ."""

_FEWEST_FOR_OUTLIERS = 5
"""Steps from which there are outliers: of four one is more than a fifth."""

_WORTH = 0.01
"""Relative change of the mean from which warm-up is more than a note: repeated runs differ as much."""

_SHOWN = 3
_OF_NORMAL = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""


def warm_up(lengths: Sequence[float]) -> int:
    """Return the number of steps at the beginning that are warm-up.

    Each takes longer than 1.5 times the median of the steps after them, and is further above the longest of
    those than that is above the shortest. At least half of the steps are no warm-up.
    """
    most_steps = min(len(lengths) // 2, len(lengths) - _FEWEST_OTHERS)
    for count in range(most_steps, 0, -1):
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
    places = [
        place
        for place, length in enumerate(lengths)
        if not middle / OUTLIER_FACTOR <= length <= OUTLIER_FACTOR * middle
        and abs(length - middle) > DEVIATIONS * noise
    ]
    return places if len(places) <= OUTLIER_SHARE * len(lengths) else []


def transient_findings(steps: pl.DataFrame | None, recorded: pl.DataFrame | None) -> list[Finding]:
    """Return the findings about steps unlike the others, in the traces and in a file of step times."""
    findings: list[Finding] = []
    if steps is not None:
        findings += _findings(step_times(steps), "steps")
    if recorded is not None:
        findings += _findings(recorded, "step_times")
    return findings


def _findings(times: pl.DataFrame, touches: str) -> Iterator[Finding]:
    windows: dict[int | None, list[tuple[str, int]]] = {}
    several = times["iteration"].n_unique() > 1
    for window, step, length_ns in slowest(times).select("iteration", "step", "duration_ns").iter_rows():
        windows.setdefault(window, []).append((f"{window}:{step}" if several else str(step), length_ns))
    counts = {window: warm_up(_lengths(steps)) for window, steps in windows.items()}
    if most := max(counts.values(), default=0):
        first = [step for window, steps in windows.items() for step in steps[: counts[window]]]
        others = [length for steps in windows.values() for length in _lengths(steps[most:])]
        mean = statistics.fmean(length for steps in windows.values() for length in _lengths(steps))
        without = statistics.fmean(others)
        message = (
            f"{_long_steps(first)}, the median of the others is {_seconds(statistics.median(others))}: "
            f"probably warm-up; the mean step is {_seconds(mean)}, without it (--skip-steps {most}) "
            f"{_seconds(without)}"
        )
        severity = "warning" if mean > (1 + _WORTH) * without else "note"
        yield Finding("warmup-steps", severity, message, count=len(first), touches=(touches,))
    rest = [steps[counts[window] :] for window, steps in windows.items()]
    outlying = [steps[place] for steps in rest for place in outliers(_lengths(steps))]
    if outlying:
        usual = statistics.median(length for steps in rest for length in _lengths(steps))
        message = f"{_long_steps(outlying)}, but the median step takes {_seconds(usual)}"
        yield Finding("outlier-steps", "note", message, count=len(outlying), touches=(touches,))


def _lengths(steps: Sequence[tuple[str, int]]) -> list[int]:
    return [length_ns for _, length_ns in steps]


def _long_steps(steps: Sequence[tuple[str, int]]) -> str:
    clauses = [f"step {label} takes {_seconds(length_ns)}" for label, length_ns in steps[:_SHOWN]]
    more = [f"{len(steps) - _SHOWN} more steps differ too"] if len(steps) > _SHOWN else []
    return ", ".join([*clauses, *more])


def _seconds(length_ns: float) -> str:
    return f"{length_ns / SECOND_NS:.4g} s"
