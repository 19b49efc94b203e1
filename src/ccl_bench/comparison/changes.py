"""Changes between two runs: each metric with its noise and a verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from ccl_bench.comparison.comparability import remarks
from ccl_bench.comparison.noise import FEWEST, Interval, difference_interval, thinned, unstable
from ccl_bench.comparison.run_results import samples_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ccl_bench.comparison.step_breakdown import Attribution
    from ccl_bench.result import Result

TOLERANCE = 0.01
"""Relative change below which the verdict is neither better nor worse: repeated runs differ as much."""

HIDDEN = 0.05
"""Relative change that noise must not be able to hide if the verdict is "no change"."""

POINTS = 0.1
"""Percentage points that count as small in a metric in %, even if the value is small."""

Verdict = Literal["better", "worse", "changed", "no change", "cannot tell", "not comparable"]
"""`changed` is for metrics without a better direction."""


@dataclass(frozen=True, slots=True)
class Change:
    """One metric in two runs."""

    metric: str
    unit: str
    better: Literal["higher", "lower", "neither"]
    verdict: Verdict
    baseline: float | None = None
    """Value in the baseline; None without one."""
    other: float | None = None
    difference: float | None = None
    """Other minus baseline, in the metric's unit."""
    relative: float | None = None
    """The same over the baseline's absolute value; None where that is 0."""
    interval: Interval | None = None
    """Interval of the difference, from the spread over steps; None if unknown."""
    samples: tuple[int, int] = (0, 0)
    """Steps, requests or passes behind each value."""
    remarks: tuple[str, ...] = ()
    """Remarks that limit or qualify the verdict."""
    is_blocked: bool = False
    """Whether another aspect makes the numbers incomparable."""
    is_unstable: bool = False
    """Whether a repeated recording may give another interval."""

    @property
    def is_worse(self) -> bool:
        """Whether the value moved in the worse direction, regardless of noise."""
        moved = self.difference or 0.0
        return (self.better == "lower" and moved > 0) or (self.better == "higher" and moved < 0)


def find_changes(
    baseline: Mapping[str, Result],
    other: Mapping[str, Result],
    names: Sequence[str],
    *,
    are_comparable: bool = True,
    tolerance: float = TOLERANCE,
) -> tuple[Change, ...]:
    """Return the change of each named metric that has a value on at least one side."""
    changes = []
    for name in names:
        one, two = baseline.get(name), other.get(name)
        if one is not None and one.value is not None and two is not None and two.value is not None:
            changes.append(_change(one, two, are_comparable=are_comparable, tolerance=tolerance))
            continue
        for result, missing, side in ((one, two, "the other run"), (two, one, "the baseline")):
            if result is not None and result.value is not None:
                why = f": {missing.reason}" if missing else ""
                changes.append(
                    Change(
                        result.metric,
                        result.unit,
                        result.better,
                        "cannot tell" if are_comparable else "not comparable",
                        one.value if one else None,
                        two.value if two else None,
                        remarks=(f"{side} has no value{why}",),
                    )
                )
    return tuple(changes)


def _change(one: Result, two: Result, *, are_comparable: bool, tolerance: float) -> Change:
    before, after = float(one.value or 0.0), float(two.value or 0.0)
    samples = samples_of(one), samples_of(two)
    notes = remarks(one, two)
    interval = difference_interval(*samples)
    if interval is not None:
        # A value may differ from the plain mean of its samples, for example if it is a rate.
        plain_before, plain_after = (fmean(thinned(side)) for side in samples)
        shift, plain = after - before, plain_after - plain_before
        interval = Interval(interval.low + shift - plain, interval.high + shift - plain)
    is_blocked = any(remark.blocks for remark in notes)
    shaky, why = (unstable(*samples) if interval and interval.low < interval.high else ""), ""
    verdict: Verdict = "cannot tell"
    if not are_comparable:
        verdict, shaky = "not comparable", ""
    elif not is_blocked and before == after and samples[0] == samples[1]:
        verdict, shaky = "no change", ""
    elif not is_blocked:
        little = max(tolerance * abs(before), POINTS if one.unit == "%" else 0.0)
        verdict, why = _verdict(one.better, before, after - before, interval, little)
    texts = (why, *(remark.text for remark in notes), f"may be unstable: {shaky}" if shaky else "")
    return Change(
        one.metric,
        one.unit,
        one.better,
        verdict,
        before,
        after,
        after - before,
        (after - before) / abs(before) if before else (None if after else 0.0),
        interval,
        (len(samples[0]), len(samples[1])),
        tuple(filter(None, texts)),
        is_blocked,
        bool(shaky),
    )


def _verdict(
    better: str, before: float, difference: float, interval: Interval | None, little: float
) -> tuple[Verdict, str]:
    """Return the verdict on a difference, and the reason for its limits."""
    is_small = abs(difference) < little
    if interval is None:
        if is_small:
            return "no change", ""
        return "cannot tell", f"with fewer than {FEWEST} samples on a side the noise is unknown"
    if not is_small and not interval.has_zero:
        if better == "neither":
            return "changed", ""
        return ("better" if (difference > 0) == (better == "higher") else "worse"), ""
    reach = max(abs(interval.low), abs(interval.high))
    if reach <= max(HIDDEN * abs(before), little):
        return "no change", ""
    share = f" of up to {100 * reach / abs(before):.0f} %" if before else ""
    return "cannot tell", f"a change{share} may hide in the noise"


SHARES_OF_STEP = (
    "communication_fraction",
    "fsdp_overhead",
    "gpu_idle",
    "memory_transfer_overhead",
    "straggler",
)
"""Metrics that are shares of step time, where lower is better."""

REMARK = "a larger share of a shorter step: the time itself did not grow"


def judge_shares(
    changes: Iterable[Change], attribution: Attribution | None, tolerance: float
) -> tuple[Change, ...]:
    """Return changes in which such a share is not "worse" if its time did not grow."""
    if attribution is None or attribution.is_within_noise or attribution.step.difference_s >= 0:
        return tuple(changes)
    judged = []
    for change in changes:
        before = (change.baseline or 0.0) * attribution.step.baseline_s
        after = (change.other or 0.0) * attribution.step.other_s
        is_worse_share = change.metric in SHARES_OF_STEP and change.verdict == "worse"
        if is_worse_share and after <= (1 + tolerance) * before:
            change = replace(change, verdict="changed", remarks=(REMARK, *change.remarks))
        judged.append(change)
    return tuple(judged)
