"""Fully sharded data parallelism: the cost of gathering weights and reducing gradients in each step."""

from __future__ import annotations

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.device import markers
from ccl_bench.analysis.device.work import COMMUNICATION, computing_times
from ccl_bench.analysis.intervals import assign_window, device_windows, sum_per_window, union_lengths
from ccl_bench.base.lazy_imports import pl

OWN = (
    r"^FSDP::|^FullyShardedDataParallel\._|^FullyShardedDataParallel\.rate_limiter"
    r"|^PartitionedParameterCoordinator\.|^AllGather(?:Coalesced)?Handle\.|^DeepSpeedZeRoOffload\."
    r"|^(?:DeepSpeedZeroOptimizer\w*|MiCS_Optimizer)\.\w*(?:reduce|partition|scatter|all_?gather)"
    r"|(?:^|\.)(?:all_gather_coalesced|reduce_scatter_coalesced|all_to_all_quant_reduce)$"
)
"""Ranges in which only sharding works: of FSDP2, `FullyShardedDataParallel` and DeepSpeed's ZeRO.

`FullyShardedDataParallel.forward` is none: the model runs in it.
"""

GATHERING = (
    r"^FSDP::all_gather(?: |$)"
    r"|^FullyShardedDataParallel\._(?:pre_forward|pre_backward_hook|(?:pre|post)_(?:forward|backward)_prefetch)"
)
COPYING_OUT = r"^FSDP::all_gather_copy_out"
REDUCING = r"^FSDP::post_backward_reduce|^FullyShardedDataParallel\._post_backward_hook"
RESHARDING = r"^FSDP::(?:post_forward|post_backward_reshard)"


@derived(
    step=("Int64", "number of the step"),
    window_ns=("Int64", "length of the step, ns"),
    all_gathers=("Int64", "all-gathers of parameters that started in the step"),
    reduce_scatters=("Int64", "reductions of gradients that started in the step"),
    all_gather_ns=("Int64", "time with an all-gather of parameters, ns"),
    all_gather_hidden_ns=("Int64", "of it, time with compute that is not FSDP's own, ns"),
    reduce_scatter_ns=("Int64", "time with a reduction of gradients, ns"),
    reduce_scatter_hidden_ns=("Int64", "of it, time with compute that is not FSDP's own, ns"),
    communication_ns=("Int64", "time with an all-gather or a reduction, ns"),
    copy_in_ns=("Int64", "time with copies into the buffers of either, casts and division included, ns"),
    copy_out_ns=("Int64", "time with copies from the gathered buffer into parameters, ns"),
    reshard_ns=("Int64", "time with work that freeing gathered parameters launched, ns"),
    other_ns=("Int64", "time with what other ranges of FSDP launched, such as moving offloaded weights, ns"),
    work_ns=("Int64", "time with any of these, ns"),
    exposed_ns=("Int64", "time with any of these and no compute that is not FSDP's own, ns"),
    host_ns=("Int64", "time a CPU thread was inside a range of FSDP, ns"),
)
def fsdp(steps: pl.DataFrame, origins: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    """One step of one trace with FSDP's part in it. No rows without ranges of FSDP."""
    ranges = markers.on_cpu(annotations)
    (fsdp_ranges,) = markers.named(ranges, OWN)
    if fsdp_ranges.is_empty():
        return DERIVED.get("fsdp").table.empty()
    windows = device_windows(steps)
    spans = ["start_ns", "end_ns"]
    placed = origins.select(*spans, "kind", part=_part(origins, ranges))
    sharding = placed.filter(pl.col("part").is_not_null()).select(*spans, "part")
    of_part = {
        name: rows.select(spans) for (name,), rows in sharding.partition_by("part", as_dict=True).items()
    }
    model = computing_times(placed.filter(pl.col("part").is_null()))
    computing = union_lengths(model, windows)

    def part(name: str) -> pl.DataFrame:
        return of_part.get(name, sharding.clear().select(spans))

    def with_model(rows: pl.DataFrame) -> pl.Series:
        return union_lengths(pl.concat([rows, model]), windows)

    def hidden(rows: pl.DataFrame) -> pl.Series:
        return union_lengths(rows, windows) + computing - with_model(rows)

    def count(rows: pl.DataFrame) -> pl.Series:
        counts = assign_window(rows, windows).group_by("window").agg(pl.len().cast(pl.Int64))
        return sum_per_window(windows, counts)["len"].fill_null(0)

    gathers, reductions, everything = part("all_gather"), part("reduce_scatter"), sharding.select(spans)
    return pl.DataFrame(
        {
            "step": steps["step"],
            "window_ns": steps["length_ns"],
            "all_gathers": count(gathers),
            "reduce_scatters": count(reductions),
            "all_gather_ns": union_lengths(gathers, windows),
            "all_gather_hidden_ns": hidden(gathers),
            "reduce_scatter_ns": union_lengths(reductions, windows),
            "reduce_scatter_hidden_ns": hidden(reductions),
            "communication_ns": union_lengths(pl.concat([gathers, reductions]), windows),
            "copy_in_ns": union_lengths(part("copy_in"), windows),
            "copy_out_ns": union_lengths(part("copy_out"), windows),
            "reshard_ns": union_lengths(part("reshard"), windows),
            "other_ns": union_lengths(part("other"), windows),
            "work_ns": union_lengths(everything, windows),
            "exposed_ns": with_model(everything) - computing,
            "host_ns": union_lengths(fsdp_ranges, steps),
        }
    )


_REDUCTIONS = ("reduce_scatter", "all_reduce", "reduce", "all_to_all")
"""Collectives that reduce gradients where no range says so; ZeRO's quantised reduction is an all-to-all."""


def _part(origins: pl.DataFrame, ranges: pl.DataFrame) -> pl.Expr:
    """Return the part of sharding of each work, by the range that launched it; null for the model's own."""
    patterns = (GATHERING, REDUCING, OWN, COPYING_OUT, RESHARDING)
    opened = [markers.enclosing(origins, marked, "launch_ns") for marked in markers.named(ranges, *patterns)]
    gathering, reducing, in_fsdp, copying_out, resharding = (pl.lit(each).is_not_null() for each in opened)
    communicates = pl.col("kind") == COMMUNICATION
    gathers = (pl.col("collective") == "all_gather").fill_null(value=False)
    reduces = pl.col("collective").is_in(_REDUCTIONS).fill_null(value=False)
    return (
        pl.when(copying_out)
        .then(pl.lit("copy_out"))
        .when((gathering & communicates) | (in_fsdp & ~reducing & gathers))
        .then(pl.lit("all_gather"))
        .when((reducing & communicates) | (in_fsdp & reduces))
        .then(pl.lit("reduce_scatter"))
        .when(gathering | reducing)
        .then(pl.lit("copy_in"))
        .when(resharding & ~communicates)
        .then(pl.lit("reshard"))
        .when(in_fsdp)
        .then(pl.lit("other"))
    )
