"""What keeps the steps of a run from being what they are taken for, and which steps all ranks have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_polars import pl
from ccl_bench.result import WHOLE_TRACE

if TYPE_CHECKING:
    from collections.abc import Collection

_STEPS = ("steps",)
"""What these findings touch: everything that is told of a step."""

LAUNCHES_MISSING = 0.01
"""Share of a device's work in steps that may lack its launch without a word."""


def step_findings(steps: pl.DataFrame) -> list[Finding]:
    """Return what speaks against the steps that were found in the traces of a run."""
    return [*_not_marked(steps), *_unequal(steps), *_without_launch(steps)]


def _not_marked(steps: pl.DataFrame) -> list[Finding]:
    whole = steps.filter(pl.col("source") == WHOLE_TRACE)
    if whole.is_empty():
        return []
    message = (
        f"nothing marks a step in {_traces(whole)}: all of it counts as one, so that what is told of a step "
        "is told of the whole trace"
    )
    return [Finding("steps-not-found", "warning", message, count=whole.height, touches=_STEPS)]


def _unequal(steps: pl.DataFrame) -> list[Finding]:
    """Tell which traces have steps that communicate more often than others of theirs."""
    counted = steps.group_by("trace", "rank", maintain_order=True).agg(pl.col("calls"))
    odd = counted.filter(pl.col("calls").list.n_unique() > 1)
    if odd.is_empty():
        return []
    calls = odd["calls"].list.unique().list.sort()[0].to_list()
    seen = ", ".join(map(str, calls if len(calls) <= _LISTED else [*calls[: _LISTED - 1], "...", calls[-1]]))
    message = (
        f"steps of {_traces(odd)} hold different numbers of communication calls, as {seen}: they may "
        "not be the program's steps, or not whole"
    )
    return [Finding("steps-unequal", "warning", message, count=odd.height, touches=_STEPS)]


_LISTED = 5
"""Numbers that a message lists."""


def _without_launch(steps: pl.DataFrame) -> list[Finding]:
    missing, work = (int(steps[name].sum()) for name in ("unlaunched", "work"))
    if missing <= LAUNCHES_MISSING * work:
        return []
    message = (
        f"{missing:,} of {work:,} kernels, copies and sets in steps have no recorded launch: they count to "
        "the step in whose time they ran, whichever launched them"
    )
    return [Finding("launches-missing", "warning", message, count=missing, touches=_STEPS)]


def _traces(rows: pl.DataFrame) -> str:
    """Return of which trace, or of how many, rows are."""
    if rows.height > 1:
        return f"{rows.height} traces"
    rank = rows["rank"][0]
    return "the trace" if rank is None else f"the trace of rank {rank}"


def common_steps(
    steps: pl.DataFrame, left_out: Collection[int] = ()
) -> tuple[dict[int, frozenset[int]], list[Finding]]:
    """Return for traces with steps that others lack those that all have, and what to say of it.

    Traces are compared within one recording window; those `left_out` are not.
    """
    own = steps.filter(~pl.col("trace").is_in([*left_out]))
    each = own.group_by("iteration", "trace", maintain_order=True).agg(pl.col("step").unique())
    kept: dict[int, frozenset[int]] = {}
    for _, traces in each.group_by("iteration"):
        numbers = {trace: frozenset(found) for trace, found in traces.select("trace", "step").iter_rows()}
        common = frozenset.intersection(*numbers.values())
        kept |= {trace: common for trace, found in numbers.items() if found != common}
    if not kept:
        return {}, []
    counts = each.filter(pl.col("trace").is_in([*kept])).select(pl.col("step").list.len())
    lost = sum(counts.to_series()) - sum(map(len, kept.values()))
    return kept, [_steps_differ(lost, any(not common for common in kept.values()))]


def _steps_differ(lost: int, nothing_left: bool) -> Finding:
    if nothing_left:
        message = "the ranks recorded different steps and have none in common"
        return Finding("no-common-step", "error", message, touches=_STEPS)
    message = f"the ranks recorded different steps: {lost:,} steps that not all of them have are left out"
    return Finding("steps-differ", "warning", message, count=lost, touches=_STEPS)
