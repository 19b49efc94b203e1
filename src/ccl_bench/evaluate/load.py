"""Loading of the tables and other inputs of metrics, from traces, side files and facts of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from ccl_bench import engine, metrics
from ccl_bench.analysis.checks import Checking, checked_tables
from ccl_bench.analysis.derived import DERIVED, computation_order, missing_tables, raw_needs
from ccl_bench.analysis.facts import CommunicationLibrary, TrackedFacts
from ccl_bench.analysis.intervals import CHOSEN_PROGRAM
from ccl_bench.analysis.steps.findings import common_steps, step_findings, transient_findings
from ccl_bench.analysis.steps.marks import CHOSEN_RANGE, select_step_times
from ccl_bench.base.errors import UsageError
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.registry import did_you_mean
from ccl_bench.base.text import counted
from ccl_bench.base.units import SECOND_NS
from ccl_bench.result.step_choice import EVERY_STEP, StepChoice
from ccl_bench.run.completeness import CODES, completeness_findings, find_exclusions
from ccl_bench.run.copies import copy_findings, find_copies
from ccl_bench.run.facts import device_contradictions
from ccl_bench.run.grouping import find_windows, renumber_windows
from ccl_bench.run.trace_tables import TraceTables

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from ccl_bench.engine import Progress
    from ccl_bench.metrics import Metric
    from ccl_bench.run import Run
    from ccl_bench.run.documents import RunDocuments
    from ccl_bench.trace.formats import Format


@dataclass(slots=True)
class LoadedRun:
    """All inputs of metrics, by parameter name."""

    inputs: dict[str, Any] = field(default_factory=dict)
    """Tables and facts."""
    traces: list[TraceTables] = field(default_factory=list)
    """The outcome of reading each trace."""
    findings: list[Finding] = field(default_factory=list)
    """All findings about the run and its traces."""
    given_inputs: frozenset[str] = frozenset()
    """Inputs that need no trace."""
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    """Input that needs no trace → the files behind it, each with its SHA-256."""
    used_facts: dict[str, set[str]] = field(default_factory=dict)
    """Table across ranks → the facts used to compute it."""
    broken: dict[str, Exception] = field(default_factory=dict)
    """Table across ranks → why it could not be computed."""
    choice: StepChoice = EVERY_STEP
    """The choice of steps."""


_NAMED = 12
"""Largest number of steps or ranges to name; others are counted or left out."""


def choice_findings(
    choice: StepChoice, traces: Sequence[TraceTables], recorded: pl.DataFrame | None
) -> list[Finding]:
    """Return the findings about a choice of steps; `recorded` are the step times of a side file.

    Raises UsageError for a marker or program that no trace has, for steps that neither traces nor file have,
    and if no step remains.
    """
    _check_names(choice, traces)
    times = None if choice.is_by_name else recorded
    sources = {"the traces": recorded_steps(traces)}
    if times is not None and choice:
        sources[times["source"][0]] = {*times["step"]}
    sources = {name: steps for name, steps in sources.items() if steps}
    if not sources:
        return []
    every = set().union(*sources.values())
    check_numbers(choice, every)
    is_left = any(map(_has_chosen_steps, [choice] * len(traces), traces))
    if not is_left and (times is None or select_step_times(times, choice).is_empty()):
        message = f"no step remains of {_listed(sorted(every))}: {choice.description}"
        raise UsageError(message, fix="exclude fewer steps")
    findings = []
    for name, steps in sources.items():
        missing = list(islice(_missing(choice, steps), _NAMED))
        if missing:
            touches = "steps" if name == "the traces" else "step_times"
            have = sum(map(choice.has, steps))
            taken = f"{counted(have, 'step is', 'steps are')} taken" if have else "no data is taken"
            message = f"{name} do not contain the chosen step {_listed(missing)}: {taken} from there"
            findings.append(Finding("chosen-steps-missing", "warning", message, touches=(touches,)))
    for trace in traces:
        if trace.recorded_steps and not _has_chosen_steps(choice, trace):
            file = trace.trace.relative
            message = f"{file} has none of the chosen steps, and values of steps exclude it"
            findings.append(
                Finding("chosen-steps-missing", "warning", message, file, trace.rank, touches=("steps",))
            )
    return findings


def check_numbers(choice: StepChoice, step_numbers: Collection[int]) -> None:
    """Raise UsageError if chosen steps do not exist."""
    if missing := list(islice(_missing(choice, step_numbers), _NAMED)):
        fix = f"there are {_listed(sorted(step_numbers))}"
        raise UsageError(f"no trace contains step {_listed(missing)}", fix=fix)


def recorded_steps(traces: Iterable[TraceTables]) -> set[int]:
    """Return the numbers of all steps of traces that have a chosen step."""
    return {step for trace in traces for step in trace.recorded_steps}


def _check_names(choice: StepChoice, traces: Sequence[TraceTables]) -> None:
    """Raise UsageError if no trace has a range that the marker matches, or the chosen program."""
    chosen = {CHOSEN_RANGE, CHOSEN_PROGRAM}
    others = [trace for trace in traces if trace.steps_from not in {"", *chosen} or trace.range_names]
    if not (choice.is_by_name and others) or any(trace.steps_from in chosen for trace in traces):
        return
    names = list(dict.fromkeys(name for trace in others for name in trace.range_names))
    if choice.program:
        message = f"no trace has runs of a program {choice.program!r}"
        hint = f"there are programs {_listed(names)}" if names else "only profiles of XLA show programs"
    else:
        message = f"no range matches {choice.marker!r}"
        hint = f"there are ranges such as {_listed(names)}" if names else "the traces contain no named range"
    raise UsageError(message, fix=did_you_mean(choice.program or choice.marker, names) or hint)


def _missing(choice: StepChoice, step_numbers: Collection[int]) -> Iterator[int]:
    """Yield the chosen numbers that do not exist."""
    for first, last in choice.ranges:
        yield from (step for step in range(first, last + 1) if step not in step_numbers)


def _has_chosen_steps(choice: StepChoice, trace: TraceTables) -> bool:
    return any(choice.has(step) for step in trace.recorded_steps[choice.skip :])


def _listed(things: Sequence[object]) -> str:
    more = ", ..." if len(things) > _NAMED else ""
    return ", ".join(map(str, things[:_NAMED])) + more


def stated_step_times(documents: RunDocuments) -> pl.DataFrame | None:
    """Return `step_times` from the most detailed side file, or None if the run has none."""
    if documents.rank_step_times and documents.rank_step_times.seconds:
        rows = [
            (rank, step, seconds)
            for rank, steps in documents.rank_step_times.seconds.items()
            for step, seconds in steps.items()
        ]
        return _table(rows, "step_times_per_rank.json")
    if documents.step_times and documents.step_times.seconds:
        source = documents.origins["step_times"].name
        return _table(
            [(None, step, seconds) for step, seconds in documents.step_times.seconds.items()], source
        )
    return None


def chosen_step_times(documents: RunDocuments, choice: StepChoice) -> pl.DataFrame | None:
    """Return `step_times` of the chosen steps from a side file; None if it has none of them.

    Ranges and programs are only in the traces, not in a side file.
    """
    recorded = None if choice.is_by_name else stated_step_times(documents)
    if recorded is None or not choice:
        return recorded
    chosen_times = select_step_times(recorded, choice)
    return None if chosen_times.is_empty() else chosen_times


def _table(rows: Sequence[tuple[int | None, int, float]], source: str) -> pl.DataFrame:
    ranks, steps, seconds = zip(*rows, strict=True)
    return DERIVED.get("step_times").table.frame(
        {
            "rank": list(ranks),
            "step": list(steps),
            "duration_ns": [round(value * SECOND_NS) for value in seconds],
            "source": [source] * len(rows),
        }
    )


_LOOKED_AT = {"devices", "steps"}
"""Tables that are checked for findings after all are computed."""


def stated_inputs(run: Run) -> dict[str, Any]:
    """Return the inputs that need no trace: facts, side files, step times if a side file has them."""
    documents = run.documents
    inputs: dict[str, Any] = {
        "facts": run.facts,
        "training_metrics": documents.training_metrics,
        "memory_stats": documents.memory_stats,
        "moe_assignments": documents.moe_assignments,
        "nccl_tests": documents.nccl_tests,
        "communication_library": _stated_library(documents),
        "device_samples": documents.device_samples,
        "prices": documents.prices,
    }
    recorded = chosen_step_times(documents, run.choice)
    if recorded is not None:
        inputs["step_times"] = recorded
    return inputs


def load_tables(
    run: Run,
    names: Iterable[str],
    *,
    jobs: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
    checked: bool = True,
) -> LoadedRun:
    """Read the run's traces and return the tables and other inputs of metrics with these `names`.

    What is wrong with the data behind them is found too, if `checked`: the tables that show it are computed.
    Raises UsageError if the run does not have the chosen steps.
    """
    DERIVED.load()
    inputs = stated_inputs(run)
    missing_names = [name for name in names if name not in inputs]
    wanted_tables = [*missing_names, *(_steps_behind(missing_names) if run.choice else ())]
    shown_by = sorted(checked_tables(wanted_tables) - inputs.keys()) if checked else []
    tables = tuple(dict.fromkeys([*wanted_tables, *shown_by]))
    forms = {trace.form for trace in run.traces}
    local = engine.tables_of_each_trace(tables, forms)
    files = {
        name: {
            path.relative_to(run.path).as_posix()
            if path.is_relative_to(run.path)
            else str(path): run.documents.sha256[path]
            for path in run.documents.origins_of(name)
        }
        for name in inputs
    }
    given_names = frozenset(inputs)
    evidence = LoadedRun(
        inputs, findings=list(run.findings), given_inputs=given_names, files=files, choice=run.choice
    )
    if local:
        tasks = [engine.Task(trace, local, use_cache, run.choice) for trace in run.traces]
        evidence.traces, loaded_tables = engine.read_concatenated(tasks, local, jobs=jobs, progress=progress)
        _put_in_windows(run, evidence, loaded_tables)
        inputs["communication_library"] = _seen_library(inputs["communication_library"], evidence.traces)
        evidence.findings += [finding for trace in evidence.traces for finding in trace.findings]
        inputs |= loaded_tables
    evidence.findings += choice_findings(run.choice, evidence.traces, stated_step_times(run.documents))
    by_step = [name for name in local if name in DERIVED and "step" in DERIVED.get(name).table.columns]
    contents = [name for name in by_step if name != "steps"]
    excluded = find_exclusions(evidence.traces, contents)
    evidence.findings += excluded.findings
    _drop(inputs, ("steps", *contents), excluded.other_steps, len(evidence.traces))
    if not excluded.whole_steps:
        evidence.findings += _restrict_to_common_steps(evidence, contents, excluded.incomplete)
    _add_tables_across_ranks(wanted_tables, shown_by, forms, evidence)
    evidence.findings += device_contradictions(inputs)
    # Only now: tables across ranks match the calls of incomplete traces with those of their peers.
    _drop(inputs, ("steps", *contents), excluded.incomplete, len(evidence.traces))
    _keep_steps(inputs, ("steps", *contents), excluded.whole_steps, len(evidence.traces))
    evidence.findings += transient_findings(
        inputs.get("steps"), inputs["step_times"] if "step_times" in given_names else None
    )
    if "steps" in inputs:
        evidence.findings += step_findings(inputs["steps"])
    return evidence


def _stated_library(documents: RunDocuments) -> CommunicationLibrary | None:
    """Return the communication library that the card states."""
    library = documents.card.executor.communication_library if documents.card else None
    return CommunicationLibrary(library.name, library.version) if library else None


def _seen_library(
    on_card: CommunicationLibrary | None, traces: Sequence[TraceTables]
) -> CommunicationLibrary | None:
    """Return the communication library that the card states, with the version that traces record of NCCL."""
    versions = {trace.attributes.get("nccl_version", "") for trace in traces} - {""}
    is_nccl = on_card is None or on_card.name is None or on_card.name.upper() == "NCCL"
    if len(versions) != 1 or not is_nccl:
        return on_card
    return CommunicationLibrary(name="NCCL", version=versions.pop())


def _steps_behind(tables: Iterable[str]) -> list[str]:
    """Return the table of steps if any of these needs steps."""
    return [name for name in computation_order(tables) if name == "steps"]


def _put_in_windows(run: Run, evidence: LoadedRun, tables: dict[str, pl.DataFrame]) -> None:
    """Assign traces to windows by their times, and recompute the missing ranks of each.

    What was read of traces that hold the recording of another one is removed.
    """
    every, copies = evidence.traces, find_copies(evidence.traces)
    _drop(tables, tables, frozenset(copies), len(every))
    findings = {copy: copy_findings(every[copy], every[original]) for copy, original in copies.items()}
    for copy in copies:
        every[copy] = TraceTables(every[copy].trace, findings=findings[copy], rank=every[copy].rank)
    windows = find_windows(evidence.traces)
    renumber_windows(windows, evidence.traces, tables)
    if copies or windows.numbers:
        others = [finding for finding in evidence.findings if finding.code not in CODES]
        traces = [trace.trace for position, trace in enumerate(evidence.traces) if position not in copies]
        evidence.findings = [*others, *completeness_findings(run.facts, traces, run.others)]
    evidence.findings += windows.findings


def _restrict_to_common_steps(
    evidence: LoadedRun, contents: Collection[str], incomplete: frozenset[int]
) -> list[Finding]:
    """Keep only steps that every trace has; calls in other steps stay, without a step."""
    inputs = evidence.inputs
    if "steps" not in inputs:
        return []
    traces = len(evidence.traces)
    common, findings = common_steps(inputs["steps"].with_columns(pl.col("trace") % traces), incomplete)
    _keep_steps(inputs, {"steps", *contents} - {"calls"}, common, traces)
    if "calls" in inputs and common:
        common_rows = inputs["steps"].select("trace", "step", kept="step")
        calls = inputs["calls"].join(common_rows, on=["trace", "step"], how="left", maintain_order="left")
        inputs["calls"] = calls.with_columns(step="kept").drop("kept")
    return findings


def _add_tables_across_ranks(
    wanted_tables: Sequence[str], shown_by: Sequence[str], forms: Collection[Format], evidence: LoadedRun
) -> None:
    """Compute every table across ranks, and check them; drop intermediate tables after their last use."""
    inputs, checking = evidence.inputs, Checking()
    behind = computation_order([*wanted_tables, *shown_by])
    order = [name for name in behind if DERIVED.get(name).across_ranks and name not in inputs]
    checking.look(inputs)
    for done, name in enumerate(order, start=1):
        if engine.has_rows(name, forms):
            needs = DERIVED.get(name).needs
            failed = next((evidence.broken[need] for need in needs if need in evidence.broken), None)
            if failed:  # Only the tables that need a broken one fail with it.
                evidence.broken[name] = failed
            else:
                facts = TrackedFacts(inputs["facts"])
                arguments = [facts if need == "facts" else inputs[need] for need in needs]
                try:
                    inputs[name] = DERIVED.get(name).computed(*arguments)
                except Exception as error:  # a plug-in's table may raise anything
                    evidence.broken[name] = error
                evidence.used_facts[name] = facts.used_names
        else:
            inputs[name] = DERIVED.get(name).table.empty()
        checking.look(inputs)
        later = order[done:]
        needed = checking.needs([*inputs, *later])
        needed |= {need for each in later for need in DERIVED.get(each).needs}
        for over in inputs.keys() - {*wanted_tables, *needed, *evidence.given_inputs, *_LOOKED_AT}:
            del inputs[over]
    for over in inputs.keys() & {*shown_by} - {*wanted_tables, *evidence.given_inputs, *_LOOKED_AT}:
        del inputs[over]
    evidence.findings += checking.findings


def _drop(inputs: dict[str, Any], tables: Iterable[str], positions: frozenset[int], traces: int) -> None:
    """Remove the rows of some traces from some tables, on every device."""
    for name in inputs.keys() & {*tables} if positions else ():
        inputs[name] = inputs[name].filter(~(pl.col("trace") % traces).is_in(sorted(positions)))


def _keep_steps(
    inputs: dict[str, Any], tables: Iterable[str], whole: Mapping[int, Collection[int]], traces: int
) -> None:
    """Remove the incomplete steps of some traces from some tables, on every device."""
    pairs = [(trace, step) for trace, steps in whole.items() for step in steps]
    whole_steps = pl.DataFrame(pairs, {"trace": pl.Int64, "step": pl.Int64}, orient="row") if whole else None
    owner = pl.col("trace") % traces
    for name in inputs.keys() & {*tables} if whole_steps is not None else ():
        rest = inputs[name].filter(owner.is_in([*whole]))
        inputs[name] = pl.concat(
            [
                inputs[name].filter(~owner.is_in([*whole])),
                rest.join(
                    whole_steps,
                    left_on=[owner, "step"],
                    right_on=["trace", "step"],
                    how="semi",
                    maintain_order="left",
                ),
            ]
        )


TIMED = {
    *("kernels", "memcpy", "cpu_ops", "launches", "annotations", "collectives", "hlo_operations"),
    "requests",
}
"""Raw tables with times."""


def usable_sources(metric: Metric, recorded: Collection[str], given_inputs: Collection[str]) -> list[Metric]:
    """Return the sources of a metric in a run with these raw tables and other inputs.

    Other sources that need traces are used only if the run has no trace of the kind that the first needs,
    or has traces with times that the first does not use.
    """
    raw = [raw_needs(need for need in way.needs if need not in given_inputs) for way in metric.sources]
    is_recorded = not raw[0].isdisjoint(TIMED.intersection(recorded))
    more = TIMED.intersection(recorded) - raw[0]
    others = zip(metric.sources[1:], raw[1:], strict=True)
    return [
        metric,
        *(way for way, needs in others if not (needs and is_recorded and needs.isdisjoint(more))),
    ]


def needed_inputs(run: Run, names: Iterable[str]) -> list[str]:
    """Return the tables and other inputs of the named metrics that apply to the run.

    They include steps if any input needs steps, so that findings about steps are detected.
    """
    names = list(names)
    registry = metrics.load(names)
    DERIVED.load()
    given_inputs = stated_inputs(run)
    sensible = [metric for metric in map(registry.get, names) if not metric.inapplicable(run.facts)]
    recorded = {table for trace in run.traces for table in trace.form.tables}
    ways = [way for metric in sensible for way in usable_sources(metric, recorded, given_inputs)]
    computed = [way for way in ways if not missing_tables(way.needs, given_inputs)]
    needed = {need for way in computed for need in way.needs}
    needed |= {
        name for way in computed for name in way.explained_by if not missing_tables([name], given_inputs)
    }
    return sorted({*needed, *_steps_behind(needed - given_inputs.keys())})
