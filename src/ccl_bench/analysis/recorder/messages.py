"""Sends and receives of Flight Recorder dumps, matched: the n-th send to a rank meets its n-th receive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.recorder.divergence import Found
from ccl_bench.analysis.recorder.groups import elements
from ccl_bench.base.lazy_imports import pl
from ccl_bench.result.hang import MISMATCH, MISSING, NO_DUMP

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccl_bench.analysis.recorder.groups import ProcessGroup

_SEND, _RECEIVE = r"^send (?P<source>\d+)->(?P<target>\d+)$", r"^recv (?P<target>\d+)<-(?P<source>\d+)$"


def message_divergences(
    calls: pl.DataFrame, groups: list[ProcessGroup], first_records: Mapping[int, int]
) -> Iterator[Found]:
    """Yield, for each pair of ranks, the first message that one of them lacks or sees in another size.

    Where older records of either were overwritten, only messages that are still waited for are counted.
    """
    ends = _ends(calls, groups)
    if ends.is_empty():
        return
    forgets = [rank for rank, first in first_records.items() if first > 0]
    pair = ["number", "source", "target"]
    partial = (pl.col("source").is_in(forgets) | pl.col("target").is_in(forgets)).alias("partial")
    counted = (
        ends.with_columns(partial)
        .filter(~pl.col("partial") | ~pl.col("is_done") & ~pl.col("is_retired"))
        .sort("row")
        .with_columns(pl.int_range(1, pl.len() + 1).over(*pair, "is_send").alias("message"))
    )
    columns = [*pair, "message", "row", "elements", "is_done", "is_retired"]
    sent = counted.filter("is_send").select(columns)
    received = counted.filter(~pl.col("is_send")).select(columns)
    met = sent.join(received, on=[*pair, "message"], how="full", coalesce=True, suffix="_in").sort(
        *pair, "message"
    )
    unequal = met.filter(
        pl.col("row").is_null() | pl.col("row_in").is_null() | (pl.col("elements") != pl.col("elements_in"))
    ).filter(~_is_over())
    for found in unequal.unique(pair, keep="first", maintain_order=True).iter_rows(named=True):
        yield _found(found, groups[found["number"]], first_records)


def _is_over() -> pl.Expr:
    """Whether an end without its peer waits no longer: a send may be over before it is received."""
    unmet = pl.col("row_in").is_null()
    return unmet & (pl.col("is_done") | pl.col("is_retired")) | (
        pl.col("row").is_null() & pl.col("is_done_in")
    )


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
            elements(given if send else taken),
            done,
            retired,
        )
        for row, number, source, target, send, given, taken, done, retired in named.drop_nulls(
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


def _found(row: dict[str, int], group: ProcessGroup, first_records: Mapping[int, int]) -> Found:
    source, target, number = row["source"], row["target"], row["message"]
    sides = {source: row["row"], target: row["row_in"]}
    there = {rank: place for rank, place in sides.items() if place is not None}
    operation = f"message {source}->{target}"
    if len(there) == 2:
        return Found(MISMATCH, group, number, operation, {}, [], there, is_p2p=True)
    lacking = [rank for rank in sides if rank not in there]
    if lacking[0] in first_records:
        return Found(MISSING, group, number, operation, there, lacking, is_p2p=True)
    return Found(NO_DUMP, group, number, operation, there, [], {}, lacking, is_p2p=True)
