"""Reports in their forms: HTML, Markdown, text, JSON, and tables for spreadsheets.

`render` returns one form of the data of a run, `render_page` of any page; `render_json` makes one from a
report in JSON. `html` also has the document and the parts that the leaderboard and comparisons use;
`images` draws single charts. `report_files` and `page_files` return files, for spreadsheets too.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Literal, get_args

from ccl_bench.base.errors import InputError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.report.page_model import Page
    from ccl_bench.result.report_data import ReportData

PageForm = Literal["html", "markdown", "text"]
Form = Literal["html", "markdown", "json", "text"]
TableForm = Literal["xlsx", "csv"]
"""Forms of a page that a spreadsheet opens: one workbook, or a folder with one file a table."""
ReportForm = Literal["html", "markdown", "json", "text", "xlsx", "csv"]
ImageForm = Literal["svg", "png"]

SUFFIXES: dict[str, Form] = {
    ".html": "html",
    ".htm": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".json": "json",
    ".txt": "text",
}


def report_form_of(file: str) -> ReportForm:
    """Return the form of a report for a file's suffix, or raise UsageError if the suffix is unknown."""
    return "xlsx" if PurePath(file).suffix.lower() == ".xlsx" else form_of(file, ReportForm, (".xlsx",))


def form_of(file: str, forms: object = Form, suffixes: tuple[str, ...] = ()) -> Form:
    """Return the form for a file's suffix, or raise UsageError with all forms if the suffix is unknown."""
    suffix = PurePath(file).suffix.lower()
    if suffix not in SUFFIXES:
        ends = ", ".join((*SUFFIXES, *suffixes))
        raise UsageError(
            f"the name {file} does not state the form of the report",
            fix=f"end it in {ends}; or give --format {', '.join(get_args(forms))}",
        )
    return SUFFIXES[suffix]


def render(observed: ReportData, form: Form, *, why: bool = False) -> str:
    """Return the report of a run; the same data gives the same report. See `report_page` for `why`."""
    if form == "json":
        from ccl_bench.result.report_data import to_json

        return to_json(observed).decode() + "\n"
    from ccl_bench.report.page import report_page

    return render_page(report_page(observed, why=why), form)


def render_page(page: Page, form: PageForm) -> str:
    """Return a page in a form that is read."""
    if form == "text":
        from ccl_bench.report.render.text import text

        return text(page)
    if form == "markdown":
        from ccl_bench.report.render.markdown import markdown

        return markdown(page)
    from ccl_bench.report.render.html import run_page

    return run_page(page)


def report_files(
    observed: ReportData, form: ReportForm, target: Path, *, why: bool = False
) -> dict[Path, bytes]:
    """Return the files of the report of a run, with their content; see `page_files` for `target`."""
    if form == "json":
        return {target: render(observed, form).encode()}
    from ccl_bench.report.page import report_page

    return page_files(report_page(observed, why=why), form, target)


def page_files(page: Page, form: PageForm | TableForm, target: Path) -> dict[Path, bytes]:
    """Return the files of a page, with their content.

    `target` is the one file, or the folder of the files of CSV, of which each is one table with its heads.
    """
    if form == "xlsx":
        from ccl_bench.report.render.workbook import workbook

        return {target: workbook(page)}
    if form == "csv":
        from ccl_bench.base.text import csv_lines
        from ccl_bench.report.render.flat import csv_files

        return {target / name: "".join(csv_lines(rows)).encode() for name, rows in csv_files(page)}
    return {target: render_page(page, form).encode(errors="backslashreplace")}


def render_json(text: bytes, form: Form) -> str:
    """Return a report that was written as JSON in another form; raise InputError if it is not one."""
    from ccl_bench.result.report_data import from_json

    observed = from_json(text)
    try:
        return render(observed, form)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        message = f"the details of its results do not have the structure of this version: {error!r}"
        raise InputError(message, fix="write the report of the run again with this version") from error
