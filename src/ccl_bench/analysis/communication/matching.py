"""Matching of calls: a collective on all its ranks, and sends with their receives.

The k-th collective of a process group on one rank is the k-th on its peers: by the recorded
sequence number where every call has one, else by order of launch. What the ranks say of
name, type and size must agree.

Wait and transfer need no clock: no member of a symmetric collective can leave before the last has
arrived, so the shortest member's duration is transfer, and what is longer is waiting. That
does not hold for rooted collectives, messages between two ranks and uneven all-to-alls: their wait
stays null, which is *unattributed*.
"""

from __future__ import annotations

from itertools import pairwise

from ccl_bench.analysis.communication.groups import is_named_alike
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog.collectives import collectives as known_collectives

MESSAGES = ("send", "recv")

_ROW = "_row"


@derived(
    kind=(
        "String",
        "common properties of groups of one dimension: description, size, distances of the ranks",
    ),
    ranks=("List(Int64)", "global ranks of the members, in the order of their places"),
)
def listed_groups(process_groups: pl.DataFrame, identity: pl.DataFrame) -> pl.DataFrame:
    """One process group that a trace lists, and of which its rank is a member."""
    rank = identity["rank"][0] if identity.height else None
    groups = []
    for row in process_groups.drop_nulls("ranks").iter_rows(named=True):
        ranks = row["ranks"]
        if rank in ranks:
            distances = [later - earlier for earlier, later in pairwise(ranks)]
            groups.append((f"{row['description']} {len(ranks)} {distances}", ranks))
    kinds, ranks = [row[0] for row in groups], [row[1] for row in groups]
    return DERIVED.get("listed_groups").table.frame({"kind": kinds, "ranks": ranks})


def with_peers(calls: pl.DataFrame, listed: pl.DataFrame, world_size: int | None) -> pl.DataFrame:
    """Return the calls of a run with the other rank of each message, null if unknown.

    One trace that proves its recorded peers to be places in the group proves it of the whole recording.
    Where no trace lists groups, the group of all ranks is the only kind to try.
    """
    at_place = pl.col("peer_at_place")
    proves = (pl.col("peer").is_null() & at_place.is_not_null()).any()
    peer_calls = calls.with_columns(
        pl.when(proves & at_place.is_not_null()).then(at_place).otherwise("peer").alias("peer")
    )
    peer_calls = peer_calls.with_row_index(_ROW)
    is_open = pl.col("peer").is_null() & pl.col("peer_position").is_not_null() & pl.col("rank").is_not_null()
    unknown = peer_calls.filter(is_open & pl.col("collective").is_in(MESSAGES))
    if unknown.is_empty():
        return peer_calls.select(calls.columns)
    if listed.is_empty() and world_size:
        everyone = pl.lit([*range(world_size)], dtype=pl.List(pl.Int64))
        listed = peer_calls.select("iteration", "rank", kind=pl.lit("all ranks"), ranks=everyone).unique(
            "rank"
        )
    # Each message once for each kind of group, with the rank at its place in this rank's group of the kind.
    group_key = ["iteration", "rank", "kind"]
    first = pl.col("ranks").list.first()
    groups = listed.group_by(group_key).agg(pl.col("ranks").first(), is_one=first.n_unique() == 1)
    target = pl.col("ranks").list.get(pl.col("peer_position"), null_on_oob=True)
    guesses = (
        unknown.select(_ROW, "iteration", "rank", "collective", "peer_position", "size_bytes")
        .join(groups.select("kind").unique(), how="cross")
        .join(groups, on=group_key, how="left", nulls_equal=True)
        .with_columns(pl.when("is_one").then(target).alias("target"))
    )
    standing = guesses.filter(pl.col("kind").is_in(_fitting_kinds(guesses).implode()))
    agreed = standing.group_by(_ROW).agg(
        pl.col("target").n_unique().alias("targets"), pl.col("target").first()
    )
    joined = peer_calls.join(
        agreed.filter(pl.col("targets") == 1), on=_ROW, how="left", maintain_order="left"
    )
    return joined.with_columns(pl.coalesce("peer", "target").alias("peer")).select(calls.columns)


