"""Forward passes of an inference server: which were prefill and which decode, as their ranges say."""

from __future__ import annotations

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.intervals import outermost, window_at
from ccl_bench.analysis.names import matching
from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema.table import keep_rows

VLLM = r"^execute_(?:\d+_)?context_(\d+)\([^)]*\)_generation_(\d+)\("
_GENERATED = r"_generation_\d+\((\d+)\)"
SGLANG = r"^step\[(EXTEND|DECODE|MIXED)\b[^\]]*\bbs=(\d+)"

PASS = f"{VLLM}|{SGLANG}"
OF_UNKNOWN_PHASE = (
    r"^(?:v2_)?gpu_model_runner: forward$|^execute_model$|^run_batch$|^\[Executor\] _forward_step \d+"
)
"""Ranges of vLLM, SGLang and TensorRT-LLM that are a pass and do not say of which phase."""

PREFILL, DECODE, MIXED = "prefill", "decode", "mixed"

_OF_SGLANG = {"EXTEND": PREFILL, "DECODE": DECODE, "MIXED": MIXED}


@derived(
    reads={
        "kernels": ("start_ns", "end_ns", "correlation"),
        "memcpy": ("start_ns", "end_ns", "correlation"),
        "launches": ("start_ns", "correlation"),
    },
    start_ns=("Int64", "start, ns"),
    end_ns=("Int64", "end, ns"),
    phase=("String", "`prefill`, `decode`, or `mixed` where a pass does both"),
    requests=("Int64", "requests in the pass"),
    generated=("Int64", "tokens computed for the requests that decode; null if the range does not say"),
    on_device=(
        "Boolean",
        "whether the times are those of its work on the device; null if they are only those of its launch",
    ),
)
def forward_passes(
    annotations: pl.DataFrame,
    kernels: pl.DataFrame,
    memcpy: pl.DataFrame,
    launches: pl.DataFrame,
    devices: pl.DataFrame,
) -> pl.DataFrame:
    """One forward pass of one trace, timed on the device where the trace has one.

    A pass runs on the device after its launch, so that the range on the CPU is no measure of it. Its
    times are those of the device's twin of the range, which Kineto writes once for each stream that it
    put work on, else those of the work that was launched inside the range. Of ranges inside each
    other the outermost is the pass.
    """
    is_pass = matching(annotations["name"], PASS)
    if not is_pass.any():
        return DERIVED.get("forward_passes").table.empty()
    passes = keep_rows(annotations, is_pass).with_columns(pl.col("name").cast(pl.String))
    twins = _joined(passes.filter("on_device"))
    timed = outermost(twins if twins.height else passes.filter(~pl.col("on_device")))
    if twins.is_empty() and any(table.height for table in (kernels, memcpy, launches, devices)):
        work = [table.select("start_ns", "end_ns", "correlation") for table in (kernels, memcpy)]
        timed = _on_device(timed, pl.concat(work), launches)
    generated = pl.col("name").str.extract(_GENERATED, 1).cast(pl.Int64, strict=False).alias("generated")
    phased = timed.select("start_ns", "end_ns", *_phase(), generated, pl.col("on_device"))
    return phased.filter(pl.col("requests") > 0).sort("start_ns")


def _on_device(passes: pl.DataFrame, work: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return passes with the times of the work launched in them, or their own and `on_device` null."""
    calls = launches.select("correlation", window_at(launches["start_ns"], passes).alias("pass"))
    launched = calls.filter(pl.col("correlation") > 0).drop_nulls().unique("correlation", keep="first")
    ran = work.join(launched, on="correlation").group_by("pass")
    times = ran.agg(pl.col("start_ns").min().alias("from_ns"), pl.col("end_ns").max().alias("to_ns"))
    numbered = passes.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("pass"))
    return numbered.join(times, on="pass", how="left", maintain_order="left").with_columns(
        pl.coalesce("from_ns", "start_ns").alias("start_ns"),
        pl.coalesce("to_ns", "end_ns").alias("end_ns"),
        pl.when(pl.col("from_ns").is_not_null()).then(pl.lit(value=True)).alias("on_device"),
    )


def _joined(twins: pl.DataFrame) -> pl.DataFrame:
    """Return one row a pass: twins of one range, known by its id, else by overlapping in time."""
    in_order = twins.sort("name", "start_ns")
    opens = (pl.col("start_ns") >= pl.col("end_ns").cum_max().shift(1)).fill_null(value=True).over("name")
    run = opens.cum_sum().over("name").cast(pl.Int64)
    key = pl.when(pl.col("external_id").fill_null(0) > 0).then("external_id").otherwise(-run)
    return (
        in_order.group_by("name", key.alias("pass"), maintain_order=True)
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("on_device").first())
        .drop("pass")
    )


def _phase() -> tuple[pl.Expr, pl.Expr]:
    """Return the phase of a pass and its requests, from its name."""
    name = pl.col("name")
    context, generation = (name.str.extract(VLLM, part).cast(pl.Int64, strict=False) for part in (1, 2))
    mode, batch = name.str.extract(SGLANG, 1), name.str.extract(SGLANG, 2).cast(pl.Int64, strict=False)
    both = (context > 0) & (generation > 0)
    of_vllm = (
        pl.when(both).then(pl.lit(MIXED)).when(context > 0).then(pl.lit(PREFILL)).otherwise(pl.lit(DECODE))
    )
    phase = pl.when(mode.is_null()).then(of_vllm).otherwise(mode.replace_strict(_OF_SGLANG, default=None))
    return phase.alias("phase"), pl.coalesce(context + generation, batch).alias("requests")
