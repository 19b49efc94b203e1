"""Ranges and operators on the CPU whose names say which part of a training step they belong to."""

from __future__ import annotations

from ccl_bench.analysis.communication.naming import is_one_of
from ccl_bench.base.lazy_imports import pl

EVALUATE = "autograd::engine::evaluate_function: "
"""Prefix of the operator in which autograd runs one node of the backward graph."""

ACCUMULATE = rf"^{EVALUATE}torch::autograd::AccumulateGrad"

FORWARD = (
    r"(?i)^\W*forward(?:[\W_]*(?:pass|step|compute))?\W*\d*\W*$"
    r"|^(?:DistributedDataParallel|FullyShardedDataParallel)\.forward"
    r"|^FSDP::(?:root_)?(?:pre|post)_forward|\(F\)$|^PP:\d+F\d+$"
)
"""What torch marks, torch.distributed.pipelining (`PP:0F1`), DualPipe (`attn(F)`), and what people write."""

BACKWARD = (
    r"(?i)^\W*(?:loss[\W_]*)?backward(?:[\W_]*(?:pass|step|compute))?\W*\d*\W*$"
    r"|^FSDP::(?:(?:pre|post)_backward|backward_prefetch|root_post_backward)"
    r"|^FullyShardedDataParallel\._(?:pre|post)_backward|\([BW]\)$|^PP:\d+[BIW]\d+$"
)

OPTIMIZER = r"^Optimizer\.step#|(?i)^\W*optimi[sz]er(?:[\W_]*step)?\W*$"

ASIDE = r"^Optimizer\.zero_grad#|^enumerate\(DataLoader\)#"
"""Parts of a step that are neither forward nor backward nor optimizer."""

ACCUMULATION = r"^FSDP::post_backward_accumulate"

REDUCTION = (
    r"^FSDP::post_backward_(?:reduce|rs_wait)"
    r"|^torch::distributed::reducer::|^torch\.distributed\.ddp\.reducer::"
)
"""Gradient reduction by FSDP2, and DDP's copies between gradients and buckets."""

REDISTRIBUTION = r"^_(?:From|To)TorchTensor|Redistribute"
"""Functions of DTensor that record for autograd even when they are part of the backward pass."""


def on_cpu(annotations: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges of CPU threads, with names as text."""
    return annotations.filter(~pl.col("on_device")).with_columns(pl.col("name").cast(pl.String))


def matching(names: pl.Series, pattern: str) -> pl.Series:
    """Mark which names match a pattern; each distinct name is looked at once."""
    distinct = names.unique()
    found = distinct.to_frame().filter(pl.col(names.name).cast(pl.String).str.contains(pattern))
    return is_one_of(names, found.to_series())


def named(table: pl.DataFrame, pattern: str) -> pl.DataFrame:
    """Return start, end and thread of the rows whose name matches."""
    return table.select("start_ns", "end_ns", "thread").filter(matching(table["name"], pattern))


def recomputing(cpu_ops: pl.DataFrame) -> pl.DataFrame:
    """Return the forward operators that ran inside backward nodes: activation checkpointing.

    Only operators that record for autograd carry a sequence number; those of the forward pass have
    forward thread 0, and inside a backward node there are none unless it runs forward again.
    """
    forward = pl.col("sequence_number").is_not_null() & (pl.col("forward_thread").fill_null(0) == 0)
    recorded = cpu_ops.filter(forward)
    own = recorded.filter(~matching(recorded["name"], f"{REDISTRIBUTION}|^{EVALUATE}"))
    inside = enclosing(own, named(cpu_ops, f"^{EVALUATE}"), "start_ns")
    return own.filter(inside.is_not_null()).select("start_ns", "end_ns", "thread")


def enclosing(points: pl.DataFrame, ranges: pl.DataFrame, at: str) -> pl.Series:
    """Return the start of the outermost range around the time `at` of each point on its thread, else null."""
    if ranges.is_empty():
        return pl.Series("opened_ns", [None], dtype=pl.Int64).new_from_index(0, points.height)
    closes = pl.col("end_ns").cum_max()
    opens = (pl.col("start_ns") > closes.shift(1)).fill_null(value=True)
    outer = (
        ranges.filter(pl.col("start_ns") < pl.col("end_ns"))
        .sort("start_ns")
        .select(
            "thread",
            "start_ns",
            closes.over("thread").alias("closes_ns"),
            pl.when(opens).then("start_ns").forward_fill().over("thread").alias("opened_ns"),
        )
    )
    found = (
        points.select("thread", pl.col(at).alias("at"), row=pl.int_range(pl.len()))
        .sort("at", nulls_last=True)
        .join_asof(
            outer,
            left_on="at",
            right_on="start_ns",
            by="thread",
            strategy="backward",
            coalesce=False,
            check_sortedness=False,
        )
        .sort("row")
    )
    inside = pl.col("at") < pl.col("closes_ns")
    return found.select(pl.when(inside).then("opened_ns")).to_series()
