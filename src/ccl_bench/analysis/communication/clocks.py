"""Alignment of clocks: the offset of each rank, its uncertainty, and who came when to a call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ccl_bench.analysis.communication.matching import MESSAGES, rooted_collectives
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROUNDS = 8
"""Rounds of refinement at most; offsets of a mesh settle in two or three."""


@derived(
    across_ranks=True,
    iteration=("Int64", "recording window"),
    rank=("Int64", "rank"),
    offset_ns=("Int64", "time by which the rank's clock is ahead of the median clock, ns"),
    residual_ns=("Int64", "median distance of the ends of collectives after subtracting the offset, ns"),
    ends=("Int64", "collectives from which the offset was computed"),
    island=("Int64", "ranks that collectives connect; offsets of different islands are not comparable"),
)
def clock_offsets(matched: pl.DataFrame) -> pl.DataFrame:
    """One rank: its clock against the others'.

    The members of a symmetric collective end it together, so on one true clock their ends agree.
    The offset of a rank is the median, over its collectives, of its end minus the
    collective's median end; where no collective joins all ranks, offsets are passed on along groups
    and refined in rounds. It places ranks on one timeline; waiting times do not need it.
    """
    ends = matched.drop_nulls(["transfer_ns", "rank"]).select(
        "iteration",
        "group",
        "number",
        "rank",
        # Medians are taken in doubles, which hold nanoseconds since the epoch to 256 ns only.
        pl.col("end_ns") - pl.col("end_ns").min(),
    )
    table = DERIVED.get("clock_offsets").table
    own_end = pl.col("end_ns") - pl.col("offset_ns")
    aligned = []
    for window in ends["iteration"].unique(maintain_order=True):
        of_window = ends.filter(pl.col("iteration").eq_missing(window))
        events = of_window.join(_passed_on(of_window), on="rank", maintain_order="left")
        for _ in range(_ROUNDS):
            events = events.with_columns(
                true_ns=own_end.median().over("group", "number").round().cast(pl.Int64)
            )
            offset = (pl.col("end_ns") - pl.col("true_ns")).median().over("rank").round().cast(pl.Int64)
            refined = events.with_columns(offset_ns=offset)
            if refined["offset_ns"].equals(events["offset_ns"]):
                break
            events = refined
        ranks = events.group_by("iteration", "rank", "island").agg(
            pl.col("offset_ns").first(),
            residual_ns=(own_end - pl.col("true_ns")).abs().median().round().cast(pl.Int64),
            ends=pl.len().cast(pl.Int64),
        )
        middle = pl.col("offset_ns").median().over("island").round().cast(pl.Int64)
        aligned.append(ranks.with_columns(pl.col("offset_ns") - middle).select(*table.columns))
    return table.concat(aligned).sort("iteration", "rank")


def _passed_on(ends: pl.DataFrame) -> pl.DataFrame:
    """Return first offsets: from one rank of each island to the members of its groups, and on.

    The distance of two members of a group is the median difference of their ends.
    """
    base = pl.col("end_ns") - pl.col("end_ns").get(pl.col("rank").arg_min()).over("group", "number")
    relative = (
        ends.with_columns(base.alias("after_ns"))
        .group_by("group", "rank", maintain_order=True)
        .agg(pl.col("after_ns").median().round().cast(pl.Int64))
    )
    by_group: dict[str, dict[int, int]] = {}
    groups_of: dict[int, list[str]] = {}
    for group, rank, after in relative.iter_rows():
        by_group.setdefault(group, {})[rank] = after
        groups_of.setdefault(rank, []).append(group)
    placed: dict[int, tuple[int, int]] = {}
    opened: set[str] = set()
    for first in sorted(groups_of):
        if first in placed:
            continue
        placed[first] = (0, first)
        queue = [first]
        for rank in queue:
            for group in groups_of[rank]:
                if group in opened:
                    continue
                opened.add(group)
                shift = placed[rank][0] - by_group[group][rank]
                for member, after in by_group[group].items():
                    if member not in placed:
                        placed[member] = (after + shift, first)
                        queue.append(member)
    rows = [(rank, offset, island) for rank, (offset, island) in placed.items()]
    return pl.DataFrame(
        rows, schema={"rank": pl.Int64, "offset_ns": pl.Int64, "island": pl.Int64}, orient="row"
    )


@derived(
    across_ranks=True,
    iteration=("Int64", "recording window"),
    group=("String", "process group"),
    number=("Int64", "number of the collective on its group"),
    collective=("String", "canonical collective"),
    present=("Int64", "members whose call was found"),
    skew_ns=("Int64", "from the first to the last arrival, ns; null if clocks are not comparable"),
    residual_ns=(
        "Int64",
        "the largest residual of a member's clock, ns; null if clocks are not comparable",
    ),
    order=("List(Int64)", "ranks in order of arrival; null if the residual exceeds the skew"),
    last_rank=("Int64", "the rank that came last; null if the residual exceeds its distance to the next"),
)
def arrivals(matched: pl.DataFrame, clock_offsets: pl.DataFrame) -> pl.DataFrame:
    """One collective that at least two ranks recorded: who came when, on aligned clocks.

    Clocks compare where collectives connect all members. Waiting times need none of this: a
    member's wait shows its lateness without a clock.
    """
    clocks = clock_offsets.select("iteration", "rank", "offset_ns", "residual_ns", "island")
    placed = matched.join(
        clocks, on=["iteration", "rank"], how="left", nulls_equal=True, maintain_order="left"
    ).with_columns((pl.col("start_ns") - pl.col("offset_ns")).alias("arrival_ns"))
    start = pl.col("arrival_ns")
    by_collective = (
        placed.sort("arrival_ns", maintain_order=True)
        .group_by("iteration", "group", "number")
        .agg(
            pl.col("collective", "present").first(),
            (start.max() - start.min()).alias("skew_ns"),
            (start.max() - start.top_k(2).min()).alias("margin_ns"),
            pl.col("residual_ns").max(),
            pl.col("rank").alias("order"),
            (start.is_not_null().all() & (pl.col("island").n_unique() == 1)).alias("comparable"),
        )
    )
    is_ordered = pl.col("comparable") & (pl.col("skew_ns") >= pl.col("residual_ns"))
    has_last = pl.col("comparable") & (pl.col("margin_ns") > pl.col("residual_ns"))
    return (
        by_collective.select(
            "iteration",
            "group",
            "number",
            "collective",
            "present",
            pl.when("comparable").then(pl.col("skew_ns", "residual_ns")),
            pl.when(is_ordered).then("order").alias("order"),
            pl.when(has_last).then(pl.col("order").list.last()).alias("last_rank"),
        )
        .select(*DERIVED.get("arrivals").table.columns)
        .sort("iteration", "group", "number")
    )


def members_without_wait(matched: pl.DataFrame, messages: pl.DataFrame) -> pl.DataFrame:
    """Return `trace` and `call` of each member of a call whose durations show no waiting, and which it is."""
    is_uneven = pl.col("uneven").fill_null(value=False)
    columns = ("trace", "call", "group", "number", is_uneven)
    collectives = matched.filter(
        pl.col("wait_ns").is_null()
        & pl.col("agrees")
        & (pl.col("collective").is_in(rooted_collectives()) | is_uneven)
    ).select(columns)
    agreed = messages.filter(pl.col("agrees") & (pl.col("dimension") != "pp").fill_null(value=True))
    numbered = agreed.select(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("number"),
        *(f"{side}_{name}" for side in MESSAGES for name in ("trace", "call")),
        group=pl.lit(None, dtype=pl.String),
        uneven=pl.lit(value=False),
    )
    sides = [
        numbered.rename({f"{side}_trace": "trace", f"{side}_call": "call"}).select(columns)
        for side in MESSAGES
    ]
    return pl.concat([collectives, *sides])


def until_last_arrival(members: pl.DataFrame, clock_offsets: pl.DataFrame) -> pl.DataFrame:
    """Return the calls in which a member waited, with `until_ns`.

    It waits until the last member starts, on a common clock: what is within the uncertainty of the clocks
    does not count. Without such a clock it is the time beyond the shortest member's, which in an uneven
    all-to-all shows nothing.
    """
    key = ["iteration", "group", "number"]
    clocks = clock_offsets.select("iteration", "rank", "offset_ns", "residual_ns", "island")
    placed = members.join(
        clocks, on=["iteration", "rank"], how="left", nulls_equal=True, maintain_order="left"
    )
    arrival, length = pl.col("start_ns") - pl.col("offset_ns"), pl.col("end_ns") - pl.col("start_ns")
    has_one_clock = (pl.col("island").is_not_null().all() & (pl.col("island").n_unique() == 1)).over(key)
    until_last = arrival.max().over(key) - arrival
    is_sure = until_last > pl.col("residual_ns").max().over(key)
    wait = (
        pl.when(has_one_clock)
        .then(pl.when(is_sure).then(pl.min_horizontal(until_last, length)))
        .when(~pl.col("uneven"))
        .then(length - length.min().over(key))
    )
    return placed.with_columns(until_ns=pl.col("start_ns") + wait).filter(
        pl.col("until_ns") > pl.col("start_ns")
    )


def format_duration(length_ns: int) -> str:
    """Return a length of time in three digits with a fitting unit."""
    for scale, unit in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")):
        if abs(length_ns) >= scale:
            return f"{length_ns / scale:.3g} {unit}"
    return f"{length_ns} ns"


Kind = Literal["single", "aligned", "as recorded", "separate"]


@dataclass(frozen=True, slots=True)
class Clocks:
    """How the clocks of several traces are aligned."""

    kind: Kind
    statement: str
    """Statement for the reader."""
    offsets_ns: Mapping[int, int] = field(default_factory=dict)
    """Trace → time that is subtracted from its times, ns."""
    residuals_ns: Mapping[int, int] = field(default_factory=dict)
    """Trace → median distance of its ends of collectives from the others', ns; empty unless aligned."""

    def applied(self, table: pl.DataFrame) -> pl.DataFrame:
        """Return a table with `trace` and its times in columns `*_ns` on the common clock."""
        offset = pl.col("trace").replace_strict(dict(self.offsets_ns), default=0, return_dtype=pl.Int64)
        return table.with_columns(pl.col(r"^.*_ns$") - offset)


