"""Meetings of ranks: collectives and messages, from the analysis, else matched by time.

If traces record no peers, the times of a pipeline decide which send belongs to which receive. A pipeline is a
line of ranks at equal distance. Its first rank exchanges all messages with the second; the second exchanges
its other messages with the third, and so on to the last. In every step the same calls go the same way. The
orders of one-forward-one-backward and of GPipe are tried first: if messages hardly wait, times alone leave
several orders open.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.whatif.pipeline_orders import BACKWARD, FORWARD, GPIPE, ONE_F_ONE_B, Schedule, stage_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ccl_bench.whatif.event_graph import Numbers, Times

MESSAGES = ("send", "recv")

_EARLY_NS = 50_000
"""Largest difference of clocks, ns; calls further apart than this do not meet.

Clocks that collectives align agree better; between two calls of one rank lies more.
"""


@dataclass(frozen=True)
class Meetings:
    """The operations that meet."""

    pairs: pl.DataFrame
    """`row` of an operation and number of its `meeting`."""
    stages: Mapping[int, int]
    """Rank → its pipeline stage, if messages show it."""
    findings: tuple[Finding, ...] = ()


def find_meetings(operations: pl.DataFrame, tables: Mapping[str, Any]) -> Meetings:
    """Return the meetings of operations of several ranks.

    Calls whose group or peer the traces do not record are matched by their times if exactly one way fits; a
    finding reports this.
    """
    # Those that the analysis has matched.
    key = pl.struct("iteration", "group", "number").rank("dense").cast(pl.Int64)
    collectives: pl.DataFrame = tables["matched"].filter("agrees").select("trace", "call", meeting=key)
    first = collectives.height + 1
    messages = tables["messages"].select(
        pl.int_range(first, first + pl.len(), dtype=pl.Int64).alias("meeting"), pl.exclude("number")
    )
    sides = [
        messages.select(trace=f"{side}_trace", call=f"{side}_call", meeting="meeting") for side in MESSAGES
    ]
    called = operations.drop_nulls("call")
    matched = called.join(
        pl.concat([collectives, *sides]), on=["trace", "call"], maintain_order="left"
    ).select("row", "meeting")
    rest = called.join(matched, on="row", how="anti", maintain_order="left").drop_nulls("rank")
    pairs = [matched.unique("row", maintain_order=True)]
    findings: list[Finding] = []
    stages: dict[int, int] = {}
    if operations["rank"].n_unique() > 1 and not rest.is_empty():
        others = rest.filter(~pl.col("collective").is_in(MESSAGES))
        families = _families(tables["listed_groups"], operations)
        was_queued = bool(others["launched_before"].any())
        for (name,), calls in others.group_by("collective", maintain_order=True):
            pairs.append(_by_end(calls, families) if was_queued else _by_largest_group(calls, families))
            findings += _inferred(pairs[-1], f"groups of {name}")
        inferred, stages = infer_messages(rest.filter(pl.col("collective").is_in(MESSAGES)))
        pairs.append(inferred)
        findings += _inferred(inferred, "peers of messages")
    marked = pl.concat([table.with_columns(source=pl.lit(number)) for number, table in enumerate(pairs)])
    meeting = pl.struct("source", "meeting").rank("dense").cast(pl.Int64) - 1
    return Meetings(marked.select("row", meeting.alias("meeting")), stages, tuple(findings))


def _inferred(pairs: pl.DataFrame, what: str) -> list[Finding]:
    if pairs.is_empty():
        return []
    message = f"the {what} are not recorded; {counted(pairs.height, 'call is', 'calls are')} matched by time"
    return [Finding("meetings-inferred", "warning", message, count=pairs.height)]


def _families(listed: pl.DataFrame, operations: pl.DataFrame) -> list[list[tuple[int, ...]]]:
    """Return families of groups, the largest first; those of one family hold each rank at most once."""
    everyone = tuple(sorted(operations["rank"].drop_nulls().unique()))
    families: dict[str, set[tuple[int, ...]]] = {"all ranks": {everyone}}
    for kind, ranks in listed.select("kind", "ranks").iter_rows():
        families.setdefault(kind, set()).add(tuple(ranks))
    disjoint = [
        family for family in families.values() if len({r for g in family for r in g}) == sum(map(len, family))
    ]
    return sorted(map(sorted, disjoint), key=lambda family: -max(map(len, family)))


def _by_largest_group(calls: pl.DataFrame, families: Sequence[Sequence[tuple[int, ...]]]) -> pl.DataFrame:
    """Return the k-th calls of the members of the largest groups, if none ends before all start."""
    callers = set(calls["rank"].unique())
    counted = calls.sort("start_ns", maintain_order=True).with_columns(k=pl.int_range(pl.len()).over("rank"))
    for family in families:
        group_of = {rank: number for number, group in enumerate(family) for rank in group}
        if not callers <= group_of.keys():
            continue
        group = pl.col("rank").replace_strict(group_of, return_dtype=pl.Int64)
        placed = counted.with_columns(group=group)
        key = ["group", "k"]
        fits = placed.group_by(key).agg(
            (pl.col("end_ns").min() >= pl.col("start_ns").max() - _EARLY_NS).alias("fits"), pl.len()
        )
        sizes = fits.group_by("group").agg(pl.col("len").n_unique() == 1, pl.col("fits").all())
        if sizes["len"].all() and sizes["fits"].all() and (fits["len"] > 1).all():
            return placed.select("row", meeting=pl.struct(key).rank("dense").cast(pl.Int64))
    return pl.DataFrame(schema={"row": pl.Int64, "meeting": pl.Int64})


def _by_end(calls: pl.DataFrame, families: Sequence[Sequence[tuple[int, ...]]]) -> pl.DataFrame:
    """Return the calls of the members of the largest groups that end together.

    Hosts that run ahead begin to record between other calls on each rank, so that the k-th recorded ones do
    not belong together, and calls launched before have no arguments. But a collective ends on all members at
    once.
    """
    ordered = calls.sort("end_ns").with_columns(
        apart=(pl.col("end_ns").diff() > _EARLY_NS).fill_null(value=False).cum_sum()
    )
    callers = set(calls["rank"].unique())
    for family in families:
        group_of = {rank: number for number, group in enumerate(family) for rank in group}
        if not callers <= group_of.keys():
            continue
        sizes = {number: len(group) for number, group in enumerate(family)}
        group = pl.col("rank").replace_strict(group_of, return_dtype=pl.Int64)
        placed = ordered.with_columns(group=group)
        key = ["group", "apart"]
        size = pl.col("group").replace_strict(sizes, return_dtype=pl.Int64)
        is_whole = (pl.len().over(key) == size) & (pl.col("rank").n_unique().over(key) == size)
        return placed.filter(is_whole).select("row", meeting=pl.struct(key).rank("dense").cast(pl.Int64))
    return pl.DataFrame(schema={"row": pl.Int64, "meeting": pl.Int64})


_CLEARLY = 0.5
"""The best pipeline must cost at most this share of the second: wrong pairs wait for whole microbatches."""


@dataclass(frozen=True)
class _RankMessages:
    """The sends, or the receives, of one rank: `[step, number]`."""

    rows: Numbers
    start: Times
    end: Times

    def take(self, which: Numbers) -> _RankMessages:
        return _RankMessages(self.rows[:, which], self.start[:, which], self.end[:, which])

    def but(self, which: Numbers) -> _RankMessages:
        return self.take(np.setdiff1d(np.arange(self.rows.shape[1]), which))


def infer_messages(calls: pl.DataFrame) -> tuple[pl.DataFrame, dict[int, int]]:
    """Return the calls that meet, as `row` and `meeting`, and the pipeline stage of each rank.

    `calls` has `rank`, `step`, `collective` (`send` or `recv`), `launch_ns`, `start_ns`, `end_ns` and
    `row`. A range of a library may begin after the message was sent, so the time of the launching call is
    used. If no line fits clearly better than all others, nothing is returned.
    """
    kinds = _sides(calls)
    ranks = sorted({rank for sides in kinds for rank, _ in sides})
    fitting = []
    for lines in _lines(ranks):
        matches = [_match_line(line, sides) for sides in kinds for line in lines]
        matched = [each for each in matches if each]
        if len(matched) == len(matches) and matched:
            fitting.append(
                (sum(cost for cost, _ in matched), lines, [pair for _, pairs in matched for pair in pairs])
            )
    fitting.sort(key=lambda each: each[0])
    if not fitting or (len(fitting) > 1 and fitting[0][0] > _CLEARLY * fitting[1][0]):
        return pl.DataFrame(schema={"row": pl.Int64, "meeting": pl.Int64}), {}
    _, lines, pairs = fitting[0]
    sent = np.concatenate([send.reshape(-1) for send, _ in pairs])
    received = np.concatenate([receive.reshape(-1) for _, receive in pairs])
    numbers = np.arange(len(sent))
    table = pl.DataFrame({"row": np.append(sent, received), "meeting": np.append(numbers, numbers)})
    return table, {rank: stage for line in lines for stage, rank in enumerate(line)}


def _sides(calls: pl.DataFrame) -> list[dict[tuple[int, str], _RankMessages]]:
    """Return the sends and receives of each rank: once for each number of messages that steps have.

    Intervals between or outside steps count as steps if they contain the calls of several whole ones. Steps
    in which a rank lacks sends or receives are left out.
    """
    side = ["rank", "collective"]
    ordered = calls.sort("rank", "start_ns", maintain_order=True)
    windowed = ordered.with_columns(window=pl.col("step").rle_id().over("rank"))
    usual = (
        windowed.drop_nulls("step")
        .group_by(*side, "step")
        .len()
        .group_by(side)
        .agg(usual=pl.col("len").first())
    )
    k = pl.int_range(pl.len()).over(*side, "window")
    placed = windowed.join(usual, on=side, maintain_order="left").with_columns(
        window=pl.struct("window", part=k // pl.col("usual")).rank("dense").over("rank")
    )
    counted = placed.with_columns(size=pl.len().over(*side, "window"))
    ranks = counted["rank"].n_unique()
    kinds = (
        counted.select(*side, "window", "size")
        .unique()
        .sort(side)
        .group_by("window", maintain_order=True)
        .agg(pl.len().alias("sides"), pl.col("size").alias("signature"))
        .filter(pl.col("sides") == 2 * ranks)
    )
    launched = pl.coalesce("launch_ns", "start_ns").alias("launched_ns")
    sides = []
    for windows in kinds.group_by("signature", maintain_order=True).agg("window")["window"]:
        part = counted.filter(pl.col("window").is_in(windows.implode()))
        of_kind: dict[tuple[int, str], _RankMessages] = {}
        for (rank, name), of_side in part.group_by("rank", "collective", maintain_order=True):
            in_order = of_side.sort("window", "start_ns", maintain_order=True).with_columns(launched)
            shape = (in_order["window"].n_unique(), int(in_order["size"][0]))
            starts, ends = (
                in_order[time].to_numpy().astype(np.float64).reshape(shape)
                for time in ("launched_ns", "end_ns")
            )
            rows = in_order["row"].to_numpy().reshape(shape)
            of_kind[int(rank), str(name)] = _RankMessages(rows, starts, ends)
        sides.append(of_kind)
    return sides


def _lines(ranks: list[int]) -> Iterator[list[list[int]]]:
    """Yield each arrangement of ranks in lines of equal length, with neighbours at equal distance."""
    size = len(ranks)
    for length in range(2, size + 1):
        for distance in range(1, size // length + 1):
            if size % (length * distance) == 0:
                starts = [at for at in range(size) if (at // distance) % length == 0]
                yield [[ranks[at + k * distance] for k in range(length)] for at in starts]


def _match_line(
    line: list[int], sides: dict[tuple[int, str], _RankMessages]
) -> tuple[float, list[tuple[Numbers, Numbers]]] | None:
    """Return the cost of a line and its pairs of sends and receives; None if it does not fit."""
    known_orders = [_match_order(line, sides, schedule) for schedule in (ONE_F_ONE_B, GPIPE)]
    if fitting := [matched for matched in known_orders if matched]:
        return min(fitting, key=lambda matched: matched[0])
    forth, back = sides[line[0], "send"], sides[line[0], "recv"]
    cost, pairs = 0.0, []
    for rank in line[1:]:
        if not forth.rows.size or not back.rows.size:
            return None
        received, sent = sides[rank, "recv"], sides[rank, "send"]
        to_here, from_here = _subset(forth, received, sending=True), _subset(back, sent, sending=False)
        if to_here is None or from_here is None:
            return None
        cost += to_here[0] + from_here[0]
        pairs += [(forth.rows, received.rows[:, to_here[1]]), (sent.rows[:, from_here[1]], back.rows)]
        forth, back = sent.but(from_here[1]), received.but(to_here[1])
    return (cost, pairs) if not forth.rows.size and not back.rows.size else None


def _match_order(
    line: list[int], sides: dict[tuple[int, str], _RankMessages], schedule: str
) -> tuple[float, list[tuple[Numbers, Numbers]]] | None:
    """Return the cost of a line and its pairs if its stages follow a schedule; None if they do not.

    A stage receives, computes and sends on in the same direction, in the order of the schedule.
    """
    count = sides[line[0], "send"].rows.shape[1]
    if not count:
        return None
    of_kind: list[dict[tuple[str, str], _RankMessages]] = []
    for stage, rank in enumerate(line):
        order = [slot.kind for slot in stage_order(Schedule(schedule), len(line), stage, count)]
        silent = {(0, "recv"): FORWARD, (0, "send"): BACKWARD} if stage == 0 else {}
        if stage == len(line) - 1:
            silent |= {(stage, "recv"): BACKWARD, (stage, "send"): FORWARD}
        split = {}
        for side in MESSAGES:
            kinds = np.array([kind for kind in order if kind != silent.get((stage, side))])
            if sides[rank, side].rows.shape[1] != len(kinds):
                return None
            for kind in (FORWARD, BACKWARD):
                split[side, kind] = sides[rank, side].take(np.flatnonzero(kinds == kind))
        of_kind.append(split)
    cost, pairs = 0.0, []
    for stage, following in pairwise(range(len(line))):
        for kind, sender, receiver in ((FORWARD, stage, following), (BACKWARD, following, stage)):
            sends, receives = of_kind[sender]["send", kind], of_kind[receiver]["recv", kind]
            if sends.rows.shape != receives.rows.shape or (receives.end < sends.start - _EARLY_NS).any():
                return None
            cost += float((receives.end - np.maximum(sends.start, receives.start)).sum())
            pairs.append((sends.rows, receives.rows))
    return cost, pairs


def _subset(whole: _RankMessages, of: _RankMessages, *, sending: bool) -> tuple[float, Numbers] | None:
    """Return the calls of `of` that match all of `whole` in order, at the lowest cost.

    The cost of a pair is the time from the start of both to the end of the receive, ns, over all steps; a
    receive that ends before the send starts does not fit.
    """
    if whole.rows.shape[0] != of.rows.shape[0]:
        return None
    sends, receives = (whole, of) if sending else (of, whole)
    took = receives.end[:, None, :] - np.maximum(sends.start[:, :, None], receives.start[:, None, :])
    early = receives.end[:, None, :] < sends.start[:, :, None] - _EARLY_NS
    cost = np.where(early.any(axis=0), np.inf, took.sum(axis=0))
    cost = cost if sending else cost.T
    count, among = cost.shape
    best = np.full((count + 1, among + 1), np.inf)
    best[0] = 0
    for number in range(1, count + 1):
        for place in range(number, among + 1):
            best[number, place] = min(
                best[number, place - 1], best[number - 1, place - 1] + cost[number - 1, place - 1]
            )
    if not np.isfinite(best[count, among]):
        return None
    chosen, number = [], count
    for place in range(among, 0, -1):
        if number and best[number, place] < best[number, place - 1]:
            chosen.append(place - 1)
            number -= 1
    return float(best[count, among]), np.array(chosen[::-1], dtype=np.int64)
