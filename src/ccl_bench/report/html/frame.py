"""The frame of every page: styles, theme, charts and their library, in one file or beside it."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from ccl_bench import __version__
from ccl_bench.report.html import colours
from ccl_bench.report.html.config import CONFIG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jinja2 import Environment

    from ccl_bench.report.parts import Spec

STYLES, SCRIPT, LIBRARY = "ccl-bench.css", "ccl-bench.js", "vega.js"
"""Names of the files that pages share where they are not inlined."""

_ASSETS = "ccl_bench.report.html"

_DIGITS = 6

_AS_WIDE = {"autosize": {"type": "fit-x", "contains": "padding"}}
"""Charts take the width that their place has, and their own height."""


def html_page(
    title: str,
    body: str,
    *,
    charts: Mapping[str, Spec] | None = None,
    navigation: Sequence[tuple[str, str]] = (),
    description: str = "",
    assets: str | None = None,
) -> str:
    """Return a whole page around `body`, which is HTML and trusted.

    `charts` are Vega-Lite specifications by the key under which `figure` placed them in the body.
    `navigation` lists places on the page as (address, title). Without `assets` the page is one file that
    needs nothing else; with it styles and scripts are linked from that address, where `shared_files` are.
    """
    specs = {key: _AS_WIDE | _rounded(spec) for key, spec in (charts or {}).items()}
    scripts = [script(), library()] if specs else [script()]
    return (
        environment()
        .get_template("page.html")
        .render(
            title=title,
            body=body,
            data={"config": CONFIG, "specs": specs} if specs else None,
            navigation=navigation,
            description=description,
            version=__version__,
            assets=assets and assets.rstrip("/"),
            styles=styles() if assets is None else "",
            scripts=scripts if assets is None else [],
            policy=_policy(scripts) if assets is None else "",
            names={"styles": STYLES, "script": SCRIPT, "library": LIBRARY},
        )
    )


def _rounded(part: Any) -> Any:
    """Return a specification with the digits that a drawing can show."""
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
    return colours.css() + _asset("page.css")


@cache
def script() -> str:
    """Return the script that switches themes and draws charts."""
    return _asset("page.js")


@cache
def library() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")


@cache
def environment() -> Environment:
    """Return what renders templates; every value is escaped unless it is marked as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader(_ASSETS, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return made


def _asset(name: str) -> str:
    return resources.files(_ASSETS).joinpath("assets", name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    """Return a content security policy: these scripts and no other, and nothing from elsewhere."""
    allowed = " ".join(f"'sha256-{_digest(each)}'" for each in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
    )


@cache
def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
