"""The tools for agents: one method per tool, whose docstring is its description for agents."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ccl_bench import diagnosis, metrics, storage
from ccl_bench.api import forecasts, measured_run
from ccl_bench.base.errors import UsageError
from ccl_bench.base.findings import fix_of, issue_of
from ccl_bench.base.registry import did_you_mean
from ccl_bench.base.text import devices_named
from ccl_bench.comparison.compare import compare_runs
from ccl_bench.comparison.load_results import load_results
from ccl_bench.comparison.step_breakdown import DIVIDED_METRICS
from ccl_bench.integrations.agents.answer import Answer, call, fitting, quoted, room_for_rows
from ccl_bench.predict.search_folder import HISTORY, is_search
from ccl_bench.predict.trials import set_names
from ccl_bench.report.comparison import phrases
from ccl_bench.report.formatting import ranges, with_unit
from ccl_bench.report.verdict import gain, remarks, verdict_sentence

if TYPE_CHECKING:
    from ccl_bench.api.measured_run import MeasuredRun
    from ccl_bench.integrations.agents.allowed_folders import AllowedFolders
    from ccl_bench.result import Result
    from ccl_bench.schema import Table

_MOST_ROWS = 200
_MOST_COLUMNS = 40
_WORD = re.compile(r"[\w.:-]{1,40}")
_CHANGES = ("worse", "better", "changed", "cannot tell", "no change", "not comparable")


class RunTools:
    """The tools, over runs in allowed folders; none of them writes anything."""

    def __init__(self, folders: AllowedFolders) -> None:
        self._folders = folders

    def list_runs(self, under: str = "", start: int = 0) -> Answer:
        """List the runs in the allowed folders, or in one folder `under` them, from number `start` on.

        Every other tool accepts these names as `run`; a name such as `#1f2e3d4c5b6a` represents a folder
        with an unsafe name.
        """
        runs, is_whole = self._folders.runs(under)
        rows = []
        for path in runs[max(start, 0) :]:
            name = self._folders.name(path)
            # A handle says nothing: the folder's name, quoted, goes with it.
            rows.append({"run": name} | ({"folder": quoted(path.name, 120)} if name[0] == "#" else {}))
        first_rows = fitting(rows, room_for_rows())
        rest = len(rows) - len(first_rows)
        body: dict[str, object] = {"runs": first_rows, "count": len(runs)}
        calls = [call("list_runs", under=under, start=start + len(first_rows))] if rest else []
        if rest:
            body["not_shown"] = rest
        if not is_whole:
            body["remark"] = "there are too many folders to search them all: give `under`"
        if first_rows:
            name = first_rows[0]["run"]
            calls += [call("diagnose", run=name), call("inspect", run=name)]
        return Answer(body, calls=calls)

    def inspect(self, run: str, steps: str = "") -> Answer:
        """Show the contents of a run: ranks, steps, devices, groups, facts with their source, findings.

        `steps` such as `3-5` restricts every number to these steps.
        """
        inspection = self._opened(run, steps).inspect()
        traces = inspection.traces
        facts = {}
        for name, fact in inspection.facts.items():
            value = quoted(fact.value, 60) if isinstance(fact.value, str) else str(fact.value)
            facts[name] = f"{value} ({quoted(fact.source, 60)})"
        body: dict[str, object] = {
            "verdict": quoted(verdict_sentence(inspection.verdict), 400) if inspection.verdict else None,
            "world_size": inspection.world_size,
            "ranks": ranges(inspection.ranks),
            "missing_ranks": ranges(inspection.missing_ranks),
            "traces": {
                "count": len(traces),
                "formats": Counter(trace.format for trace in traces),
                "bytes": sum(trace.size_bytes for trace in traces),
                "unreadable": sum(not trace.is_readable for trace in traces),
                "windows": ranges(sorted({trace.window for trace in traces if trace.window is not None})),
            },
            "steps": ranges(sorted({step for trace in traces for step in trace.steps})),
            "metrics_by_status": Counter(metric.status for metric in inspection.metrics),
            "model": quoted(inspection.model) if inspection.model else None,
            "devices": [
                devices_named(device.count, quoted(device.name, 80)) for device in inspection.devices
            ],
            "calls_of_collectives": _clean(inspection.calls),
            "facts": facts,
            "groups": [
                {"group": quoted(group.description, 60), "size": group.size, "dimension": group.dimension}
                for group in inspection.groups
            ],
            "libraries": _clean(inspection.libraries),
            "unknown_files": [quoted(name, 80) for name in inspection.unknown_files],
        }
        at = _at(run, steps)
        calls = [call("diagnose", **at), call("list_metrics", **at), call("list_tables", run=run)]
        return Answer(body, inspection.issues, calls, narrower=_of_command("inspect", "--json"))

    def diagnose(self, run: str, steps: str = "") -> Answer:
        """Show the step breakdown, the causes of lost time, and the gain of fixing each.

        A replay of the run computes the gains; the largest come first. `explain` returns the manual page of
        each diagnosis by its name.
        """
        diagnosed = self._opened(run, steps).diagnose()
        body: dict[str, object] = {
            "verdict": quoted(verdict_sentence(diagnosed.verdict), 400) if diagnosed.verdict else None,
            "remarks": [quoted(each, 300) for each in remarks(diagnosed)],
            "diagnoses": [
                {
                    "name": each.name,
                    "title": quoted(each.title, 300),
                    "gain": gain(each),
                    "remedy": quoted(each.remedy, 300),
                    "ranks": ranges(each.ranks),
                    "evidence": [
                        {"rank": e.rank, "step": e.step, "operation": quoted(e.operation, 80)}
                        | {"start_ns": e.start_ns, "end_ns": e.end_ns}
                        for e in each.evidence[:2]
                    ],
                }
                for each in diagnosed.diagnoses
            ],
            "parts_of_step": diagnosed.verdict.parts if diagnosed.verdict else {},
            "silent_rules": len(diagnosed.silent),
        }
        at = _at(run, steps)
        calls = [call("explain", name=each.name) for each in diagnosed.diagnoses[:2]]
        calls += [] if diagnosed.why_no_gains else [call("what_if", **at)]
        calls.append(call("list_metrics", **at))
        return Answer(body, diagnosed.findings, calls, narrower=_of_command("diagnose", "--format json"))

    def list_metrics(self, run: str, steps: str = "", start: int = 0) -> Answer:
        """List the metrics that have a value for a run, with unit and value, from number `start` on.

        Metrics without a value are counted by reason. `metric` returns the details of one.
        """
        results = self._opened(run, steps).results()
        valued = [result for result in results if result.value is not None]
        rows = [_valued(result) for result in valued[max(start, 0) :]]
        reasons = Counter(quoted(result.reason, 120) for result in results if result.value is None)
        first_rows = fitting(rows, room_for_rows() - 1_000)
        body: dict[str, object] = {"metrics": first_rows, "with_value": len(valued)}
        at = _at(run, steps)
        calls = [call("metric", **at, name=row["metric"]) for row in first_rows[:1]]
        if len(rows) > len(first_rows):
            body["not_shown"] = len(rows) - len(first_rows)
            calls.insert(0, call("list_metrics", **at, start=start + len(first_rows)))
        body["without_value_by_reason"] = dict(fitting(reasons.most_common(), 900))
        findings = [*dict.fromkeys(each for result in valued for each in result.findings)]
        return Answer(body, findings, [*calls, call("diagnose", **at)])

    def metric(self, run: str, name: str, steps: str = "") -> Answer:
        """Show one metric of a run: value, how it was measured, details, findings about the data."""
        result = self._opened(run, steps).metric(name)
        body: dict[str, object] = _valued(result) | {"status": result.status, "better": result.better}
        if result.value is None:
            body |= {"reason": quoted(result.reason, 400), "fix": quoted(result.fix, 300)}
        body |= {"window": quoted(result.window), "ranks": ranges(result.ranks)}
        body |= {"details": _clean(result.details)}
        at = _at(run, steps)
        calls = [call("explain", name=result.metric), call("diagnose", **at), call("list_metrics", **at)]
        how = f"ccl-metrics --metric {result.metric} --format json prints all details"
        return Answer(body, result.findings, calls, narrower=how)

    def explain(self, name: str) -> Answer:
        """Show the manual page of a metric or diagnosis, or the fix for the code of a finding."""
        registry, rules = metrics.load(), diagnosis.load()
        if name in registry:
            metric = registry.get(name)
            head: dict[str, object] = {"metric": metric.name, "unit": metric.unit, "better": metric.better}
            manual = metric.manual
        elif name in rules:
            rule = rules.get(name)
            head, manual = {"diagnosis": rule.name, "kind": rule.kind}, rule.manual
        elif fix := fix_of(name):
            return Answer({"finding": name, "remedy": fix}, calls=[call("list_runs")])
        else:
            names = [*registry.names(), *rules.names()]
            fix = did_you_mean(name, names) or "give a metric, a diagnosis, or the code of a finding"
            raise UsageError(f"unknown name {quoted(name)}", fix=fix)
        how = f"ccl-metrics --explain {name}, or ccl-bench diagnose --explain {name}, prints the whole page"
        return Answer(head | {"manual": manual.splitlines()}, calls=[call("list_runs")], narrower=how)

    def what_if(
        self,
        run: str,
        without: list[str] | None = None,
        scale: list[str] | None = None,
        ideal: list[str] | None = None,
        overlap: list[str] | None = None,
        network: list[str] | None = None,
        steps: str = "",
    ) -> Answer:
        """Show the step time in what-if scenarios, from a replay of the run.

        `without` ["rank:0"] sets a part to its ideal time; `scale` ["kernel:gemm=0.5"] multiplies its
        recorded time by a factor; `ideal` ["comm"], ["compute"] or ["all"] makes all of it ideal; `overlap`
        ["all_reduce"] hides a collective under compute; `network` ["B=300,alpha=5"] sets another bus
        bandwidth in GB/s and latency in µs. Parts are rank:R, stage:S, operation:NAME, kernel:NAME,
        comm:COLLECTIVE and dimension:NAME.
        """
        answer = self._opened(run, steps).what_if(
            without=without or (),
            scale=scale or (),
            ideal=ideal or (),
            overlap=overlap or (),
            network=network or (),
        )
        path = asdict(answer.critical_path)
        body: dict[str, object] = {
            "recorded_step_s": answer.t_recorded_s,
            "replayed_step_s": answer.t_original_s,
            "ideal_step_s": answer.t_ideal_s,
            "scenarios": [
                {"scenario": quoted(each.name), "step_s": each.t_s, "gain_s": each.gain_s}
                for each in answer.scenarios
            ],
            "unexplained_share": answer.unexplained,
            "steps": answer.steps[:50],
            "critical_path": path["parts"][:12],
            "slowdown_of_each_alone": _clean({kind: _worst(names) for kind, names in answer.by.items()}),
        }
        at = _at(run, steps)
        calls = [call("diagnose", **at)]
        if not answer.scenarios and (worst := _worst(answer.by.get("rank", {}))):
            calls.insert(0, call("what_if", **at, without=[f"rank:{next(iter(worst))}"]))
        findings = [issue_of(each) for each in answer.findings]
        return Answer(body, findings, calls, narrower=_of_command("what-if", "--format json"))

    def predict(
        self,
        run: str,
        dp: int | None = None,
        pp: int | None = None,
        microbatches: int | None = None,
        schedule: str = "",
        layers: int | None = None,
        network: str = "",
        allow_other_batch: bool = False,
        steps: str = "",
    ) -> Answer:
        """Predict the step time of a recorded run with another pipeline, replicas, or network.

        `dp`, `pp`, `microbatches` and `schedule` (gpipe, 1f1b, interleaved:V or zb) are as recorded if they
        are missing; `layers` divides the model anew if the run does not state its layers. `network` moves
        calls to "H100-NVLink8" or "alpha=5us,B=200GB/s". The answer is predicted, not measured: in eight of
        ten cases the step is between p10 and p90; `refused` states why there is no prediction.
        """
        if network and storage.to_path(network).exists():
            fix = "write H100-NVLink8 or alpha=5us,B=200GB/s"
            raise UsageError("files of measured networks are for the command ccl-bench predict", fix=fix)
        answer = self._opened(run, steps).predict(
            dp=dp,
            pp=pp,
            microbatches=microbatches,
            schedule=schedule or None,
            layers=layers,
            network=network or None,
            allow_other_batch=allow_other_batch,
        )
        body: dict[str, object] = {
            "kind": answer.kind,
            "step_s": answer.step_s,
            "refused": _clean(answer.refused),
            "fix": _clean(answer.fix),
            "tokens_per_s_per_gpu": answer.tokens_per_s_per_gpu,
            "gain_s": answer.gain_s,
            "memory": asdict(answer.memory),
            "configuration": _clean(dict(answer.configuration)),
            "recorded": _clean(dict(answer.recorded)),
            "unexplained_share": answer.unexplained,
        }
        at = _at(run, steps)
        findings = [issue_of(each) for each in answer.findings]
        calls = [call("what_if", **at), call("diagnose", **at)]
        return Answer(body, findings, calls, narrower=_of_command("predict", "--format json"))

    def forecast(self, trials: str, configuration: str, study: str = "") -> Answer:
        """Predict the step time of a configuration from measured steps of others.

        `trials` is a table of trials (CSV, Parquet or JSON), the folder of a search or a run in the allowed
        folders, or a set of the catalog such as "perlmutter-search"; `study` chooses its rows.
        `configuration` is "tp=4,pp=2,micro_batch=2"; what it leaves out is that of the trials. The answer is
        predicted, not measured: in eight of ten cases the step is between p10 and p90; `refused` states why
        there is no prediction.
        """
        place = trials
        if trials not in set_names():
            path = self._folders.run(trials)
            place = str(path / HISTORY if path.is_dir() and is_search(path) else path)
        answer = forecasts.forecast(place, configuration, study=study or None)
        body: dict[str, object] = {
            "kind": answer.kind,
            "step_s": asdict(answer.step_s) if answer.step_s else None,
            "refused": _clean(answer.refused),
            "tokens_per_s_per_gpu": asdict(answer.tokens_per_s_per_gpu)
            if answer.tokens_per_s_per_gpu
            else None,
            "memory": asdict(answer.memory),
            "configuration": _clean(answer.configuration),
            "calibrated_on": _clean(answer.calibrated_on),
            "remarks": _clean(answer.remarks),
        }
        return Answer(body, calls=[call("list_runs")])

    def compare(self, baseline: str, run: str, metric: str = "") -> Answer:
        """Compare a run with a baseline: comparability, changes beyond noise, step breakdown.

        Both are runs, or files of results in the allowed folders. `metric` restricts it to one.
        """
        registry = metrics.load()
        names = [registry.canonical(metric)] if metric else [m.name for m in registry if not m.variant_of]
        measured = [*dict.fromkeys([*names, *DIVIDED_METRICS])]
        sides = [load_results(str(self._folders.run(each)), measured) for each in (baseline, run)]
        (pair,) = compare_runs(sides, names).pairs
        changes = []
        for change in phrases.ordered(pair.changes):
            entry: dict[str, Any] = {"metric": change.metric, "verdict": change.verdict, "unit": change.unit}
            entry |= {"baseline": change.baseline, "run": change.other, "relative": change.relative}
            if change.remarks:
                entry["why"] = quoted("; ".join(change.remarks), 200)
            changes.append(entry)
        body: dict[str, object] = {
            "comparable": quoted(phrases.comparability(pair.comparability), 400),
            "step": quoted(phrases.step_sentence(pair.attribution), 400) if pair.attribution else None,
            "verdicts": {v: n for v in _CHANGES if (n := sum(c.verdict == v for c in pair.changes))},
            "changes": changes,
        }
        first = changes[0]["metric"] if changes else "iteration_wall_clock_time"
        calls = [call("metric", run=run, name=first), call("diagnose", run=run)]
        results = [result for side in sides for result in side.results.values() if result.value is not None]
        findings = [*dict.fromkeys(each for result in results for each in result.findings)]
        how = "give one `metric`, or: ccl-bench compare BASELINE RUN --format json"
        return Answer(body, findings, calls, narrower=how)

    def list_tables(self, run: str) -> Answer:
        """List the tables that the traces of a run can fill, with the meaning of their rows."""
        tables = self._opened(run, "").tables
        rows = [{"table": name, "row": _first_line(table)} for name, table in tables.items()]
        first_rows = fitting(rows, room_for_rows() + 1_000)
        body: dict[str, object] = {"tables": first_rows, "count": len(rows)}
        if len(rows) > len(first_rows):
            body["not_shown"] = [row["table"] for row in rows[len(first_rows) :]]
        return Answer(body, calls=[call("table", run=run, name="steps"), call("diagnose", run=run)])

    def table(
        self, run: str, name: str, sort_by: str = "", rows: int = 20, start: int = 0, steps: str = ""
    ) -> Answer:
        """Show some rows of a table of a run with the meaning of its columns, the largest `sort_by` first."""
        opened = self._opened(run, steps)
        frame = opened.table(name)
        if sort_by and sort_by not in frame.columns:
            fix = did_you_mean(sort_by, frame.columns) or f"it has {', '.join(frame.columns)}"
            raise UsageError(f"{name} has no column {quoted(sort_by)}", fix=fix)
        ordered = frame.sort(sort_by, descending=True, nulls_last=True) if sort_by else frame
        start = max(start, 0)
        columns, table = frame.columns[:_MOST_COLUMNS], opened.tables[name]
        meanings = [f"{each}: {table.columns[each].doc}"[:140] for each in columns if each in table.columns]
        page = ordered.slice(start, min(max(rows, 1), _MOST_ROWS)).select(columns)
        cells = ([_cell(value) for value in row] for row in page.iter_rows())
        sample_rows = fitting(cells, room_for_rows() - 2_000)
        body: dict[str, object] = {
            "row": _first_line(table),
            "rows_in_all": frame.height,
            "columns": columns,
            "rows": sample_rows,
            "meaning_of_columns": fitting(meanings, 1_800),
        }
        calls = []
        if start + len(sample_rows) < frame.height:
            next_page = {"sort_by": sort_by, "rows": rows, "start": start + len(sample_rows)}
            calls = [call("table", **_at(run, steps), name=name, **next_page)]
        findings = [issue_of(each) for each in opened.run.findings]
        return Answer(body, findings, [*calls, call("diagnose", run=run)])

    def _opened(self, run: str, steps: str) -> MeasuredRun:
        return measured_run.open(self._folders.run(run), steps=steps or None)


def _at(run: str, steps: str) -> dict[str, str]:
    """Return the arguments of a call about the same run and steps."""
    return {"run": run} | ({"steps": steps} if steps else {})


def _of_command(name: str, options: str) -> str:
    return f"ccl-bench {name} RUN {options} prints everything"


def _clean(value: Any) -> Any:
    """Return plain data with quoted texts and names of entries, which may come from a file."""
    if isinstance(value, str):
        return quoted(value, 120)
    if isinstance(value, dict):
        return {
            name if _WORD.fullmatch(name) else quoted(name, 80): _clean(each)
            for name, each in ((str(key), each) for key, each in value.items())
        }
    if isinstance(value, list | tuple):
        return [_clean(each) for each in value]
    return value


def _valued(result: Result) -> dict[str, Any]:
    entry: dict[str, Any] = {"metric": result.metric, "value": result.value, "unit": result.unit}
    return entry | ({} if result.value is None else {"reads": with_unit(result.value, result.unit)})


def _worst(slowdowns: dict[str, float]) -> dict[str, float]:
    return dict(sorted(slowdowns.items(), key=lambda each: -each[1])[:8])


def _first_line(table: Table) -> str:
    return table.doc.splitlines()[0][:160]


def _cell(value: object) -> object:
    if isinstance(value, list):
        return [_cell(each) for each in value[:8]] + (["…"] if len(value) > 8 else [])
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return quoted(value, 100)
