"""The diagnosis of a run: apply every rule, sort the opportunities by gain, and sum them up."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ccl_bench import diagnosis
from ccl_bench.analysis.derived import DERIVED, tables_behind
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.findings import Finding, issue_of
from ccl_bench.diagnosis.gains import Gains
from ccl_bench.diagnosis.hosts import Hosts
from ccl_bench.diagnosis.verdict import TABLES, find_verdict, on_common_clock
from ccl_bench.diagnosis.waiting import find_waiting
from ccl_bench.evaluate.inspect import inspect_with_tables
from ccl_bench.evaluate.load import load_tables
from ccl_bench.evaluate.report_data import REPORT_TABLES, report_data_of
from ccl_bench.metrics.shared.reference import References, reference_system
from ccl_bench.result.diagnosis import Diagnosed, Opportunity
from ccl_bench.schema import TABLES as RAW_TABLES
from ccl_bench.whatif import run_graph
from ccl_bench.whatif.event_graph import CyclicGraphError
from ccl_bench.whatif.run_replays import RunReplays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccl_bench.diagnosis import Diagnosis
    from ccl_bench.engine import Progress
    from ccl_bench.evaluate.load import LoadedRun
    from ccl_bench.result.inspection import Inspection
    from ccl_bench.result.report_data import ReportData
    from ccl_bench.run import Run

REPLAYED = {
    "graph": (*run_graph.TABLES, "facts"),
    "gains": ("graph", "host_activity"),
    "references": ("calls", "devices", "facts", "communication_library", "nccl_tests"),
    "hosts": ("gains", "stalls"),
}
"""Inputs of rules that are made for them, mostly from the graph of a run → what each is computed from."""

NOTHING = "no gain beyond the noise of the steps"


def needed_tables() -> list[str]:
    """Return the tables that verdict, replay and rules need."""
    DERIVED.load()
    needs = {need for rule in diagnosis.load() for need in rule.needs} - REPLAYED.keys()
    return sorted(
        {
            *run_graph.TABLES,
            *TABLES,
            *("stalls", "host_activity", "idle_causes", "devices"),
            *(name for name in needs if name in DERIVED or name in RAW_TABLES),
        }
    )


def inputs_behind(rule: Diagnosis) -> set[str]:
    """Return the name of a rule, its inputs, and all tables and facts that they come from."""
    DERIVED.load()
    names = {rule.name}
    queue = [*rule.needs]
    for name in queue:
        names.add(name)
        queue += [need for need in REPLAYED.get(name, ()) if need not in names]
    return tables_behind(names)


def diagnose(
    run: Run, *, jobs: int | None = None, use_cache: bool = True, progress: Progress | None = None
) -> Diagnosed:
    """Return the verdict on a run and what would make it faster; its traces are read once."""
    loaded = load_tables(run, needed_tables(), jobs=jobs, use_cache=use_cache, progress=progress)
    return diagnose_loaded(run, loaded)


def diagnose_loaded(run: Run, loaded: LoadedRun) -> Diagnosed:
    """Return the same for a run whose tables are loaded."""
    inputs: dict[str, Any] = dict(loaded.inputs)
    system = reference_system(
        inputs["facts"], inputs.get("devices"), inputs.get("communication_library"), inputs.get("calls")
    )
    inputs["references"] = References(inputs.get("nccl_tests"), system)
    diagnosed = verdict_of(run, loaded, inputs)
    graph = inputs.get("graph")
    notes = list(graph.findings if graph else loaded.findings)
    try:
        if graph is None:
            raise NotMeasurable(diagnosed.why_no_verdict)
        stalls, activity = (
            on_common_clock(inputs[name], inputs["clock_offsets"]) for name in ("stalls", "host_activity")
        )
        gains = inputs["gains"] = Gains(RunReplays(graph), activity)
        inputs["hosts"] = Hosts(gains, stalls)
        diagnosed = replace(
            diagnosed,
            replay_error=gains.replay_error,
            unexplained=gains.unexplained,
            waiting=find_waiting(gains),
        )
    except NotMeasurable as error:
        reason = str(error.args[0]) if error.args else str(error)
        diagnosed = replace(diagnosed, why_no_gains=reason)
    except CyclicGraphError as error:
        diagnosed = replace(diagnosed, why_no_gains=f"{error}: clocks of ranks or their matching are wrong")
    diagnosed = replace(diagnosed, findings=[issue_of(each) for each in notes])
    return _with_opportunities(diagnosed, diagnosis.load(), inputs)


def verdict_of(run: Run, loaded: LoadedRun, inputs: dict[str, Any] | None = None) -> Diagnosed:
    """Return the verdict alone; its graph is added to the `inputs`."""
    diagnosed = Diagnosed(str(run.path), None)
    try:
        graph = run_graph.graph_of(run, loaded)
        if inputs is not None:
            inputs["graph"] = graph
        diagnosed = replace(diagnosed, steps=list(graph.steps))
        return replace(diagnosed, verdict=find_verdict(graph, loaded.inputs))
    except NotMeasurable as error:
        reason = str(error.args[0]) if error.args else str(error)
        return replace(diagnosed, why_no_verdict=reason)


def _with_opportunities(
    diagnosed: Diagnosed, rules: Iterable[Diagnosis], inputs: dict[str, Any]
) -> Diagnosed:
    """Return the answer with the opportunity of each rule, or why it has none."""
    opportunities: list[Opportunity] = []
    silent: dict[str, str] = {}
    for rule in rules:
        missing = [need for need in rule.needs if need not in inputs]
        if missing:
            cause = diagnosed.why_no_gains or diagnosed.why_no_verdict
            has_cause = cause and REPLAYED.keys() & {*missing}
            silent[rule.name] = cause if has_cause else f"there is no table {', '.join(missing)}"
            continue
        try:
            seen = rule.look(*(inputs[need] for need in rule.needs))
            of_rule = [replace(each, name=rule.name, kind=rule.kind) for each in seen]
        except diagnosis.Silent as answer:
            silent[rule.name] = str(answer)
            continue
        except Exception as error:  # a plug-in's rule may raise anything
            silent[rule.name] = f"it failed: {type(error).__name__}: {error}"
            message = f"the diagnosis {rule.name} failed: {type(error).__name__}: {error}"
            failed = issue_of(Finding("diagnosis-failed", "warning", message))
            diagnosed = replace(diagnosed, findings=[*diagnosed.findings, failed])
            continue
        opportunities += of_rule
        if not of_rule:
            silent[rule.name] = NOTHING
    ordered = sorted(opportunities, key=lambda each: (each.gain_s is None, -(each.gain_s or 0.0)))
    return replace(diagnosed, diagnoses=ordered, silent=silent)


LARGE = 1_000_000_000
"""Bytes of trace files above which a report does not replay the run, and a tenth of which an inspection.

