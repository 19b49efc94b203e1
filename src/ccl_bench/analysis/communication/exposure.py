"""Which calls the exposed communication of a step is made of."""

from __future__ import annotations

from ccl_bench.analysis.breakdown import device_windows
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.intervals import clipped, outside
from ccl_bench.analysis.work import COMPUTING
from ccl_bench.base.lazy_polars import pl


@derived(
    step=("Int64", "number of the step"),
    call=("Int64", "number of the call in this trace"),
    collective=("String", "canonical collective"),
    start_ns=("Int64", "start of the stretch, ns"),
    end_ns=("Int64", "end of the stretch, ns"),
)
def exposed_calls(steps: pl.DataFrame, work: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """One stretch of a call inside a step in which nothing computed; stretches add up to the step's exposed.

    While several calls run, the time is that of the one that started first, so that no instant
    counts twice.
    """
    ordered = calls.select("call", "collective", "start_ns", "end_ns").sort("start_ns", maintain_order=True)
    reach = pl.col("end_ns").cum_max().shift(1)
    own = ordered.with_columns(pl.max_horizontal("start_ns", reach).alias("start_ns"))
    compute = work.filter(pl.col("kind").is_in(COMPUTING)).select("start_ns", "end_ns")
    exposed = outside(own.filter(pl.col("start_ns") < pl.col("end_ns")), compute)
    inside = clipped(exposed, device_windows(steps))
    return inside.with_columns(steps["step"].gather(inside["window"])).select(
        *DERIVED.get("exposed_calls").table.columns
    )
