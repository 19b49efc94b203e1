"""Pages of HTML that open without a network: the document, its parts, and the report of a run."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from ccl_bench import __version__
from ccl_bench.base.errors import UsageError
from ccl_bench.base.text import harmless, shown_json
from ccl_bench.report import theme
from ccl_bench.report.page_model import TITLES
from ccl_bench.report.theme import CHART_CONFIG

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from jinja2 import Environment
    from markupsafe import Markup

    from ccl_bench.report.page_model import (
        ManualPage,
        Page,
        PageChart,
        PageFinding,
        PageSection,
        PageTable,
        Spec,
        Tile,
    )

__all__ = ["figure", "findings", "folded", "html_page", "numbers", "section", "table"]


STYLES, SCRIPT, LIBRARY = "ccl-bench.css", "ccl-bench.js", "vega.js"
"""Names of the files that pages share where they are not inlined."""

_ASSETS = "ccl_bench.report.render"

_WHOLE_LOGO, _MARK = 'viewBox="0 0 300 64"', 'viewBox="0 0 64 64"'
"""The visible parts of the logo: the whole drawing, and the square at its left."""

_DIGITS = 6

_AS_WIDE = {"autosize": {"type": "fit-x", "contains": "padding"}}
"""Charts take the width of their container, and their own height."""


def html_page(
    title: str,
    body: str,
    *,
    charts: Mapping[str, Spec] | None = None,
    strip: Mapping[str, Any] | None = None,
    navigation: Sequence[tuple[str, str]] = (),
    description: str = "",
    assets: str | None = None,
) -> str:
    """Return a whole page around `body`, which is HTML and trusted.

    `charts` are Vega-Lite specifications by the key that `figure` used in the body, `strip` is the data of
    the strip of a step. `navigation` lists places on the page as (address, title). Without `assets` the page
    is one self-contained file; with it, styles and scripts are linked from that address, where
    `shared_files` are.
    """
    specs = {key: _AS_WIDE | _rounded(spec) for key, spec in (charts or {}).items()}
    scripts = [script(), library()] if specs else [script()]
    return (
        environment()
        .get_template("page.html")
        .render(
            title=title,
            body=body,
            data={"config": CHART_CONFIG, "specs": specs} if specs else None,
            strip=strip,
            navigation=navigation,
            description=description,
            version=__version__,
            logo=logo(),
            icon=icon(),
            assets=assets and assets.rstrip("/"),
            styles=styles() if assets is None else "",
            scripts=scripts if assets is None else [],
            policy=_policy(scripts) if assets is None else "",
            names={"styles": STYLES, "script": SCRIPT, "library": LIBRARY},
        )
    )


def _rounded(part: Any) -> Any:
    """Return a specification with numbers rounded to the digits that a drawing can show."""
    if isinstance(part, dict):
        return {key: _rounded(each) for key, each in part.items()}
    if isinstance(part, list):
        return [_rounded(each) for each in part]
    return float(f"{part:.{_DIGITS}g}") if isinstance(part, float) else part


def shared_files() -> dict[str, str]:
    """Return the files that pages with `assets` link to, by name."""
    return {STYLES: styles(), SCRIPT: script(), LIBRARY: library()}


@cache
def styles() -> str:
    """Return the style sheet."""
    return theme.css_variables() + _asset("page.css")


@cache
def logo() -> Markup:
    """Return the logo: the mark, and the name beside it."""
    from markupsafe import Markup

    return Markup(_asset("logo.svg"))  # noqa: S704  our own file


@cache
def icon() -> str:
    """Return the address of the mark alone, as the icon of a page."""
    mark = _asset("logo.svg").replace(_WHOLE_LOGO, _MARK)
    return f"data:image/svg+xml;base64,{base64.b64encode(mark.encode()).decode()}"


@cache
def script() -> str:
    """Return the script that switches themes, sorts tables, and draws charts and the strip of a step."""
    return _asset("page.js") + _asset("strip.js")


@cache
def library() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script; UsageError in a checkout that is not installed."""
    try:
        return _asset(LIBRARY)
    except FileNotFoundError as error:
        message = "the scripts of charts are missing: installing ccl-bench makes them"
        raise UsageError(message, fix="pip install -e . in the checkout") from error


def template_environment(package: str) -> Environment:
    """Return the template environment of a package.

    Every value is harmless, also in the data of scripts, and escaped unless it is marked as HTML.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader(package, "templates"),
        autoescape=True,
        finalize=_harmless_value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.policies["json.dumps_function"] = shown_json
    templates.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return templates


def _harmless_value(value: Any) -> Any:
    """Return a value of a template as it may be shown; HTML was made of such values."""
    return harmless(value) if type(value) is str else value


@cache
def environment() -> Environment:
    """Return the template environment of reports."""
    return template_environment(_ASSETS)


def _asset(name: str) -> str:
    return resources.files(_ASSETS).joinpath("assets", name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    """Return a content security policy that allows only these scripts, and nothing from elsewhere."""
    allowed = " ".join(f"'sha256-{_digest(each)}'" for each in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
    )


@cache
def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def section(content: PageSection) -> Markup:
    """Return a section with its heading, numbers, charts and tables."""
    return _piece("section", content)


def folded(content: PageSection) -> Markup:
    """Return a section that opens when its title is clicked."""
    return _piece("folded", content)


def numbers(tiles: Iterable[Tile]) -> Markup:
    """Return numbers as tiles."""
    return _piece("numbers", list(tiles))


def findings(problems: Iterable[PageFinding]) -> Markup:
    """Return the problems, one after the other, each with its fix."""
    return _piece("findings", list(problems))


def figure(chart: PageChart) -> Markup:
    """Return the container of a chart, with its summary and its data as a table.

    Pass `chart.spec` under `chart.key` to the page that holds it.
    """
    return _piece("figure", chart)


def table(content: PageTable) -> Markup:
    """Return a table that scrolls sideways if it is too wide."""
    return _piece("table", content)


def definitions(entries: Iterable[ManualPage]) -> Markup:
    """Return the definitions that `Term`s and numbers link to."""
    return _piece("definitions", list(entries))


def _piece(name: str, *arguments: Any) -> Markup:
    macro: Any = getattr(environment().get_template("pieces.html").module, name)
    markup: Markup = macro(*arguments)
    return markup


def run_page(page: Page, *, assets: str | None = None, before: Sequence[tuple[str, str]] = ()) -> str:
    """Return the page as a whole document; see `html_page` for `assets`.

    `before` are links, as (address, title), that precede those to the sections.
    """
    present_sections, drawn = [each for each in page.sections if not each.absent], page.strip()
    body = (
        environment()
        .get_template("run.html")
        .render(
            page=page,
            titles=TITLES,
            findings=findings(page.findings),
            headline=numbers(page.headline),
            sections=[section(each) for each in present_sections],
            absent=[each for each in page.sections if each.absent],
            appendix=[folded(each) for each in page.appendix],
            definitions=definitions(page.definitions),
        )
    )
    short = TITLES | {"findings": "Findings", "headline": "Headline"}
    outline = [(key, title) for key, title in page.outline() if key != "not-shown"]
    places = [*before, *((f"#{key}", short.get(key, title)) for key, title in outline)]
    return html_page(
        f"{page.title} - ccl-bench report",
        body,
        charts={chart.key: chart.spec for chart in page.charts()},
        strip=drawn.data if drawn else None,
        navigation=places,
        description=f"Report made by {page.made_by}",
        assets=assets,
    )
