"""The command `ccl-bench baseline`."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from ccl_bench.base.text import counted
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.runner import say
from ccl_bench.comparison import baselines
from ccl_bench.report import results as text
from ccl_bench.report.comparison.phrases import value
from ccl_bench.report.console import aligned
from ccl_bench.report.console import show as show_page

ABOUT = """\
A baseline is a folder in .ccl-bench/baselines, or in the folder that CCL_BENCH_BASELINES names, with the \
results of all metrics, the workload card and the metadata. It is small; commit it to your repository.
"""
ABOUT_SET = """Measure a run and keep its results under a name.

Exit status: 0; 2 wrong usage, or the name is taken; 3 nothing can be measured; 4 nothing can be read.
"""
ABOUT_LIST = "List the baselines, with the step time of each."
ABOUT_SHOW = "Show the results of a baseline, as ccl-metrics --all shows those of a run."
ABOUT_REMOVE = "Remove a baseline."

_STEP_TIME = "iteration_wall_clock_time"

Name = Annotated[str, Parameter(metavar="", help="Name of the baseline, such as main or release-2.1.")]


_BASELINE = f"{PROGRAM} baseline"

app = options.app("baseline", ABOUT, [f"{_BASELINE} set main RUN", f"{PROGRAM} compare baseline:main RUN"])
set_app = options.app("set", ABOUT_SET, [f"{_BASELINE} set main examples/runs/llama-tiny-pp4-gloo"])
list_app = options.app("list", ABOUT_LIST, [f"{_BASELINE} list"])
show_app = options.app("show", ABOUT_SHOW, [f"{_BASELINE} show main"])
remove_app = options.app("remove", ABOUT_REMOVE, [f"{_BASELINE} remove main"])
for each in (set_app, list_app, show_app, remove_app):
    app.command(each)


@set_app.default
def set_(
    name: Name,
    run: Annotated[str, Parameter(metavar="", help="Directory, trace file or URL of the run.")],
    /,
    *,
    workload_card: options.Card = None,
    reading: options.ReadingOptions = options.DEFAULT_READING,
    force: Annotated[bool, Parameter(help="Replace the baseline of this name.")] = False,
) -> int:
    """Keep the results of a run."""
    baselines.refuse_baseline(name, force=force)
    with reading.open(run, card=workload_card) as measured:
        results = measured.results()
    folder = baselines.set_baseline(name, measured.run, results)
    count = sum(result.value is not None for result in results)
    sys.stdout.write(
        f"{folder}  {counted(count, 'metric')}; compare with it: ccl-bench compare baseline:{name} RUN\n"
    )
    return 0


@list_app.default
def list_() -> int:
    """List the baselines."""
    if not (names := baselines.baseline_names()):
        folder = baselines.baselines_folder()
        say(PROGRAM, f"{folder}: there is no baseline; make one: ccl-bench baseline set NAME RUN")
        return 0
    rows = []
    for name in names:
        results = {result.metric: result for result in baselines.read_baseline(name)}
        step = results.get(_STEP_TIME)
        count = sum(result.value is not None for result in results.values())
        versions = {result.provenance.tool_version for result in results.values()}
        step_time = value(step.value, step.unit) if step else "-"
        rows.append((name, step_time, str(count), ", ".join(sorted(versions))))
    show_page(aligned(("BASELINE", "STEP", "METRICS", "CCL-BENCH"), rows, right=(1, 2)))
    return 0


@show_app.default
def show(name: Name, /) -> int:
    """Show the results of a baseline."""
    show_page(text.every_metric(baselines.read_baseline(name), why=True))
    return 0


@remove_app.default
def remove(name: Name, /) -> int:
    """Remove a baseline."""
    baselines.remove_baseline(name)
    return 0