Reading and replaying more takes minutes, for which `ccl-bench diagnose` is asked.
"""


def observe_run(
    run: Run, *, jobs: int | None = None, use_cache: bool = True, progress: Progress | None = None
) -> ReportData:
    """Return the data of the report of a run, with its diagnoses."""
    is_large = _size(run) > LARGE
    tables = () if is_large else needed_tables()
    inspection, results, evidence = inspect_with_tables(
        run, (*REPORT_TABLES, *tables), jobs=jobs, use_cache=use_cache, progress=progress
    )
    observed = report_data_of(inspection, results, evidence)
    if is_large:
        reason = "the traces are large; ccl-bench diagnose shows the step breakdown"
        left_out = Diagnosed(str(run.path), None, why_no_verdict=reason, why_no_gains=reason)
        return replace(observed, diagnosed=left_out)
    diagnosed = _or_reason(run, lambda: diagnose_loaded(run, evidence))
    return replace(
        observed,
        inspection=replace(inspection, verdict=diagnosed.verdict),
        diagnosed=replace(diagnosed, findings=[]),
    )


def inspect_run(
    run: Run, *, jobs: int | None = None, use_cache: bool = True, progress: Progress | None = None
) -> Inspection:
    """Return the inspection of a run, with its verdict."""
    tables = () if _size(run) > LARGE // 10 else (*run_graph.TABLES, *TABLES)
    inspection, _, evidence = inspect_with_tables(
        run, tables, jobs=jobs, use_cache=use_cache, progress=progress
    )
    if not tables:
        return inspection
    diagnosed = _or_reason(run, lambda: verdict_of(run, evidence))
    return replace(inspection, verdict=diagnosed.verdict)


def _size(run: Run) -> int:
    return sum(trace.size for trace in run.traces)


def _or_reason(run: Run, answer: Callable[[], Diagnosed]) -> Diagnosed:
    """Return an answer; if it fails with an error, only its reason is reported."""
    try:
        return answer()
    except Exception as error:  # a report is worth more than its first block
        reason = f"finding one failed: {type(error).__name__}: {error}"
        return Diagnosed(str(run.path), None, why_no_verdict=reason, why_no_gains=reason)
