"""Limits for a comparison, in the notation of users: `5%`, `mfu:2%`, `peak_memory_allocated>0.5`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ccl_bench.base.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccl_bench.comparison.changes import Change

GRAMMAR = "write 5%, METRIC:5%, METRIC>5% or METRIC<-5%; without % a limit is in the metric's unit"

_LIMIT = re.compile(
    r"(?:(?P<metric>[A-Za-z]\w*)\s*(?P<sign>[:<>]))?\s*"
    r"(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*(?P<percent>%?)"
)

Outcome = Literal["kept", "crossed", "not judged"]


@dataclass(frozen=True, slots=True)
class Threshold:
    """One limit."""

    text: str
    """As written."""
    limit: float
    """A share of the baseline, or a difference in the metric's unit."""
    is_relative: bool
    metric: str = ""
    """Empty for every metric with a better direction and known noise."""
    sign: Literal[":", "<", ">"] = ":"
    """`:` the metric got worse by more, `>` it rose by more, `<` its change is below the limit."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome of a threshold."""

    threshold: str
    """As written."""
    outcome: Outcome
    metrics: tuple[str, ...] = ()
    """Metrics that exceed it."""
    reason: str = ""
    """Why it could not be judged."""


def parse_threshold(text: str, canonical: Callable[[str], str]) -> Threshold:
    """Return the threshold in `text`; raise UsageError if it is invalid.

    `canonical` gives the registered name of a metric, and raises UsageError for an unknown one.
    """
    match = _LIMIT.fullmatch(text.strip())
    limit = float(match["number"]) if match else math.inf
    if match is None or not math.isfinite(limit):
        raise UsageError(f"{text!r} is not a valid limit", fix=GRAMMAR)
    is_relative = bool(match["percent"])
    metric, sign = canonical(match["metric"]) if match["metric"] else "", match["sign"] or ":"
    if sign == ":" and limit < 0:
        raise UsageError(f"{text!r}: the limit of a worsening cannot be negative", fix=GRAMMAR)
    if not metric and not is_relative:
        raise UsageError(f"{text!r} names no metric, but metrics have different units", fix=GRAMMAR)
    return Threshold(text, limit / 100 if is_relative else limit, is_relative, metric, sign)  # type: ignore[arg-type]


def judge_threshold(limit: Threshold, changes: Sequence[Change]) -> Judgement:
    """Return whether the changes of one comparison meet a threshold.

    A change that may be noise counts as none. If the noise is unknown, a threshold for the metric uses the
    number itself, and one for all metrics skips it.
    """
    if limit.metric:
        judged = [each for each in changes if each.metric == limit.metric][:1]
        reason = "" if judged else f"neither run has a value of {limit.metric}"
        for change in judged:
            if change.verdict == "not comparable":
                reason = "the runs are not comparable"
            elif not _is_judged(change) or (limit.is_relative and change.relative is None):
                reason = "; ".join(change.remarks) or "the baseline is 0"
    else:
        judged = [each for each in changes if each.better != "neither" and each.interval and _is_judged(each)]
        reason = "" if judged else "no comparable metric has a direction and known noise"
    if reason:
        return Judgement(limit.text, "not judged", reason=reason)
    crossed = tuple(each.metric for each in judged if _crosses(limit, each))
    return Judgement(limit.text, "crossed" if crossed else "kept", crossed)


def _is_judged(change: Change) -> bool:
    """Whether the change is a meaningful number, even without known noise."""
    return change.difference is not None and change.verdict != "not comparable" and not change.is_blocked


def _crosses(limit: Threshold, change: Change) -> bool:
    moved = (change.relative if limit.is_relative else change.difference) or 0.0
    if change.verdict == "no change" or (change.interval and change.interval.has_zero):
        moved = 0.0
    if limit.sign == ">":
        return moved > limit.limit
    if limit.sign == "<":
        return moved < limit.limit
    return abs(moved) > limit.limit and (change.is_worse or change.better == "neither")
