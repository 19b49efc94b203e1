"""Serving for metrics: the benchmark, its times and rates, and times of forward passes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.serving.benchmark import OK, Benchmark, benchmark_of, distribution, ends_of, longest
from ccl_bench.analysis.serving.forward_passes import BY_HOST, BY_LAUNCHES, BY_TWIN, DECODE, DRAFT, MIXED
from ccl_bench.analysis.statistics import evenly, percentile_curve, spread
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.catalog import load_data
from ccl_bench.metrics import Measurement
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.per_step import by_rank, ranks_in

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_LISTED = 5000
"""Requests that details list one by one; of more, as many evenly spread ones are listed."""

BENCHMARK_IT = (
    "put the result of a serving benchmark into the run: vllm bench serve --save-result --save-detailed, "
    "SGLang bench_serving --output-details, genai-bench, AIPerf, LLMPerf, inference-perf or GuideLLM"
)

_OF_EACH_TOKEN = ("vllm bench serve --save-result --save-detailed", "AIPerf")

_TOLERANCE = 1e-3
"""Share by which a latency computed from gaps may exceed the length of its benchmark.

Tools round the gaps, whose sum may then exceed the length by a little.
"""

_FIELDS = ("ttft", "latency", "tokens", "gaps", "differs")
_PERCENTILES = ("mean", "p50", "p90", "p95", "p99")


def needed_benchmark(requests: pl.DataFrame, statistics: pl.DataFrame, instead: str = "") -> Benchmark:
    """Return the run's serving benchmark, or raise NotMeasurable if it has none.

    `instead` is the similar metric that traces alone give.
    """
    benchmark = benchmark_of(requests, statistics)
    if benchmark is None:
        reason, fix = "the run holds no result of a serving benchmark", checks.OF_TRAINING + BENCHMARK_IT
        if instead:
            reason += f": traces alone give {instead}, the time of a pass and not of a request"
            fix += f"; or ask for {instead}"
        raise NotMeasurable(reason, fix=fix)
    return benchmark


def title(name: str) -> str:
    """Return the display name of a tool."""
    return str(_row_of(name).get("title", name))


def meaning(name: str) -> dict[str, str]:
    """Return the field of a tool for each quantity; empty for an unknown tool."""
    row = _row_of(name)
    return {key: str(row[key]) for key in _FIELDS if key in row}


def lacks(name: str) -> str:
    """Return the reason why a tool measures no time of a request; empty if it measures some."""
    return str(_row_of(name).get("lacks", ""))


def _row_of(name: str) -> dict[str, object]:
    rows: list[dict[str, object]] = load_data("serving_tools")["tool"]
    return next((row for row in rows if row["name"] == name), {})


def window_of(benchmark: Benchmark) -> str:
    """Return the window that replaces steps."""
    return f"serving benchmark, {title(benchmark.tool)}"


def need_success(benchmark: Benchmark) -> None:
    """Raise NotMeasurable if no request succeeded."""
    ends = ends_of(benchmark)
    if ends.pop(OK, None) == 0:
        ended = ", ".join(f"{count} {end}" for end, count in ends.items())
        reason = "no request succeeded" + (f": {ended}" if ended else "")
        raise NotMeasurable(reason, fix="repeat it against a server that answers")


def times(
    benchmark: Benchmark, quantity: str, values: Sequence[float], *, missing: str, **more: Any
) -> Measurement:
    """Return the mean of times in s with their distribution; `missing` says why there are none.

    Where the tool did not record it for single requests, its own mean is used, if it is of the same quantity.
    """
    need_success(benchmark)
    stored_values = {
        name: benchmark.stored[quantity, name]
        for name in _PERCENTILES
        if (quantity, name) in benchmark.stored
    }
    about = {
        "tool": title(benchmark.tool),
        "fields": meaning(benchmark.tool),
        "requests": ends_of(benchmark),
        **({"as_stored_s": stored_values} if stored_values else {}),
    }
    if values:
        spread = distribution(values)
        about |= {"source": "each request", "distribution_s": spread, **sampled_times(values), **more}
        return Measurement(spread["mean"], about, window_of(benchmark))
    if "mean" in stored_values:
        lacking = "single requests" if benchmark.ok.is_empty() else "it for single requests"
        about["source"] = f"statistics that the tool stored; it did not record {lacking}"
        return Measurement(stored_values["mean"], about, window_of(benchmark))
    raise NotMeasurable(_why_none(benchmark, quantity, missing), fix=_fix_of_none(benchmark))


def _fix_of_none(benchmark: Benchmark) -> str:
    """Return how to repeat a benchmark so that it records the time: with streaming, or another tool."""
    if benchmark.in_one_piece:
        return "repeat the benchmark with streaming, so that each token has its time"
    others = [
        name for name in _OF_EACH_TOKEN if not name.casefold().startswith(title(benchmark.tool).casefold())
    ]
    return f"repeat the benchmark with a tool that records each token, such as {' or '.join(others)}"


def _why_none(benchmark: Benchmark, quantity: str, missing: str) -> str:
    """Return the reason why a time is unknown; `missing` is the reason if requests are listed."""
    tool = title(benchmark.tool)
    if benchmark.in_one_piece:
        return "the answers were not streamed: each came in one piece, with all its tokens"
    if not benchmark.ok.is_empty():
        return missing
    if quantity in benchmark.unmeasured:
        return f"{tool} stored 0 for it, as it does where nothing was measured"
    return lacks(benchmark.tool) or f"the {tool} result holds no single requests and no mean of it"


def sampled_times(values: Sequence[float]) -> dict[str, Any]:
    """Return times in s for details: every percentile of all of them, and single ones in order."""
    details = {"percentiles_s": percentile_curve(values), "values_s": evenly(values, MOST_LISTED)}
    return details | ({"values_left_out": len(values) - MOST_LISTED} if len(values) > MOST_LISTED else {})


def rate(
    benchmark: Benchmark, amount: int | None, what: str, stored: str = "", /, **more: Any
) -> Measurement:
    """Return an amount for each second of the benchmark.

    Where amount or length is unknown, the tool's own rate is used: the total of the quantity `stored`.
    """
    need_success(benchmark)
    stored_rate = benchmark.stored.get((stored, "total"), 0.0)
    if stored_rate > 0 and (amount is None or benchmark.duration_s is None):
        about = {
            "tool": title(benchmark.tool),
            "source": "as the tool stored it",
            "requests": ends_of(benchmark),
        }
        return Measurement(stored_rate, about, window_of(benchmark))
    if amount is None:
        raise NotMeasurable(f"the {title(benchmark.tool)} result does not say how many {what} there were")
    if benchmark.duration_s is None:
        raise NotMeasurable(
            f"the {title(benchmark.tool)} result does not say how long the benchmark took",
            fix="add the tool's summary file, which does",
        )
    if longest(benchmark) > benchmark.duration_s * (1 + _TOLERANCE):
        raise NotMeasurable(
            f"a request took {longest(benchmark):.4g} s in a benchmark of {benchmark.duration_s:.4g} s, so "
            "the length of the benchmark is wrong",
            fix="copy the result again, or repeat the benchmark",
        )
    details = {
        "tool": title(benchmark.tool),
        what.replace(" ", "_"): amount,
        "duration_s": benchmark.duration_s,
        "duration": benchmark.duration_source,
        "requests": ends_of(benchmark),
        **more,
    }
    return Measurement(amount / benchmark.duration_s, details, window_of(benchmark))


PROFILE_IT = "record with the profiler of a recent vLLM or SGLang, whose ranges say what each pass does"

PROFILE_DEVICE = "record CPU and CUDA activity together, so that launches lead to the work on the device"

LAUNCHED_ONLY = (
    "the ranges are on the CPU, which only launches a pass, and no work on the device "
    "can be traced back to them"
)


_TIMED_BY = {
    BY_LAUNCHES: "from the first to the last work launched in the range",
    BY_TWIN: "the range on the device",
    BY_HOST: "the range on the CPU",
}
"""What gives the time of a pass → its words."""


def pass_times(forward_passes: pl.DataFrame, phase: str) -> Measurement:
    """Return the mean time of the passes of `phase` over ranks and passes, s."""
    phase_passes = forward_passes.filter(pl.col("phase") == phase)
    if phase_passes.is_empty():
        if forward_passes.is_empty():
            reason = "no range in the traces is marked as a prefill or decode pass"
            raise NotMeasurable(reason, fix=checks.OF_TRAINING + PROFILE_IT)
        counts = " and ".join(f"{count} {name}" for name, count in _counts(forward_passes, "phase").items())
        more = ", which do both at once" if (forward_passes["phase"] == MIXED).any() else ""
        reason = f"the traces hold no pass of {phase} alone: there are {counts} passes{more}"
        raise NotMeasurable(reason, fix=PROFILE_IT)
    timed = _timed(phase_passes)
    if timed.is_empty():
        raise NotMeasurable(LAUNCHED_ONLY, fix=PROFILE_DEVICE)
    per_rank = timed.group_by("rank").agg(pl.col("s").mean())
    # The same pass on several ranks counts once, as their mean: passes are paired by their order.
    numbered = timed.sort("trace", "start_ns").with_columns(
        pl.int_range(pl.len()).over("trace").alias("number")
    )
    passes = numbered.group_by("iteration", "number", maintain_order=True).agg(pl.col("s"))
    each = passes.sort("iteration", "number")["s"].list.mean().to_list()
    drafts = _timed(forward_passes.filter(pl.col("phase") == DRAFT))
    is_host = timed["timed_by"] == BY_HOST
    details = {
        "distribution_s": spread(each),
        **sampled_times(each),
        "per_rank_s": by_rank(per_rank, "s"),
        "requests_in_a_pass": spread([float(count) for count in timed["requests"]]),
        "passes": _counts(forward_passes, "phase"),
        **({"modes": _counts(phase_passes, "mode")} if phase_passes["mode"].count() else {}),
        **(
            {"draft_pass_s": math.fsum(drafts["s"]) / drafts.height}
            if phase == DECODE and drafts.height
            else {}
        ),
        "timed": "on the CPU, which is the device" if is_host.any() else "on the device",
        "timed_by": {_TIMED_BY[by]: count for by, count in _counts(timed, "timed_by").items()},
        "passes_without_a_time": phase_passes.height - timed.height,
    }
    value = float(per_rank.select(pl.col("s").mean()).item())
    return Measurement(value, details, window=f"{phase} passes of the traces", ranks=ranks_in(timed))


def _timed(passes: pl.DataFrame) -> pl.DataFrame:
    """Return the passes whose time is known, with it as `s`."""
    timed = passes.drop_nulls("timed_by")
    return timed.with_columns(((pl.col("end_ns") - pl.col("start_ns")) / SECOND_NS).alias("s"))


def _counts(passes: pl.DataFrame, column: str) -> dict[str, int]:
    """Return {value of a column: number of passes}, in order of the values."""
    return dict(passes.drop_nulls(column).group_by(column).len().sort(column).iter_rows())
