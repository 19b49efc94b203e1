"""Computation of the result of each metric of a run; a failing metric does not affect the others."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict, Unpack, cast

import msgspec

from ccl_bench import __version__, metrics
from ccl_bench.analysis.derived import circles, computation_order, missing_tables, raw_needs, tables_behind
from ccl_bench.analysis.facts import Facts, TrackedFacts
from ccl_bench.base.errors import CclBenchError, NotMeasurable, NoValue, UsageError
from ccl_bench.base.findings import Finding, fix_of
from ccl_bench.base.foreign import call_contained, is_foreign, reason_of
from ccl_bench.base.lazy_imports import pl
from ccl_bench.evaluate.load import (
    TIMED,
    load_tables,
    needed_inputs,
    recorded_steps,
    usable_sources,
)
from ccl_bench.metrics import Measurement
from ccl_bench.metrics.shared.checks import OF_TRAINING
from ccl_bench.metrics.shared.other_sources import OTHER_SOURCE
from ccl_bench.metrics.shared.per_step import RECORD
from ccl_bench.result import Provenance, Result, ResultFinding, TraceProvenance, status_of
from ccl_bench.run.completeness import UNREAD
from ccl_bench.run.facts import fact_table
from ccl_bench.run.grouping import SEVERAL
from ccl_bench.run.open import OTHER_PROFILER, recorder_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.engine import Progress
    from ccl_bench.evaluate.load import LoadedRun
    from ccl_bench.metrics import Metric
    from ccl_bench.run import Run
    from ccl_bench.run.trace_tables import TraceTables

Failures = dict[str, Exception]
"""Metric → the unexpected error that it raised."""

_MAKES_WRONG: dict[str, tuple[str, ...]] = {
    "communication-unrecognised": ("calls",),
    "cuda-graphs-hide-kernels": (),
    "device-work-missing": (),
    "kernels-lost": (),
    OTHER_PROFILER: (),
    "table-failed": (),
    "message-to-self": ("bubbles", "traffic_matrix"),
    "no-common-step": ("steps",),
    "no-whole-step": (),
    SEVERAL: (),
}
"""Findings that make values of these tables wrong; without tables, values of all affected inputs."""

_UNUSABLE = {"file-unreadable", "file-malformed", "file-unusable"}
"""Findings of files without usable data."""

_NOT_WORK = {"steps", "step_times", "facts"}
"""Inputs that only show the steps, not their contents."""

_ROUNDING = 1e-6
"""Percent by which rounding may exceed the range of a share: sums of many floats, and no wrong time."""

_NAMED = 12
"""Largest number of steps to name."""

_SEE_PLUGINS = "ccl-metrics --list-metrics shows which plug-ins could not be loaded"
_BREAK_CIRCLE = "a plug-in defines them; change one of them so that it does not need the other"
_SEE_FACTS = "check what the card and run_metadata.json state of the hardware, and the times in the traces"
_SEE_TRACEBACK = "this is an error in the program; ccl-metrics --debug shows its place"


def evaluate_metrics(
    facts: Facts, names: Iterable[str], evidence: LoadedRun, failures: Failures | None = None
) -> list[Result]:
    """Return the result of each named metric, in the order of the names; UsageError for an unknown one."""
    names = list(names)
    registry = metrics.load(names)
    results = []
    traces: dict[frozenset[str], list[TraceProvenance]] = {}
    for name in names:
        metric = registry.get(name)
        noted = TrackedFacts(facts)
        reason = metric.inapplicable(cast("Facts", noted))
        if reason:
            fact_tables = set(map(fact_table, noted.used_names))
            about = [_result_finding(f) for f in evidence.findings if fact_tables & set(f.touches)]
            answer = Result(
                metric.name, "not_applicable", metric.unit, metric.better, reason=reason, findings=about
            )
            provenance = Provenance(__version__, metric.revision)
        else:
            failures = {} if failures is None else failures
            way, answer, fact_names = _from_best_source(metric, evidence, facts, failures)
            raw = _raw(way, evidence)
            facts_behind = map(fact_table, _facts_behind(way, evidence, noted.used_names | fact_names))
            used_tables = {*raw, *way.needs, *_tables_behind(way, evidence), *facts_behind}
            touching = [
                _result_finding(f)
                for f in evidence.findings
                if (used_tables & set(f.touches) if f.touches else raw)
            ]
            if answer.value is None:
                about = [_result_finding(f) for source in metric.sources for f in _mistakes(source, evidence)]
                touching = [*dict.fromkeys([*touching, *about])]
            answer = replace(answer, findings=[*touching, *answer.findings])
            provenance = _provenance(way, evidence, fact_names, traces)
            if answer.value is not None and evidence.choice and provenance.steps:
                window = ", ".join(filter(None, (answer.window, provenance.steps.description)))
                answer = replace(answer, window=window)
            elif answer.value is not None and evidence.choice:
                chosen = evidence.choice.description
                message = f"this number is not about single steps and ignores the choice {chosen}"
                without_effect = ResultFinding("choice-without-effect", "note", message)
                answer = replace(answer, findings=[*answer.findings, without_effect])
        results.append(replace(answer, metric=name, provenance=provenance))
    return results


def _from_best_source(
    metric: Metric, evidence: LoadedRun, facts: Facts, failures: Failures
) -> tuple[Metric, Result, set[str]]:
    """Return the metric of the first source with a value, its result, and the facts that it used.

    If none has a value, the reason comes from the first source with traces (with times, if it needs them),
    else from the first with a side file.
    """
    tried = []
    recorded = {table for trace in evidence.traces for table in trace.trace.form.tables}
    for way in usable_sources(metric, recorded, evidence.given_inputs):
        tracked_facts = TrackedFacts(facts)
        answer = _evaluate_metric(way, evidence, tracked_facts, failures)
        tried.append((way, answer, tracked_facts.used_names))
        if answer.status != "not_measurable":
            break
    if tried[-1][1].value is not None:
        return tried[-1]
    with_traces = [attempt for attempt in tried if _traces_behind(attempt[0], evidence)]
    with_files = [
        attempt
        for attempt in tried
        if any(evidence.files.get(need) for need in attempt[0].needs if need != "facts")
        or _mistakes(attempt[0], evidence)
    ]
    behind = with_traces or with_files or tried
    return next((attempt for attempt in behind if not _timeless_reason(attempt[0], evidence)), behind[0])


def _evaluate_metric(metric: Metric, evidence: LoadedRun, facts: TrackedFacts, failures: Failures) -> Result:
    """Compute one metric; an error becomes the result."""
    base = Result(metric.name, "ok", metric.unit, metric.better)
    try:
        measurement = _compute_metric(metric, evidence, facts)
    except CclBenchError as error:
        better = _better_reason(metric, evidence) if isinstance(error, NoValue) else None
        fix = (better or error).fix
        if isinstance(error, NotMeasurable) and not error.is_repairable and not better:
            # Formats whose advice differs would contradict each other.
            advices = {
                trace.trace.form.advice for trace in _traces_behind(metric, evidence) or evidence.traces
            }
            fix = (advices.pop() if len(advices) == 1 else "") or fix
        if isinstance(error, NoValue) and not better:
            present = {finding.code for finding in evidence.findings}
            fix = next((fix_of(code) for code in error.causes if code in present), fix)
        if fix.startswith(OF_TRAINING) and facts.phase:
            fix = fix.removeprefix(OF_TRAINING)
        error = better or error
        repairable = isinstance(error, NoValue) and error.is_repairable
        return replace(base, status=status_of(error), reason=error.message, fix=fix, is_repairable=repairable)
    except Exception as error:  # a metric, and all the more one of a plug-in, may raise anything
        failures[metric.name] = error
        is_plugin = is_foreign(metric.compute)
        fix = f"ask the author of the plug-in {metric.compute.__module__}" if is_plugin else _SEE_TRACEBACK
        return replace(base, status="failed", reason=reason_of(error), fix=fix)
    return replace(
        base,
        value=measurement.value * metric.scale,
        details=dict(measurement.details),
        window=measurement.window,
        ranks=list(measurement.ranks),
        findings=[_result_finding(finding) for finding in measurement.findings],
    )


def _compute_metric(metric: Metric, evidence: LoadedRun, facts: TrackedFacts) -> Measurement:
    for circle in circles(metric.needs, evidence.given_inputs):
        raise NotMeasurable(
            f"tables depend on each other: {' → '.join([*circle, circle[0]])}", fix=_BREAK_CIRCLE
        )
    if gaps := missing_tables(metric.needs, evidence.given_inputs):
        raise NotMeasurable(f"no package provides the table {gaps[0]}", fix=_SEE_PLUGINS)
    for need in metric.needs:
        if need in evidence.broken:
            raise evidence.broken[need]
    for finding in evidence.findings:
        if finding.code in _MAKES_WRONG and _measures(metric, evidence, finding):
            raise NotMeasurable(finding.message, fix=fix_of(finding.code), is_repairable=True)
    step_numbers = recorded_steps(evidence.traces)
    if step_numbers and "steps" in _tables_behind(metric, evidence) and evidence.inputs["steps"].is_empty():
        fix = f"choose among {', '.join(map(str, sorted(step_numbers)[:_NAMED]))}"
        raise NotMeasurable(
            f"no trace holds what was chosen: {evidence.choice.description}", fix=fix, is_repairable=True
        )
    explaining = {name: evidence.inputs[name] for name in metric.explained_by if name in evidence.inputs}
    arguments = (facts if need == "facts" else evidence.inputs[need] for need in metric.needs)
    measurement = call_contained(metric.compute, *arguments, **explaining)
    if is_foreign(metric.compute):
        _check_types(measurement)
    if not math.isfinite(measurement.value):
        raise NotMeasurable(f"the value is {measurement.value}: the steps have no length", fix=RECORD)
    # The unit before that of a variant: percent of a whole or of a limit.
    unit = (metrics.METRICS.get(metric.variant_of) if metric.variant_of else metric).unit
    most = math.inf if metric.may_exceed_whole else 100 + _ROUNDING
    if unit == "%" and not -_ROUNDING <= measurement.value <= most:
        raise NotMeasurable(
            f"the value is {measurement.value:.4g} %, which is impossible for a share",
            fix=_SEE_FACTS,
            is_repairable=True,
        )
    return measurement


def _check_types(measurement: Measurement) -> None:
    """Raise TypeError if what a metric of another package returned is no measurement that can be written."""
    if not isinstance(measurement, Measurement):
        raise TypeError(f"it returned {type(measurement).__name__}, and not Measurement")
    wrong = [type(each).__name__ for each in measurement.findings if not isinstance(each, Finding)]
    if wrong:
        raise TypeError(f"its findings hold {wrong[0]}")
    msgspec.convert(
        msgspec.json.decode(msgspec.json.encode([measurement.value, measurement.window, measurement.ranks])),
        tuple[float, str, list[int]],
    )
    msgspec.json.encode(measurement.details)


def _measures(metric: Metric, evidence: LoadedRun, finding: Finding) -> bool:
    """Whether a metric measures the data of a finding, instead of only using the steps."""
    if finding.code == SEVERAL:
        return True
    wrong_tables = _MAKES_WRONG[finding.code]
    if "steps" in wrong_tables and "steps" in _tables_behind(metric, evidence):
        return True
    but = evidence.given_inputs if finding.code == OTHER_PROFILER else _NOT_WORK | evidence.given_inputs
    tables = tables_behind(metric.needs, but=but)
    return not tables.isdisjoint(wrong_tables or finding.touches)


def _better_reason(metric: Metric, evidence: LoadedRun) -> NotMeasurable | None:
    """Return a better reason for a missing value than the metric has, if its data was there and unusable."""
    traces = _traces_behind(metric, evidence)
    unread = [f for trace in traces for f in trace.findings if f.code in UNREAD]
    if unread and len(unread) >= len(traces):
        fix = f"{unread[0].file}: {unread[0].message}"
        return NotMeasurable("no trace of the run could be read", fix=fix, is_repairable=True)
    for finding in _mistakes(metric, evidence):
        contents = (evidence.inputs.get(need) for need in finding.touches)
        if finding.code in _UNUSABLE and all(
            content is None or (isinstance(content, pl.DataFrame) and content.is_empty())
            for content in contents
        ):
            return NotMeasurable(
                f"{finding.file} contains no usable data", fix=fix_of(finding.code), is_repairable=True
            )
    return _timeless_reason(metric, evidence)


def _mistakes(metric: Metric, evidence: LoadedRun) -> list[Finding]:
    """Return the findings about the side files of a metric's inputs."""
    needs = {*metric.needs} - {"facts"}
    codes = {*_UNUSABLE, "file-mistakes"}
    return [f for f in evidence.findings if f.code in codes and not needs.isdisjoint(f.touches)]


