"""What metrics of a serving benchmark have in common: its fields, its length, what is counted apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.serving import Benchmark, benchmark_of, completed, distribution
from ccl_bench.catalog.serving_tools import meaning, title
from ccl_bench.errors import NotMeasurable
from ccl_bench.metrics import Measurement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.frames import pl

MOST_LISTED = 5000
"""Requests that details list one by one."""

BENCHMARK_IT = (
    "put the result of a serving benchmark into the run: vllm bench serve --save-result --save-detailed, "
    "SGLang bench_serving --output-details, genai-bench, AIPerf or LLMPerf"
)

_PERCENTILES = ("mean", "p50", "p90", "p95", "p99")


def needed_benchmark(requests: pl.DataFrame, statistics: pl.DataFrame) -> Benchmark:
    """Return the run's serving benchmark, or raise NotMeasurable where it has none."""
    found = benchmark_of(requests, statistics)
    if found is None:
        raise NotMeasurable("the run holds no result of a serving benchmark", fix=BENCHMARK_IT)
    return found


def window_of(found: Benchmark) -> str:
    """Return what stands in the place of steps."""
    return f"serving benchmark, {title(found.tool)}"


def counts(found: Benchmark) -> dict[str, int]:
    """Return how many requests ended how."""
    if found.ends:
        return {"ok": found.ok.height} | {end: n for end, n in sorted(found.ends.items()) if end != "ok"}
    said = completed(found)
    return {} if said is None else {"ok": said}


def need_success(found: Benchmark) -> None:
    """Raise NotMeasurable where requests are listed and none succeeded."""
    if found.ends and found.ok.is_empty():
        ended = ", ".join(f"{count} {end}" for end, count in sorted(found.ends.items()))
        raise NotMeasurable(f"no request succeeded: {ended}", fix="repeat it against a server that answers")


def times(
    found: Benchmark, quantity: str, values: Sequence[float], *, missing: str, **more: Any
) -> Measurement:
    """Return the mean of times in s with their distribution; `missing` says why there are none.

    Where the tool recorded no single requests, its own mean stands, if it is of the same quantity.
    """
    need_success(found)
    own = {name: found.stored[quantity, name] for name in _PERCENTILES if (quantity, name) in found.stored}
    about = {
        "tool": title(found.tool),
        "fields": meaning(found.tool),
        "requests": counts(found),
        **({"as_stored_s": own} if own else {}),
    }
    if values:
        spread = distribution(values)
        about |= {"source": "each request", "distribution_s": spread, **_listed(values), **more}
        return Measurement(spread["mean"], about, window_of(found))
    if found.ok.is_empty() and "mean" in own:
        about["source"] = "statistics that the tool stored; it recorded no single requests"
        return Measurement(own["mean"], about, window_of(found))
    raise NotMeasurable(missing, fix=BENCHMARK_IT)


def _listed(values: Sequence[float]) -> dict[str, Any]:
    shown = {"values_s": list(values[:MOST_LISTED])}
    return shown | ({"values_left_out": len(values) - MOST_LISTED} if len(values) > MOST_LISTED else {})


def rate(found: Benchmark, amount: int | None, what: str, **more: Any) -> Measurement:
    """Return an amount for each second of the benchmark."""
    need_success(found)
    if amount is None:
        raise NotMeasurable(f"the {title(found.tool)} result does not say how many {what} there were")
    if found.duration_s is None:
        raise NotMeasurable(
            f"the {title(found.tool)} result does not say how long the benchmark took",
            fix="put the tool's summary beside it, which does",
        )
    details = {
        "tool": title(found.tool),
        what.replace(" ", "_"): amount,
        "duration_s": found.duration_s,
        "duration": found.duration_source,
        "requests": counts(found),
        **more,
    }
    return Measurement(amount / found.duration_s, details, window_of(found))
