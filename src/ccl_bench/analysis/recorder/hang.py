"""Which divergence is the cause of a hang, and which only follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.recorder.calls import message_divergences, prepared
from ccl_bench.analysis.recorder.divergence import (
    DivergentCalls,
    Dumps,
    collective_divergences,
    unproven_ranks,
)
from ccl_bench.analysis.recorder.groups import find_groups
from ccl_bench.base.lazy_imports import pl
from ccl_bench.result.hang import (
    MISMATCH,
    MISSING,
    NO_DUMP,
    OVERWRITTEN,
    UNFINISHED,
    Call,
    Divergence,
    Frame,
    Hang,
    IncompleteDump,
    Missing,
    Suspect,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_OF_OTHERS = ("site-packages", "dist-packages", "/lib/python", "<frozen", "<string>", "??")
"""What the paths of frames have that are no frames of the program."""
_OF_TORCH = ("/torch/", "torch/", "typing_extensions.py", "/contextlib.py", "/functools.py", "??")


def find_hang(
    tables: Mapping[str, pl.DataFrame], world_size: int | None, run: str, unreadable: Collection[int] = ()
) -> Hang:
    """Return the missing ranks and where they are missing, from the Flight Recorder dumps of all ranks.

    `unreadable` are ranks whose dumps are so damaged that nothing in them can be read.
    """
    dumps, recorded = tables["recorder_dumps"], tables["recorded_calls"].drop_nulls("rank")
    firsts = dict(recorded.group_by("rank").agg(pl.col("record").min()).iter_rows())
    first_records = {rank: firsts.get(rank, 0) for rank in sorted(dumps["rank"].drop_nulls().unique())}
    damaged = {*unreadable, *dumps.filter(~pl.col("is_whole"))["rank"].drop_nulls()}
    listed = tables["recorded_groups"].drop_nulls("rank")
    groups = find_groups(recorded, listed, {*first_records, *damaged}, world_size)
    calls = prepared(recorded.sort("rank", "record"), groups.of_rank).with_row_index("row")
    # Of groups with sends and receives the status numbers those as well, so that it shows no collective.
    mixed = calls.filter(pl.col("is_p2p") | (pl.col("backend") == _COUNTS_OTHERWISE))["number"].unique()
    status = tables["recorded_status"].drop_nulls("rank").join(groups.of_rank, on=["rank", "group"])
    usable = status.filter(~pl.col("number").is_in(mixed.implode()))
    enqueued = {
        (rank, number): last for rank, number, last in usable.select("rank", "number", "enqueued").iter_rows()
    }
    state_of_dumps = Dumps(first_records, {*first_records} - {*firsts}, damaged, enqueued)
    divergent = [
        *collective_divergences(calls, groups.groups, state_of_dumps),
        *message_divergences(calls, groups.groups, state_of_dumps),
    ]
    lookup = _CallRows(calls, tables["recorded_stacks"])
    begin_of = {place: lookup.begin(each) for place, each in enumerate(divergent)}
    divergences = _explained(divergent, begin_of, lookup)
    everyone = {rank for group in groups.groups for rank in group.members}
    suspects: list[Suspect] = []
    for first in divergences[:1]:
        # Those of the earliest cause that wait for nobody are to be looked at first, else all.
        free = [each.rank for each in first.missing if each.waits_in is None]
        unknown = {each.rank: each.kind for each in first.incomplete}
        kinds = (
            dict.fromkeys((each.rank for each in first.differing), MISMATCH)
            or dict.fromkeys(free or [each.rank for each in first.missing], MISSING)
            or dict(sorted((unknown | dict.fromkeys(first.without_dump, NO_DUMP)).items()))
            or dict.fromkeys(first.overwritten, OVERWRITTEN)
        )
        suspects = [
            Suspect(rank, kind.replace(" ", "-"), first.group, first.sequence, first.operation)
            for rank, kind in kinds.items()
        ]
    return Hang(
        run,
        [*first_records],
        sorted(everyone - {*first_records, *damaged}),
        calls.height,
        [each.rank for each in suspects],
        divergences,
        suspects,
        sorted(damaged),
        unproven_ranks(calls, groups.groups, state_of_dumps),
    )


_COUNTS_OTHERWISE = "gloo"
"""Backend whose status numbers all of its operations, not only collectives (`ProcessGroupGloo::enqueue`)."""


def _explained(
    divergent: Sequence[DivergentCalls], begin_of: Mapping[int, int], lookup: _CallRows
) -> list[Divergence]:
    """Return the divergences, causes first and in order of time, each with what it follows from."""
    blocked: dict[int, int] = {}
    for place in sorted(begin_of, key=begin_of.__getitem__):
        for rank in (*divergent[place].waiting, *divergent[place].differing):
            blocked.setdefault(rank, place)
    causes, mutual = _causes(divergent, begin_of, blocked)
    order = sorted(begin_of, key=lambda place: (causes[place] is not None, begin_of[place]))
    position_of: dict[int | None, int | None] = {None: None}
    position_of.update((place, number) for number, place in enumerate(order))
    return [
        Divergence(
            each.kind,
            each.group.name,
            each.group.description,
            [*each.group.members],
            each.sequence,
            each.operation,
            [lookup.call(row) for row in each.waiting.values()],
            [Missing(rank, lookup.last(rank), position_of[blocked.get(rank)]) for rank in each.missing],
            [lookup.call(row) for row in each.differing.values()],
            each.without_dump,
            each.overwritten,
            position_of[causes[place]],
            mutual[place],
            each.is_p2p,
            [*each.group.possible] if each.kind != UNFINISHED else [],
            [IncompleteDump(rank, kind, lookup.last(rank)) for rank, kind in sorted(each.incomplete.items())],
        )
        for place in order
        for each in [divergent[place]]
    ]


def _causes(
    divergent: Sequence[DivergentCalls], begin_of: Mapping[int, int], blocked: Mapping[int, int]
) -> tuple[dict[int, int | None], dict[int, bool]]:
    """Return the cause of each divergence, None if it is one itself, and whether it is in a circle.

    It follows from those in which all of its missing ranks wait themselves. Of a circle, in which ranks wait
    for each other, the cause is where most wait, then the earliest: the fewer ranks are out of step. What is
    only unfinished may be queued behind a cause, and is one itself if others wait for its members.
    """
    behind = {
        place: {blocked[rank] for rank in each.missing}
        if each.missing and all(rank in blocked for rank in each.missing)
        else set()
        for place, each in enumerate(divergent)
    }
    reached = {place: _reached(place, behind) for place in behind}
    circle_of = {
        place: {place, *(other for other in after if place in reached[other])}
        for place, after in reached.items()
    }
    explaining = set().union(*behind.values())
    heads = {
        place: max(circle, key=lambda at: (len(divergent[at].waiting), -begin_of[at]))
        for place, circle in circle_of.items()
        if reached[place] <= circle and (divergent[place].kind != UNFINISHED or place in explaining)
    }
    causes: dict[int, int | None] = {}
    for place in sorted(begin_of, key=begin_of.__getitem__):
        follows = [heads[after] for after in {place, *reached[place]} if after in heads]
        head = min(
            follows,
            key=begin_of.__getitem__,
            default=min(heads.values(), key=begin_of.__getitem__, default=None),
        )
        causes[place] = None if head == place else head
    for place in sorted(heads, key=begin_of.__getitem__):
        if causes[place] is None:
            earlier = [at for at in heads if causes[at] is None and begin_of[at] < begin_of[place]]
            causes[place] = _same_cause(place, divergent, earlier, blocked)
    return causes, {place: len(circle) > 1 for place, circle in circle_of.items()}


def _reached(place: int, behind: Mapping[int, set[int]]) -> set[int]:
    """Return every divergence that one follows from, directly or not."""
    seen: set[int] = set()
    pending = [*behind[place]]
    while pending:
        each = pending.pop()
        if each not in seen:
            seen.add(each)
            pending += behind[each]
    return seen


def _same_cause(
    place: int, divergent: Sequence[DivergentCalls], earlier: Sequence[int], blocked: Mapping[int, int]
) -> int | None:
    """Return an earlier cause that waits for the same ranks, which explains this one; None without any."""

    def free(at: int) -> set[int]:
        return {rank for rank in divergent[at].suspects if rank not in blocked} or {*divergent[at].suspects}

    return next((at for at in earlier if free(place) and free(place) <= free(at)), None)


class _CallRows:
    """The prepared calls by row, as an answer shows them."""

    def __init__(self, calls: pl.DataFrame, stacks: pl.DataFrame) -> None:
        self._calls = calls
        self._last = dict(calls.group_by("rank").agg(pl.col("row").max()).iter_rows())
        self._stacks = stacks
        self._calls_by_row: dict[int, Call] = {}

    def begin(self, divergent: DivergentCalls) -> int:
        """Return the time when the first rank waited or differed, ns."""
        rows = [*divergent.waiting.values(), *divergent.differing.values()]
        return int(min(self._calls["created_ns"].gather(rows), default=0))

    def last(self, rank: int) -> Call | None:
        """Return the last call of a rank."""
        return self.call(self._last[rank]) if rank in self._last else None

    def call(self, place: int) -> Call:
        """Return the call in a row."""
        if place in self._calls_by_row:
            return self._calls_by_row[place]
        row = self._calls.row(place, named=True)
        is_of_stack = (pl.col("trace") == row["trace"]) & (pl.col("stack") == pl.lit(row["stack"], pl.Int64))
        frames = self._stacks.filter(is_of_stack).sort("depth").select("function", "file", "line")
        stack = [Frame(*frame) for frame in frames.iter_rows()]
        # The innermost frame of the program itself, else of a package, else of all.
        of_program = [each for each in stack if not any(part in each.file for part in _OF_OTHERS)]
        of_packages = [each for each in stack if not any(part in each.file for part in _OF_TORCH)]
        program_frame = next(iter([*of_program, *of_packages, *stack]), None)
        side = "in" if row["in_shapes"] else "out"
        self._calls_by_row[place] = Call(
            row["rank"],
            row["group"],
            row["description"],
            None if row["is_p2p"] else row["sequence"],
            row["operation"],
            row[f"{side}_shapes"] or [],
            row[f"{side}_dtypes"] or [],
            row["state"],
            row["created_ns"],
            program_frame,
            stack,
        )
        return self._calls_by_row[place]