def clocks_of(contents: pl.DataFrame, clock_offsets: pl.DataFrame) -> Clocks:
    """Return the one clock of the traces in `contents`.

    Clocks are aligned where collectives join all ranks of a recording window. Where they do not, times
    stay as recorded if the traces overlap in time, and else every trace begins at 0.
    """
    spans = contents.select("trace", "rank", "iteration", "start_ns", "end_ns").drop_nulls("start_ns")
    if spans["trace"].n_unique() < 2:
        return Clocks("single", "one trace has one clock")
    with_offsets = spans.join(clock_offsets, on=["iteration", "rank"], how="left", nulls_equal=True)
    offsets = dict(with_offsets.select("trace", pl.col("offset_ns").fill_null(0)).iter_rows())
    island = pl.col("island")
    is_joined = with_offsets.group_by("iteration").agg(
        joined=(island.n_unique() == 1) & island.is_not_null().all()
    )
    if is_joined["joined"].all():
        residuals = dict(with_offsets.select("trace", "residual_ns").iter_rows())
        worst, largest = max(residuals.values()), max(map(abs, offsets.values()))
        statement = (
            f"clocks are aligned by the ends of collectives, with shifts up to {format_duration(largest)}; "
            f"the ends then agree within {format_duration(worst)} (median of the worst rank)"
        )
        return Clocks("aligned", statement, offsets, residuals)
    why = "clocks are not aligned, because no collective joins all ranks: "
    # Clocks that are about right show all traces of a recording window at some moment.
    windows = spans.group_by("iteration").agg(pl.col("start_ns").max(), pl.col("end_ns").min())
    if (windows["start_ns"] < windows["end_ns"]).all():
        return Clocks("as recorded", f"{why}times are as recorded, and clocks may differ", offsets)
    starts = dict(spans.select("trace", "start_ns").iter_rows())
    return Clocks("separate", f"{why}the traces do not overlap in time, so each begins at 0", starts)
