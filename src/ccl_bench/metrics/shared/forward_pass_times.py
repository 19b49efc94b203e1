"""How long forward passes of one phase take, for the metrics that are one."""

from __future__ import annotations

from ccl_bench.analysis.forward_passes import MIXED
from ccl_bench.analysis.statistics import spread
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_polars import pl
from ccl_bench.metrics import Measurement
from ccl_bench.metrics.rows import SECOND_NS, by_rank, ranks_in
from ccl_bench.metrics.shared.serving_details import listed

PROFILE_IT = "record with the profiler of a recent vLLM or SGLang, whose ranges say what each pass does"

PROFILE_DEVICE = "record CPU and CUDA activity together, so that launches lead to the work on the device"

LAUNCHED_ONLY = (
    "the ranges are on the CPU, which only launches a pass, and no work of the device can be traced back to "
    "them"
)


def pass_times(forward_passes: pl.DataFrame, phase: str) -> Measurement:
    """Return the mean time of the passes of `phase` over ranks and passes, s."""
    named = forward_passes.filter(pl.col("phase") == phase)
    if named.is_empty():
        raise NotMeasurable(_why_none(forward_passes, phase), fix=PROFILE_IT)
    mine = named.drop_nulls("on_device")
    if mine.is_empty():
        raise NotMeasurable(LAUNCHED_ONLY, fix=PROFILE_DEVICE)
    timed = mine.with_columns(((pl.col("end_ns") - pl.col("start_ns")) / SECOND_NS).alias("s"))
    per_rank = timed.group_by("rank").agg(pl.col("s").mean())
    each = _each(timed)
    details = {
        "distribution_s": spread(each),
        **listed(each),
        "per_rank_s": by_rank(per_rank, "s"),
        "requests_in_a_pass": spread([float(count) for count in timed["requests"]]),
        "passes": dict(forward_passes.group_by("phase").len().sort("phase").iter_rows()),
        "timed": "on the device" if timed["on_device"].all() else "on the CPU, which is the device",
        "passes_without_a_time": named.height - mine.height,
    }
    value = float(per_rank.select(pl.col("s").mean()).item())
    return Measurement(value, details, window=f"{phase} passes of the traces", ranks=ranks_in(timed))


def _each(timed: pl.DataFrame) -> list[float]:
    """Return the time of each pass, mean over the ranks that took part in it, in order."""
    numbered = timed.sort("trace", "start_ns").with_columns(
        pl.int_range(pl.len()).over("trace").alias("number")
    )
    passes = numbered.group_by("iteration", "number", maintain_order=True).agg(pl.col("s"))
    return passes.sort("iteration", "number")["s"].list.mean().to_list()


def _why_none(forward_passes: pl.DataFrame, phase: str) -> str:
    if forward_passes.is_empty():
        return "no range in the traces says that it is a forward pass, and whether of prefill or decode"
    others = forward_passes.group_by("phase").len().sort("phase").iter_rows()
    said = " and ".join(f"{count} {name}" for name, count in others)
    more = ", which do both at once" if (forward_passes["phase"] == MIXED).any() else ""
    return f"the traces hold no pass of {phase} alone: there are {said} passes{more}"
