"""The difference of two mean steps, divided into parts as far as the details of results allow."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ccl_bench.comparison.noise import Interval, difference_interval
from ccl_bench.comparison.run_results import samples_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ccl_bench.result import Result
    from ccl_bench.result.details import ExposedDetails, IdleDetails

MOST_PARTS = 10
"""Largest number of parts of a breakdown that are listed: those after it have changed little."""


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of a step in two runs."""

    name: str
    baseline_s: float
    other_s: float
    difference_s: float
    """Other minus baseline."""


@dataclass(frozen=True, slots=True)
class Division:
    """The difference of one quantity, divided."""

    name: str
    metric: str
    """Metric whose details these are."""
    parts: tuple[StepPart, ...]
    """The largest difference first."""
    of: str = ""
    """StepPart of the step that these add up to; empty if they count concurrent work separately."""
    left_out: int = 0
    """Number of unlisted parts, those with the smallest differences."""


@dataclass(frozen=True, slots=True)
class _DivisionRule:
    """How a breakdown is read from the details of a metric."""

    name: str
    metric: str
    parts_of: Callable[[Any], dict[str, float]]
    """Returns the parts, s; details of an older version may lack some of them."""
    of: str = ""
    needs_both: bool = False
    """Whether a part that one side does not list is unknown there, instead of 0."""


STEP = "window"
DIVIDED = "gpu_busy"
"""The metric whose details divide a step into its parts."""

STEP_TIME = "iteration_wall_clock_time"
"""The metric that is the length of a step."""

BY_TYPE, BY_KERNEL = "kernel types", "kernels with most time"


def divide_step(baseline: Mapping[str, Result], other: Mapping[str, Result]) -> Iterator[Division]:
    """Yield every breakdown for which both sides have details."""
    for way in _DIVISION_RULES:
        one, two = (way.parts_of(details_of(results, way.metric)) for results in (baseline, other))
        names = list(one.keys() & two.keys() if way.needs_both else one.keys() | two.keys())
        parts = [part_difference(name, one, two) for name in sorted(names)] if one and two else []
        parts = [part for part in parts if part.baseline_s or part.other_s]
        if parts:
            parts.sort(key=lambda part: -abs(part.difference_s))
            left_out = max(0, len(parts) - MOST_PARTS)
            yield Division(way.name, way.metric, tuple(parts[:MOST_PARTS]), way.of, left_out)


def part_difference(name: str, one: Mapping[str, float], two: Mapping[str, float]) -> StepPart:
    """Return one part of both sides; an unlisted value is 0."""
    before, after = one.get(name, 0.0), two.get(name, 0.0)
    return StepPart(name, before, after, after - before)


def details_of(results: Mapping[str, Result], metric: str) -> Mapping[str, Any]:
    """Return the details of a metric that has a value, else none."""
    result = results.get(metric)
    return result.details if result is not None and result.value is not None else {}


def _causes(details: IdleDetails) -> dict[str, float]:
    causes = {
        "waiting for the host": details.get("host_wait_s"),
        "before the next kernel": details.get("kernel_wait_s"),
        "other": details.get("other_wait_s"),
    }
    return {name: seconds for name, seconds in causes.items() if seconds is not None}


_EXPOSED = "exposed_communication"
BY_PART = "waiting and transfer"

_MOSTLY = 0.5
"""Largest unknown share of exposed communication that is still divided into waiting and transfer."""


def _exposed_parts(details: ExposedDetails) -> dict[str, float]:
    """Return the parts of exposed communication; empty if most of it is unknown."""
    parts = details.get("parts_s", {})
    is_known = parts.get("unknown", 0.0) <= _MOSTLY * sum(parts.values())
    return {_NAMES.get(name, name): seconds for name, seconds in parts.items()} if is_known else {}


_NAMES = {"unknown": "unknown communication"}

_DIVISION_RULES = (
    _DivisionRule(BY_PART, "exposed_communication_time", _exposed_parts, _EXPOSED),
    _DivisionRule(
        "collective",
        "exposed_communication_time",
        lambda details: details.get("per_collective_s", {}),
        _EXPOSED,
    ),
    _DivisionRule(
        "parallelism dimension",
        "traffic_distribution",
        lambda details: {
            name: row.get("exposed_s_per_gpu_and_step", 0.0)
            for name, row in details.get("per_dimension", {}).items()
        },
        _EXPOSED,
    ),
    _DivisionRule("cause", "idle_breakdown", _causes, "idle"),
    _DivisionRule(BY_TYPE, "total_kernel_time", lambda details: details.get("per_type_s", {})),
    _DivisionRule(
        BY_KERNEL,
        "dominant_kernel_concentration",
        lambda details: {
            row["name"]: row["s_per_step"] for row in details.get("first", []) if "s_per_step" in row
        },
        needs_both=True,
    ),
    _DivisionRule("phases", "forward_time", lambda details: details.get("per_phase_s", {})),
    _DivisionRule(
        "waiting for other ranks",
        "straggler_lag_16",
        lambda details: {f"rank {rank}": wait for rank, wait in details.get("wait_s_per_step", {}).items()},
        needs_both=True,
    ),
    _DivisionRule(
        "step of each rank",
        DIVIDED,
        lambda details: {
            f"rank {rank}": parts[STEP]
            for rank, parts in details.get("per_rank_parts_s_per_step", {}).items()
        },
        needs_both=True,
    ),
)

