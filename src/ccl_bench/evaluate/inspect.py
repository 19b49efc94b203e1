"""Inspection of a run: contents, measurable metrics, and findings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ccl_bench import metrics
from ccl_bench.base.findings import issue_of
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.card.comparison_fields import fields_of, unranked_issue
from ccl_bench.evaluate.compute import evaluate_metrics, with_other_source
from ccl_bench.evaluate.load import load_tables, needed_inputs
from ccl_bench.result.inspection import (
    InspectedDevice,
    InspectedFact,
    InspectedGroup,
    InspectedMetric,
    InspectedTrace,
    Inspection,
)
from ccl_bench.run.completeness import UNREAD
from ccl_bench.side_files.kinds import CARD

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ccl_bench.base.findings import Finding, Issue
    from ccl_bench.engine import Progress
    from ccl_bench.evaluate.load import LoadedRun
    from ccl_bench.result import Result
    from ccl_bench.run import Run

INSPECTED_TABLES = ("contents", "call_counts", "steps", "devices", "process_groups", "groups")

_OF_EXECUTION_TRACES = ("et_agreement", "et_links", "et_traffic", "et_used_groups")
"""Additional inputs for runs with Execution Traces."""

_OF_ONE_RECORDING = ("et_", "host_name")
"""Prefixes of attributes that always differ between ranks: those of an Execution Trace, the machine."""

_SEVERITIES = ("error", "warning", "note")


def inspect(
    run: Run, *, jobs: int | None = None, use_cache: bool = True, progress: Progress | None = None
) -> Inspection:
    """Return the inspection of `run`: every trace is read once, and every metric is computed."""
    return inspect_with_tables(run, jobs=jobs, use_cache=use_cache, progress=progress)[0]


def inspect_with_tables(
    run: Run,
    also: Iterable[str] = (),
    *,
    jobs: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> tuple[Inspection, list[Result], LoadedRun]:
    """Return the inspection of `run`, the result of every metric, and their inputs plus the tables `also`."""
    names = metrics.load().names()
    has_any = any(trace.form.name == "execution_trace" for trace in run.traces)
    more = _OF_EXECUTION_TRACES if has_any else ()
    inputs = dict.fromkeys((*INSPECTED_TABLES, *more, *also, *needed_inputs(run, names)))
    evidence = load_tables(run, inputs, jobs=jobs, use_cache=use_cache, progress=progress)
    results = evaluate_metrics(run.facts, names, evidence)
    results = with_other_source(run, results, jobs=jobs, use_cache=use_cache, progress=progress)

    world_size = run.facts.world_size.value if run.facts.world_size else None
    ranks = sorted({trace.rank for trace in evidence.traces if trace.rank is not None})
    kind = ["name", "memory_bytes", "sms"]
    by_trace = evidence.inputs["devices"].group_by("trace", *kind).len("count")
    devices = by_trace.group_by(kind).agg(pl.col("count").max()).sort(kind)
    libraries: dict[str, dict[str, None]] = {}
    for trace in evidence.traces:
        for name, value in trace.attributes.items():
            if not name.startswith(_OF_ONE_RECORDING):
                libraries.setdefault(name, {})[value] = None
    counts, traffic = evidence.inputs["call_counts"], evidence.inputs.get("et_traffic")
    if counts.is_empty() and traffic is not None:
        counts = traffic.group_by("collective").agg(pl.len().alias("calls"))
    calls = counts.group_by("collective").agg(pl.col("calls").sum()).sort("collective")
    inspection = Inspection(
        str(run.path),
        world_size,
        ranks,
        sorted(set(range(world_size or 0)) - set(ranks)) if ranks else [],
        _traces(evidence),
        [InspectedDevice(name or "", *row) for name, *row in devices.iter_rows()],
        {name: list(values) for name, values in sorted(libraries.items())},
        dict(calls.iter_rows()),
        _groups(evidence.inputs),
        {
            name: InspectedFact(
                fact.value if isinstance(fact.value, int | float | str | bool) else str(fact.value),
                fact.source,
            )
            for name, fact in run.facts
        },
        {_below(run, path): kind for path, kind in (run.documents.files | run.documents.limits).items()},
        [_below(run, path) for path in run.others],
        [InspectedMetric(r.metric, r.unit, r.status, r.reason, r.fix, r.is_repairable) for r in results],
        issues(run, evidence.findings),
        _model(run),
        run.choice.description,
    )
    return inspection, results, evidence


def _model(run: Run) -> str:
    """Return the model's name: from the configuration with its size, else from the card."""
    config, card = run.documents.config, run.documents.card
    if config and config.model.name and {"name", "flavor"} & config.model.model_fields_set:
        return "_".join(filter(None, (config.model.name, config.model.flavor)))
    if card is None:
        return ""
    return card.model.model_family or (card.hf_url or "").rstrip("/").rpartition("/")[2]


