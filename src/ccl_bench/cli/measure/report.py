"""The command `ccl-bench report`, and the historical one that writes text reports into trace_analysis."""

from __future__ import annotations

import contextlib
import itertools
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

from cyclopts import Parameter

from ccl_bench.base.errors import NotMeasurable, UsageError
from ccl_bench.cli import PROGRAM, options
from ccl_bench.predict.search_folder import is_search, search_report
from ccl_bench.report.console import show
from ccl_bench.report.page import report_page
from ccl_bench.report.render import (
    ImageForm,
    ReportForm,
    TableForm,
    images,
    page_files,
    render,
    report_files,
    report_form_of,
)
from ccl_bench.report.render.text import text_page, text_report_name, verdict_block
from ccl_bench.report.search import page_of_search
from ccl_bench.report.verdict import verdict
from ccl_bench.result.search_report import to_json as search_json
from ccl_bench.storage.files import replace_bytes, replace_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cyclopts import App

    from ccl_bench.report.page_model import Page

ABOUT = """\
It reads every trace and tries every metric. The ending of the file's name selects the format: .html is one \
page with charts that opens without a network; .md, .json and .txt have the same content, and .xlsx its \
tables, a sheet a section; without a file it is text. --format csv writes a folder, one file a table. The \
same run gives the same report. The folder of a search is reported too: its trials, and what is predicted \
of the configurations that none measured.

Exit status: 0; 2 wrong usage, or a file already exists; 3 --charts finds nothing to draw; 4 nothing can \
be read.
"""

ABOUT_HISTORICAL = """Report one run as text: problems, throughput, overlap, bandwidth, traffic, waiting.

It reads every trace and tries every metric, writes the text into a new file below trace_analysis, and \
prints its path.

Exit status: 0; 2 wrong usage; 4 nothing can be read.
"""

FOLDER = "trace_analysis"

Place = Annotated[
    str, Parameter(metavar="", help="Directory, trace file, URL, or folder of a search to report.")
]
Config = Annotated[
    str | None,
    Parameter(metavar="FILE", help="Training configuration (TOML) to use in place of the run's own."),
]


_RUN = "examples/runs/llama-tiny-pp4-gloo"

app = options.app("report", ABOUT, [f"{PROGRAM} report {_RUN} -o report.html", f"{PROGRAM} report {_RUN}"])


@app.default
def report(
    run: Place,
    /,
    *,
    output: options.Output = None,
    form: Annotated[
        ReportForm | None,
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
    reading: options.ReadingOptions = options.DEFAULT_READING,
    force: options.Force = False,
) -> int:
    """Report a run."""
    if form is None and output:
        form = report_form_of(output)
    if form == "html" and not output and sys.stdout.isatty():
        raise UsageError("a terminal cannot show HTML", fix="give -o report.html")
    if form in {"xlsx", "csv"} and not output:
        where = "a file: -o report.xlsx" if form == "xlsx" else "a folder, one file a table: -o tables"
        raise UsageError(f"a report as {form} is not printed", fix=f"give {where}")
    target = Path(output) if output else None
    if target and form != "csv":
        options.file_to_write(str(target), force=force)
    if charts:
        images.renderer()  # what is missing shows before the traces are read
    if is_search(Path(run)):
        if why or config or workload_card or ceiling:
            raise UsageError(
                "--why, --config, --workload-card and --ceiling are for a run, and this is a search",
                fix=f"leave them out, or report the run of one trial below {run}",
            )
        searched = search_report(Path(run))
        page = page_of_search(searched)
        if charts:
            _draw(page, Path(charts), chart_format, force=force)
        form = form or (None if charts else "text")
        if form == "text" and not target:
            show(text_page(page))
        elif form:
            file = target or Path()
            whole = {file: search_json(searched) + b"\n"} if form == "json" else page_files(page, form, file)
            _write(whole, output, force=force)
        return 0
    with reading.open(run, card=workload_card, config=config, ceiling=ceiling) as measured:
        observed = measured.observed
    if charts:
        _draw(report_page(observed), Path(charts), chart_format, force=force)
    if form is None and not charts:
        form = "text"
    if form == "text" and not target:
        show(text_page(report_page(observed, why=why)))
    elif form:
        files = report_files(observed, form, target or Path(), why=why)
        if target and form not in get_args(TableForm) and observed.diagnosed is not None:
            show(verdict_block(verdict(observed.diagnosed)))
        _write(files, output, force=force)
    return 0


def _write(files: Mapping[Path, bytes], output: str | None, *, force: bool) -> None:
    """Write the files of a report and print their names, or print the report if no output is named."""
    if output is None:
        sys.stdout.writelines(content.decode() for content in files.values())
        return
    for path in files:
        options.refuse_existing(path, force=force)
    others = sorted({*Path(output).glob("*.csv")} - files.keys())
    if others and not force:
        fix = "name an empty folder, or give --force to write beside it"
        raise UsageError(f"{others[0]} is not a table of this report", fix=fix)
    for path, content in files.items():
        replace_bytes(path, content)
        options.show_written(path)


def _draw(page: Page, folder: Path, chart_format: ImageForm, *, force: bool) -> None:
    """Write every chart of the report and print the paths."""
    drawn = {folder / f"{chart.key}.{chart_format}": chart for chart in page.charts()}
    if not drawn:
        raise NotMeasurable("the run has nothing to draw", fix="ccl-bench inspect shows what is in it")
    for path in drawn:
        options.refuse_existing(path, force=force)
    for path, chart in drawn.items():
        replace_bytes(path, images.image(chart, chart_format))
        options.show_written(path)


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
    reading: options.ReadingOptions = options.DEFAULT_READING,
) -> int:
    """Write the text report of a run to `<timestamp>_<model>_dpXxY_tpZ_gpuN.txt` and print its path."""
    with reading.open(run, card=workload_card, config=config) as measured:
        observed = measured.observed
    folder = Path(output_dir)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a directory", fix="name another with --output-dir")
    folder.mkdir(parents=True, exist_ok=True)
    name = Path(text_report_name(observed.inspection, datetime.now().astimezone()))
    path = folder / name
    for number in itertools.count(2):  # two reports of one second have the same name
        with contextlib.suppress(FileExistsError):
            path.touch(exist_ok=False)
            break
        path = folder / f"{name.stem}_{number}{name.suffix}"
    replace_text(path, render(observed, "text"))
    sys.stdout.write(f"{path}\n")
    return 0
