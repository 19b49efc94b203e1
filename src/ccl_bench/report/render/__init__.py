"""Reports in their forms: HTML, Markdown, text or JSON.

`render` returns one form of the data of a run, `render_page` of any page; `render_json` makes one from a
report in JSON. `html` also
has the document and the parts that the leaderboard and comparisons use; `images` draws single charts.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Literal, get_args

from ccl_bench.base.errors import InputError, UsageError

if TYPE_CHECKING:
    from ccl_bench.report.page_model import Page
    from ccl_bench.result.report_data import ReportData

PageForm = Literal["html", "markdown", "text"]
Form = Literal["html", "markdown", "json", "text"]
ImageForm = Literal["svg", "png"]

SUFFIXES: dict[str, Form] = {
    ".html": "html",
    ".htm": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".json": "json",
    ".txt": "text",
}


def form_of(file: str) -> Form:
    """Return the form for a file's suffix, or raise UsageError if the suffix is unknown."""
    suffix = PurePath(file).suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(
            f"the name {file} does not state the form of the report",
            fix=f"end it in {', '.join(SUFFIXES)}; or give --format {', '.join(get_args(Form))}",
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


def render_json(text: bytes, form: Form) -> str:
    """Return a report that was written as JSON in another form; raise InputError if it is not one."""
    from ccl_bench.result.report_data import from_json

    observed = from_json(text)
    try:
        return render(observed, form)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        message = f"the details of its results do not have the structure of this version: {error!r}"
        raise InputError(message, fix="write the report of the run again with this version") from error
