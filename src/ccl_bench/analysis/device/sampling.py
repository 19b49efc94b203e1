"""What hardware counters said during each step."""

from __future__ import annotations

from ccl_bench.analysis.breakdown import device_windows
from ccl_bench.analysis.derived import derived
from ccl_bench.analysis.placing import per_window, placed
from ccl_bench.base.lazy_polars import pl

SM_ACTIVE = "SM Active"


@derived(
    step=("Int64", "number of the step"),
    window_ns=("Int64", "length of the step's device window, ns"),
    samples=("Int64", "samples of `SM Active` in the window"),
    sm_active_pct=("Float64", "their mean, %; null without samples"),
)
def sm_samples(steps: pl.DataFrame, counters: pl.DataFrame) -> pl.DataFrame:
    """One step of one trace: the share of multiprocessors that had work, as the hardware sampled it."""
    windows = device_windows(steps)
    sampled = counters.filter(pl.col("name") == SM_ACTIVE)
    means = (
        placed(sampled, windows, "time_ns")
        .group_by("window")
        .agg(pl.len().cast(pl.Int64).alias("samples"), pl.col("value").mean().alias("sm_active_pct"))
    )
    found = per_window(windows, means)
    return pl.DataFrame(
        {
            "step": steps["step"],
            "window_ns": windows["end_ns"] - windows["start_ns"],
            "samples": found["samples"].fill_null(0),
            "sm_active_pct": found["sm_active_pct"],
        }
    )
