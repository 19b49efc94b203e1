"""Where a step got longer: the difference of two mean steps, divided as far as details of results hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.comparison.divisions import DIVIDED, STEP, Division, Part, between, details_of, divisions
from ccl_bench.comparison.noise import Interval, difference_interval

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccl_bench.result import Result

PARTS = ("compute", "fused", "exposed_communication", "exposed_memory", "idle")
"""The parts that make up a step; `fused` only where kernels compute and communicate in one."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """Where the difference between two mean steps lies."""

    step: Part
    """The step on the device, mean over ranks and steps."""
    parts: tuple[Part, ...]
    """Compute, fused, exposed communication, exposed memory, idle: their differences add up to the step's."""
    divisions: tuple[Division, ...] = ()
    interval: Interval | None = None
    """Where the step's difference lies, as far as the spread over steps tells."""
    is_within_noise: bool = False
    """Whether the steps may be equally long."""


def attribution(baseline: Mapping[str, Result], other: Mapping[str, Result]) -> Attribution | None:
    """Return where the step of `other` got longer than that of the baseline; None where details lack."""
    sides = [_steps(results) for results in (baseline, other)]
    if not all(sides):
        return None
    means = [_means(side) for side in sides]
    step = between(STEP, *means)
    interval = difference_interval(*([each[STEP] for each in side] for side in sides))
    return Attribution(
        step,
        tuple(between(name, *means) for name in PARTS if any(name in each for each in means)),
        tuple(divisions(baseline, other)),
        interval,
        step.difference_s == 0 or (interval is not None and interval.has_zero),
    )


def _steps(results: Mapping[str, Result]) -> list[dict[str, float]]:
    """Return the parts of each step, mean over ranks, s."""
    return list(details_of(results, DIVIDED).get("per_step_parts_s", {}).values())


def _means(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean parts over steps; the step is their sum."""
    listed = [name for name in PARTS if name in steps[0]]
    means = {name: sum(step[name] for step in steps) / len(steps) for name in listed}
    return {**means, STEP: sum(means.values())}
