"""The command `ccl-bench collect`."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ccl_bench.api.measured_run import MeasuredRun
from ccl_bench.base.errors import CclBenchError, InputError, UsageError
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.runner import progress_bar, say
from ccl_bench.collect import injection, layout, summary
from ccl_bench.collect.collect_run import CollectRequest, collect_run
from ccl_bench.collect.profiling.ranks import parse_ranks
from ccl_bench.collect.profiling.schedule import Schedule
from ccl_bench.report.console import show
from ccl_bench.run import REPORT, discover_run

if TYPE_CHECKING:
    from ccl_bench.collect.collect_run import CollectedRun

ABOUT = """\
The output of the command goes to the terminal and into DIR/logs, its environment into DIR/environment.json. \
A PyTorch or JAX program that does not record itself is profiled unchanged: a step ends when its optimizer \
has stepped, or its compiled step was called. Traces and small files that it wrote are copied into DIR. \
run_metadata.json and workload_card.yaml are filled with the recorded values; values that a person wrote \
stay. The report goes to DIR/report.html. Without a command, ccl-bench only gathers files and describes the \
run, for example after a job was killed. Without --output, a command is recorded into a new directory \
below runs.

Exit status: 0; 1 the command failed or the disk is full, and the existing files were gathered; 2 wrong \
usage, or DIR already holds a run; 4 no trace was found.
"""

Command = Annotated[
    str, Parameter(allow_leading_hyphen=True, negative="", metavar="", help="Command to run, after --.")
]
Output = Annotated[
    str | None,
    Parameter(
        alias="-o",
        metavar="DIR",
        help="Run directory to write; for a command runs/PROGRAM-TIME-PROCESS by default.",
    ),
]
Source = Annotated[
    list[str] | None,
    Parameter(metavar="DIR", negative="", help="Folder that the framework writes to; outputs by default."),
]
Card = Annotated[
    str | None, Parameter(metavar="FILE", help="Workload card to start from, instead of an empty one.")
]
Profiler = Annotated[
    Literal["torch", "nsys", "both"],
    Parameter(
        converter=options.choice,
        help="Profiler: torch (or JAX's) inside the command, nsys around it, or both in two runs.",
    ),
]
NsysOptions = Annotated[
    str,
    Parameter(
        allow_leading_hyphen=True,
        metavar="TEXT",
        help="More options for nsys profile, as on its command line.",
    ),
]
Force = Annotated[bool, Parameter(help="Replace the run in DIR.")]
Steps = Annotated[
    str | None,
    Parameter(metavar="FIRST-LAST", help="Steps to profile, counted from 0; 15-19 by default."),
]
Ranks = Annotated[
    str | None,
    Parameter(metavar="RANKS", help="Ranks to profile, such as 0,8,16; for JAX, processes; all by default."),
]
NoInject = Annotated[
    bool,
    Parameter(
        name="--no-inject", help="Do not profile a PyTorch or JAX program that does not record itself."
    ),
]


app = options.app(
    "collect",
    ABOUT,
    [
        f"{PROGRAM} collect -- python train.py",
        f"{PROGRAM} collect --output runs/first -- torchrun --nproc-per-node 4 train.py",
        f"{PROGRAM} collect --output runs/killed --source outputs",
    ],
)
app.usage = f"{PROGRAM} collect [OPTIONS] [-- COMMAND ...]"


@app.default
def collect(
    *command: Command,
    output: Output = None,
    source: Source = None,
    workload_card: Card = None,
    profile_mode: Profiler = "torch",
    nsys_options: NsysOptions = "",
    force: Force = False,
    steps: Steps = None,
    ranks: Ranks = None,
    no_inject: NoInject = False,
    jobs: options.Jobs = None,
) -> int:
    """Record a command, or gather the files of an old run."""
    if command and command[0].startswith("-"):
        raise UsageError(f"there is no option {command[0]}", fix="--help lists them; a command follows --")
    if output is None and not command:
        raise UsageError("neither --output nor a command is given", fix="name the run: --output DIR")
    card = Path(workload_card) if workload_card else None
    if card and not card.is_file():
        raise InputError("there is no such workload card", where=str(card), fix="check the path")
    if steps:
        Schedule.of_steps(steps)  # raises UsageError before the command starts, as does the next
    if ranks:
        parse_ranks(ranks)
    request = CollectRequest(
        Path(output) if output is not None else layout.default_directory(command),
        command,
        tuple(Path(folder) for folder in source or ()),
        card,
        profile_mode,
        tuple(shlex.split(nsys_options)),
        force,
        steps=steps or "",
        ranks=ranks or "",
        is_injected=injection.is_wanted(os.environ) and not no_inject,
    )
    return _report(collect_run(request), jobs)


def _report(collected: CollectedRun, jobs: int | None) -> int:
    """Print what was collected and what can be measured, and write the report; return the exit status."""
    for remark in collected.remarks:
        say(PROGRAM, remark)
    if collected.failure:
        say(PROGRAM, summary.failure_message(collected.failure))
    if collected.disk_error:
        say(PROGRAM, summary.disk_error_message(collected))
    measured = MeasuredRun(discover_run(collected.output), str(collected.output), jobs=jobs)
    if not measured.traces:
        say(PROGRAM, summary.no_trace_message(collected))
    with progress_bar(len(measured.traces)) as measured.progress:
        observed = measured.observed
    sys.stdout.flush()
    if measured.traces or summary.measurable_metrics(observed.inspection):
        show(summary.page(collected, observed))
        if not collected.disk_error:
            options.show_written(measured.report(collected.output / REPORT))
    if collected.failure or collected.disk_error:
        return CclBenchError.exit_status
    return 0 if measured.traces else InputError.exit_status
