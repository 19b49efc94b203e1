"""Call sites: which stacks hold memory, how often it is requested, what recomputes, and where it ran out."""

from __future__ import annotations

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS

_LONGEST_STACK = 30


@derived(
    device=("Int64", "device number"),
    stack=("Int64", "call stack that allocated it; null if none was recorded"),
    category=("String", "use of the memory, if a profiler recorded it"),
    bytes=("Int64", "bytes of its blocks that are allocated at the peak"),
    blocks=("Int64", "number of these blocks"),
    is_before_history=("Boolean", "whether they were allocated before the history"),
    frames=("List(String)", "frames of the stack, the innermost first, as `function (file:line)`"),
)
def memory_holders(
    memory_lives: pl.DataFrame,
    memory_peaks: pl.DataFrame,
    memory_stacks: pl.DataFrame,
    memory_frames: pl.DataFrame,
) -> pl.DataFrame:
    """One call stack and what it holds of a device's peak, the largest first."""
    lives = memory_lives.join(memory_peaks.select("device", "peak_order").drop_nulls(), on="device")
    order = pl.col("peak_order")
    allocated = lives.filter(
        (pl.col("born") <= order) & (pl.col("freed").is_null() | (pl.col("freed") > order))
    )
    sums = allocated.group_by(
        "device", "stack", "category", (pl.col("born") < 0).alias("is_before_history")
    ).agg(pl.col("bytes").sum(), pl.len().cast(pl.Int64).alias("blocks"))
    holders = sums.join(_texts(memory_stacks, memory_frames), on="stack", how="left")
    order_by = ["device", "bytes", "stack", "category", "is_before_history"]
    ordered = holders.sort(order_by, descending=[name == "bytes" for name in order_by], nulls_last=True)
    return ordered.select(*DERIVED.get("memory_holders").table.columns)


def _texts(memory_stacks: pl.DataFrame, memory_frames: pl.DataFrame) -> pl.DataFrame:
    """Return each stack's frames as texts."""
    place = pl.format("{}:{}", pl.col("file").fill_null("?"), pl.col("line").fill_null(0))
    text = pl.format("{} ({})", pl.col("function").fill_null("?"), place).alias("text")
    innermost = memory_stacks.select("stack", pl.col("frames").list.head(_LONGEST_STACK).alias("frame"))
    long = innermost.explode("frame").join(
        memory_frames.select("frame", text), on="frame", how="left", maintain_order="left"
    )
    return long.group_by("stack", maintain_order=True).agg(pl.col("text").alias("frames"))


@derived(
    device=("Int64", "device number"),
    span_ns=("Int64", "from the first event to the last, ns; null if no times are recorded"),
    allocations=("Int64", "blocks allocated"),
    frees=("Int64", "blocks freed"),
    allocated_bytes=("Int64", "requested bytes in all"),
    freed_bytes=("Int64", "bytes freed in all"),
    segment_allocations=("Int64", "segments allocated from the driver"),
    segment_frees=("Int64", "segments returned to the driver"),
    ooms=("Int64", "times that memory ran out"),
    allocations_per_s=("Float64", "blocks allocated in a second; null if no times are recorded"),
    frees_per_s=("Float64", "blocks freed in a second"),
    allocated_bytes_per_s=("Float64", "bytes asked for in a second"),
)
def memory_rates(memory_events: pl.DataFrame) -> pl.DataFrame:
    """One device's history in numbers."""
    action, size = pl.col("action").cast(pl.String), pl.col("bytes")
    from_driver, to_driver = (
        action.is_in(["segment_alloc", "segment_map"]),
        action.is_in(["segment_free", "segment_unmap"]),
    )
    counts = memory_events.group_by("device").agg(
        (pl.col("time_ns").max() - pl.col("time_ns").min()).alias("span_ns"),
        (action == "alloc").sum().cast(pl.Int64).alias("allocations"),
        (action == "free_completed").sum().cast(pl.Int64).alias("frees"),
        size.filter(action == "alloc").sum().alias("allocated_bytes"),
        size.filter(action == "free_completed").sum().alias("freed_bytes"),
        from_driver.sum().cast(pl.Int64).alias("segment_allocations"),
        to_driver.sum().cast(pl.Int64).alias("segment_frees"),
        (action == "oom").sum().cast(pl.Int64).alias("ooms"),
    )
    seconds = pl.when(pl.col("span_ns") > 0).then(pl.col("span_ns") / SECOND_NS)
    rates = counts.with_columns(
        (pl.col(name) / seconds).alias(f"{name}_per_s")
        for name in ("allocations", "frees", "allocated_bytes")
    )
    return rates.sort("device").select(*DERIVED.get("memory_rates").table.columns)


