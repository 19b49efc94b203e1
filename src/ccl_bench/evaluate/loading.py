"""X."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench import analysis, engine, metrics
from ccl_bench.analysis.communication.findings import LOOKED_AT, cross_rank_findings
from ccl_bench.analysis.derived import DERIVED, computation_order, missing_tables
from ccl_bench.analysis.facts import TrackedFacts
from ccl_bench.analysis.findings import source_findings
from ccl_bench.analysis.memory.findings import memory_findings
from ccl_bench.analysis.steps.findings import common_steps, step_findings, transient_findings
from ccl_bench.base.lazy_polars import pl
from ccl_bench.engine.comparable import left_out
from ccl_bench.engine.windows import renumber, windows_of
from ccl_bench.evaluate.choosing import choice_findings
from ccl_bench.evaluate.evidence import Evidence
from ccl_bench.evaluate.side_tables import chosen_step_times, step_times_in
from ccl_bench.run.completeness import CODES, completeness_findings
from ccl_bench.run.facts import device_contradictions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ccl_bench.base.findings import Finding
    from ccl_bench.engine import Progress
    from ccl_bench.run import Run
    from ccl_bench.trace.formats import Format

_LOOKED_AT = {"devices", "memory_peaks", "step_times", "steps"}
"""Tables in which findings are looked for once all are computed."""


def given_by(run: Run) -> dict[str, Any]:
    """Return the inputs that need no trace: facts, side files, step times where a side file has them."""
    stated = run.stated
    inputs: dict[str, Any] = {
        "facts": run.facts,
        "training_metrics": stated.training_metrics,
        "memory_stats": stated.memory_stats,
        "moe_assignments": stated.moe_assignments,
    }
    recorded = chosen_step_times(stated, run.choice)
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
    """Read the run's traces and return the `wanted` tables and other inputs of metrics.

    Raises UsageError where steps were chosen that the run does not have.
    """
    analysis.load()
    inputs = given_by(run)
    asked = [name for name in wanted if name not in inputs]
    tables = tuple(dict.fromkeys([*asked, *(_steps_behind(asked) if run.choice else ())]))
    forms = {trace.form for trace in run.traces}
    local = engine.local_needs(tables, forms)
    files = {name: _files_behind(run, name) for name in inputs}
    given = frozenset(inputs)
    evidence = Evidence(inputs, findings=list(run.findings), given=given, files=files, choice=run.choice)
    if local:
        tasks = [engine.Task(trace, local, use_cache, run.choice) for trace in run.traces]
        evidence.traces, read = engine.read_together(tasks, local, jobs=jobs, progress=progress)
        _put_in_windows(run, evidence, read)
        evidence.findings += [finding for trace in evidence.traces for finding in trace.findings]
        inputs |= read
    evidence.findings += choice_findings(run.choice, evidence.traces, step_times_in(run.stated))
    contents = [name for name in local if name != "steps" and _is_by_step(name)]
    excluded = left_out(evidence.traces, contents)
    evidence.findings += excluded.findings
    _drop(inputs, ("steps", *contents), excluded.other_steps, len(evidence.traces))
    if not excluded.whole_steps:
        evidence.findings += _restrict_to_common_steps(evidence, contents, excluded.incomplete)
    _add_tables_across_ranks(tables, forms, evidence)
    looks = (device_contradictions, memory_findings, source_findings)
    evidence.findings += [finding for look in looks for finding in look(inputs)]
    _drop(inputs, ("steps", *contents), excluded.incomplete, len(evidence.traces))
    _keep_steps(inputs, ("steps", *contents), excluded.whole_steps, len(evidence.traces))
    evidence.findings += transient_findings(
        inputs.get("steps"), inputs["step_times"] if "step_times" in given else None
    )
    if "steps" in inputs:
        evidence.findings += step_findings(inputs["steps"])
    return evidence


def _steps_behind(tables: Iterable[str]) -> list[str]:
    """Return the table of steps where any of these rests on steps."""
    return [name for name in computation_order(tables) if name == "steps"]


def _put_in_windows(run: Run, evidence: Evidence, tables: dict[str, pl.DataFrame]) -> None:
    """Put traces into the windows that their times make, and say anew which ranks those lack."""
    windows = windows_of(evidence.traces)
    if windows.numbers:
        renumber(windows, evidence.traces, tables)
        others = [finding for finding in evidence.findings if finding.code not in CODES]
        traces = [reduced.trace for reduced in evidence.traces]
        evidence.findings = [*others, *completeness_findings(run.facts, traces, run.others)]
    evidence.findings += windows.findings


def _restrict_to_common_steps(
    evidence: Evidence, contents: Collection[str], incomplete: frozenset[int]
) -> list[Finding]:
    """Leave in all tables only steps that every trace has; calls in others stay, and are of no step."""
    inputs = evidence.inputs
    if "steps" not in inputs:
        return []
    traces = len(evidence.traces)
    common, found = common_steps(inputs["steps"].with_columns(pl.col("trace") % traces), incomplete)
    _keep_steps(inputs, {"steps", *contents} - {"calls"}, common, traces)
    if "calls" in inputs and common:
        kept = inputs["steps"].select("trace", "step", kept="step")
        calls = inputs["calls"].join(kept, on=["trace", "step"], how="left", maintain_order="left")
        inputs["calls"] = calls.with_columns(step="kept").drop("kept")
    return found


def _add_tables_across_ranks(wanted: Sequence[str], forms: Collection[Format], evidence: Evidence) -> None:
    """Compute every table across ranks; of what is not wanted itself, each goes after its last use."""
    inputs = evidence.inputs
    order = [n for n in computation_order(wanted) if DERIVED.get(n).across_ranks and n not in inputs]
    looked: dict[str, list[Finding]] = {}
    for done, name in enumerate(order, start=1):
        if engine.has_rows(name, forms):
            _add_across_ranks(name, evidence)
        else:
            inputs[name] = DERIVED.get(name).table.empty()
        looked[name] = cross_rank_findings({name: inputs.get(name)})
        needed = {need for later in order[done:] for need in DERIVED.get(later).needs}
        for over in inputs.keys() - {*wanted, *needed, *evidence.given, *_LOOKED_AT}:
            del inputs[over]
    evidence.findings += [finding for name in LOOKED_AT for finding in looked.get(name, ())]


def _add_across_ranks(name: str, evidence: Evidence) -> None:
    """Compute a table from those of all traces; one that fails takes only what rests on it along."""
    needs = DERIVED.get(name).needs
    failed = next((evidence.broken[need] for need in needs if need in evidence.broken), None)
    if failed:
        evidence.broken[name] = failed
        return
    facts = TrackedFacts(evidence.inputs["facts"])
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


def _drop(inputs: dict[str, Any], tables: Iterable[str], positions: frozenset[int], traces: int) -> None:
    """Take the rows of some of so many traces out of some tables, on every device."""
    for name in inputs.keys() & {*tables} if positions else ():
        inputs[name] = inputs[name].filter(~(pl.col("trace") % traces).is_in(sorted(positions)))


def _keep_steps(
    inputs: dict[str, Any], tables: Iterable[str], whole: Mapping[int, Collection[int]], traces: int
) -> None:
    """Take all steps but the whole ones of some of so many traces out of some tables, on every device."""
    pairs = [(trace, step) for trace, steps in whole.items() for step in steps]
    kept = pl.DataFrame(pairs, {"trace": pl.Int64, "step": pl.Int64}, orient="row") if whole else None
    owner = pl.col("trace") % traces
    for name in inputs.keys() & {*tables} if kept is not None else ():
        rest = inputs[name].filter(owner.is_in([*whole]))
        inputs[name] = pl.concat(
            [
                inputs[name].filter(~owner.is_in([*whole])),
                rest.join(
                    kept,
                    left_on=[owner, "step"],
                    right_on=["trace", "step"],
                    how="semi",
                    maintain_order="left",
                ),
            ]
        )


def needs_of(run: Run, names: Iterable[str]) -> list[str]:
    """Return the tables and other inputs of those named metrics that make sense for the run.

    Steps are among them where anything rests on steps, so that what is wrong with them is seen.
    """
    registry = metrics.load()
    analysis.load()
    given = given_by(run)
    sensible = [found for found in map(registry.get, names) if not found.inapplicable(run.facts)]
    computed = [found for found in sensible if not missing_tables(found.needs, given)]
    needed = {need for found in computed for need in found.needs}
    return sorted({*needed, *_steps_behind(needed - given.keys())})
