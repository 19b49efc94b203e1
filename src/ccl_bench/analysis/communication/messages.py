"""Messages between two ranks: who the other rank is, and which receive belongs to which send."""

from __future__ import annotations

from itertools import pairwise

from ccl_bench.analysis.communication.groups import is_named_alike
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.base.lazy_imports import pl

MESSAGES = ("send", "recv")

_ROW = "_row"


@derived(
    kind=("String", "what groups of one dimension have in common: description, size, distances of the ranks"),
    ranks=("List(Int64)", "global ranks of the members, in the order of their places"),
)
def listed_groups(process_groups: pl.DataFrame, identity: pl.DataFrame) -> pl.DataFrame:
    """One process group that a trace lists, and of which its rank is a member."""
    rank = identity["rank"][0] if identity.height else None
    found = []
    for row in process_groups.drop_nulls("ranks").iter_rows(named=True):
        ranks = row["ranks"]
        if rank in ranks:
            distances = [later - earlier for earlier, later in pairwise(ranks)]
            found.append((f"{row['description']} {len(ranks)} {distances}", ranks))
    kinds, ranks = [row[0] for row in found], [row[1] for row in found]
    return DERIVED.get("listed_groups").table.frame({"kind": kinds, "ranks": ranks})


def with_peers(calls: pl.DataFrame, listed: pl.DataFrame, world_size: int | None) -> pl.DataFrame:
    """Return the calls of a run with the other rank of each message, null where that is not known.

    One trace that proves its recorded peers to be places in the group proves it of the whole recording.
    Where no trace lists groups, the group of all ranks is the only kind to try.
    """
    at_place = pl.col("peer_at_place")
    proves = (pl.col("peer").is_null() & at_place.is_not_null()).any()
    known = calls.with_columns(
        pl.when(proves & at_place.is_not_null()).then(at_place).otherwise("peer").alias("peer")
    )
    known = known.with_row_index(_ROW)
    is_open = pl.col("peer").is_null() & pl.col("peer_position").is_not_null() & pl.col("rank").is_not_null()
    unknown = known.filter(is_open & pl.col("collective").is_in(MESSAGES))
    if unknown.is_empty():
        return known.select(calls.columns)
    if listed.is_empty() and world_size:
        everyone = pl.lit([*range(world_size)], dtype=pl.List(pl.Int64))
        listed = known.select("iteration", "rank", kind=pl.lit("all ranks"), ranks=everyone).unique("rank")
    guesses = _guesses(unknown, listed)
    standing = guesses.filter(pl.col("kind").is_in(_standing(guesses).implode()))
    agreed = standing.group_by(_ROW).agg(
        pl.col("target").n_unique().alias("targets"), pl.col("target").first()
    )
    found = known.join(agreed.filter(pl.col("targets") == 1), on=_ROW, how="left", maintain_order="left")
    return found.with_columns(pl.coalesce("peer", "target").alias("peer")).select(calls.columns)


def _guesses(messages: pl.DataFrame, listed: pl.DataFrame) -> pl.DataFrame:
    """Return each message once for each kind of group, with the rank at its place in this rank's group."""
    mine = ["iteration", "rank", "kind"]
    first = pl.col("ranks").list.first()
    groups = listed.group_by(mine).agg(pl.col("ranks").first(), (first.n_unique() == 1).alias("is_one"))
    everyone = messages.select(_ROW, "iteration", "rank", "collective", "peer_position", "size_bytes")
    tried = everyone.join(groups.select("kind").unique(), how="cross")
    target = pl.col("ranks").list.get(pl.col("peer_position"), null_on_oob=True)
    return (
        tried.join(groups, on=mine, how="left", nulls_equal=True)
        .with_columns(pl.when("is_one").then(target).alias("target"))
        .drop("ranks", "is_one")
    )


def _standing(guesses: pl.DataFrame) -> pl.Series:
    """Return the kinds of groups in which the other end of every message fits."""
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
    agrees=("Boolean", "whether both sides say the same size"),
    send_trace=("Int64", "trace of the sender"),
    send_call=("Int64", "number of the call in the sender's trace"),
    send_ns=("Int64", "duration on the sender, ns"),
    recv_trace=("Int64", "trace of the receiver"),
    recv_call=("Int64", "number of the call in the receiver's trace"),
    recv_ns=("Int64", "duration on the receiver, ns"),
    transfer_ns=("Int64", "the shorter of both, which holds least waiting, ns"),
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
    counted = ("iteration", "rank", "peer", "channel")
    return (
        traffic.filter((pl.col("collective") == collective) & (pl.col("peer") != pl.col("rank")))
        .with_columns(channel=pl.when(is_named_alike()).then("group"))
        .sort("trace", "order", "start_ns", maintain_order=True)
        .select(
            "iteration",
            pl.col(source).alias("source"),
            pl.col(target).alias("target"),
            "channel",
            pl.int_range(pl.len(), dtype=pl.Int64).over(counted).alias("number"),
            "trace",
            "call",
            "dimension",
            "spans_nodes",
            "size_bytes",
            (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"),
        )
    )
