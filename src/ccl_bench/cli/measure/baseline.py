"""The command `ccl-bench baseline`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.base.text import counted
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.runner import say

if TYPE_CHECKING:
    from cyclopts import App

ABOUT = """Keep the results of a run under a name, to compare later runs with: baseline:NAME.

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


def app(program: str) -> App:
    """Return the command."""
    name = f"{program} baseline"
    group = options.app("baseline", ABOUT, [f"{name} set main RUN", f"{program} compare baseline:main RUN"])
    commands = (
        ("set", ABOUT_SET, f"{name} set main examples/runs/llama-tiny-pp4-gloo", set_),
        ("list", ABOUT_LIST, f"{name} list", list_),
        ("show", ABOUT_SHOW, f"{name} show main", show),
        ("remove", ABOUT_REMOVE, f"{name} remove main", remove),
    )
    for word, about, example, run in commands:
        command = options.app(word, about, [example])
        command.default(run)
        group.command(command)
    return group


def set_(
    name: Name,
    run: Annotated[str, Parameter(metavar="", help="Directory, trace file or URL of the run.")],
    /,
    *,
    workload_card: options.Card = None,
    reading: options.Reading = options.DEFAULT_READING,
    force: Annotated[bool, Parameter(help="Replace the baseline of this name.")] = False,
) -> int:
    """Keep the results of a run."""
    from ccl_bench.comparison.baselines import refuse_baseline, set_baseline

    refuse_baseline(name, force=force)
    with reading.open(run, card=workload_card) as measured:
        results = measured.results()
    folder = set_baseline(name, measured.run, results)
    count = sum(result.value is not None for result in results)
    sys.stdout.write(
        f"{folder}  {counted(count, 'metric')}; compare with it: ccl-bench compare baseline:{name} RUN\n"
    )
    return 0


def list_() -> int:
    """List the baselines."""
    from ccl_bench.comparison.baselines import baseline_names, baselines_folder, read_baseline
    from ccl_bench.report.comparison.phrases import value
    from ccl_bench.report.console import aligned
    from ccl_bench.report.console import show as show_page

    rows = []
    if not (names := baseline_names()):
        say(PROGRAM, f"{baselines_folder()}: there is no baseline; make one: ccl-bench baseline set NAME RUN")
        return 0
    for name in names:
        results = {result.metric: result for result in read_baseline(name)}
        step = results.get(_STEP_TIME)
        count = sum(result.value is not None for result in results.values())
        versions = {result.provenance.tool_version for result in results.values()}
        step_time = value(step.value, step.unit) if step else "-"
        rows.append((name, step_time, str(count), ", ".join(sorted(versions))))
    show_page(aligned(("BASELINE", "STEP", "METRICS", "CCL-BENCH"), rows, right=(1, 2)))
    return 0


def show(name: Name, /) -> int:
    """Show the results of a baseline."""
    from ccl_bench.comparison.baselines import read_baseline
    from ccl_bench.report import results
    from ccl_bench.report.console import show as show_page

    saved = read_baseline(name)
    show_page(results.table(results.valued_first(saved)))
    return 0


def remove(name: Name, /) -> int:
    """Remove a baseline."""
    from ccl_bench.comparison.baselines import remove_baseline

    remove_baseline(name)
    return 0
