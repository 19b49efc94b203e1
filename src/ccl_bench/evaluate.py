"""From a run and the names of metrics to results."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ccl_bench import __version__, engine, metrics
from ccl_bench.analysis.derived import DERIVED, in_order, raw_needs
from ccl_bench.errors import CclBenchError, NotMeasurable
from ccl_bench.frames import pl
from ccl_bench.result import Provenance, Result, ResultFinding, TraceProvenance, status_of
from ccl_bench.schema import TABLES
from ccl_bench.tables_of_side_files import step_times_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ccl_bench.engine.local import Progress
    from ccl_bench.engine.reduction import Reduced
    from ccl_bench.metrics import Metric
    from ccl_bench.run import Run
    from ccl_bench.trace.content import Finding

KEYS = ("trace", "rank", "iteration")
"""Columns that every table of a run carries beside its own: which trace a row is from, and whose it is."""


@dataclass(slots=True)
class Evidence:
    """Everything that metrics may ask for, by the name they ask with."""

    inputs: dict[str, Any] = field(default_factory=dict)
    """Tables and facts."""
    traces: list[Reduced] = field(default_factory=list)
    """What each trace came to."""
    findings: list[Finding] = field(default_factory=list)
    """Everything that is wrong with the run or its traces."""
    given: frozenset[str] = frozenset()
    """Inputs that rest on no trace."""


def given_by(run: Run) -> dict[str, Any]:
    """Return the inputs that need no trace: facts, side files, step times where a side file has them."""
    stated = run.stated
    inputs: dict[str, Any] = {"facts": run.facts, "training_metrics": stated.training_metrics}
    recorded = step_times_in(stated)
    if recorded is not None:
        inputs["step_times"] = recorded
    return inputs


def gathered(
    run: Run,
    wanted: Iterable[str],
    *,
    jobs: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> Evidence:
    """Read the run's traces and return the `wanted` tables and other inputs of metrics."""
    inputs = given_by(run)
    tables = tuple(dict.fromkeys(name for name in wanted if name not in inputs))
    local = engine.local_needs(tables)
    evidence = Evidence(inputs, findings=list(run.findings), given=frozenset(inputs))
    if local:
        tasks = [engine.Task(trace, local, use_cache) for trace in run.traces]
        evidence.traces = engine.run(tasks, jobs=jobs, progress=progress)
        evidence.findings += [finding for trace in evidence.traces for finding in trace.findings]
        inputs |= _together(local, evidence.traces)
    for name in in_order(tables):
        derived = DERIVED.get(name)
        if derived.across_ranks and name not in inputs:
            inputs[name] = derived.compute(*(inputs[need] for need in derived.needs))
    return evidence


def _together(names: Iterable[str], traces: Sequence[Reduced]) -> dict[str, pl.DataFrame]:
    """Return each local table of all traces as one, with the columns of KEYS."""
    parts: dict[str, list[pl.DataFrame]] = defaultdict(list)
    for position, trace in enumerate(traces):
        for name, table in trace.tables.items():
            parts[name].append(
                table.with_columns(
                    pl.lit(position, dtype=pl.Int64).alias("trace"),
                    pl.lit(trace.rank, dtype=pl.Int64).alias("rank"),
                    pl.lit(trace.trace.iteration, dtype=pl.Int64).alias("iteration"),
                )
            )
    return {name: pl.concat(parts[name]) if parts[name] else _empty(name) for name in names}


def _empty(name: str) -> pl.DataFrame:
    table = TABLES[name] if name in TABLES else DERIVED.get(name).table
    return table.empty().with_columns(pl.lit(None, dtype=pl.Int64).alias(key) for key in KEYS)


def evaluate(
    run: Run,
    names: Iterable[str],
    *,
    jobs: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> list[Result]:
    """Return the result of each named metric, in the order of the names.

    Traces are parsed only if some metric makes sense for the run, each once for all metrics.
    Raises UsageError for an unknown metric.
    """
    registry = metrics.load()
    wanted = {name: registry.get(name) for name in names}
    refused = {name: found.inapplicable(run.facts) for name, found in wanted.items()}
    needs = {need for name, found in wanted.items() if not refused[name] for need in found.needs}
    evidence = gathered(run, sorted(needs), jobs=jobs, use_cache=use_cache, progress=progress)
    results = []
    for name, found in wanted.items():
        reason = refused[name]
        answer = _refusal(found, reason) if reason else _answer(found, evidence)
        results.append(replace(answer, metric=name, provenance=_provenance(found, evidence)))
    return results


def _refusal(metric: Metric, reason: str) -> Result:
    return Result(metric.name, "not_applicable", metric.unit, metric.better, reason=reason)


def _answer(metric: Metric, evidence: Evidence) -> Result:
    """Compute one metric; whatever keeps it from a value becomes the result."""
    unread = [f for f in evidence.findings if f.code == "trace-unreadable"]
    base = Result(metric.name, "ok", metric.unit, metric.better, findings=_touching(metric, evidence))
    try:
        found = metric.compute(*(evidence.inputs[need] for need in metric.needs))
        if unread and len(unread) == len(evidence.traces):
            raise NotMeasurable("no trace of the run could be read", fix=unread[0].message)
    except CclBenchError as error:
        return replace(base, status=status_of(error), reason=error.message, fix=error.fix)
    return replace(
        base,
        value=found.value * metric.scale,
        details=dict(found.details),
        window=found.window,
        ranks=list(found.ranks),
    )


def _touching(metric: Metric, evidence: Evidence) -> list[ResultFinding]:
    """Return the findings about anything that the metric's number rests on."""
    used = raw_needs(need for need in metric.needs if need not in evidence.given)
    return [
        ResultFinding(f.code, f.severity, f.message, f.file, f.rank, f.count)
        for f in evidence.findings
        if used and (not f.touches or used & set(f.touches))
    ]


def _provenance(metric: Metric, evidence: Evidence) -> Provenance:
    traces = [
        TraceProvenance(
            reduced.trace.relative,
            reduced.sha256,
            reduced.trace.size,
            reduced.trace.form.name,
            reduced.trace.form.revision,
            reduced.rank,
            reduced.trace.iteration,
        )
        for reduced in evidence.traces
        if reduced.sha256
    ]
    facts = {name: fact.source for name, fact in evidence.inputs["facts"]} if "facts" in metric.needs else {}
    return Provenance(__version__, metric.revision, traces, facts)
