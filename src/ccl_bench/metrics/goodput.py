"""How many requests a server answers in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.serving import meeting
from ccl_bench.errors import NotMeasurable
from ccl_bench.metrics import Measurement, conditions, metric
from ccl_bench.metrics.shared.serving_details import BENCHMARK_IT, needed_benchmark, rate

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts
    from ccl_bench.frames import pl


@metric(unit="requests/s", better="higher", applies=(conditions.inference,))
def goodput(requests: pl.DataFrame, serving_statistics: pl.DataFrame, facts: Facts) -> Measurement:
    """Requests in one second of a serving benchmark that keep every service-level objective.

    Formula:
        goodput = requests that succeeded with TTFT <= slo_ttft_s, TPOT <= slo_tpot_s and
                  latency <= slo_latency_s / length of the benchmark

    Caveats:
        Only objectives that `run_metadata.json` states count, and without one there is no goodput. A
        request with one output token keeps any `slo_tpot_s`; one that lacks a time which an
        objective needs keeps none.

    Reference:
        vLLM, `vllm bench serve --goodput`; Zhong et al. 2024, DistServe.
    """
    stated = {"ttft_s": facts.slo_ttft_s, "tpot_s": facts.slo_tpot_s, "latency_s": facts.slo_latency_s}
    objectives = {name: fact.value if fact else None for name, fact in stated.items()}
    given = {name: value for name, value in objectives.items() if value is not None}
    if not given:
        raise NotMeasurable(
            "no service-level objective is given",
            fix="write slo_ttft_s, slo_tpot_s or slo_latency_s into run_metadata.json, such as 0.2",
        )
    found = needed_benchmark(requests, serving_statistics)
    if not found.ends:
        raise NotMeasurable("the result holds statistics and no single requests", fix=BENCHMARK_IT)
    good = meeting(found.ok, **objectives).height
    kept = {name: meeting(found.ok, **_alone(name, value)).height for name, value in given.items()}
    return rate(
        found,
        good,
        "requests in time",
        objectives=given,
        requests_keeping_each=kept,
        share_of_all=good / sum(found.ends.values()),
    )


def _alone(name: str, value: float) -> dict[str, float | None]:
    """Return one objective without the others."""
    return {"ttft_s": None, "tpot_s": None, "latency_s": None, name: value}
