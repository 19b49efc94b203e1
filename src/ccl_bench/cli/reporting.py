"""The command `ccl-bench report`, and the historical one that writes a text report into trace_analysis."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.cli import options
from ccl_bench.errors import UsageError

if TYPE_CHECKING:
    from cyclopts import App

    from ccl_bench.inspection import Inspection
    from ccl_bench.result import Result

ABOUT = """Report one run: what is wrong, throughput, overlap, bandwidth and traffic by collective, waiting.

Every trace is read and every metric is tried; numbers are aggregated over ranks. The same run gives the \
same report.

Exit status: 0; 2 wrong usage, or a file is there already; 4 where nothing can be read.
"""

FOLDER = "trace_analysis"

Place = Annotated[str, Parameter(metavar="", help="Directory, trace file or URL to report.")]
Config = Annotated[
    str | None,
    Parameter(metavar="FILE", help="Training configuration (TOML) to use in place of the run's own."),
]
Force = Annotated[bool, Parameter(help="Overwrite a file that is there already.")]


def app(program: str) -> App:
    """Return the command."""
    made = options.app("report", ABOUT, [f"{program} report examples/runs/llama-tiny-pp4-gloo --text"])
    made.default(report)
    return made


def report(
    run: Place,
    /,
    *,
    text: Annotated[bool, Parameter(help="Report as text.")] = False,
    output: Annotated[
        str | None, Parameter(alias="-o", metavar="FILE", help="File to write in place of stdout.")
    ] = None,
    config: Config = None,
    workload_card: options.Card = None,
    profile_mode: options.ProfileMode = "auto",
    jobs: options.Jobs = None,
    no_cache: options.NoCache = False,
    force: Force = False,
) -> int:
    """Report a run."""
    if not text:
        raise UsageError("no form of report is chosen", fix="give --text")
    target = Path(output) if output else None
    if target:
        _may_write(target, force=force)
    found = _reported(run, config, workload_card, profile_mode, jobs, use_cache=not no_cache)
    if target:
        _write(target, *found)
        return 0
    from ccl_bench.report.console import show
    from ccl_bench.report.text import page

    show(page(*found))
    return 0


def historical(program: str) -> App:
    """Return the command that names the file itself: `tools/main.py RUN --config train.toml`."""
    example = f"python {program} outputs/profile_trace/iteration_10 --config train.toml"
    made = options.app(
        program, f"{ABOUT}\nThe text is written below {FOLDER}, and its path printed.", [example]
    )
    made.default(write_report)
    return made


def write_report(
    run: Place,
    /,
    *,
    config: Config = None,
    output_dir: Annotated[str, Parameter(metavar="FOLDER", help="Folder of the reports.")] = FOLDER,
    workload_card: options.Card = None,
    profile_mode: options.ProfileMode = "auto",
    jobs: options.Jobs = None,
    no_cache: options.NoCache = False,
    force: Force = False,
) -> int:
    """Write the text report of a run to `<timestamp>_<model>_dpXxY_tpZ_gpuN.txt` and print its path."""
    from datetime import datetime

    from ccl_bench.report.file_names import text_report_name

    found = _reported(run, config, workload_card, profile_mode, jobs, use_cache=not no_cache)
    target = Path(output_dir) / text_report_name(found[0], datetime.now().astimezone())
    _may_write(target, force=force)
    _write(target, *found)
    sys.stdout.write(f"{target}\n")
    return 0


def _reported(
    place: str, config: str | None, card: str | None, profile_mode: str, jobs: int | None, *, use_cache: bool
) -> tuple[Inspection, list[Result]]:
    from ccl_bench.cli.progress import progress_bar
    from ccl_bench.inspect_run import inspected
    from ccl_bench.run import open_run

    run = open_run(place, card=card, config=config, profile_mode=profile_mode)
    with progress_bar(len(run.traces)) as progress:
        return inspected(run, jobs=jobs, use_cache=use_cache, progress=progress)


def _may_write(target: Path, *, force: bool) -> None:
    """Raise UsageError for a file that is there already."""
    if target.exists() and not force:
        raise UsageError(f"{target} is there already", fix="give --force to overwrite it, or another name")


def _write(target: Path, found: Inspection, results: list[Result]) -> None:
    from ccl_bench.card.writing import replace_text
    from ccl_bench.report.text import text

    replace_text(target, text(found, results))