def _timeless_reason(metric: Metric, evidence: LoadedRun) -> NotMeasurable | None:
    """Return a better reason if a metric needs times and the run has only Execution Traces."""
    recorded = {name for trace in evidence.traces for name in trace.trace.form.tables}
    raw = _raw(metric, evidence)
    if "et_nodes" not in recorded or not recorded.isdisjoint(TIMED) or raw.isdisjoint(TIMED):
        return None
    message = "the run has only Execution Traces, which contain no times, and this metric needs them"
    return NotMeasurable(message, fix="also record Kineto traces of the same steps with torch.profiler")


def _raw(metric: Metric, evidence: LoadedRun) -> set[str]:
    """Return the tables of traces that the metric's value uses."""
    return raw_needs(need for need in metric.needs if need not in evidence.given_inputs)


def _traces_behind(metric: Metric, evidence: LoadedRun) -> list[TraceTables]:
    """Return the traces that contribute to the metric's value."""
    raw = _raw(metric, evidence)
    return [trace for trace in evidence.traces if not raw.isdisjoint(trace.trace.form.tables)]


def _tables_behind(metric: Metric, evidence: LoadedRun) -> list[str]:
    """Return the computed tables that the metric's value uses, directly or indirectly."""
    return computation_order(need for need in metric.needs if need not in evidence.given_inputs)


