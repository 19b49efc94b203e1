"""Comparisons of runs with a baseline: changes beyond noise, as data, as a table, and in a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccl_bench import metrics
from ccl_bench.api.measured_run import MeasuredRun
from ccl_bench.base.errors import UsageError
from ccl_bench.base.lazy_imports import pl
from ccl_bench.card.comparison_fields import fields_of
from ccl_bench.comparison.changes import TOLERANCE
from ccl_bench.comparison.comparability import known_field
from ccl_bench.comparison.compare import Comparison, compare_runs, to_json
from ccl_bench.comparison.load_results import load_results
from ccl_bench.comparison.run_results import RunResults
from ccl_bench.comparison.step_breakdown import DIVIDED_METRICS
from ccl_bench.comparison.thresholds import parse_threshold
from ccl_bench.evaluate.sweep import sweep_or_reason
from ccl_bench.report.render import Form, form_of
from ccl_bench.result.step_choice import step_choice

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from ccl_bench.engine import Progress

_FEWEST = 2
_FILE_COLUMNS = 1_000

_COLUMNS: dict[str, Any] = {
    "run": pl.String,
    "metric": pl.String,
    "unit": pl.String,
    "baseline": pl.Float64,
    "other": pl.Float64,
    "relative": pl.Float64,
    "verdict": pl.String,
    "remarks": pl.List(pl.String),
}


def compare(
    *runs: MeasuredRun | str | Path,
    metric: Iterable[str] | None = None,
    study: Iterable[str] = (),
    fail_on: Iterable[str] = (),
    tolerance: float = TOLERANCE,
    profile_mode: str = "auto",
    steps: str | None = None,
    skip_steps: int | None = None,
    marker: str | None = None,
    program: str | None = None,
    jobs: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> ComparedRuns:
    """Compare runs with the first one: changes beyond noise, and the breakdown of the step.

    A run is an open run, or a place: a directory, a trace file, a file of results from `ccl-metrics --all
    --format json`, or `baseline:NAME`. `metric` names the metrics to compare, all by default; `study` names
    fields of the card that may differ; `fail_on` are limits such as `"iteration_wall_clock_time>5%"`;
    relative changes below `tolerance` are neither better nor worse. The choice of steps applies to runs
    that are not open yet. Raises UsageError for invalid names and limits.
    """
    if len(runs) < _FEWEST:
        raise UsageError("a comparison needs at least two runs", fix="give the baseline, then a run")
    registry = metrics.load()
    limits = [parse_threshold(text, registry.canonical) for text in fail_on]
    fields = [known_field(name) for name in study]
    chosen_names = metric or [each.name for each in registry if not each.variant_of]
    limited = [limit.metric for limit in limits if limit.metric]
    names = [*dict.fromkeys([*map(registry.canonical, chosen_names), *limited])]
    measured = [*dict.fromkeys([*names, *DIVIDED_METRICS])]
    choice = step_choice(steps, skip_steps, marker, program)
    sides = []
    for each in runs:
        if isinstance(each, MeasuredRun):
            results = {result.metric: result for result in each.results(measured)}
            card_fields = fields_of(each.run.documents.card, each.facts)
            sweep = sweep_or_reason(each.run, **each.reading)
            sides.append(RunResults(each.place, results, card_fields, *sweep))
        else:
            sides.append(
                load_results(
                    str(each),
                    measured,
                    profile_mode=profile_mode,
                    choice=choice,
                    jobs=jobs,
                    use_cache=use_cache,
                    progress=progress,
                )
            )
    if not metric:  # Stored results may have metrics of plug-ins that are not installed here.
        stored = (name for side in sides for name in side.results if name not in registry)
        names = [*dict.fromkeys([*names, *stored])]
    return ComparedRuns(compare_runs(sides, names, study=fields, thresholds=limits, tolerance=tolerance))


class ComparedRuns:
    """A comparison; `data` holds the complete outcome."""

    def __init__(self, data: Comparison) -> None:
        self.data = data

    def __repr__(self) -> str:
        return f"<ComparedRuns {self.data.baseline} with {', '.join(pair.name for pair in self.data.pairs)}>"

    def _repr_html_(self) -> str:
        from ccl_bench.api.display import as_html

        return as_html(self.page())

    def changes(self) -> pl.DataFrame:
        """Return every metric of every run against the baseline, one row each, in the order of the page.

        Columns: run, metric, unit, baseline, other, relative (null if the baseline is 0 or has no value),
        verdict, remarks.
        """
        rows = [
            (pair.name, c.metric, c.unit, c.baseline, c.other, c.relative, c.verdict, [*c.remarks])
            for pair in self.data.pairs
            for c in pair.changes
        ]
        return pl.DataFrame(rows, _COLUMNS, orient="row")

    def page(self) -> RenderableType:
        """Return the output of the command, for a rich console."""
        from ccl_bench.report.comparison.text import page

        return page(self.data)

    def written(self, form: Form) -> str:
        """Return the comparison as text, Markdown, JSON, or a page of HTML."""
        if form == "json":
            return to_json(self.data).decode() + "\n"
        if form == "html":
            from ccl_bench.report.comparison.page import html

            return html(self.data)
        if form == "markdown":
            from ccl_bench.report.comparison.markdown import markdown

            return markdown(self.data)
        from ccl_bench.report.console import to_text

        return to_text(self.page(), width=_FILE_COLUMNS)

    def report(self, output: str | Path, *, form: Form | None = None) -> Path:
        """Write the comparison in the form for the suffix of the file, and return the file."""
        from ccl_bench.storage.files import replace_text

        target = Path(output)
        replace_text(target, self.written(form or form_of(target.name)))
        return target
