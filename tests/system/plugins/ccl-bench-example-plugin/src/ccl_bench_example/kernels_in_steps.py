"""The table `kernels_in_steps`."""

from __future__ import annotations

from ccl_bench import derived, pl


@derived(
    step=("Int64", "number of the step"),
    kernels=("Int64", "kernels that started in the step's device window"),
)
def kernels_in_steps(steps: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """One step of one trace, with the number of kernels that started in it."""
    windows = steps.select("step", start_ns="device_start_ns", until_ns="device_end_ns").sort("start_ns")
    placed = (
        kernels.select("start_ns").sort("start_ns").join_asof(windows, on="start_ns", strategy="backward")
    )
    inside = placed.filter(pl.col("start_ns") < pl.col("until_ns"))
    counted = inside.group_by("step").agg(pl.len().cast(pl.Int64).alias("kernels"))
    return (
        windows.select("step")
        .join(counted, on="step", how="left")
        .with_columns(pl.col("kernels").fill_null(0))
    )