def _facts_behind(metric: Metric, evidence: LoadedRun, fact_names: set[str]) -> set[str]:
    """Return the facts that the metric used, directly or through its tables."""
    return fact_names.union(
        *(evidence.used_facts.get(table, ()) for table in _tables_behind(metric, evidence))
    )


def _result_finding(finding: Finding) -> ResultFinding:
    return ResultFinding(
        finding.code, finding.severity, finding.message, finding.file, finding.rank, finding.count
    )


def _provenance(
    metric: Metric,
    evidence: LoadedRun,
    fact_names: set[str],
    traces_by_tables: dict[frozenset[str], list[TraceProvenance]],
) -> Provenance:
    """Return the provenance of a value; metrics of the same tables share a list in `traces_by_tables`."""
    raw = frozenset(_raw(metric, evidence))
    if raw not in traces_by_tables:
        traces_by_tables[raw] = [
            TraceProvenance(
                each.trace.relative,
                each.sha256,
                each.trace.size,
                each.trace.form.name,
                each.trace.form.revision,
                each.rank,
                each.trace.iteration,
            )
            for each in _traces_behind(metric, evidence)
            if each.sha256
        ]
    names = _facts_behind(metric, evidence, fact_names)
    facts = {name: fact.source for name, fact in evidence.inputs["facts"] if name in names}
    inputs = dict.fromkeys([*metric.needs, *(["facts"] if facts else [])])
    files = {name: digest for need in inputs for name, digest in evidence.files.get(need, {}).items()}
    rests_on = {*metric.needs, *_tables_behind(metric, evidence)}
    step_choice = evidence.choice if evidence.choice and rests_on & {"steps", "step_times"} else None
    return Provenance(__version__, metric.revision, traces_by_tables[raw], facts, files, step_choice)


