"""The command `ccl-bench collect`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ccl_bench.base.errors import CclBenchError, InputError, UsageError
from ccl_bench.cli import options
from ccl_bench.cli.runner import say

if TYPE_CHECKING:
    from cyclopts import App

    from ccl_bench.collect.collect_run import Collected

ABOUT = """Record a command into a run directory, or gather what a command left, and say what can be measured.

The command's output goes on to the terminal and into DIR/logs. What it ran on is kept in \
DIR/environment.json; traces and small files that it wrote are brought into DIR, run_metadata.json and \
workload_card.yaml are filled with what was observed, and what a person wrote stays. Without a command only \
the last part is done, as after a job that was killed.

Exit status: 0; 1 the command failed or the disk is full, and what there is was gathered; 2 wrong usage, \
or DIR holds a run already; 4 no trace was found.
"""

Command = Annotated[
    str, Parameter(allow_leading_hyphen=True, negative="", metavar="", help="Command to run, after --.")
]
Output = Annotated[str, Parameter(alias="-o", metavar="DIR", help="Run directory to make.")]
Source = Annotated[
    list[str] | None,
    Parameter(metavar="DIR", negative="", help="Where the framework writes; outputs unless given."),
]
Card = Annotated[
    str | None, Parameter(metavar="FILE", help="Workload card to begin with, in place of an empty one.")
]
Profiler = Annotated[
    Literal["torch", "nsys", "both"],
    Parameter(help="Profiler: torch as the command itself uses it, nsys around it, both in two runs."),
]
NsysOptions = Annotated[
    str,
    Parameter(
        allow_leading_hyphen=True,
        metavar="TEXT",
        help="Further options of nsys profile, as on its command line.",
    ),
]
Force = Annotated[bool, Parameter(help="Replace a run that is recorded in DIR already.")]


def app(program: str) -> App:
    """Return the command."""
    examples = (
        f"{program} collect --output runs/first -- torchrun --nproc-per-node 4 train.py",
        f"{program} collect --output runs/killed --source outputs",
    )
    made = options.app("collect", ABOUT, examples)
    made.usage = f"{program} collect --output DIR [OPTIONS] [-- COMMAND ...]"

    @made.default
    def collect(
        *command: Command,
        output: Output,
        source: Source = None,
        workload_card: Card = None,
        profile_mode: Profiler = "torch",
        nsys_options: NsysOptions = "",
        force: Force = False,
        jobs: options.Jobs = None,
    ) -> int:
        from ccl_bench.collect.collect_run import Request
        from ccl_bench.collect.collect_run import collect_run as collected

        if command and command[0].startswith("-"):
            raise UsageError(
                f"there is no option {command[0]}", fix="--help lists them; a command follows --"
            )
        card = Path(workload_card) if workload_card else None
        if card and not card.is_file():
            raise InputError("there is no such workload card", where=str(card), fix="check the path")
        places = tuple(Path(place) for place in source or ())
        further = tuple(shlex.split(nsys_options))
        request = Request(Path(output), command, places, card, profile_mode, further, force)
        return _tell(collected(request), program, jobs)

    return made


def _tell(done: Collected, program: str, jobs: int | None) -> int:
    """Print what was collected and what can be measured of it; return the exit status."""
    from ccl_bench.cli.progress import progress_bar
    from ccl_bench.collect import summary
    from ccl_bench.report.console import show
    from ccl_bench.run import discover_run

    for remark in done.remarks:
        say(program, remark)
    if done.failure:
        say(program, summary.failure_message(done.failure))
    if done.unwritten:
        say(program, summary.disk_error_message(done))
    run = discover_run(done.output)
    if not run.traces:
        say(program, summary.no_trace_message(done))
    from ccl_bench.evaluate.inspect import inspect

    with progress_bar(len(run.traces)) as progress:
        found = inspect(run, jobs=jobs, progress=progress)
    sys.stdout.flush()
    if run.traces or summary.measurable_metrics(found):
        show(summary.page(done, found))
    if done.failure or done.unwritten:
        return CclBenchError.exit_status
    return 0 if run.traces else InputError.exit_status
