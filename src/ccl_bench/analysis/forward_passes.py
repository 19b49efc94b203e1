"""Forward passes of an inference server: which were prefill and which decode, as their ranges say.

vLLM names a pass `execute_context_<requests>(<tokens>)_generation_<requests>(<tokens>)`, SGLang
`step[EXTEND bs=<requests> toks=<tokens>]` and `step[DECODE bs=<requests>]`. Ranges that do not tell the two
apart, such as `execute_model` and `run_batch`, are no forward passes here: the first of them is prefill
and the others decode only where one request is served alone.
"""

from __future__ import annotations

from ccl_bench.analysis.derived import derived
from ccl_bench.frames import pl

VLLM = r"^execute_(?:\d+_)?context_(\d+)\([^)]*\)_generation_(\d+)\("
_GENERATED = r"_generation_\d+\((\d+)\)"
SGLANG = r"^step\[(EXTEND|DECODE|MIXED)\b[^\]]*\bbs=(\d+)"

PREFILL, DECODE, MIXED = "prefill", "decode", "mixed"

_OF_SGLANG = {"EXTEND": PREFILL, "DECODE": DECODE, "MIXED": MIXED}


@derived(
    start_ns=("Int64", "start, ns"),
    end_ns=("Int64", "end, ns"),
    phase=("String", "`prefill`, `decode`, or `mixed` where a pass does both"),
    requests=("Int64", "requests in the pass"),
    generated=("Int64", "tokens computed for the requests that decode; null where the range does not say"),
    on_device=("Boolean", "whether the times are those of its kernels and not of their launch"),
)
def forward_passes(annotations: pl.DataFrame) -> pl.DataFrame:
    """One forward pass of one trace, timed on the device where the trace has that.

    Kineto writes the device's twin of a range once for each stream that it put work on; together
    they are the pass. A pass runs on the device after its launch, so that the range on the CPU may
    be shorter.
    """
    named = annotations.with_columns(pl.col("name").cast(pl.String))
    passes = named.filter(pl.col("name").str.contains(f"{VLLM}|{SGLANG}"))
    on_device = _joined(passes.filter("on_device"))
    timed = on_device if on_device.height else passes.filter(~pl.col("on_device"))
    generated = pl.col("name").str.extract(_GENERATED, 1).cast(pl.Int64, strict=False).alias("generated")
    phased = timed.select("start_ns", "end_ns", *_phase(), generated, pl.col("on_device"))
    return phased.filter(pl.col("requests") > 0).sort("start_ns")


def _joined(twins: pl.DataFrame) -> pl.DataFrame:
    """Return one row a pass: twins of one range, told by its id, else by overlapping in time."""
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
