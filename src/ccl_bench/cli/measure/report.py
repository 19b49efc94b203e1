"""The command `ccl-bench report`, and the historical one that writes text reports into trace_analysis."""

from __future__ import annotations

import contextlib
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.base.errors import NotMeasurable, UsageError
from ccl_bench.cli import options
from ccl_bench.report.render import Form, ImageForm, form_of

if TYPE_CHECKING:
    from cyclopts import App

    from ccl_bench.result.report_data import ReportData

ABOUT = """Report one run: problems in the data, step times, where time goes, communication, waiting, memory.

It reads every trace and tries every metric. The ending of the file's name selects the format: .html is one \
page with charts that opens without a network; .md, .json and .txt have the same content; without a file it \
is text. The same run gives the same report.

Exit status: 0; 2 wrong usage, or a file already exists; 3 --charts finds nothing to draw; 4 nothing can \
be read.
"""

ABOUT_HISTORICAL = """Report one run as text: problems, throughput, overlap, bandwidth, traffic, waiting.

It reads every trace and tries every metric, writes the text into a new file below trace_analysis, and \
prints its path.

Exit status: 0; 2 wrong usage; 4 nothing can be read.
"""

FOLDER = "trace_analysis"

Place = Annotated[str, Parameter(metavar="", help="Directory, trace file or URL to report.")]
Config = Annotated[
    str | None,
    Parameter(metavar="FILE", help="Training configuration (TOML) to use in place of the run's own."),
]


def app(program: str) -> App:
    """Return the command."""
    run = "examples/runs/llama-tiny-pp4-gloo"
    command = options.app(
        "report", ABOUT, [f"{program} report {run} -o report.html", f"{program} report {run}"]
    )
    command.default(report)
    return command


def report(
    run: Place,
    /,
    *,
    output: options.Output = None,
    form: Annotated[
        Form | None,
        Parameter(
            name="--format",
            alias="-f",
            converter=options.choice,
            help="Format of the output, whatever the file's name.",
        ),
    ] = None,
    charts: Annotated[
        str | None, Parameter(metavar="DIR", help="Write each chart into this folder, as a picture.")
    ] = None,
    chart_format: Annotated[ImageForm, Parameter(help="Format of these pictures.")] = "svg",
    why: options.Why = False,
    config: Config = None,
    workload_card: options.Card = None,
    ceiling: options.Ceiling = None,
    reading: options.Reading = options.DEFAULT_READING,
    force: options.Force = False,
) -> int:
    """Report a run."""
    output_form = _form(form, output)
    target = options.file_to_write(output, force=force) if output else None
    if charts:
        from ccl_bench.report.render import images

        images.renderer()  # what is missing shows before the traces are read
    with reading.open(run, card=workload_card, config=config, ceiling=ceiling) as measured:
        observed = measured.observed
    if charts:
        _draw(observed, Path(charts), chart_format, force=force)
    if target:
        _write(target, observed, output_form or form_of(target.name), why=why)
        _show_verdict(observed)
        options.show_written(target)
    elif output_form or not charts:
        _show(observed, output_form or "text", why=why)
    return 0


def _form(form: Form | None, output: str | None) -> Form | None:
    """Return the form that is asked for, None if nothing asks for one; UsageError if it cannot be."""
    if form is None and output:
        return form_of(output)
    if form == "html" and not output and sys.stdout.isatty():
        raise UsageError("a terminal cannot show HTML", fix="give -o report.html")
    return form


def _show(observed: ReportData, form: Form, *, why: bool) -> None:
    if form != "text":
        from ccl_bench.report.render import render as reported

        sys.stdout.write(reported(observed, form, why=why))
        return
    from ccl_bench.report.console import show
    from ccl_bench.report.page import report_page
    from ccl_bench.report.render.text import text_page

    show(text_page(report_page(observed, why=why)))


def _write(target: Path, observed: ReportData, form: Form, *, why: bool = False) -> None:
    from ccl_bench.report.render import render as reported
    from ccl_bench.storage.files import replace_text

    replace_text(target, reported(observed, form, why=why))


def _show_verdict(observed: ReportData) -> None:
    """Print the verdict of a report that goes to a file."""
    from ccl_bench.report.console import show
    from ccl_bench.report.render.text import verdict_block
    from ccl_bench.report.verdict import verdict

    if observed.diagnosed:
        show(verdict_block(verdict(observed.diagnosed)))


def _draw(observed: ReportData, folder: Path, chart_format: ImageForm, *, force: bool) -> None:
    """Write every chart of the report and print the paths."""
    from ccl_bench.report.page import report_page
    from ccl_bench.report.render.images import image
    from ccl_bench.storage import write_atomically

    drawn = {folder / f"{chart.key}.{chart_format}": chart for chart in report_page(observed).charts()}
    if not drawn:
        raise NotMeasurable("the run has nothing to draw", fix="ccl-bench inspect shows what is in it")
    for path in drawn:
        options.refuse_existing(path, force=force)
    for path, chart in drawn.items():
        with write_atomically(path) as temporary:
            temporary.write_bytes(image(chart, chart_format))
            temporary.chmod(0o644)
        sys.stdout.write(f"{path}\n")


def historical(program: str) -> App:
    """Return the command that names the file itself: `tools/main.py RUN --config train.toml`."""
    example = f"python {program} outputs/profile_trace/iteration_10 --config train.toml"
    command = options.app(program, ABOUT_HISTORICAL, [example])
    command.default(write_report)
    return command


def write_report(
    run: Place,
    /,
    *,
    config: Config = None,
    output_dir: Annotated[str, Parameter(metavar="FOLDER", help="Folder of the reports.")] = FOLDER,
    workload_card: options.Card = None,
    reading: options.Reading = options.DEFAULT_READING,
) -> int:
    """Write the text report of a run to `<timestamp>_<model>_dpXxY_tpZ_gpuN.txt` and print its path."""
    from datetime import datetime

    from ccl_bench.report.render.text import text_report_name

    with reading.open(run, card=workload_card, config=config) as measured:
        observed = measured.observed
    name = text_report_name(observed.inspection, datetime.now().astimezone())
    target = _new_file(Path(output_dir), name)
    _write(target, observed, "text")
    sys.stdout.write(f"{target}\n")
    return 0


def _new_file(folder: Path, name: str) -> Path:
    """Create an empty file of this name, with a number where a report of the same second has it already."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a directory", fix="name another with --output-dir")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    for number in itertools.count(2):
        with contextlib.suppress(FileExistsError):
            path.touch(exist_ok=False)
            break
        path = folder / f"{Path(name).stem}_{number}{Path(name).suffix}"
    return path
