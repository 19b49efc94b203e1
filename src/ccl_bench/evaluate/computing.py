"""X."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict, Unpack

from ccl_bench import metrics
from ccl_bench.analysis.derived import raw_needs
from ccl_bench.base.errors import UsageError
from ccl_bench.evaluate.answering import answered
from ccl_bench.evaluate.loading import gathered, needs_of
from ccl_bench.result import Result, ResultFinding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.engine import Progress
    from ccl_bench.evaluate.answering import Failures
    from ccl_bench.run import Run


def evaluate(
    run: Run,
    names: Iterable[str],
    *,
    jobs: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
    failures: Failures | None = None,
) -> list[Result]:
    """Return the result of each named metric, in the order of the names.

    Traces are parsed only if some metric makes sense for the run, each once for all metrics. A metric
    that raises something unexpected fails for itself; `failures` receives what it raised.
    Raises UsageError for an unknown metric.
    """
    names = list(names)
    wanted = needs_of(run, names)
    reading: Reading = {"jobs": jobs, "use_cache": use_cache, "progress": progress}
    results = answered(run.facts, names, gathered(run, wanted, **reading), failures)
    return with_other_source(run, results, failures, **reading)


class Reading(TypedDict):
    """How traces are read."""

    jobs: int | None
    use_cache: bool
    progress: Progress | None


def with_other_source(
    run: Run, results: list[Result], failures: Failures | None = None, **reading: Unpack[Reading]
) -> list[Result]:
    """Return results with those from the run's other recorder in place of what that one tells better.

    It is asked for metrics that have no value, and for those that prefer what only it has. Each metric
    rests on one recorder alone, and its result says so where that is the other one.
    """
    other = run.other_source
    asked = [result.metric for result in results if _may_be_better(result, other)] if other else []
    if other is None or not asked:
        return results
    try:
        evidence = gathered(other, needs_of(other, asked), **reading)
    except UsageError:  # steps were chosen that only the first recorder has
        return results
    filled = frozenset(name for trace in evidence.traces for name in trace.filled)
    found = {r.metric: r for r in answered(other.facts, asked, evidence, failures) if r.value is not None}
    return [
        _from_other(found[r.metric]) if r.metric in found and _is_better(r, filled) else r for r in results
    ]


def _may_be_better(result: Result, other: Run) -> bool:
    """Whether the traces of another recorder could tell a metric, or something that it prefers."""
    metric = metrics.METRICS.get(result.metric)
    tables = {name for trace in other.traces for name in trace.form.tables}
    lacks = result.status == "not_measurable" and not raw_needs(metric.needs).isdisjoint(tables)
    return lacks or not tables.isdisjoint(metric.prefers)


def _is_better(result: Result, filled: frozenset[str]) -> bool:
    return result.value is None or not filled.isdisjoint(metrics.METRICS.get(result.metric).prefers)


def _from_other(result: Result) -> Result:
    message = (
        "this number is from the Nsight Systems traces of the run, and not from those of torch's profiler"
    )
    return replace(result, findings=[*result.findings, ResultFinding("nsys-used", "note", message)])
