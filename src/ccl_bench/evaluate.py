"""From a run and the names of metrics to results."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ccl_bench import analysis, engine, metrics
from ccl_bench.analysis.communication.agreement import cross_rank_findings
from ccl_bench.analysis.cross_checks import source_findings
from ccl_bench.analysis.derived import DERIVED, in_order, unprovided
from ccl_bench.analysis.facts import NotedFacts
from ccl_bench.analysis.memory.doubts import memory_findings
from ccl_bench.answering import answered
from ccl_bench.evidence import Evidence
from ccl_bench.frames import pl
from ccl_bench.schema import TABLES
from ccl_bench.stated_facts import device_contradictions
from ccl_bench.tables_of_side_files import step_times_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ccl_bench.answering import Failures
    from ccl_bench.engine.local import Progress
    from ccl_bench.engine.reduction import Reduced
    from ccl_bench.result import Result
    from ccl_bench.run import Run

KEYS = ("trace", "rank", "iteration")
"""Columns that every table of a run carries beside its own: which trace a row is from, and whose it is."""


def given_by(run: Run) -> dict[str, Any]:
    """Return the inputs that need no trace: facts, side files, step times where a side file has them."""
    stated = run.stated
    inputs: dict[str, Any] = {
        "facts": run.facts,
        "training_metrics": stated.training_metrics,
        "memory_stats": stated.memory_stats,
        "moe_assignments": stated.moe_assignments,
    }
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
        if DERIVED.get(name).across_ranks and name not in inputs:
            _add_across_ranks(name, evidence)
    looks = (cross_rank_findings, device_contradictions, memory_findings, source_findings)
    evidence.findings += [finding for look in looks for finding in look(inputs)]
    _drop(inputs, {"steps", *contents} & {*local}, left_out.incomplete)
    return evidence


def _add_across_ranks(name: str, evidence: Evidence) -> None:
    """Compute a table from those of all traces; one that fails takes only what rests on it along."""
    needs = DERIVED.get(name).needs
    failed = next((evidence.broken[need] for need in needs if need in evidence.broken), None)
    if failed:
        evidence.broken[name] = failed
        return
    facts = NotedFacts(evidence.inputs["facts"])
    given = [facts if need == "facts" else evidence.inputs[need] for need in needs]
    try:
        evidence.inputs[name] = DERIVED.get(name).compute(*given)
    except Exception as error:  # a plug-in's table may raise anything
        evidence.broken[name] = error
    evidence.asked[name] = facts.asked


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
    failures: Failures | None = None,
) -> list[Result]:
    """Return the result of each named metric, in the order of the names.

    Traces are parsed only if some metric makes sense for the run, each once for all metrics. A metric
    that raises something unexpected fails for itself; `failures` receives what it raised.
    Raises UsageError for an unknown metric.
    """
    names = list(names)
    wanted = needs_of(run, names)
    evidence = gathered(run, wanted, jobs=jobs, use_cache=use_cache, progress=progress)
    return answered(run.facts, names, evidence, failures)


def needs_of(run: Run, names: Iterable[str]) -> list[str]:
    """Return the tables and other inputs of those named metrics that make sense for the run."""
    registry = metrics.load()
    analysis.load()
    given = given_by(run)
    sensible = [found for found in map(registry.get, names) if not found.inapplicable(run.facts)]
    computed = [found for found in sensible if not unprovided(found.needs, given)]
    return sorted({need for found in computed for need in found.needs})
