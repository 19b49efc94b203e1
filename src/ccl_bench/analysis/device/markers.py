"""Ranges and operators on the CPU whose names say which part of a training step they belong to."""

from __future__ import annotations

from typing import cast

from ccl_bench.analysis.intervals import merge_intervals
from ccl_bench.analysis.names import all_matching, matching
from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema.table import keep_rows

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
    ranges = keep_rows(annotations, ~annotations["on_device"])
    return ranges.with_columns(pl.col("name").cast(pl.String))


def named(table: pl.DataFrame, *patterns: str) -> list[pl.DataFrame]:
    """Return start, end and thread of the rows whose name matches, for each pattern."""
    spans = table[["start_ns", "end_ns", "thread"]]
    return [keep_rows(spans, matches) for matches in all_matching(table["name"], *patterns)]


def recomputing(cpu_ops: pl.DataFrame, evaluated: pl.DataFrame) -> pl.DataFrame:
    """Return the stretches of threads in which `evaluated` backward nodes run the forward pass again.

    Only operators called while autograd records have a sequence number; those of the forward pass have
    forward thread 0. A node calls such operators if it runs part of the forward pass again (activation
    checkpointing), or if the backward pass is recorded to be differentiated itself (`create_graph`). Then
    it records all that it calls; else the gradient follows, whose operators are not recorded.
    """
    if evaluated.is_empty():
        return evaluated
    is_numbered = pl.col("sequence_number").is_not_null()
    forward_ops = cpu_ops.filter(is_numbered & (pl.col("forward_thread").fill_null(0) == 0))
    recorded = _in_nodes(forward_ops, f"{REDISTRIBUTION}|^{EVALUATE}", evaluated)
    if recorded.is_empty():
        return evaluated.clear()
    others = _in_nodes(cpu_ops.filter(~is_numbered), r"^(?:torch::)?autograd::", evaluated)
    node = ("thread", "opened_ns")
    named = recorded.filter(matching(recorded["name"], "::"))  # functions in Python always have a number
    last = named.group_by(node).agg(until_ns=pl.col("end_ns").max())
    gradients = others.group_by(node).agg(pl.col("start_ns").max().alias("gradient_ns"))
    again = last.join(gradients, on=node).filter(pl.col("gradient_ns") >= pl.col("until_ns"))
    if again.is_empty():
        return evaluated.clear()
    inner = evaluated.select("thread", "start_ns", inner_ns="start_ns").sort("start_ns")
    parts = (
        recorded.join(again, on=node, how="semi")
        .sort("start_ns")
        .join_asof(inner, on="start_ns", by="thread", check_sortedness=False)
    )
    stretches = parts.group_by("thread", "inner_ns").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    return stretches.select("start_ns", "end_ns", "thread").sort("start_ns", "thread")


def before_gradients(
    cpu_ops: pl.DataFrame, checkpoints: pl.DataFrame, evaluated: pl.DataFrame
) -> pl.DataFrame:
    """Return what nodes named after checkpointing run before the first node of the backward pass in them.

    Traces without sequence numbers show recomputation only so: a reentrant node runs the forward pass of its
    block, and then lets autograd evaluate the nodes that this recorded.
    """
    nodes = checkpoints.join(evaluated, on=checkpoints.columns, how="semi")
    if nodes.is_empty():
        return nodes
    opened = nodes.select("thread", "start_ns", opened_ns="start_ns", until_ns="end_ns").sort("start_ns")

    def inside(ranges: pl.DataFrame) -> pl.DataFrame:
        ordered = ranges.sort("start_ns")
        placed = ordered.join_asof(opened, on="start_ns", by="thread", check_sortedness=False)
        return placed.filter(
            (pl.col("start_ns") > pl.col("opened_ns")) & (pl.col("start_ns") < pl.col("until_ns"))
        )

    key = ["thread", "opened_ns"]
    nested = inside(evaluated).group_by(key).agg(gradient_ns=pl.col("start_ns").min())
    operators = cpu_ops.select("start_ns", "end_ns", "thread").join(
        checkpoints, on=checkpoints.columns, how="anti"
    )
    placed = inside(operators).join(nested, on=key, how="left", maintain_order="left")
    before = placed.filter((pl.col("start_ns") < pl.col("gradient_ns")).fill_null(value=True))
    stretches = before.group_by(key).agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    return stretches.select("start_ns", "end_ns", "thread").sort("start_ns", "thread")


def _in_nodes(cpu_ops: pl.DataFrame, others: str, evaluated: pl.DataFrame) -> pl.DataFrame:
    """Return the operators inside nodes, with the start of the outermost node, except those of some names."""
    model_ops = cpu_ops.filter(~matching(cpu_ops["name"], others))
    opened = enclosing(model_ops, evaluated, "start_ns")
    placed = model_ops.select("start_ns", "end_ns", "thread", "name", opened_ns=opened)
    return placed.drop_nulls("opened_ns")


def enclosing(points: pl.DataFrame, ranges: pl.DataFrame, at: str) -> pl.Series:
    """Return the start of the outermost range around the time `at` of each point on its thread, else null.

    The threads are laid one after the other on one line, so that all are searched at once.
    """
    none = pl.Series("opened_ns", [None], dtype=pl.Int64)
    spans = keep_rows(ranges, ranges["start_ns"] < ranges["end_ns"])
    if spans["thread"].null_count():
        spans = spans.drop_nulls("thread")
    if spans.is_empty() or points.is_empty():
        return none.new_from_index(0, points.height)
    times, thread = points[at], points["thread"]
    if spans["thread"].min() == spans["thread"].max():
        return _around(times, spans, thread == spans["thread"][0])
    threads = spans["thread"].unique().sort()
    first, last = cast("tuple[int, int]", (spans["start_ns"].min(), spans["end_ns"].max()))
    places = [threads.search_sorted(column) for column in (spans["thread"], thread)]
    shifts = [place.cast(pl.Int64) * (last - first + 1) for place in places]
    line = pl.DataFrame([spans[name] + shifts[0] for name in ("start_ns", "end_ns")])
    has_ranges = pl.concat([threads, none])[places[1]] == thread
    is_on_line = (times >= first) & (times <= last) & has_ranges
    return _around(times + shifts[1], line, is_on_line) - shifts[1]


def _around(times: pl.Series, ranges: pl.DataFrame, mask: pl.Series) -> pl.Series:
    """Return the start of the outermost of `ranges` around each time in `mask`, else null."""
    outermost = merge_intervals(ranges)
    none = pl.Series("opened_ns", [None], dtype=pl.Int64)
    indices = outermost["start_ns"].search_sorted(times, side="right")
    opened, closed = (pl.concat([none, outermost[name]])[indices] for name in ("start_ns", "end_ns"))
    return opened.zip_with((times < closed) & mask, none.new_from_index(0, times.len()))
