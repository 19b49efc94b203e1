"""From what was gathered of a run to the result of each metric; one that fails leaves the others alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ccl_bench import __version__, metrics
from ccl_bench.analysis.derived import in_order, raw_needs, unprovided
from ccl_bench.analysis.facts import Facts, NotedFacts
from ccl_bench.errors import CclBenchError, NotMeasurable, NoValue
from ccl_bench.metrics.rows import RECORD
from ccl_bench.result import Provenance, Result, ResultFinding, TraceProvenance, status_of
from ccl_bench.stated_facts import touched

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.engine.reduction import Reduced
    from ccl_bench.evidence import Evidence
    from ccl_bench.findings import Finding
    from ccl_bench.metrics import Measurement, Metric

Failures = dict[str, Exception]
"""Metric → what it raised that nobody expects of a metric."""

_MAKES_WRONG = {"cuda-graphs-hide-kernels"}
"""Findings that leave no number right that rests on what they touch."""

_NOT_WORK = {"steps", "step_times", "facts"}
"""Inputs that only tell where steps are, whatever ran in them."""

_SEE_PLUGINS = "ccl-metrics --list-metrics tells which plug-ins could not be loaded"
_SEE_TRACEBACK = "this is a mistake in the program; ccl-metrics --debug shows where"


def answered(
    facts: Facts, names: Iterable[str], evidence: Evidence, failures: Failures | None = None
) -> list[Result]:
    """Return the result of each named metric, in the order of the names; UsageError for an unknown one."""
    registry = metrics.load()
    results = []
    for name in names:
        found = registry.get(name)
        noted = NotedFacts(facts)
        reason = found.inapplicable(cast("Facts", noted))
        if reason:
            answer = Result(found.name, "not_applicable", found.unit, found.better, reason=reason)
            answer = replace(answer, findings=_about_facts(evidence, noted.asked))
        else:
            answer = _answer(found, evidence, noted, {} if failures is None else failures)
        provenance = _provenance(found, evidence, was_refused=bool(reason))
        results.append(replace(answer, metric=name, provenance=provenance))
    return results


def _answer(metric: Metric, evidence: Evidence, facts: NotedFacts, failures: Failures) -> Result:
    """Compute one metric; whatever keeps it from a value becomes the result."""
    base = Result(metric.name, "ok", metric.unit, metric.better)
    try:
        found = _computed(metric, evidence, facts)
        answer = replace(
            base,
            value=found.value * metric.scale,
            details=dict(found.details),
            window=found.window,
            ranks=list(found.ranks),
        )
    except CclBenchError as error:
        unread = _unread(metric, evidence)
        if unread and isinstance(error, NoValue):
            error = unread
        answer = replace(base, status=status_of(error), reason=error.message, fix=error.fix)
    except Exception as error:  # a metric, and all the more one of a plug-in, may raise anything
        failures[metric.name] = error
        reason = f"{type(error).__name__}: {error}"
        answer = replace(base, status="failed", reason=reason, fix=_SEE_TRACEBACK)
    return replace(answer, findings=_touching(metric, evidence, facts.asked))


def _computed(metric: Metric, evidence: Evidence, facts: NotedFacts) -> Measurement:
    if gaps := unprovided(metric.needs, evidence.given):
        raise NotMeasurable(f"nothing provides the table {gaps[0]}", fix=_SEE_PLUGINS)
    for need in metric.needs:
        if need in evidence.broken:
            raise evidence.broken[need]
    for finding in evidence.findings:
        if finding.code in _MAKES_WRONG and _measures(metric, evidence, finding):
            raise NotMeasurable(finding.message, fix="record with --cuda-graph-trace=node")
    found = metric.compute(*(facts if need == "facts" else evidence.inputs[need] for need in metric.needs))
    if not math.isfinite(found.value):
        raise NotMeasurable(f"it comes to {found.value}: the steps have no length", fix=RECORD)
    return found


def _measures(metric: Metric, evidence: Evidence, finding: Finding) -> bool:
    """Whether a metric measures what a finding touches, and does not only ask where steps are."""
    needs = [need for need in metric.needs if need not in _NOT_WORK and need not in evidence.given]
    return bool(raw_needs(needs) & set(finding.touches))


def _unread(metric: Metric, evidence: Evidence) -> NotMeasurable | None:
    """Return the better reason for a missing number where no trace could be read at all."""
    traces = _traces_behind(metric, evidence)
    unread = [f for trace in traces for f in trace.findings if f.code == "trace-unreadable"]
    if not unread or len(unread) < len(traces):
        return None
    return NotMeasurable("no trace of the run could be read", fix=f"{unread[0].file}: {unread[0].message}")


def _raw(metric: Metric, evidence: Evidence) -> set[str]:
    """Return the tables of traces that the metric's number rests on."""
    return raw_needs(need for need in metric.needs if need not in evidence.given)


def _traces_behind(metric: Metric, evidence: Evidence) -> list[Reduced]:
    """Return the traces that have a say in the metric's number."""
    raw = _raw(metric, evidence)
    return [trace for trace in evidence.traces if not raw.isdisjoint(trace.trace.form.tables)]


def _touching(metric: Metric, evidence: Evidence, asked: set[str]) -> list[ResultFinding]:
    """Return the findings about anything that the metric's number rests on; it asked for these facts."""
    raw = _raw(metric, evidence)
    tables = in_order(need for need in metric.needs if need not in evidence.given)
    facts = asked.union(*(evidence.asked.get(table, ()) for table in tables))
    used = {*raw, *metric.needs, *tables, *map(touched, facts)}
    return [_told(f) for f in evidence.findings if (used & set(f.touches) if f.touches else raw)]


def _about_facts(evidence: Evidence, asked: set[str]) -> list[ResultFinding]:
    """Return the findings about facts for which a metric was refused."""
    used = set(map(touched, asked))
    return [_told(finding) for finding in evidence.findings if used & set(finding.touches)]


def _told(finding: Finding) -> ResultFinding:
    return ResultFinding(
        finding.code, finding.severity, finding.message, finding.file, finding.rank, finding.count
    )


def _provenance(metric: Metric, evidence: Evidence, *, was_refused: bool) -> Provenance:
    if was_refused:
        return Provenance(__version__, metric.revision)
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
        for reduced in _traces_behind(metric, evidence)
        if reduced.sha256
    ]
    facts = {name: fact.source for name, fact in evidence.inputs["facts"]} if "facts" in metric.needs else {}
    files = {name: digest for need in metric.needs for name, digest in evidence.files.get(need, {}).items()}
    return Provenance(__version__, metric.revision, traces, facts, files)
