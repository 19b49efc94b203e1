"""The metric `goodput`: requests per second that meet their objectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.serving.benchmark import within_objectives
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.serving import (
    BENCHMARK_IT,
    need_success,
    needed_benchmark,
    rate,
    title,
    window_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccl_bench.analysis.facts import Facts
    from ccl_bench.analysis.serving.benchmark import Benchmark
    from ccl_bench.base.lazy_imports import pl

_STATE_THEM = "write slo_ttft_s, slo_tpot_s or slo_latency_s into run_metadata.json, such as 0.2"
_QUANTITIES = ("ttft", "tpot", "latency")


@metric(unit="requests/s", better="higher", applies=(checks.inference,), revision=2)
def goodput(requests: pl.DataFrame, serving_statistics: pl.DataFrame, facts: Facts) -> Measurement:
    """Requests per second of a serving benchmark that meet every service-level objective.

    Formula:
        goodput = requests that succeeded with TTFT <= slo_ttft_s, TPOT <= slo_tpot_s and
                  latency <= slo_latency_s / length of the benchmark

    Caveats:
        The objectives come from `run_metadata.json`, else from AIPerf's record of its own;
        `objectives_from` names the source. Without objectives there is no goodput. vLLM stores its goodput
        but not its objectives, so the stored value is not used. A request whose tokens all came with the
        first one meets any `slo_tpot_s`, where AIPerf lets it meet none; a request without a time that an
        objective needs does not meet it.

    Reference:
        vLLM, `vllm bench serve --goodput`; AIPerf, `--goodput`; Zhong et al. 2024, DistServe.
    """
    benchmark = needed_benchmark(requests, serving_statistics)
    objective_facts = {"ttft": facts.slo_ttft_s, "tpot": facts.slo_tpot_s, "latency": facts.slo_latency_s}
    objectives = {name: fact.value for name, fact in objective_facts.items() if fact}
    if objectives:
        return _of_requests(benchmark, objectives, "run_metadata.json")
    tool = title(benchmark.tool)
    stored_goodput = benchmark.stored.get(("goodput", "total"))
    if not benchmark.objectives:
        more = (
            ""
            if stored_goodput is None
            else f"; {tool} stored {stored_goodput:g} requests/s but not the objectives"
        )
        raise NotMeasurable(f"no service-level objective is given{more}", fix=_STATE_THEM, is_repairable=True)
    source = f"the result of {tool}"
    if benchmark.ends and set(benchmark.objectives) <= set(_QUANTITIES):
        return _of_requests(benchmark, benchmark.objectives, source)
    need_success(benchmark)
    if stored_goodput is None:
        raise NotMeasurable(
            f"{tool} had objectives and stored no goodput, and single requests are not recorded",
            fix=_STATE_THEM,
        )
    details = {
        "tool": tool,
        "source": "as the tool stored it",
        "objectives": {
            f"{name}_s" if name in _QUANTITIES else name: value
            for name, value in benchmark.objectives.items()
        },
        "objectives_from": source,
    }
    return Measurement(stored_goodput, details, window_of(benchmark))


def _of_requests(benchmark: Benchmark, objectives: Mapping[str, float], source: str) -> Measurement:
    """Return the goodput of single requests under these objectives."""
    if not benchmark.ends:
        raise NotMeasurable("the result holds statistics but no single requests", fix=BENCHMARK_IT)
    need_success(benchmark)
    for quantity in objectives:
        needed = "latency_s" if quantity == "latency" else "ttft_s"
        if benchmark.ok[needed].null_count() == benchmark.ok.height:
            raise NotMeasurable(
                f"no request has a {quantity} to compare with the objective", fix=BENCHMARK_IT
            )
    counts = {f"{name}_s": _count_in_time(benchmark, {name: value}) for name, value in objectives.items()}
    good = _count_in_time(benchmark, objectives)
    stored_goodput = (
        benchmark.stored.get(("goodput", "total")) if objectives == benchmark.objectives else None
    )
    return rate(
        benchmark,
        good,
        "requests in time",
        objectives={f"{name}_s": value for name, value in objectives.items()},
        objectives_from=source,
        requests_keeping_each=counts,
        share_of_all=good / sum(count for end, count in benchmark.ends.items() if end != "warmup"),
        **({} if stored_goodput is None else {"as_stored_requests_per_s": stored_goodput}),
    )


def _count_in_time(benchmark: Benchmark, objectives: Mapping[str, float]) -> int:
    """Return the number of requests that meet these objectives."""
    limits = {f"{name}_s": objectives.get(name) for name in _QUANTITIES}
    return within_objectives(benchmark.ok, **limits).height
