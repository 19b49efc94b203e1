"""The report of one run as one HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.report.html.frame import environment, html_page
from ccl_bench.report.html.pieces import definitions, findings, folded, numbers, section
from ccl_bench.report.page import charts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.report.parts import Page


def run_page(page: Page, *, assets: str | None = None, before: Sequence[tuple[str, str]] = ()) -> str:
    """Return the page as a whole document; see `html_page` for `assets`.

    `before` are links, as (address, title), that stand before those to the sections.
    """
    shown = [each for each in page.sections if not each.absent]
    body = (
        environment()
        .get_template("run.html")
        .render(
            page=page,
            findings=findings(page.findings),
            headline=numbers(page.headline),
            sections=[section(each) for each in shown],
            absent=[each for each in page.sections if each.absent],
            appendix=[folded(each) for each in page.appendix],
            definitions=definitions(page.definitions),
        )
    )
    places = [
        *before,
        ("#findings", "Findings"),
        ("#headline", "Headline"),
        *((f"#{s.key}", s.title) for s in shown),
    ]
    places += [(f"#{each.key}", each.title) for each in page.appendix] + [("#definitions", "Definitions")]
    return html_page(
        f"{page.title} - ccl-bench report",
        body,
        charts={chart.key: chart.spec for chart in charts_of(page)},
        navigation=places,
        description=f"Report of one run, made by {page.made_by}",
        assets=assets,
    )