DIVIDED_METRICS = tuple(dict.fromkeys((STEP_TIME, DIVIDED, *(way.metric for way in _DIVISION_RULES))))
"""Metrics that give the length of a step, and divide it."""


BEYOND = "beyond_the_mean_rank"
"""The part of a step by which it is longer than that of the mean rank, because it is the slowest rank's."""

_OF_RANKS = ("compute", "fused", "exposed_communication", "exposed_memory", "idle")
PARTS = (*_OF_RANKS, BEYOND)
"""The parts of a step; `fused` only if kernels compute and communicate in one."""

_ROUNDING_S = 1e-12
"""Difference of two sums of whole nanoseconds that is one of their rounding."""


@dataclass(frozen=True, slots=True)
class Untraced:
    """The difference between the steps without the profiler, where side files of both runs give them."""

    step: StepPart
    interval: Interval | None
    is_within_noise: bool


@dataclass(frozen=True, slots=True)
class Attribution:
    """The breakdown of the difference between two mean steps."""

    step: StepPart
    """The step in the traces, mean over steps of the slowest rank's."""
    parts: tuple[StepPart, ...]
    """`PARTS`, mean over ranks: their differences add up to the step's."""
    divisions: tuple[Division, ...] = ()
    interval: Interval | None = None
    """Interval of the step's difference, from the spread over steps."""
    is_within_noise: bool = False
    """Whether the steps may be equally long."""
    untraced: Untraced | None = None

    @property
    def finest_parts(self) -> tuple[StepPart, ...]:
        """The parts with waiting and transfer instead of exposed communication, if both sides have them."""
        divided = {each.of: each.parts for each in self.divisions if each.name == BY_PART}
        return tuple(fine for part in self.parts for fine in divided.get(part.name, (part,)))

    @property
    def further_divisions(self) -> tuple[Division, ...]:
        """Further breakdowns of the difference."""
        return tuple(each for each in self.divisions if each.name != BY_PART)


def attribute_step(baseline: Mapping[str, Result], other: Mapping[str, Result]) -> Attribution | None:
    """Return the breakdown of the change from the baseline to `other`; None if details are missing."""
    sides = [details_of(results, DIVIDED) for results in (baseline, other)]
    means = [_parts(details) for details in sides]
    if not all(means):
        return None
    step = part_difference(STEP, *means)
    interval = difference_interval(*([*details["longest_s_by_step"].values()] for details in sides))
    return Attribution(
        step,
        tuple(part_difference(name, *means) for name in PARTS if any(name in each for each in means)),
        tuple(divide_step(baseline, other)),
        interval,
        _is_noise(step, interval),
        _untraced(baseline, other),
    )


def _is_noise(step: StepPart, interval: Interval | None) -> bool:
    return step.difference_s == 0 or (interval is not None and interval.has_zero)


def _parts(details: Mapping[str, Any]) -> dict[str, float]:
    """Return a mean step and its parts, s; empty if the details lack them."""
    ranks = list(details.get("per_rank_parts_s_per_step", {}).values())
    if not ranks or "step_s" not in details:
        return {}
    names = [name for name in (*_OF_RANKS, STEP) if name in ranks[0]]
    means = {name: fmean(rank[name] for rank in ranks) for name in names}
    beyond_s = details["step_s"] - means[STEP]
    beyond = {BEYOND: beyond_s} if abs(beyond_s) > _ROUNDING_S else {}
    return {**means, **beyond, STEP: details["step_s"]}


def _untraced(baseline: Mapping[str, Result], other: Mapping[str, Result]) -> Untraced | None:
    """Return the difference of the steps without the profiler; None unless side files of both give them."""
    sides = []
    for results in (baseline, other):
        result = results.get(STEP_TIME)
        if result is None or result.value is None or result.window == results[DIVIDED].window:
            return None
        sides.append(result)
    one, two = sides
    step = part_difference(STEP, {STEP: one.value or 0.0}, {STEP: two.value or 0.0})
    interval = difference_interval(samples_of(one), samples_of(two))
    return Untraced(step, interval, _is_noise(step, interval))
