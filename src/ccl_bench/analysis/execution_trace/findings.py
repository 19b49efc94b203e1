"""Findings where Execution Traces and Kineto traces disagree about the same communication calls."""

from __future__ import annotations

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.execution_trace.linking import LEAST_RATE
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl

_COMPARED = ("sent_bytes", "received_bytes")

_WHOLE = 0.95
"""Share of linked operators below which the two recordings are not of the same steps."""


@derived(
    across_ranks=True,
    iteration=("Int64", "recording window"),
    rank=("Int64", "rank"),
    trace=("Int64", "the Kineto trace"),
    call=("Int64", "number of the call in the Kineto trace"),
    node=("Int64", "number of the node in the Execution Trace"),
    collective=("String", "canonical collective, as Kineto has it"),
    et_collective=("String", "canonical collective, as the Execution Trace has it"),
    sent_bytes=("Int64", "bytes sent by this rank, as Kineto has it"),
    et_sent_bytes=("Int64", "bytes sent by this rank, as the Execution Trace has it"),
    received_bytes=("Int64", "bytes received by this rank, as Kineto has it"),
    et_received_bytes=("Int64", "bytes received by this rank, as the Execution Trace has it"),
    agrees=("Boolean", "whether both are the same; null where one of them has no size"),
)
def et_agreement(et_calls: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """One communication call that both an Execution Trace and a Kineto trace recorded."""
    known = et_calls.drop_nulls("call_start_ns").select(
        pl.col("call_trace").alias("trace"),
        pl.col("call_start_ns").alias("start_ns"),
        pl.col("call_stream").alias("stream"),
        "node",
        *(pl.col(name).alias(f"et_{name}") for name in ("collective", *_COMPARED)),
    )
    both = calls.join(known, on=["trace", "start_ns", "stream"], how="inner", maintain_order="left")
    same_call = pl.col("collective") == pl.col("et_collective")
    differ = [pl.col(name) != pl.col(f"et_{name}") for name in _COMPARED]
    is_known = pl.any_horizontal(difference.is_not_null() for difference in differ)
    same_size = ~pl.any_horizontal(difference.fill_null(value=False) for difference in differ)
    agrees = pl.when(is_known | ~same_call).then(same_call & same_size)
    return both.with_columns(agrees.alias("agrees")).select(*DERIVED.get("et_agreement").table.columns)


def disagreements(et_agreement: pl.DataFrame) -> list[Finding]:
    """Return what Execution Traces and Kineto traces contradict each other in."""
    odd = et_agreement.filter(~pl.col("agrees"))
    if odd.is_empty():
        return []
    first = odd.row(0, named=True)
    message = (
        f"{odd.height} of {et_agreement.height} communication calls differ between Execution Trace and "
        f"Kineto, first {_told(first, 'et_')} and {_told(first, '')} on rank {first['rank']}"
    )
    touches = ("calls", "et_calls", "et_agreement")
    return [Finding("et-kineto-disagree", "warning", message, count=odd.height, touches=touches)]


def _told(call: dict[str, object], prefix: str) -> str:
    sent, received = (call[f"{prefix}{name}"] for name in _COMPARED)
    return f"{call[f'{prefix}collective']} ({sent} bytes sent, {received} received)"


def unlinked(et_links: pl.DataFrame) -> list[Finding]:
    """Return which Execution Traces could not be found, or not wholly, in the Kineto trace of their rank."""
    beside = et_links.filter((pl.col("ops") > 0) & (pl.col("rate") < _WHOLE))
    return [
        Finding(
            "et-unlinked",
            "warning",
            f"{row['linked']:,} of {min(row['nodes'], row['ops']):,} operators of the Execution Trace of "
            f"rank {row['rank']} were found in its Kineto trace"
            + ("" if row["rate"] >= LEAST_RATE else "; the two are treated as recordings of different steps"),
            rank=row["rank"],
            count=min(row["nodes"], row["ops"]) - row["linked"],
            touches=("et_links", "et_calls"),
        )
        for row in beside.iter_rows(named=True)
    ]
