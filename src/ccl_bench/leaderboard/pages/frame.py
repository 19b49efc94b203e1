"""The frame that every page of the leaderboard has, and the files that pages share."""

from __future__ import annotations

import re
from functools import cache, partial
from importlib import resources
from typing import TYPE_CHECKING, Any

from ccl_bench import __version__
from ccl_bench.leaderboard.pages.words import standing
from ccl_bench.report.formatting import amount, counted, exact
from ccl_bench.report.render import html as report_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2 import Environment
    from markupsafe import Markup

    from ccl_bench.leaderboard.pages.links import Links

STYLES, SCRIPT = "leaderboard.css", "leaderboard.js"
SITE_SCRIPT, SITE_COMPARE = "site.js", "site-compare.js"

BADGES = {
    "verified": ("verified", "The numbers were computed again from the traces, and agree."),
    "self_reported": ("self-reported", "The numbers are the submitter's; nobody computed them again."),
    "withdrawn": ("withdrawn", "Taken back by its submitter; kept, and not ranked."),
    "superseded": ("superseded", "Replaced by another run; kept, and not ranked."),
    "quarantined": ("in quarantine", "Received, and not checked yet."),
}
"""State → its name and what it means."""

_JOINTS = re.compile(r"([._])(?=\w)")
_CODE = re.compile(r"`([^`]+)`")

DIRECTIONS = {"higher": ("↑", "higher is better"), "lower": ("↓", "lower is better"), "neither": ("", "")}


@cache
def _own(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def page(template: str, title: str, to: Links, *, at: str = "", **values: Any) -> str:
    """Return a whole page from a template; `at` is the part of the leaderboard that it belongs to."""
    found = environment().get_template(template)
    return found.render(title=title, to=to, at=at, version=__version__, names=_NAMES, **values)


_NAMES = {
    "base": report_frame.STYLES,
    "theme": report_frame.SCRIPT,
    "library": report_frame.LIBRARY,
    "styles": STYLES,
    "script": SCRIPT,
    "site": SITE_SCRIPT,
    "site_compare": SITE_COMPARE,
}
_ASSETS: dict[str, Callable[[], str]] = {
    report_frame.STYLES: report_frame.styles,
    report_frame.SCRIPT: report_frame.script,
    report_frame.LIBRARY: report_frame.library,
    **{name: partial(_own, name) for name in (STYLES, SCRIPT, SITE_SCRIPT, SITE_COMPARE)},
}
ASSETS = tuple(_ASSETS)
"""Names of the style sheets and scripts that pages link to."""


def asset(name: str) -> str:
    """Return a style sheet or script."""
    return _ASSETS[name]()


def _breakable(text: str) -> Markup:
    """Return a name that a line may break within, after a point or an underscore."""
    from markupsafe import Markup, escape

    return Markup(_JOINTS.sub(r"\1<wbr>", str(escape(text))))  # noqa: S704  escaped before


def _with_code(text: str) -> Markup:
    """Return text in which what stands between backticks is code."""
    from markupsafe import Markup, escape

    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704  escaped before


@cache
def environment() -> Environment:
    """Return what renders templates; every value is escaped unless it is marked as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("ccl_bench.leaderboard.pages", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "amount": amount,
        "exact": exact,
        "breakable": _breakable,
        "with_code": _with_code,
        "counted": counted,
        "day": lambda moment: moment[:10],
        "thousands": lambda count: f"{count:,}",
        "standing": standing,
    }
    made.filters |= filters
    made.globals |= {"BADGES": BADGES, "DIRECTIONS": DIRECTIONS}
    return made
