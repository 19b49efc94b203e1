"""A measured run: tables, metrics, verdict, diagnoses and pages, each computed on request."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench.api import display
from ccl_bench.base.errors import NotMeasurable, UsageError
from ccl_bench.base.registry import did_you_mean
from ccl_bench.base.text import counted
from ccl_bench.result.step_choice import step_choice
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import polars as pl

    from ccl_bench.analysis.facts import Facts
    from ccl_bench.api.charts import Chart
    from ccl_bench.api.sweep import ServingSweep
    from ccl_bench.api.tables import RunTables
    from ccl_bench.base.findings import Issue
    from ccl_bench.engine import Progress
    from ccl_bench.evaluate.compute import ReadOptions
    from ccl_bench.report.render import ReportForm
    from ccl_bench.result import Result
    from ccl_bench.result.diagnosis import Diagnosed, Verdict
    from ccl_bench.result.hang import Hang
    from ccl_bench.result.inspection import Inspection
    from ccl_bench.result.prediction import Prediction
    from ccl_bench.result.report_data import ReportData
    from ccl_bench.result.what_if import CriticalPath, WhatIf
    from ccl_bench.run import Run
    from ccl_bench.timeline import WrittenTimeline
    from ccl_bench.trace.formats import TraceFile
    from ccl_bench.whatif import RunReplays

display.register()


def open(  # noqa: A001  it opens a run
    place: str | Path,
    *,
    card: str | Path | None = None,
    config: str | Path | None = None,
    ceiling: str | Path | None = None,
    profile_mode: str = "auto",
    steps: str | None = None,
    skip_steps: int | None = None,
    marker: str | None = None,
    program: str | None = None,
    jobs: int | None = None,
    use_cache: bool = True,
) -> MeasuredRun:
    """Return the run at `place`: a directory, a single trace file, or the URL of either.

    Only its files are listed; no trace is read yet. `card` and `config` are a workload card and a training
    configuration elsewhere, `ceiling` is the output of nccl-tests; `profile_mode` is `auto`, `torch` or
    `nsys`. `steps` (`"3-5"`), `skip_steps` and `marker` (a regular expression) or `program` (of a profile of
    XLA) choose the steps to measure.
    `jobs` processes read traces, by default one per core. Raises InputError if there is nothing to read,
    and UsageError for an invalid choice.
    """
    choice = step_choice(steps, skip_steps, marker, program)
    run = open_run(place, card=card, config=config, ceiling=ceiling, profile_mode=profile_mode, choice=choice)
    return MeasuredRun(run, str(place), jobs=jobs, use_cache=use_cache)


class MeasuredRun:
    """A run and its answers. `ccl_bench.open` returns one; every answer is computed once."""

    def __init__(self, run: Run, place: str, *, jobs: int | None = None, use_cache: bool = True) -> None:
        self.run = run
        """The files and facts of the run, before any trace is read."""
        self.place = place
        """The place that the user gave."""
        self.jobs = jobs
        self.use_cache = use_cache
        self.progress: Progress | None = None
        """Called with (done, total) after each trace that is read."""
        self.failures: dict[str, Exception] = {}
        """Metric → the unexpected error that it raised."""
        self._results: dict[str, Result] = {}

    def __repr__(self) -> str:
        ranks = f", {counted(len(self.ranks), 'rank')}" if self.ranks else ""
        return f"<MeasuredRun {self.place}: {counted(len(self.traces), 'trace')}{ranks}>"

    def _repr_html_(self) -> str:
        verdict = self._diagnosed.verdict if "_diagnosed" in vars(self) else None
        return display.run_html(self.run, self.place, verdict)

    @property
    def path(self) -> Path:
        """The directory or file of the run."""
        return self.run.path

    @property
    def traces(self) -> list[TraceFile]:
        """The trace files, in order of path."""
        return self.run.traces

    @property
    def ranks(self) -> list[int]:
        """Ranks with a trace, according to file names."""
        return self.run.ranks

    @property
    def facts(self) -> Facts:
        """Facts from card, metadata and configuration."""
        return self.run.facts

    def inspect(self) -> Inspection:
        """Return the inspection of the run: contents, measurable metrics and findings; reads every trace."""
        return self.observed.inspection if "observed" in vars(self) else self._inspection

    @property
    def findings(self) -> list[Issue]:
        """All findings about the data, the most severe first; reads every trace."""
        return self.inspect().issues

    def results(self, names: Iterable[str] | None = None) -> list[Result]:
        """Return the results of the named metrics, of all by default, in the order of the names.

        The result of a metric without a value states the reason. Raises UsageError for an unknown name.
        """
        from ccl_bench import metrics
        from ccl_bench.evaluate.compute import evaluate

        wanted_names = metrics.load().names() if names is None else [*names]
        missing = [name for name in dict.fromkeys(wanted_names) if name not in self._results]
        if missing:
            results = evaluate(
                self.run,
                missing,
                **self.reading,
                failures=self.failures,
            )
            self._results |= dict(zip(missing, results, strict=True))
        return [self._results[name] for name in wanted_names]

    def metric(self, name: str) -> Result:
        """Return the result of one metric, by its name or an alias."""
        from ccl_bench import metrics

        return self.results([metrics.load([name]).spelled(name)])[0]

    def metrics(self, *names: str, measured: bool = False) -> pl.DataFrame:
        """Return the named metrics, or all with those that have a value first, as a table with one row each.

        With `measured`, only those with a value.
        Columns: metric, value (null if there is none), unit, better, status, reason, fix, window, ranks,
        findings.
        """
        from ccl_bench.api.tables import results_frame

        results = [self.metric(name) for name in names]
        if not names:
            results = sorted(self.results(), key=lambda result: result.value is None)
        return results_frame(each for each in results if each.status == "ok" or not measured)

    @cached_property
    def tables(self) -> RunTables:
        """The tables that the traces of the run can fill, by name, each with its columns and their units."""
        from ccl_bench.api.tables import RunTables
        from ccl_bench.evaluate.load import load_tables

        return RunTables(self.run, lambda run, names: load_tables(run, names, **self.reading))

    def table(self, name: str, *, ranks: Iterable[int] | None = None) -> pl.DataFrame:
        """Return a table of all ranks, or of some, as a polars frame.

        Rows of one trace have its number, rank and recorded window (`trace`, `rank`, `iteration`). If steps
        were chosen, a table has the rows of these steps; a table without steps has the rows that begin in
        them. The frame is also an Arrow table, and `.to_pandas()` works. Raises UsageError for an unknown
        name.
        """
        return self.tables.load(name, ranks=ranks)

    @cached_property
    def observed(self) -> ReportData:
        """The data of the report of the run; every trace is read once."""
        from ccl_bench.diagnosis.diagnose import observe_run

        return observe_run(self.run, **self.reading)

    def verdict(self) -> Verdict:
        """Return the step breakdown; raise NotMeasurable if the traces do not show it."""
        diagnosed = self.diagnose()
        if diagnosed.verdict is None:
            raise NotMeasurable(diagnosed.why_no_verdict, where=self.place)
        return diagnosed.verdict

    def diagnose(self) -> Diagnosed:
        """Return the verdict and the diagnoses; iterating yields the causes of lost time and their gains."""
        return self._diagnosed

    def sweep(self) -> ServingSweep:
        """Return the serving sweep of the run: its results of one configuration under several loads.

        Raises NotMeasurable if the run has fewer than two results, or results of different configurations or
        lengths, or of an unknown load.
        """
        from ccl_bench.api.sweep import ServingSweep
        from ccl_bench.evaluate.sweep import sweep_of_run

        return ServingSweep(sweep_of_run(self.run, **self.reading))

    def hang(self) -> Hang:
        """Return the analysis of a hang: the missing ranks, from the dumps of torch's Flight Recorder.

        Raises NotMeasurable if the run has no dump of a known rank.
        """
        from ccl_bench.evaluate.hang import hang_of_run

        return hang_of_run(self.run, **self.reading)

    def what_if(
        self,
        *,
        without: str | Iterable[str] = (),
        scale: str | Iterable[str] = (),
        ideal: str | Iterable[str] = (),
        overlap: str | Iterable[str] = (),
        network: str | Iterable[str] = (),
    ) -> WhatIf:
        """Return the step time in what-if scenarios, from a replay of the run.

        Scenarios use the notation of the command line: `without="rank:0"`, `scale="kernel:gemm=0.5"`,
        `ideal="comm"`, `overlap="all_reduce"`, `network="B=300,alpha=5"`; lists contain several. Raises
        NotMeasurable if the replay explains too little of a step.
        """
        from ccl_bench.whatif import answer_what_if, parse_scenarios

        notations = (without, scale, ideal, overlap, network)
        scenarios = parse_scenarios(
            self.replays, *([each] if isinstance(each, str) else each for each in notations)
        )
        return answer_what_if(self.replays, scenarios, self.progress)

    def predict(
        self,
        *,
        dp: int | None = None,
        pp: int | None = None,
        microbatches: int | None = None,
        schedule: str | None = None,
        layers: int | None = None,
        network: str | None = None,
        doubling: bool = False,
        allow_other_batch: bool = False,
        seed: int = 0,
    ) -> Prediction:
        """Return the predicted step in another configuration or on another network, with its interval.

        Arguments are those of the command line: `schedule="interleaved:2"`, `network="alpha=5us,B=200GB/s"`.
        What is not given is as recorded. `refused` of the answer states why there is no prediction. The same
        seed gives the same draws. Raises UsageError for an unknown schedule or network.
        """
        from ccl_bench.predict.prediction import Asked, predict_run

        configuration = Asked(
            dp=dp,
            pp=pp,
            microbatches=microbatches,
            schedule=schedule,
            layers=layers,
            network=network,
            doubling=doubling,
            allow_other_batch=allow_other_batch,
        )
        return predict_run(self.run, configuration, seed=seed, **self.reading)

    def critical_path(self, step: int | None = None) -> CriticalPath:
        """Return the critical path of a step, from its end back to its start; by default the mean of all.

        Raises UsageError for a step that the run does not have, and NotMeasurable like `what_if`.
        """
        from ccl_bench.whatif.answer import replay_recorded
        from ccl_bench.whatif.critical_path import find_critical_path

        replay_recorded(self.replays)
        if step is not None and step not in self.replays.steps:
            known_steps = ", ".join(map(str, self.replays.steps))
            raise UsageError(f"the run has no step {step}", fix=f"its steps are {known_steps}")
        return find_critical_path(self.replays, step)

    @cached_property
    def replays(self) -> RunReplays:
        """The run as `what_if` and `critical_path` replay it."""
        from ccl_bench.whatif import RunReplays, load_run_graph

        return RunReplays(load_run_graph(self.run, **self.reading))

    @cached_property
    def charts(self) -> Mapping[str, Chart]:
        """The charts of the report by name; a notebook draws each."""
        from ccl_bench.api.charts import Chart
        from ccl_bench.report.page import report_page

        return {chart.key: Chart(chart) for chart in report_page(self.observed).charts()}

    def chart(self, name: str) -> Chart:
        """Return one chart of the report, a Vega-Lite specification; raise UsageError if there is none."""
        if name not in self.charts:
            chart_names = [*self.charts]
            fix = did_you_mean(name, chart_names) or (
                f"it has {', '.join(chart_names)}" if chart_names else "it has none"
            )
            raise UsageError(f"the run has no chart {name!r}", fix=fix)
        return self.charts[name]

    def report(self, output: str | Path, *, form: ReportForm | None = None, why: bool = False) -> Path:
        """Write the report in the form for the suffix of the file, and return the file.

        Forms are HTML (one page with charts), Markdown, JSON, text, and a workbook of Excel (`.xlsx`);
        `form="csv"` writes a folder, one file a table. An existing file is replaced.
        """
        from ccl_bench.report.render import report_files, report_form_of
        from ccl_bench.storage.files import replace_bytes

        target = Path(output)
        chosen = form or report_form_of(target.name)
        for path, content in report_files(self.observed, chosen, target, why=why).items():
            replace_bytes(path, content)
        return target

    def timeline(self, output: str | Path, *, most_slices: int | None = None) -> WrittenTimeline:
        """Write all ranks on one clock for Perfetto (ui.perfetto.dev), and return the outcome."""
        from ccl_bench.timeline import MOST_SLICES, write_timeline

        return write_timeline(
            self.run,
            Path(output),
            most_slices=most_slices or MOST_SLICES,
            **self.reading,
        )

    @property
    def reading(self) -> ReadOptions:
        """Options for functions that read traces."""
        return {"jobs": self.jobs, "use_cache": self.use_cache, "progress": self.progress}

    @cached_property
    def _inspection(self) -> Inspection:
        from ccl_bench.diagnosis.diagnose import inspect_run

        return inspect_run(self.run, **self.reading)

    @cached_property
    def _diagnosed(self) -> Diagnosed:
        from ccl_bench.diagnosis.diagnose import diagnose

        return diagnose(self.run, **self.reading)