def _fitting_kinds(guesses: pl.DataFrame) -> pl.Series:
    """Return the kinds of groups in which the other end of every message fits.

    No rank sends to itself. Between two recorded ranks there are messages at both ends, of the same sizes.
    """
    is_send = pl.col("collective") == "send"
    recorded = guesses["rank"].unique().implode()
    ends = guesses.with_columns(
        pl.when(is_send).then("rank").otherwise("target").alias("source"),
        pl.when(is_send).then("target").otherwise("rank").alias("sink"),
    )
    sent, received = (pl.col("size_bytes").filter(side).drop_nulls().unique() for side in (is_send, ~is_send))
    pairs = ends.group_by("kind", "iteration", "source", "sink").agg(
        sent.sort().alias("sent"),
        received.sort().alias("received"),
        is_send.all().alias("only_sent"),
        (~is_send).all().alias("only_received"),
    )
    sides = pl.col("sent"), pl.col("received")
    unequal = (sides[0].list.len() > 0) & (sides[1].list.len() > 0) & (sides[0] != sides[1])
    one_sided = pl.col("only_sent") | pl.col("only_received") | unequal
    is_seen = pl.col("source").is_in(recorded) & pl.col("sink").is_in(recorded)
    is_whole = pl.col("source").is_not_null() & pl.col("sink").is_not_null()
    fits = is_whole & (pl.col("source") != pl.col("sink")) & ~(is_seen & one_sided)
    return pairs.group_by("kind").agg(fits.fill_null(value=False).all().alias("fits")).filter("fits")["kind"]


@derived(
    across_ranks=True,
    iteration=("Int64", "recording window"),
    source=("Int64", "sending rank"),
    target=("Int64", "receiving rank"),
    number=("Int64", "number of the message from source to target"),
    dimension=("String", "parallelism dimension"),
    spans_nodes=("Boolean", "whether it crosses nodes"),
    size_bytes=("Int64", "message, bytes"),
    agrees=("Boolean", "whether both sides state the same size"),
    send_trace=("Int64", "trace of the sender"),
    send_call=("Int64", "number of the call in the sender's trace"),
    send_ns=("Int64", "duration on the sender, ns"),
    recv_trace=("Int64", "trace of the receiver"),
    recv_call=("Int64", "number of the call in the receiver's trace"),
    recv_ns=("Int64", "duration on the receiver, ns"),
    transfer_ns=("Int64", "the shorter of both durations, which contains least waiting, ns"),
)
def messages(traffic: pl.DataFrame) -> pl.DataFrame:
    """One message with both sides recorded: the k-th send from a rank to another is its k-th receive.

    Both are counted in their process group where every rank gives it the same name. An eager send
    returns before the receiver has the data, so the shorter side is no exact transfer time, and a
    message never shows which rank was late.
    """
    sends = _side(traffic, "send", "rank", "peer")
    receives = _side(traffic, "recv", "peer", "rank")
    key = ["iteration", "source", "target", "channel", "number"]
    both = sends.join(receives, on=key, suffix="_recv", nulls_equal=True, maintain_order="left")
    sizes = pl.col("size_bytes"), pl.col("size_bytes_recv")
    return both.select(
        "iteration",
        "source",
        "target",
        "number",
        "dimension",
        "spans_nodes",
        pl.coalesce(*sizes).alias("size_bytes"),
        (sizes[0] == sizes[1]).fill_null(value=True).alias("agrees"),
        pl.col("trace").alias("send_trace"),
        pl.col("call").alias("send_call"),
        pl.col("duration_ns").alias("send_ns"),
        pl.col("trace_recv").alias("recv_trace"),
        pl.col("call_recv").alias("recv_call"),
        pl.col("duration_ns_recv").alias("recv_ns"),
        pl.min_horizontal("duration_ns", "duration_ns_recv").alias("transfer_ns"),
    ).select(*DERIVED.get("messages").table.columns)