def issues(run: Run, findings: Iterable[Finding]) -> list[Issue]:
    """Return the issues of the files of a run and of their contents, the most severe first."""
    problems = [issue_of(finding) for finding in findings]
    problems += [
        replace(issue, file=issue.file.removeprefix(f"{run.path}/")) for issue in run.documents.issues
    ]
    if (card := run.documents.card) is not None:
        files = (_below(run, path) for path, kind in run.documents.files.items() if kind == CARD.name)
        problems += unranked_issue(fields_of(card, run.facts), next(files, ""))
    return sorted(dict.fromkeys(problems), key=lambda issue: _SEVERITIES.index(issue.severity))


def _below(run: Run, path: Path) -> str:
    """Return a path relative to the run, or unchanged if it is elsewhere."""
    return str(path).removeprefix(f"{run.path}/")


def _traces(evidence: LoadedRun) -> list[InspectedTrace]:
    """Return the traces in order of rank, window and path."""
    contents, steps = evidence.inputs["contents"], evidence.inputs["steps"]
    counted = {row["trace"]: row for row in contents.iter_rows(named=True)}
    by_trace = {key[0]: rows for key, rows in steps.partition_by("trace", as_dict=True).items()}
    traces = []
    for position, reduced in enumerate(evidence.traces):
        file, counts, own_steps = reduced.trace, counted.get(position), by_trace.get(position)
        fields = (file.relative, file.form.name, file.size, reduced.rank, file.rank_source, file.iteration)
        if counts is None:
            unread = any(finding.code in UNREAD for finding in reduced.findings)
            traces.append(InspectedTrace(*fields, is_readable=not unread))
            continue
        ends = counts["start_ns"], counts["end_ns"]
        traces.append(
            InspectedTrace(
                *fields,
                own_steps["step"].to_list() if own_steps is not None else [],
                own_steps["source"][0] if own_steps is not None else "",
                (ends[1] - ends[0]) / SECOND_NS if None not in ends else 0.0,
                counts["kernels"],
                counts["copies"],
                counts["cpu_ops"],
                counts["calls"],
            )
        )
    return sorted(traces, key=lambda t: (t.rank is None, t.rank or 0, t.window or 0, t.file))


def _groups(inputs: dict[str, Any]) -> list[InspectedGroup]:
    """Return the used groups, then the unused ones."""
    groups, recorded = inputs["groups"], inputs["process_groups"]
    if groups.is_empty():
        groups = inputs.get("et_used_groups", groups)
    used_groups = [
        InspectedGroup(g["description"] or "", g["size"], g["members"], g["dimension"], g["seen_by"])
        for g in groups.iter_rows(named=True)
    ]
    used_keys = {(group.description, tuple(group.ranks or ())) for group in used_groups}
    distinct = recorded.select("description", "size", "ranks").unique(maintain_order=True)
    unused = [
        InspectedGroup(description or "", size, ranks, "", 0)
        for description, size, ranks in distinct.iter_rows()
        if (description or "", tuple(ranks or ())) not in used_keys
    ]
    return sorted(used_groups, key=lambda g: (g.dimension, g.ranks or [])) + unused