_CHECKPOINTS = (
    r"(?:torch/utils/checkpoint|tensor_parallel/random|activation_checkpointing/checkpointing)\.py$"
)
"""Files of torch, Megatron and DeepSpeed that checkpoint activations."""

_FORWARD, _AGAIN = ("checkpoint", "forward"), ("recompute_fn", "backward")
"""Their functions that run the forward pass, and those that run it again."""

_BACKWARD = r"torch/autograd/__init__\.py$"
"""File that starts a backward pass; a reentrant checkpoint starts one after it has run forward again."""


@derived(
    device=("Int64", "device number"),
    recomputations=("Int64", "number of times that it runs part of the forward pass again"),
    bytes=("Int64", "bytes of their blocks, those that are still allocated when each of them ends"),
)
def memory_recomputed(
    memory_lives: pl.DataFrame,
    memory_events: pl.DataFrame,
    memory_stacks: pl.DataFrame,
    memory_frames: pl.DataFrame,
) -> pl.DataFrame:
    """One backward pass that runs checkpointed parts of the forward pass again, and what these would keep.

    Consecutive allocations with a call stack of recomputation are one. A backward pass ends where
    checkpointed parts run forward for the first time.
    """
    part = _checkpointed(memory_stacks, memory_frames)
    births = memory_events.filter(pl.col("action").cast(pl.String) == "alloc").sort("device", "order")
    marked = births.join(part, on="stack", how="left", maintain_order="left").select(
        "device",
        "part",
        born="order",
        run=pl.col("part").rle_id().over("device"),
        forward=(pl.col("part") == "forward").fill_null(value=False).cum_sum().over("device"),
    )
    again = marked.filter(pl.col("part") == "again")
    ends = again.with_columns(end=pl.col("born").max().over("device", "run"))
    kept = memory_lives.join(ends, on=["device", "born"]).filter(
        pl.col("freed").is_null() | (pl.col("freed") > pl.col("end"))
    )
    passes = kept.group_by("device", "forward").agg(
        pl.col("run").n_unique().cast(pl.Int64).alias("recomputations"), pl.col("bytes").sum()
    )
    return passes.sort("device", "forward").select(*DERIVED.get("memory_recomputed").table.columns)


def _checkpointed(memory_stacks: pl.DataFrame, memory_frames: pl.DataFrame) -> pl.DataFrame:
    """Return each `stack` in checkpointed code with its `part`: `forward` or `again`.

    What the backward pass inside a reentrant checkpoint allocates is neither.
    """
    file, function = pl.col("file"), pl.col("function")
    is_checkpoint = file.str.contains(_CHECKPOINTS)
    frames = memory_frames.select(
        frames="frame",
        forward=is_checkpoint & function.is_in(_FORWARD),
        again=is_checkpoint & function.is_in(_AGAIN),
        backward=file.str.contains(_BACKWARD),
    )
    places = memory_stacks.with_columns(place=pl.int_ranges(pl.col("frames").list.len()))
    marked = places.explode("frames", "place").join(frames, on="frames", how="left")
    first = marked.group_by("stack").agg(
        pl.col("place").filter(pl.col(part)).min().alias(part) for part in ("forward", "again", "backward")
    )
    in_backward = (pl.col("backward") < pl.col("again")).fill_null(value=False)
    part = pl.when(pl.col("again").is_not_null()).then(pl.lit("again")).otherwise(pl.lit("forward"))
    inside = pl.col("again").is_not_null() | pl.col("forward").is_not_null()
    return first.filter(inside & ~in_backward).select("stack", part=part)


@derived(
    device=("Int64", "device number"),
    order=("Int64", "order of the event"),
    time_ns=("Int64", "time, ns; null if none is recorded"),
    requested_bytes=("Int64", "requested bytes, which were not available"),
    device_free_bytes=("Int64", "free bytes of the device, as the driver reported"),
    allocated_bytes=("Int64", "bytes in tensors at that time"),
    reserved_bytes=("Int64", "bytes held from the driver at that time"),
    stack=("Int64", "call stack that requested them; null if none was recorded"),
    frames=("List(String)", "frames of the stack, the innermost first"),
)
def memory_ooms(
    memory_events: pl.DataFrame,
    memory_timeline: pl.DataFrame,
    memory_stacks: pl.DataFrame,
    memory_frames: pl.DataFrame,
) -> pl.DataFrame:
    """One time that memory ran out."""
    failed = memory_events.filter(pl.col("action").cast(pl.String) == "oom").rename(
        {"bytes": "requested_bytes"}
    )
    states = memory_timeline.sort("order").select("device", "order", "allocated_bytes", "reserved_bytes")
    rows = failed.sort("order").join_asof(states, on="order", by="device", check_sortedness=False)
    rows = rows.join(_texts(memory_stacks, memory_frames), on="stack", how="left")
    return rows.sort("device", "order").select(*DERIVED.get("memory_ooms").table.columns)
