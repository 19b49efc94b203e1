"""Which steps of a trace are whole where its file ends early."""

from __future__ import annotations

from ccl_bench.analysis.derived import derived
from ccl_bench.analysis.placing import per_window, placed
from ccl_bench.analysis.work import gloo_ranges
from ccl_bench.base.lazy_polars import pl


@derived(
    step=("Int64", "number of the step"),
    is_whole=("Boolean", "whether everything of it must be in a file that was cut off"),
)
def whole_steps(
    steps: pl.DataFrame,
    kernels: pl.DataFrame,
    launches: pl.DataFrame,
    cpu_ops: pl.DataFrame,
    annotations: pl.DataFrame,
    collectives: pl.DataFrame,
    devices: pl.DataFrame,
) -> pl.DataFrame:
    """One step of one trace, and whether a file that was cut off can lack anything of it.

    Profilers write the CPU's part first and the device's after it, each in order of time: a step is whole
    once all of these go on beyond its end. A file that was cut before the device's part holds no
    whole step. On a CPU alone the threads follow each other, and one may be missing altogether:
    there a step must also hold a `gloo:*` range for each operator that starts one.
    """
    parts = [table for table in (cpu_ops, launches, kernels) if table.height]
    reached = min((int(table["start_ns"].max()) for table in parts), default=0)  # type: ignore[arg-type]
    goes_on = steps.select(pl.max_horizontal("end_ns", "device_end_ns") <= reached).to_series()
    if kernels.is_empty() and devices.height:
        goes_on = pl.Series([False] * steps.height, dtype=pl.Boolean)
    elif kernels.is_empty():
        goes_on &= _has_all_calls(steps, gloo_ranges(annotations), collectives)
    return pl.DataFrame({"step": steps["step"], "is_whole": goes_on})


def _has_all_calls(steps: pl.DataFrame, ranges: pl.DataFrame, collectives: pl.DataFrame) -> pl.Series:
    """Whether each step holds as many ranges of communication as operators that start one."""
    sources = [collectives.filter(pl.col("source") == source) for source in ("host", "op")]
    starters = next((rows for rows in sources if rows.height), sources[-1])
    counts = [_counted(table, steps, name) for table, name in ((ranges, "ran"), (starters, "started"))]
    counted = per_window(steps, *counts).fill_null(0)
    return counted["ran"] == counted["started"]


def _counted(table: pl.DataFrame, steps: pl.DataFrame, name: str) -> pl.DataFrame:
    return placed(table, steps).group_by("window").agg(pl.len().cast(pl.Int64).alias(name))
