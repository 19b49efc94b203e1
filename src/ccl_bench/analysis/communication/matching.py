"""The same collective on all its ranks, and what part of its time was waiting.

The k-th collective of a process group on one rank is the k-th on its peers: by the recorded
sequence number where every call has one, else by order of launch. What the ranks say of
name, type and size must agree.

Wait and transfer need no clock: no member of a symmetric collective can leave before the last has
arrived, so the shortest member's duration is transfer, and what is longer is waiting. That
does not hold for rooted collectives, messages between two ranks and uneven all-to-alls: their wait
stays null, which is *unattributed*.
"""

from __future__ import annotations

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog.collectives import collectives as known_collectives


def symmetric_collectives() -> list[str]:
    """Return the collectives that no member leaves before all have arrived."""
    return [name for name, facts in known_collectives().items() if facts.is_symmetric]


def point_to_point() -> list[str]:
    """Return the names of messages between two ranks."""
    return [name for name, facts in known_collectives().items() if facts.is_point_to_point]


@derived(
    across_ranks=True,
    iteration=("Int64", "recording window"),
    group=("String", "process group"),
    dimension=("String", "parallelism dimension of the group"),
    number=("Int64", "number of the collective on its group"),
    collective=("String", "canonical collective"),
    size_bytes=("Int64", "message, bytes"),
    rank=("Int64", "member"),
    trace=("Int64", "trace of the member"),
    call=("Int64", "number of the call in the member's trace"),
    step=("Int64", "first step in which a member's call started; null outside all steps"),
    start_ns=("Int64", "start on the member's clock, ns"),
    end_ns=("Int64", "end on the member's clock, ns"),
    present=("Int64", "members whose call was found"),
    size=("Int64", "members of the group; null where that is not known"),
    own_sizes=("Boolean", "whether it is an all-to-all with a size of its own for each member"),
    uneven=("Boolean", "whether parts of an all-to-all differ in size, or may; null where nothing says"),
    agrees=("Boolean", "whether all members say the same of collective and size"),
    transfer_ns=("Int64", "shortest duration among members, ns; null where that is no transfer time"),
    wait_ns=("Int64", "duration beyond the transfer, ns; null where it is unknown"),
    lacks=("Int64", "collectives of the step that the member's trace lacks and others of their group have"),
    gaps=("Int64", "the same of all traces together: 0 where the step is whole"),
    complete=("Boolean", "whether all members of every group of the member's trace were recorded"),
)
def matched(known_calls: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """One member of one collective that at least two ranks recorded."""
    messages = pl.col("collective").is_in(point_to_point())
    usable = groups.filter(~pl.col("ambiguous")).select("group", "dimension", "size")
    members = _numbered(known_calls.filter(~messages).join(usable, on="group", maintain_order="left"))
    key = ["iteration", "group", "number"]
    duration = pl.col("end_ns") - pl.col("start_ns")
    every = members.with_columns(
        pl.len().over(key).cast(pl.Int64).alias("present"),
        _agreement(key).alias("agrees"),
        pl.col("own_sizes").any().over(key),
        pl.col("uneven").any(ignore_nulls=False).over(key),
        pl.col("step").min().over(key),
        duration.min().over(key).alias("shortest_ns"),
    ).with_columns(_members_agree().alias("agrees"))
    lacking = _lacking(every.filter(pl.col("size").is_not_null() | pl.col("agrees")))
    together = (
        every.filter(pl.col("present") > 1)
        .join(lacking, on=["iteration", "step", "trace"], how="left", nulls_equal=True, maintain_order="left")
        .join(
            _complete(every), on=["iteration", "trace"], how="left", nulls_equal=True, maintain_order="left"
        )
    )
    even = ~pl.col("uneven").fill_null(value=False)
    symmetric = pl.col("collective").is_in(symmetric_collectives()) & even & pl.col("agrees")
    transfer = pl.when(symmetric).then("shortest_ns")
    return together.with_columns(
        transfer.alias("transfer_ns"), (duration - transfer).alias("wait_ns")
    ).select(*DERIVED.get("matched").table.columns)


def _lacking(members: pl.DataFrame) -> pl.DataFrame:
    """Return how many collectives of a step each trace lacks that others of their group have, as `lacks`.

    `gaps` is the sum over all traces of the step. A trace lacks what was cut off it, or lost.
    """
    place = ["iteration", "group", "step"]
    placed = members.drop_nulls("step")
    own = placed.group_by(*place, "trace").agg(pl.len().cast(pl.Int64).alias("own"))
    expected = placed.group_by(place).agg(pl.col("number").n_unique().cast(pl.Int64).alias("expected"))
    users = placed.select("iteration", "group", "trace").unique()
    every = users.join(expected, on=place[:2], nulls_equal=True).join(
        own, on=[*place, "trace"], how="left", nulls_equal=True
    )
    lacks = pl.col("expected") - pl.col("own").fill_null(0)
    by_trace = every.group_by("iteration", "step", "trace").agg(lacks.sum().alias("lacks"))
    return by_trace.with_columns(pl.col("lacks").sum().over("iteration", "step").alias("gaps"))


def _complete(members: pl.DataFrame) -> pl.DataFrame:
    """Return of each trace whether all members of every group that it calls in have a trace."""
    users = members.select("iteration", "group", "trace", "size").unique()
    recorded = (pl.len().over("iteration", "group") >= pl.col("size")).fill_null(value=False)
    marked = users.with_columns(recorded.alias("complete"))
    return marked.group_by("iteration", "trace").agg(pl.col("complete").all())


def _numbered(calls: pl.DataFrame) -> pl.DataFrame:
    """Number the calls of each group: by recorded sequence where it is complete, else by order.

    One call of a rank has one number: a sequence that repeats on a rank (calls put together in
    one launch share it) shows nothing, and order is used for the group.
    """
    one_trace = ["iteration", "group", "trace"]
    repeats = pl.struct("sequence").is_duplicated().over(one_trace)
    sound = (pl.col("sequence").is_not_null() & ~repeats).all().over("iteration", "group")
    order = pl.struct("order", "start_ns").rank("ordinal").over(one_trace).cast(pl.Int64)
    return calls.with_columns(pl.when(sound).then("sequence").otherwise(order).alias("number"))


def _members_agree() -> pl.Expr:
    """Whether members agree; those of an unrecorded group must do so in every collective.

    Nothing else supports such a group, and after one call too many on a rank the k-th
    is no longer the k-th of its peers.
    """
    everywhere = pl.col("agrees").all().over("iteration", "group")
    return pl.when(pl.col("size").is_null()).then(everywhere).otherwise("agrees")


def _agreement(key: list[str]) -> pl.Expr:
    """Whether the members of a collective say the same; what one does not say, it does not contest.

    Sizes of all-to-alls may differ by nature; types differ by who recorded them.
    """
    one_name = pl.col("collective").n_unique().over(key) == 1
    sizes = pl.col("size_bytes").drop_nulls().n_unique().over(key)
    return one_name & ((sizes <= 1) | (pl.col("collective") == "all_to_all"))
