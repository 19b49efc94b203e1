"""Divergence of a group: the first collective that differs between members, or that a member lacks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl
from ccl_bench.result.hang import (
    DAMAGED_DUMP,
    EMPTY_DUMP,
    MISMATCH,
    MISSING,
    NO_DUMP,
    OLDER_DUMP,
    UNFINISHED,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from ccl_bench.analysis.recorder.groups import ProcessGroup


@dataclass(frozen=True, slots=True)
class Dumps:
    """What the dumps of the ranks can show."""

    first_records: Mapping[int, int]
    """Rank whose dump can be read → its first record, above 0 if older ones were overwritten."""
    empty: Collection[int]
    """Ranks whose dump holds no call."""
    damaged: Collection[int]
    """Ranks whose dump cannot be read, or only in part."""
    enqueued: Mapping[tuple[int, int], int]
    """(Rank, number of the group) → the last collective that the rank called, as its dump states it."""

    def why_lacking(self, rank: int, *, may_be_empty: bool, is_older: bool) -> str:
        """Return why a readable dump lacks a call that others made.

        Its rank is missing there if the dump shows the rank's last calls: not if it holds none, unless the
        rank may have made none, and not if it lacks earlier calls too (`is_older`).
        """
        if rank in self.damaged:
            return DAMAGED_DUMP
        if rank in self.empty and not may_be_empty:
            return EMPTY_DUMP
        return OLDER_DUMP if is_older else MISSING


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
    incomplete: dict[int, str] = field(default_factory=dict)
    """Rank whose dump does not show whether it called → what is wrong with the dump."""
    is_p2p: bool = False

    @property
    def suspects(self) -> list[int]:
        """Ranks that the others wait for, or that called something else."""
        unknown = sorted([*self.incomplete, *self.without_dump])
        return [*self.missing, *self.differing] or unknown or self.overwritten


def collective_divergences(
    calls: pl.DataFrame, groups: list[ProcessGroup], dumps: Dumps
) -> Iterator[DivergentCalls]:
    """Yield the first divergence of each group that has one; `calls` are prepared, with their place as `row`.

    A ring buffer forgets, so that a group is compared from the largest first number that any member still
    has.
    """
    for members in _members_of_groups(calls, groups, dumps):
        yield from members.divergence()


def unproven_ranks(calls: pl.DataFrame, groups: list[ProcessGroup], dumps: Dumps) -> list[int]:
    """Return the ranks whose dumps do not show every call that other members of their groups made."""
    unproven = {*dumps.damaged, *(dumps.empty if calls.height else ())}
    for members in _members_of_groups(calls, groups, dumps):
        unproven |= {rank for rank in members.group.members if rank not in dumps.first_records}
        unproven |= {rank for rank, reached in members.last.items() if reached < max(members.last.values())}
        unproven.update(members.overwritten)
    return sorted(unproven)


def _members_of_groups(calls: pl.DataFrame, groups: list[ProcessGroup], dumps: Dumps) -> Iterator[_Members]:
    """Yield the members of each group with recorded collectives.

    A retired call that its rank went on from is over, also if the recorder did not see its end.
    """
    by_call = (
        calls.filter(~pl.col("is_p2p"))
        .drop_nulls("sequence")
        .group_by("number", "sequence", "rank")
        .agg(
            pl.col("signature").sort_by("row").str.join("; "),
            pl.col("is_done").all(),
            pl.col("is_retired").all(),
            pl.col("is_pending").any(),
            pl.col("row").min(),
        )
    )
    went_on = pl.col("sequence") < pl.col("sequence").max().over("number", "rank")
    by_call = by_call.with_columns(is_over=pl.col("is_done") | (pl.col("is_retired") & went_on))
    of_group = {number: part for (number,), part in by_call.partition_by("number", as_dict=True).items()}
    for group in groups:
        if group.number in of_group:
            yield _Members(group, of_group[group.number], dumps)


class _Members:
    """The members of a group, and how far each of them is known to have come."""

    def __init__(self, group: ProcessGroup, calls: pl.DataFrame, dumps: Dumps) -> None:
        """Take the calls of the group, one row for each number and rank."""
        self.group, self.dumps = group, dumps
        spans = calls.group_by("rank").agg(
            pl.col("sequence").min().alias("first"), pl.col("sequence").max().alias("last")
        )
        self.begin: int = max(spans["first"])
        self.calls = calls.filter(pl.col("sequence") >= self.begin)
        recorded = dict(spans.select("rank", "last").iter_rows())
        self.last: dict[int, int] = {}
        """Member with a readable dump → the last collective that it is known to have called."""
        self.overwritten: list[int] = []
        for rank in sorted({*recorded, *(each for each in group.members if each in dumps.first_records)}):
            numbers = (recorded.get(rank), dumps.enqueued.get((rank, group.number)))
            if reached := [number for number in numbers if number is not None]:
                self.last[rank] = max(reached)
            elif dumps.first_records[rank] > 0:
                self.overwritten.append(rank)
            else:
                self.last[rank] = self.begin - 1

    def divergence(self) -> Iterator[DivergentCalls]:
        """Yield the first divergence, if there is one."""
        # Not over, and a member lacks it or all known members wait in it. Where every member that called it
        # saw it end, the others were there too: their dumps are only older.
        states = self.calls.group_by("sequence").agg(pl.col("is_over").all(), pl.col("is_pending").all())
        is_lacking = pl.col("sequence") > min(self.last.values())
        waits = states.filter(~pl.col("is_over") & (pl.col("is_pending") | is_lacking))
        unfinished = min(waits["sequence"], default=None)
        lacking = unfinished is not None and any(reached < unfinished for reached in self.last.values())
        differs = self.calls.group_by("sequence").agg(pl.col("signature").n_unique())
        mismatch = min(differs.filter(pl.col("signature") > 1)["sequence"], default=None)
        if mismatch is not None and not (lacking and unfinished is not None and unfinished < mismatch):
            yield self._mismatch(mismatch)
        elif unfinished is not None:
            yield self._unfinished(unfinished, is_lacking=lacking)

    def _unfinished(self, number: int, *, is_lacking: bool) -> DivergentCalls:
        """Return the divergence at a call that is not over: who lacks it, and whose dump does not show it."""
        rows = self.calls.filter(pl.col("sequence") == number).sort("rank")
        missing, absent, incomplete = self._lacking(number)
        if not is_lacking:
            for rank in self._perhaps_members():
                if rank in self.dumps.damaged:
                    incomplete[rank] = DAMAGED_DUMP
                elif rank not in self.dumps.first_records:
                    absent.append(rank)
                elif (kind := self._kind(rank, number, 0)) == MISSING:
                    missing.append(rank)
                else:
                    incomplete[rank] = kind
        first_kind = next(iter(dict(sorted(incomplete.items())).values()), NO_DUMP if absent else "")
        other_kind = MISSING if missing or self.overwritten else UNFINISHED
        return DivergentCalls(
            MISSING if missing else first_kind or other_kind,
            self.group,
            number,
            rows["signature"][0].partition(" ")[0],
            dict(rows.filter(~pl.col("is_over")).select("rank", "row").iter_rows()),
            missing,
            {},
            absent,
            self.overwritten,
            incomplete,
        )

    def _lacking(self, number: int) -> tuple[list[int], list[int], dict[int, str]]:
        """Return the members that did not call, those without a dump, and those with an incomplete one."""
        lacking = {
            rank: self._kind(rank, number, reached)
            for rank, reached in sorted(self.last.items())
            if reached < number
        }
        absent = [rank for rank in self.group.members if rank not in self.dumps.first_records]
        incomplete = {rank: kind for rank, kind in lacking.items() if kind != MISSING}
        incomplete |= {rank: DAMAGED_DUMP for rank in absent if rank in self.dumps.damaged}
        return (
            [rank for rank in lacking if rank not in incomplete],
            [rank for rank in absent if rank not in incomplete],
            incomplete,
        )

    def _kind(self, rank: int, number: int, reached: int) -> str:
        """Return why a readable dump that ends at call `reached` lacks call `number`."""
        between = self.calls.filter(pl.col("sequence").is_between(reached, number, closed="none"))
        may_be_empty = number <= 1 or (rank, self.group.number) in self.dumps.enqueued
        is_older = between.height > 0 or reached + 1 < self.begin
        return self.dumps.why_lacking(rank, may_be_empty=may_be_empty, is_older=is_older)

    def _perhaps_members(self) -> list[int]:
        """Return ranks that no dump lists, but that may be members.

        A finished call shows that all members took part, and were recorded unless their dump lacks calls.
        """
        if self.begin == 1 and self.calls["is_pending"].all():
            return [*self.group.possible]
        shown = {*self.dumps.first_records} - {*self.dumps.damaged, *self.dumps.empty}
        return [rank for rank in self.group.possible if rank not in shown]

    def _mismatch(self, number: int) -> DivergentCalls:
        """Return the divergence where calls differ: of the fewer ranks, or of all without a majority."""
        rows = self.calls.filter(pl.col("sequence") == number).sort("rank")
        counts = Counter(rows["signature"].to_list()).most_common()
        common = "" if counts[0][1] == counts[1][1] else counts[0][0]
        differing = dict(rows.filter(pl.col("signature") != common).select("rank", "row").iter_rows())
        waiting = dict(rows.filter(pl.col("signature") == common).select("rank", "row").iter_rows())
        missing, absent, incomplete = self._lacking(number)
        operation = common.partition(" ")[0]
        return DivergentCalls(
            MISMATCH, self.group, number, operation, waiting, missing, differing, absent, [], incomplete
        )
