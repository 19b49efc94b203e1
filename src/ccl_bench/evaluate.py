"""From a run and the names of metrics to results."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ccl_bench import __version__, analysis, engine, metrics
from ccl_bench.analysis.agreement import cross_rank_findings
from ccl_bench.analysis.derived import DERIVED, in_order, raw_needs, unprovided
from ccl_bench.errors import CclBenchError, NotMeasurable, NoValue
from ccl_bench.frames import pl
from ccl_bench.metrics.rows import RECORD
from ccl_bench.result import Provenance, Result, ResultFinding, TraceProvenance, status_of
from ccl_bench.schema import TABLES
from ccl_bench.tables_of_side_files import step_times_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ccl_bench.engine.local import Progress
    from ccl_bench.engine.reduction import Reduced
    from ccl_bench.findings import Finding
    from ccl_bench.metrics import Metric
    from ccl_bench.run import Run

KEYS = ("trace", "rank", "iteration")
"""Columns that every table of a run carries beside its own: which trace a row is from, and whose it is."""

_SEE_PLUGINS = "ccl-metrics --list-metrics tells which plug-ins could not be loaded"


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
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    """Input that rests on no trace → the files behind it, each with its SHA-256."""


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
    analysis.load()
    inputs = given_by(run)
    tables = tuple(dict.fromkeys(name for name in wanted if name not in inputs))
    local = engine.local_needs(tables)
    files = {name: _files_behind(run, name) for name in inputs}
    evidence = Evidence(inputs, findings=list(run.findings), given=frozenset(inputs), files=files)
    if local:
        tasks = [engine.Task(trace, local, use_cache) for trace in run.traces]
        evidence.traces = engine.run(tasks, jobs=jobs, progress=progress)
        evidence.findings += [finding for trace in evidence.traces for finding in trace.findings]
        inputs |= _together(local, evidence.traces)
    contents = [name for name in local if name != "steps" and _is_by_step(name)]
    left_out = engine.left_out(evidence.traces, contents)
    evidence.findings += left_out.findings
    _drop(inputs, {"steps", *contents} & {*local}, left_out.other_steps)
    for name in in_order(tables):
        derived = DERIVED.get(name)
        if derived.across_ranks and name not in inputs:
            inputs[name] = derived.compute(*(inputs[need] for need in derived.needs))
    evidence.findings += cross_rank_findings(inputs)
    _drop(inputs, {"steps", *contents} & {*local}, left_out.incomplete)
    return evidence


def _files_behind(run: Run, name: str) -> dict[str, str]:
    """Return the files that an input was read from, relative to the run, with their hashes."""
    paths = run.stated.origins_of(name)
    within = {path: path.is_relative_to(run.path) for path in paths}
    return {
        path.relative_to(run.path).as_posix() if within[path] else str(path): run.stated.sha256[path]
        for path in paths
    }


def _is_by_step(name: str) -> bool:
    return name in DERIVED and "step" in DERIVED.get(name).table.columns


def _drop(inputs: dict[str, Any], tables: Iterable[str], positions: frozenset[int]) -> None:
    """Take the rows of some traces out of some tables."""
    for name in tables if positions else ():
        inputs[name] = inputs[name].filter(~pl.col("trace").is_in(sorted(positions)))


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
    analysis.load()
    given = given_by(run)
    computed = [m for name, m in wanted.items() if not refused[name] and not unprovided(m.needs, given)]
    needs = {need for found in computed for need in found.needs}
    evidence = gathered(run, sorted(needs), jobs=jobs, use_cache=use_cache, progress=progress)
    results = []
    for name, found in wanted.items():
        reason = refused[name]
        answer = _refusal(found, reason) if reason else _answer(found, evidence)
        provenance = _provenance(found, evidence, was_refused=bool(reason))
        results.append(replace(answer, metric=name, provenance=provenance))
    return results


def _refusal(metric: Metric, reason: str) -> Result:
    return Result(metric.name, "not_applicable", metric.unit, metric.better, reason=reason)


def _answer(metric: Metric, evidence: Evidence) -> Result:
    """Compute one metric; whatever keeps it from a value becomes the result."""
    base = Result(metric.name, "ok", metric.unit, metric.better, findings=_touching(metric, evidence))
    try:
        if gaps := unprovided(metric.needs, evidence.given):
            raise NotMeasurable(f"nothing provides the table {gaps[0]}", fix=_SEE_PLUGINS)
        found = metric.compute(*(evidence.inputs[need] for need in metric.needs))
        if not math.isfinite(found.value):
            raise NotMeasurable(f"it comes to {found.value}: the steps have no length", fix=RECORD)
    except CclBenchError as error:
        unread = _unread(metric, evidence)
        if unread and isinstance(error, NoValue):
            error = unread
        return replace(base, status=status_of(error), reason=error.message, fix=error.fix)
    return replace(
        base,
        value=found.value * metric.scale,
        details=dict(found.details),
        window=found.window,
        ranks=list(found.ranks),
    )


def _unread(metric: Metric, evidence: Evidence) -> NotMeasurable | None:
    """Return the better reason for a missing number where no trace could be read at all."""
    unread = [finding for finding in evidence.findings if finding.code == "trace-unreadable"]
    if not unread or len(unread) < len(evidence.traces) or not _raw(metric, evidence):
        return None
    return NotMeasurable("no trace of the run could be read", fix=f"{unread[0].file}: {unread[0].message}")


def _raw(metric: Metric, evidence: Evidence) -> set[str]:
    """Return the tables of traces that the metric's number rests on."""
    return raw_needs(need for need in metric.needs if need not in evidence.given)


def _touching(metric: Metric, evidence: Evidence) -> list[ResultFinding]:
    """Return the findings about anything that the metric's number rests on."""
    raw = _raw(metric, evidence)
    used = {*raw, *metric.needs, *in_order(need for need in metric.needs if need not in evidence.given)}
    return [
        ResultFinding(f.code, f.severity, f.message, f.file, f.rank, f.count)
        for f in evidence.findings
        if (used & set(f.touches) if f.touches else raw)
    ]


def _provenance(metric: Metric, evidence: Evidence, *, was_refused: bool) -> Provenance:
    if was_refused:
        return Provenance(__version__, metric.revision)
    rests_on = evidence.traces if _raw(metric, evidence) else []
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
        for reduced in rests_on
        if reduced.sha256
    ]
    facts = {name: fact.source for name, fact in evidence.inputs["facts"]} if "facts" in metric.needs else {}
    files = {name: digest for need in metric.needs for name, digest in evidence.files.get(need, {}).items()}
    return Provenance(__version__, metric.revision, traces, facts, files)
