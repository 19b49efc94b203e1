"""The command `ccl-bench compare`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ccl_bench.base.errors import UsageError
from ccl_bench.cli import options

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from cyclopts import App

    from ccl_bench.base.registry import Registry
    from ccl_bench.comparison.compare import Comparison
    from ccl_bench.comparison.run_results import RunResults
    from ccl_bench.comparison.thresholds import Threshold
    from ccl_bench.metrics import Metric
    from ccl_bench.result.step_choice import StepChoice

ABOUT = """Compare runs with a baseline, which comes first: what changed beyond noise, and where in the step.

A run is a directory or trace file, or a file of results as ccl-metrics --all --format json writes it. Runs \
that did different work are not compared; the output lists the fields of their cards that differ.

The form follows the name of the file: .html is a page with charts, .json data; without a file it is a table.

A LIMIT is 5% (no metric gets worse by more), METRIC:5% (gets worse by more), METRIC>5% (rises by more) or \
METRIC<-5% (falls by more); without % it is in the metric's unit. What may be noise crosses no limit.

Exit status: 0; 2 wrong usage; 3 the runs are not comparable, or a limit cannot be judged; 4 where nothing \
can be read; 5 a limit is crossed.
"""

_FEWEST = 2
_FILE_COLUMNS = 1_000


def app(program: str) -> App:
    """Return the command."""
    examples = [
        f"{program} compare before after --fail-on 'iteration_wall_clock_time>5%'",
        f"{program} compare examples/runs/llama-tiny-pp4-gloo examples/runs/llama-tiny-fsdp2-tp2-gloo",
    ]
    made = options.app("compare", ABOUT, examples)
    made.usage = f"{program} compare [OPTIONS] BASELINE RUN..."
    made.default(compare)
    return made


def _percent(_type: object, value: float) -> None:
    if not 0 <= value <= 100:
        raise ValueError("must be from 0 to 100")


Runs = Annotated[
    str, Parameter(negative="", metavar="", help="Runs or files of results, the baseline first.")
]
Metrics = Annotated[
    list[str] | None, Parameter(alias="-m", metavar="NAME", help="Metric to compare; all by default.")
]
Study = Annotated[
    list[str] | None,
    Parameter(metavar="FIELD", help="Field of the card that may differ although it defines the workload."),
]
FailOn = Annotated[
    list[str] | None,
    Parameter(
        metavar="LIMIT", help="Limit on a change, with status 5 if it is crossed; repeat it for several."
    ),
]
Tolerance = Annotated[
    float,
    Parameter(
        metavar="PERCENT",
        help="Smaller changes are neither better nor worse; 1 by default.",
        validator=_percent,
    ),
]
Form = Literal["table", "json", "html"]


def compare(
    *run: Runs,
    metric: Metrics = None,
    study: Study = None,
    fail_on: FailOn = None,
    tolerance: Tolerance = 1.0,
    output: options.Output = None,
    form: Annotated[
        Form | None, Parameter(name="--format", alias="-f", help="Form, whatever the file name.")
    ] = None,
    profile_mode: options.ProfileMode = "auto",
    jobs: options.Jobs = None,
    no_cache: options.NoCache = False,
    engine: options.Engine = "auto",
    steps: options.Steps = options.EVERY_STEP,
    force: options.Force = False,
) -> int:
    """Compare runs."""
    from ccl_bench import metrics
    from ccl_bench.comparison.comparability import known_field
    from ccl_bench.comparison.compare import compare_runs
    from ccl_bench.comparison.step_breakdown import DIVIDED_METRICS
    from ccl_bench.comparison.thresholds import parse_threshold
    from ccl_bench.engine import use_engine

    if len(run) < _FEWEST:
        raise UsageError("a comparison needs at least two runs", fix="name the baseline, then a run")
    chosen = form or _form_of(output)
    target = options.file_to_write(output, force=force) if output else None
    registry = metrics.load()
    limits = [parse_threshold(text, registry.canonical) for text in fail_on or ()]
    fields = [known_field(name) for name in study or ()]
    wanted = _wanted(registry, metric, limits)
    measured = [*dict.fromkeys([*wanted, *DIVIDED_METRICS])]
    with use_engine(engine):
        sides = _sides(run, measured, profile_mode, jobs, steps.choice, use_cache=not no_cache)
    shown = wanted if metric else _with_plugins(wanted, sides, registry)
    comparison = compare_runs(sides, shown, study=fields, thresholds=limits, tolerance=tolerance / 100)
    _write(comparison, chosen, target)
    return comparison.exit_status


def _form_of(output: str | None) -> Form:
    """Return the form that the name of a file asks for; a table without one."""
    from ccl_bench.report.render import form_of

    forms: dict[str, Form] = {"html": "html", "json": "json", "text": "table"}
    found = form_of(output) if output else "text"
    if found not in forms:
        raise UsageError(f"a comparison cannot be {found}", fix="end the name in .html, .json or .txt")
    return forms[found]


def _wanted(registry: Registry[Metric], named: list[str] | None, limits: Sequence[Threshold]) -> list[str]:
    """Return the metrics to compare: those named, or all but other units of the same number."""
    chosen = named or [metric.name for metric in registry if not metric.variant_of]
    limited = [limit.metric for limit in limits if limit.metric]
    return [*dict.fromkeys([*map(registry.canonical, chosen), *limited])]


def _with_plugins(
    wanted: Iterable[str], sides: Sequence[RunResults], registry: Registry[Metric]
) -> list[str]:
    """Return `wanted` with the metrics in stored results that are not installed here."""
    stored = (name for side in sides for name in side.results if name not in registry)
    return [*dict.fromkeys([*wanted, *stored])]


def _sides(
    places: Iterable[str],
    names: list[str],
    profile_mode: str,
    jobs: int | None,
    choice: StepChoice,
    *,
    use_cache: bool,
) -> list[RunResults]:
    from ccl_bench.cli.progress import progress_bar
    from ccl_bench.comparison.load_results import load_results

    found = []
    for place in places:
        with progress_bar(1) as progress:
            found.append(
                load_results(
                    place,
                    names,
                    profile_mode=profile_mode,
                    choice=choice,
                    jobs=jobs,
                    use_cache=use_cache,
                    progress=progress,
                )
            )
    return found


def _write(comparison: Comparison, form: Form, target: Path | None) -> None:
    """Write the comparison to a file, or to stdout."""
    if form == "table" and target is None:
        from ccl_bench.report.comparison.text import page
        from ccl_bench.report.console import show

        show(page(comparison))
        return
    text = _text(comparison, form)
    if target is None:
        sys.stdout.write(text)
        return
    from ccl_bench.storage.files import replace_text

    replace_text(target, text)


def _text(comparison: Comparison, form: Form) -> str:
    if form == "json":
        from ccl_bench.comparison.compare import to_json

        return to_json(comparison).decode() + "\n"
    if form == "html":
        from ccl_bench.report.comparison.page import html

        return html(comparison)
    from ccl_bench.report.comparison.text import page
    from ccl_bench.report.console import to_text

    return to_text(page(comparison), width=_FILE_COLUMNS)
