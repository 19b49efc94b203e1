"""Operations and bytes of memory of executed instructions, as XLA's compiler states them."""

from __future__ import annotations

from ccl_bench.analysis.derived import derived, with_zeros
from ccl_bench.analysis.intervals import assign_window, device_windows, sum_per_window
from ccl_bench.base.lazy_imports import pl


@derived(
    step=("Int64", "number of the step"),
    window_ns=("Int64", "length of the step, ns"),
    instructions=("Int64", "instructions that the device began in the step"),
    counted=("Int64", "those whose operations are known"),
    flops=("Float64", "operations of these"),
    modelled=("Int64", "those for which the compiler states what the model itself needs"),
    model_flops=("Float64", "operations that the model itself needs, of these"),
    sized=("Int64", "those whose bytes in the device's main memory are stated"),
    memory_bytes=("Float64", "bytes that these read from and write to the main memory"),
)
def program_work(steps: pl.DataFrame, hlo_operations: pl.DataFrame) -> pl.DataFrame:
    """One step of one trace: what the compiler counts of the instructions that it ran."""
    windows = device_windows(steps)
    length = steps["length_ns"].alias("window_ns")
    if hlo_operations.is_empty():
        return with_zeros("program_work", steps["step"], length)
    sums = (
        assign_window(hlo_operations, windows)
        .group_by("window")
        .agg(
            instructions=pl.len().cast(pl.Int64),
            counted=pl.col("flops").count().cast(pl.Int64),
            flops=pl.col("flops").sum(),
            modelled=pl.col("model_flops").count().cast(pl.Int64),
            model_flops=pl.col("model_flops").sum(),
            sized=pl.col("memory_bytes").count().cast(pl.Int64),
            memory_bytes=pl.col("memory_bytes").sum(),
        )
    )
    return sum_per_window(windows, sums).select(steps["step"], length, pl.exclude("window").fill_null(0))