def _trace_provenance(reduced: TraceTables) -> TraceProvenance:
    trace = reduced.trace
    return TraceProvenance(
        trace.relative,
        reduced.sha256,
        trace.size,
        trace.form.name,
        trace.form.revision,
        reduced.rank,
        trace.iteration,
    )


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

    Traces are parsed only if some metric applies to the run, each once for all metrics. A metric with an
    unexpected error fails alone; `failures` receives the error. Raises UsageError for an unknown metric.
    """
    names = list(names)
    inputs = needed_inputs(run, names)
    reading: ReadOptions = {"jobs": jobs, "use_cache": use_cache, "progress": progress}
    results = evaluate_metrics(run.facts, names, load_tables(run, inputs, **reading), failures)
    return with_other_source(run, results, failures, **reading)


class ReadOptions(TypedDict):
    """How traces are read."""

    jobs: int | None
    use_cache: bool
    progress: Progress | None


def with_other_source(
    run: Run, results: list[Result], failures: Failures | None = None, **reading: Unpack[ReadOptions]
) -> list[Result]:
    """Return results, replaced by those of the run's other profiler if that measures better.

    This applies to metrics without a value, and to metrics that prefer tables of the other profiler. Each
    value comes from one profiler, and a finding states if it is the other one.
    """
    other = run.other_source
    if other is None:
        return results
    tables = {name for trace in other.traces for name in trace.form.tables}
    metric_names = []
    for result in results:
        metric = metrics.METRICS.get(result.metric)
        lacks = result.status == "not_measurable" or _is_of_other_source(result)
        may_fill = lacks and not raw_needs(metric.needs).isdisjoint(tables)
        if may_fill or not tables.isdisjoint(metric.prefers):
            metric_names.append(result.metric)
    if not metric_names:
        return results
    try:
        evidence = load_tables(other, needed_inputs(other, metric_names), **reading)
    except UsageError:  # steps were chosen that only the first recorder has
        return results
    filled = frozenset(name for trace in evidence.traces for name in trace.filled)
    message = (
        f"this value comes from the {recorder_of(other.traces)} traces of the run, not from "
        f"those of {recorder_of(run.traces)}"
    )
    better: dict[str, Result] = {}
    for answer in evaluate_metrics(other.facts, metric_names, evidence, failures):
        if answer.value is not None and not _is_of_other_source(answer):
            findings = [*answer.findings, ResultFinding("nsys-used", "note", message)]
            better[answer.metric] = replace(answer, findings=findings)
    replaced = []
    for result in results:
        prefers = metrics.METRICS.get(result.metric).prefers
        lacks = result.value is None or _is_of_other_source(result)
        is_replaced = result.metric in better and (lacks or not filled.isdisjoint(prefers))
        replaced.append(better[result.metric] if is_replaced else result)
    return replaced


def _is_of_other_source(result: Result) -> bool:
    """Whether a value comes from a second source of its metric."""
    return any(finding.code == OTHER_SOURCE for finding in result.findings)
