"""Divergence of a group: the first collective that differs between members, or that a member lacks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl
from ccl_bench.result.hang import MISMATCH, MISSING, NO_DUMP, UNFINISHED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccl_bench.analysis.recorder.calls import ProcessGroup


@dataclass(frozen=True, slots=True)
class DivergentCalls:
    """A divergence as rows of the calls."""

    kind: str
    group: ProcessGroup
    sequence: int
    operation: str
    waiting: dict[int, int]
    """Rank that waits → its call, a row of the prepared calls."""
    missing: list[int] = field(default_factory=list)
    differing: dict[int, int] = field(default_factory=dict)
    without_dump: list[int] = field(default_factory=list)
    overwritten: list[int] = field(default_factory=list)
    is_p2p: bool = False

    @property
    def suspects(self) -> list[int]:
        """Ranks that the others wait for, or that called something else."""
        return [*self.missing, *self.differing] or self.without_dump or self.overwritten


def collective_divergences(
    calls: pl.DataFrame, groups: list[ProcessGroup], first_records: Mapping[int, int]
) -> Iterator[DivergentCalls]:
    """Yield the first divergence of each group that has one.

    `calls` are prepared, with their place as `row`; `first_records` is {rank with a dump: its first record},
    above 0 if older ones were overwritten. A ring buffer forgets, so that a group is compared from the
    largest first number that any member still has.
    """
    by_call = (
        calls.filter(~pl.col("is_p2p"))
        .drop_nulls("sequence")
        .group_by("number", "sequence", "rank")
        .agg(
            pl.col("signature").sort_by("row").str.join("; "),
            pl.col("is_done").all(),
            pl.col("is_pending").any(),
            pl.col("row").min(),
        )
    )
    spans = by_call.group_by("number", "rank").agg(
        pl.col("sequence").min().alias("first"), pl.col("sequence").max().alias("last")
    )
    of_group = {number: part for (number,), part in by_call.partition_by("number", as_dict=True).items()}
    spans_of = {number: part for (number,), part in spans.partition_by("number", as_dict=True).items()}
    for group in groups:
        if group.number in of_group:
            yield from _of_group(group, of_group[group.number], spans_of[group.number], first_records)


def _of_group(
    group: ProcessGroup, calls: pl.DataFrame, spans: pl.DataFrame, first_records: Mapping[int, int]
) -> Iterator[DivergentCalls]:
    last: dict[int, int] = dict(spans.select("rank", "last").iter_rows())
    begin = max(spans["first"])
    without_calls = [rank for rank in group.members if rank in first_records and rank not in last]
    overwritten = [rank for rank in without_calls if first_records[rank] > 0]
    last |= {rank: begin - 1 for rank in without_calls if rank not in overwritten}
    absent = [rank for rank in group.members if rank not in first_records]
    calls = calls.filter(pl.col("sequence") >= begin)
    differs = calls.group_by("sequence").agg(pl.col("signature").n_unique()).filter(pl.col("signature") > 1)
    mismatch = min(differs["sequence"], default=None)
    lacking = next(_lacking(calls, last), None)
    if mismatch is not None and (lacking is None or mismatch <= lacking):
        yield _mismatch(group, mismatch, calls, last, absent)
        return
    if lacking is not None:
        rows = calls.filter(pl.col("sequence") == lacking).sort("rank")
        waiting = dict(rows.filter(~pl.col("is_done")).select("rank", "row").iter_rows())
        missing = sorted(rank for rank, number in last.items() if number < lacking)
        operation = rows["signature"][0].partition(" ")[0]
        yield DivergentCalls(MISSING, group, lacking, operation, waiting, missing, {}, absent, overwritten)
        return
    # A finished call shows that all members took part: then no rank without a list in a dump is missing.
    others = group.possible if begin == 1 and calls["is_pending"].all() else ()
    missing = [rank for rank in others if rank in first_records]
    absent += [rank for rank in others if rank not in first_records]
    yield from _all_wait(DivergentCalls(MISSING, group, 0, "", {}, missing, {}, absent, overwritten), calls)


def _all_wait(divergent: DivergentCalls, calls: pl.DataFrame) -> Iterator[DivergentCalls]:
    """Yield the first collective in which all known members wait; nothing if there is none."""
    waits = calls.group_by("sequence").agg(pl.col("is_pending").all()).filter("is_pending")
    if waits.is_empty():
        return
    number = min(waits["sequence"])
    rows = calls.filter(pl.col("sequence") == number).sort("rank")
    other_kind = MISSING if divergent.overwritten else UNFINISHED
    kind = MISSING if divergent.missing else NO_DUMP if divergent.without_dump else other_kind
    operation = rows["signature"][0].partition(" ")[0]
    waiting = dict(rows.select("rank", "row").iter_rows())
    yield replace(divergent, kind=kind, sequence=number, operation=operation, waiting=waiting)


def _lacking(calls: pl.DataFrame, last: Mapping[int, int]) -> Iterator[int]:
    """Yield each collective that a member lacks and another waits in, in order.

    Where every member that called it saw it end, the others were there too: their dumps are only older.
    """
    reached = max(last.values())
    for number in sorted({*last.values()} - {reached}):
        rows = calls.filter(pl.col("sequence") == number + 1)
        if rows.height and not rows["is_done"].all():
            yield number + 1


def _mismatch(
    group: ProcessGroup, number: int, calls: pl.DataFrame, last: Mapping[int, int], absent: list[int]
) -> DivergentCalls:
    """Return the divergence where calls differ: those of the fewer ranks, or of all without a majority."""
    rows = calls.filter(pl.col("sequence") == number).sort("rank")
    counts = Counter(rows["signature"].to_list()).most_common()
    common = "" if counts[0][1] == counts[1][1] else counts[0][0]
    differing = dict(rows.filter(pl.col("signature") != common).select("rank", "row").iter_rows())
    waiting = dict(rows.filter(pl.col("signature") == common).select("rank", "row").iter_rows())
    missing = sorted(rank for rank, reached in last.items() if reached < number)
    operation = common.partition(" ")[0]
    return DivergentCalls(MISMATCH, group, number, operation, waiting, missing, differing, absent)
