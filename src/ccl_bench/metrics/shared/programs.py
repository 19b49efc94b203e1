"""Values from the statistics of XLA's compiler on the programs that ran, where no other source has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import GIGA
from ccl_bench.metrics import Measurement
from ccl_bench.metrics.shared.other_sources import OTHER_SOURCE
from ccl_bench.metrics.shared.per_step import (
    RECORD,
    by_rank,
    by_step,
    each_rank,
    mean_of,
    need_rows,
    ranks_in,
    window_of,
)

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts

TERA = 1e12

_OF_MODEL = "operations that the compiler counts for the model"
_OF_PRODUCTS = "matrix products of the compiled programs, recomputation included"
_RECORD_PROGRAMS = "record with jax.profiler, whose profiles hold the compiled programs"


def mfu_of_programs(
    program_work: pl.DataFrame, steps: pl.DataFrame, devices: pl.DataFrame, facts: Facts
) -> Measurement:
    """Return the operations of the compiled programs, as a share of the peak of the devices.

    The peak is the one that the profile states, else that of `run_metadata.json`.
    """
    need_rows(steps, "steps", RECORD)
    counted_work = program_work.filter(pl.col("counted") > 0)
    if counted_work.is_empty():
        raise NotMeasurable("no operation of a compiled program is known in any step", fix=_RECORD_PROGRAMS)
    peak, source = _peak(devices, "peak_flops_per_s", "operations", facts)
    is_of_model = bool((counted_work["modelled"] == counted_work["instructions"]).all())
    flops = "model_flops" if is_of_model else "flops"
    rates = _rates(program_work, flops)
    value = mean_of(rates, "rate")
    convention = _OF_MODEL if is_of_model else _OF_PRODUCTS
    return Measurement(
        100 * value / peak,
        details={
            "convention": convention,
            "flops_per_step": float(counted_work[flops].sum()) / steps.height,
            "per_rank_pct": by_rank(rates.with_columns(pct=100 * pl.col("rate") / peak), "pct"),
            "per_step_pct": by_step(_per_step(program_work, flops, 100 / peak), "value"),
            "gpu_peak_tflops": peak / TERA,
            "gpu_peak_source": source,
            "achieved_tflops_per_gpu": value / TERA,
        },
        window=window_of(steps),
        ranks=ranks_in(rates),
        findings=[_finding(convention)],
    )


def dram_utilization_of_programs(
    program_work: pl.DataFrame, steps: pl.DataFrame, devices: pl.DataFrame, facts: Facts
) -> Measurement:
    """Return the bytes that the compiler counts in the device's main memory, as share of its bandwidth."""
    need_rows(steps, "steps", RECORD)
    sized_work = program_work.filter(pl.col("sized") > 0)
    if sized_work.is_empty():
        raise NotMeasurable(
            "no instruction in any step states its bytes in the device's memory", fix=_RECORD_PROGRAMS
        )
    peak, source = _peak(devices, "memory_bytes_per_s", "memory", facts)
    rates = _rates(program_work, "memory_bytes")
    value = mean_of(rates, "rate")
    return Measurement(
        100 * value / peak,
        details={
            "kind": "counted by the compiler",
            "per_rank_pct": by_rank(rates.with_columns(pct=100 * pl.col("rate") / peak), "pct"),
            "per_step_pct": by_step(_per_step(program_work, "memory_bytes", 100 / peak), "value"),
            "achieved_gb_per_s": value / GIGA,
            "peak_gb_per_s": peak / GIGA,
            "peak_source": source,
        },
        window=window_of(steps),
        ranks=ranks_in(rates),
        findings=[_finding("bytes that the compiler counts, cached or not")],
    )


def _rates(work: pl.DataFrame, column: str) -> pl.DataFrame:
    """Return the total of each rank over its steps, per second of their windows."""
    sums = work.group_by(each_rank(), maintain_order=True).agg(pl.col(column, "window_ns").sum())
    return sums.filter(pl.col("window_ns") > 0).select(
        "rank", rate=pl.col(column) / pl.col("window_ns") * 1e9
    )


def _per_step(work: pl.DataFrame, column: str, scale: float) -> pl.DataFrame:
    rate = pl.col(column) / pl.col("window_ns") * 1e9 * scale
    return work.filter(pl.col("window_ns") > 0).with_columns(value=rate)


def _peak(devices: pl.DataFrame, column: str, what: str, facts: Facts) -> tuple[float, str]:
    """Return the peak of one device and its source; raise NotMeasurable if there is none or several."""
    peaks = devices[column].drop_nulls().unique().to_list()
    if len(peaks) == 1:
        return float(peaks[0]), "the profile"
    if not peaks and what == "operations" and facts.gpu_peak_tflops:
        return facts.gpu_peak_tflops.value * TERA, facts.gpu_peak_tflops.source
    message = f"the profile states {'several peaks' if peaks else 'no peak'} of {what} of its devices"
    fix = "write gpu_peak_tflops into run_metadata.json" if what == "operations" else "record on a TPU"
    raise NotMeasurable(message, fix=fix, is_repairable=not peaks)


def _finding(what: str) -> Finding:
    return Finding(OTHER_SOURCE, "note", f"from the compiled programs in the profile: {what}")
