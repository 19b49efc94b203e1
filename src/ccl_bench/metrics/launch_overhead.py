"""The metric `launch_overhead`: CPU time of launch calls in a step."""

from __future__ import annotations

from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared.checks import need_launches
from ccl_bench.metrics.shared.per_step import mean_of, shares_by_rank, time_per_step


@metric(unit="s", better="lower", revision=2)
def launch_overhead(launching: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    """Time in one step that CPU threads spend in calls that launch work on the device.

    Formula:
        launch_overhead = sum of the durations of launch calls in a step, mean over steps and ranks

        launch calls are those of the CUDA and HIP runtime and driver that start a kernel, copy,
        memory set or graph.

    Caveats:
        Calls of several threads add up. It costs device time only where the device waits for the host (see
        `idle_breakdown`). A call that blocks, such as a copy from pageable memory or a launch into a full
        queue, counts in full. Profiling makes each call slower. `delay_s`, from the end of the call to the
        start of the work, includes waiting in the queue behind other work; the latency of launching itself
        is `idle_stream_latency_s`, where nothing was queued.

    Reference:
        HolisticTraceAnalysis `get_cuda_kernel_launch_stats`: CPU duration and launch delay, the delay
        not below 0.
    """
    need_launches(launching, steps)
    sums = launching.select(pl.exclude("trace", "rank", "iteration", "step").sum()).row(0, named=True)
    fruitful = sums["launches"] - sums["fruitless"]
    latency = launching["idle_delay_ns"].median()
    details = {
        "pct_of_step": mean_of(shares_by_rank(launching, "call_ns", "window_ns"), "pct"),
        "launches_per_step": sums["launches"] / launching.height,
        "mean_call_s": sums["call_ns"] / sums["launches"] / SECOND_NS,
        "delay_s": sums["delay_ns"] / fruitful / SECOND_NS if fruitful else None,
        "idle_stream_latency_s": latency / SECOND_NS if isinstance(latency, float) else None,
        "idle_stream_launches_per_step": sums["idle_launches"] / launching.height,
        "queue_peak": launching["queue_peak"].max(),
        "launches_without_work": sums["fruitless"],
        "work_without_launch": sums["unlaunched"],
        "work_with_launch_ratio": 1 - sums["unlaunched"] / sums["work"] if sums["work"] else None,
        "cuda_graph_launches": sums["graph_launches"],
    }
    return time_per_step(launching, steps, "call_ns", details)
