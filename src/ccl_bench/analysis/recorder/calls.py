"""Flight Recorder dumps: the calls, and which send meets which receive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.recorder.divergence import DivergentCalls
from ccl_bench.analysis.recorder.groups import elements
from ccl_bench.base.lazy_imports import pl
from ccl_bench.result.hang import DAMAGED_DUMP, MISMATCH, MISSING, NO_DUMP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.analysis.recorder.divergence import Dumps
    from ccl_bench.analysis.recorder.groups import ProcessGroup

_INPUT_ALONE = ("reduce", "_reduce_oop", "gather", "reduce_scatter", "reduce_scatter_v")
"""Operations whose outputs differ between ranks by design."""
_OUTPUT_ALONE = ("broadcast", "_broadcast_oop", "scatter", "all_gather", "all_gather_v")
"""Operations whose inputs differ between ranks by design."""
_NEITHER = "all_?to_?all"
"""Operations of which every pair of ranks has a size of its own."""

COALESCED = "coalesced"


def prepared(calls: pl.DataFrame, of_rank: pl.DataFrame) -> pl.DataFrame:
    """Return `recorded_calls` with `number` of the group, `signature`, `is_done` and `is_pending`.

    Sizes are compared as numbers of elements: communication libraries see no shapes. A call is done when it
    was seen to have ended; a call that was only retired may have failed. What is coalesced is done with the
    call that ends it.
    """
    alone = [pl.col("operation").is_in(names) for names in (_OUTPUT_ALONE, _INPUT_ALONE)]
    neither = pl.col("operation").str.contains(_NEITHER)
    product = pl.element().list.eval(pl.element().product()).list.first().fill_null(1)
    sides = [
        pl.when(neither | left_out)
        .then(pl.lit(""))
        .otherwise(pl.col(f"{side}_shapes").list.eval(product).cast(pl.List(pl.String)).list.join(","))
        for side, left_out in zip(("in", "out"), alone, strict=True)
    ]
    types = [
        pl.when(left_out)
        .then(pl.lit(""))
        .otherwise(pl.col(f"{side}_dtypes").list.unique().list.sort().list.join(","))
        for side, left_out in zip(("in", "out"), alone, strict=True)
    ]
    ended = pl.col("completed_ns").is_not_null() | (pl.col("state") == "completed")
    together = ["rank", "group", "is_p2p", pl.when("is_p2p").then("p2p_sequence").otherwise("sequence")]
    closed = (ended & (pl.col("operation") == COALESCED)).any().over(together)
    return (
        calls.join(of_rank, on=["rank", "group"], how="left", maintain_order="left")
        .with_columns(
            pl.concat_str("operation", *sides, *types, separator=" ").alias("signature"),
            (ended | closed).alias("is_done"),
        )
        .with_columns((~pl.col("is_done") & ~pl.col("is_retired")).alias("is_pending"))
    )


_SEND, _RECEIVE = r"^send (?P<source>\d+)->(?P<target>\d+)$", r"^recv (?P<target>\d+)<-(?P<source>\d+)$"


def message_divergences(
    calls: pl.DataFrame, groups: list[ProcessGroup], dumps: Dumps
) -> Iterator[DivergentCalls]:
    """Yield, for each pair of ranks, the first message that one of them lacks or sees in another size.

    Where older records of either were overwritten, only messages that are still waited for are counted.
    """
    ends = _ends(calls, groups)
    if ends.is_empty():
        return
    forgets = [rank for rank, first in dumps.first_records.items() if first > 0]
    pair = ["number", "source", "target"]
    partial = (pl.col("source").is_in(forgets) | pl.col("target").is_in(forgets)).alias("partial")
    numbered = (
        ends.with_columns(partial)
        .filter(~pl.col("partial") | ~pl.col("is_done") & ~pl.col("is_retired"))
        .sort("row")
        .with_columns(pl.int_range(1, pl.len() + 1).over(*pair, "is_send").alias("message"))
    )
    columns = [*pair, "message", "row", "elements", "is_done", "is_retired"]
    sent = numbered.filter("is_send").select(columns)
    received = numbered.filter(~pl.col("is_send")).select(columns)
    messages = (
        sent.join(received, on=[*pair, "message"], how="full", coalesce=True, suffix="_in")
        .with_columns(pl.min_horizontal(pl.col("row", "row_in").count().over(pair)).alias("reached"))
        .sort(*pair, "message")
    )
    not_sent, not_received = pl.col("row").is_null(), pl.col("row_in").is_null()
    # An end without its peer may wait no longer: a send may be over before it is received.
    is_over = not_received & (pl.col("is_done") | pl.col("is_retired")) | (not_sent & pl.col("is_done_in"))
    differs = not_sent | not_received | (pl.col("elements") != pl.col("elements_in"))
    unequal = messages.filter(differs).filter(~is_over)
    for row in unequal.unique(pair, keep="first", maintain_order=True).iter_rows(named=True):
        yield _message_divergence(row, groups[row["number"]], dumps)


def _ends(calls: pl.DataFrame, groups: list[ProcessGroup]) -> pl.DataFrame:
    """Return sends and receives with the global ranks of both sides; dumps hold ranks in the group."""
    named = calls.filter("is_p2p").with_columns(
        pl.col("operation").str.starts_with("send").alias("is_send"),
        *(
            pl.coalesce(
                pl.col("operation").str.extract(pattern, 1 + ((name == "target") ^ swapped))
                for pattern, swapped in ((_SEND, False), (_RECEIVE, True))
            )
            .cast(pl.Int64)
            .alias(name)
            for name in ("source", "target")
        ),
    )
    rows = [
        (
            row,
            number,
            members[source],
            members[target],
            send,
            elements(inputs if send else outputs),
            is_done,
            is_retired,
        )
        for row, number, source, target, send, inputs, outputs, is_done, is_retired in named.drop_nulls(
            ["source", "target"]
        )
        .select(
            "row", "number", "source", "target", "is_send", "in_shapes", "out_shapes", "is_done", "is_retired"
        )
        .iter_rows()
        if max(source, target) < len(members := groups[number].members)
    ]
    names = ("row", "number", "source", "target", "is_send", "elements", "is_done", "is_retired")
    flags = {"is_send", "is_done", "is_retired"}
    schema = {name: pl.Boolean() if name in flags else pl.Int64() for name in names}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _message_divergence(row: dict[str, int], group: ProcessGroup, dumps: Dumps) -> DivergentCalls:
    source, target, number = row["source"], row["target"], row["message"]
    sides = {source: row["row"], target: row["row_in"]}
    recorded_rows = {rank: place for rank, place in sides.items() if place is not None}
    operation = f"message {source}->{target}"
    if len(recorded_rows) == 2:
        return DivergentCalls(MISMATCH, group, number, operation, {}, [], recorded_rows, is_p2p=True)
    (missing,) = (rank for rank in sides if rank not in recorded_rows)
    kind = DAMAGED_DUMP if missing in dumps.damaged else NO_DUMP
    if missing in dumps.first_records:
        is_older = row["reached"] < number - 1
        kind = dumps.why_lacking(missing, may_be_empty=number == 1, is_older=is_older)
    return DivergentCalls(
        kind,
        group,
        number,
        operation,
        recorded_rows,
        missing=[missing] if kind == MISSING else [],
        without_dump=[missing] if kind == NO_DUMP else [],
        incomplete={} if kind in (MISSING, NO_DUMP) else {missing: kind},
        is_p2p=True,
    )