def _side(traffic: pl.DataFrame, collective: str, source: str, target: str) -> pl.DataFrame:
    """Return the sends, or the receives, numbered from each source to each target."""
    pair = ("iteration", "rank", "peer", "channel")
    return (
        traffic.filter((pl.col("collective") == collective) & (pl.col("peer") != pl.col("rank")))
        .with_columns(channel=pl.when(is_named_alike()).then("group"))
        .sort("trace", "order", "start_ns", maintain_order=True)
        .select(
            "iteration",
            pl.col(source).alias("source"),
            pl.col(target).alias("target"),
            "channel",
            pl.int_range(pl.len(), dtype=pl.Int64).over(pair).alias("number"),
            "trace",
            "call",
            "dimension",
            "spans_nodes",
            "size_bytes",
            (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"),
        )
    )


def symmetric_collectives() -> list[str]:
    """Return the collectives that no member leaves before all have arrived."""
    return [name for name, facts in known_collectives().items() if facts.is_symmetric]


def rooted_collectives() -> list[str]:
    """Return the collectives in which one rank is the source or the sink."""
    return [name for name, facts in known_collectives().items() if facts.is_rooted]


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
    size=("Int64", "members of the group; null if unknown"),
    own_sizes=("Boolean", "whether it is an all-to-all with a size of its own for each member"),
    uneven=("Boolean", "whether parts of an all-to-all differ in size, or may; null if unknown"),
    agrees=("Boolean", "whether all members state the same collective and size"),
    transfer_ns=("Int64", "shortest duration among members, ns; null if that is no transfer time"),
    wait_ns=("Int64", "duration beyond the transfer, ns; null if unknown"),
    lacks=("Int64", "collectives of the step that the member's trace lacks and others of their group have"),
    gaps=("Int64", "the same of all traces together: 0 if the step is whole"),
    complete=("Boolean", "whether all members of every group of the member's trace were recorded"),
)
def matched(known_calls: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """One member of one collective that at least two ranks recorded."""
    messages = pl.col("collective").is_in(point_to_point())
    usable = groups.filter(~pl.col("ambiguous")).select("group", "dimension", "size")
    members = _numbered(known_calls.filter(~messages).join(usable, on="group", maintain_order="left"))
    key = ["iteration", "group", "number"]
    duration = pl.col("end_ns") - pl.col("start_ns")
    # Sizes of all-to-alls may differ by nature, and types by who recorded them. A value that a member did not
    # record contradicts nothing.
    one_name = pl.col("collective").n_unique().over(key) == 1
    sizes = pl.col("size_bytes").drop_nulls().n_unique().over(key)
    agree = one_name & ((sizes <= 1) | (pl.col("collective") == "all_to_all"))
    # Nothing but agreement everywhere supports a group that is not recorded: after one call too many on a
    # rank the k-th is no longer the k-th of its peers.
    everywhere = pl.col("agrees").all().over("iteration", "group")
    every = members.with_columns(
        pl.len().over(key).cast(pl.Int64).alias("present"),
        agree.alias("agrees"),
        pl.col("own_sizes").any().over(key),
        pl.col("uneven").any(ignore_nulls=False).over(key),
        pl.col("step").min().over(key),
        duration.min().over(key).alias("shortest_ns"),
    ).with_columns(agrees=pl.when(pl.col("size").is_null()).then(everywhere).otherwise("agrees"))
    lacking = _lacking(every.filter(pl.col("size").is_not_null() | pl.col("agrees")))
    users = every.select("iteration", "group", "trace", "size").unique()
    recorded = (pl.len().over("iteration", "group") >= pl.col("size")).fill_null(value=False)
    by_trace = users.with_columns(complete=recorded).group_by("iteration", "trace")
    complete = by_trace.agg(pl.col("complete").all())
    together = (
        every.filter(pl.col("present") > 1)
        .join(lacking, on=["iteration", "step", "trace"], how="left", nulls_equal=True, maintain_order="left")
        .join(complete, on=["iteration", "trace"], how="left", nulls_equal=True, maintain_order="left")
    )
    even = ~pl.col("uneven").fill_null(value=False)
    symmetric = pl.col("collective").is_in(symmetric_collectives()) & even & pl.col("agrees")
    transfer = pl.when(symmetric).then("shortest_ns")
    timed = together.with_columns(transfer_ns=transfer, wait_ns=duration - transfer)
    return timed.select(*DERIVED.get("matched").table.columns)


def _lacking(members: pl.DataFrame) -> pl.DataFrame:
    """Return the number of collectives of a step that a trace lacks and others of the group have, as `lacks`.

    `gaps` is the sum over all traces of the step. A trace lacks what was cut off it, or lost.
    """
    place = ["iteration", "group", "step"]
    placed = members.drop_nulls("step")
    own_counts = placed.group_by(*place, "trace").agg(pl.len().cast(pl.Int64).alias("own"))
    expected = placed.group_by(place).agg(pl.col("number").n_unique().cast(pl.Int64).alias("expected"))
    users = placed[["iteration", "group", "trace"]].unique()
    every = users.join(expected, on=place[:2], nulls_equal=True).join(
        own_counts, on=[*place, "trace"], how="left", nulls_equal=True
    )
    lacks = pl.col("expected") - pl.col("own").fill_null(0)
    by_trace = every.group_by("iteration", "step", "trace").agg(lacks.sum().alias("lacks"))
    return by_trace.with_columns(pl.col("lacks").sum().over("iteration", "step").alias("gaps"))


def _numbered(calls: pl.DataFrame) -> pl.DataFrame:
    """Number the calls of each group: by recorded sequence where it is complete, else by order.

    One call of a rank has one number: a sequence that repeats on a rank (calls put together in
    one launch share it) shows nothing, and order is used for the group. Calls launched before the recording
    have no sequence: where that of the others goes with their order, it continues backwards.
    """
    one_trace = ["iteration", "group", "trace"]
    ahead = pl.col("sequence") - pl.col("order")
    steady = (ahead.min() == ahead.max()).over(one_trace).fill_null(value=False)
    continued = pl.when(steady).then(pl.col("order") + ahead.min().over(one_trace)).otherwise("sequence")
    calls = calls.with_columns(sequence=continued)
    repeats = pl.struct("sequence").is_duplicated().over(one_trace)
    sound = (pl.col("sequence").is_not_null() & ~repeats).all().over("iteration", "group")
    order = pl.struct("order", "start_ns").rank("ordinal").over(one_trace).cast(pl.Int64)
    return calls.with_columns(number=pl.when(sound).then("sequence").otherwise(order))
