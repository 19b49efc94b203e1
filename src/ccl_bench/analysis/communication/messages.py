"""Messages between two ranks: each send with its receive."""

from __future__ import annotations

from ccl_bench.analysis.communication.members import is_named_alike
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.base.lazy_polars import pl


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
    message never tells which rank was late.
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
