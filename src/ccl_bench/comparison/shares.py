"""Shares of a step that rose because the step got shorter, and not what they are shares of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.comparison.changes import Change
    from ccl_bench.comparison.step_breakdown import Attribution

SHARES_OF_STEP = (
    "communication_fraction",
    "fsdp_overhead",
    "gpu_idle",
    "memory_transfer_overhead",
    "straggler",
)
"""Metrics that are shares of the time of steps, of which less is better."""

REMARK = "a larger share of a shorter step: the time itself did not grow"


def judge_shares(
    changes: Iterable[Change], found: Attribution | None, tolerance: float
) -> tuple[Change, ...]:
    """Return changes in which such a share is not called worse, since its time did not grow."""
    return tuple(_judged(change, found, tolerance) for change in changes)


def _judged(change: Change, found: Attribution | None, tolerance: float) -> Change:
    is_share = change.metric in SHARES_OF_STEP and change.verdict == "worse"
    if not is_share or found is None or found.is_within_noise or found.step.difference_s >= 0:
        return change
    before = (change.baseline or 0.0) * found.step.baseline_s
    after = (change.other or 0.0) * found.step.other_s
    if after > (1 + tolerance) * before:
        return change
    return replace(change, verdict="changed", remarks=(REMARK, *change.remarks))
