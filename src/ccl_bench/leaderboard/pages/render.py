"""Rendering of pages: templates, shared style sheets and scripts, and numbers as the cells of a table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup, escape

from ccl_bench import __version__
from ccl_bench.base.text import counted, harmless
from ccl_bench.leaderboard.pages.titles import metric_hint, metric_title
from ccl_bench.leaderboard.store.columns import AXES
from ccl_bench.leaderboard.store.rows import known_metrics
from ccl_bench.report.formatting import amount, exact
from ccl_bench.report.render import html as report_frame
from ccl_bench.report.theme import LIGHT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jinja2 import Environment

    from ccl_bench.leaderboard.pages.links import Links
    from ccl_bench.leaderboard.store.query_result import RunNumber


@dataclass(frozen=True, slots=True)
class Cell:
    """One number as a cell."""

    metric: str
    number: RunNumber | None = None
    text: str = ""
    """The value as text, without its unit."""
    tooltip: str = ""
    """Everything about it, in one line."""
    note: str = ""
    """Why it is not comparable with its neighbours, if it is not."""


def number_cell(metric: str, number: RunNumber | None) -> Cell:
    """Return the cell of a metric's number."""
    if number is None:
        return Cell(metric)
    definition = known_metrics().get(metric)
    note = number.unit if definition and definition.unit != number.unit else ""
    if definition and number.revision and definition.revision != number.revision:
        note = f"{note} revision {number.revision}".strip()
    parts = [f"{metric} {exact(number.value)} {number.unit}", rank_text(number), number.measured]
    if number.doubts:
        parts.append(f"{counted(number.doubts, 'finding')} about the data")
    return Cell(metric, number, amount(number.value), "; ".join(filter(None, parts)), note)


def rank_text(number: RunNumber) -> str:
    """Return the rank of a number in words, or why it has none."""
    if number.place is None:
        if number.better == "neither":
            return ""
        return "not ranked: the data has an error" if number.errors else "not ranked"
    if number.ranked == 1:
        return "no comparable number"
    return f"rank {number.place} of {number.ranked}"


def parallelism_text(run: Mapping[str, Any]) -> str:
    """Return the degrees of parallelism above 1, or text that there are none or that they are unknown."""
    degrees = [f"{axis} {run[axis]}" for axis in AXES if (run[axis] or 1) > 1]
    is_known = any(run[axis] for axis in AXES)
    return ", ".join(degrees) or ("not parallel" if is_known else "parallelism unknown")


def hardware_text(run: Mapping[str, Any]) -> str:
    """Return the hardware of a run, such as `16 x A100, 4 nodes`."""
    devices = f"{run['device_count']} × " if run["device_count"] else ""
    nodes = f", {counted(run['node_count'], 'node')}" if (run["node_count"] or 0) > 1 else ""
    return f"{devices}{run['hardware']}{nodes}" if run["hardware"] else ""


def name_and_version(run: Mapping[str, Any], name: str, version: str) -> str:
    """Return a name with its version, if known."""
    return f"{run[name]} {run[version] or ''}".strip() if run[name] else ""


STYLES, SCRIPT = "leaderboard.css", "leaderboard.js"
SITE_SCRIPT, SITE_COMPARE = "site.js", "site-compare.js"


class Badge(NamedTuple):
    """A state of a run as pages show it; each kind of number has an outline of its own in the style sheet."""

    word: str
    meaning: str
    glyph: str


BADGES = {
    "verified": Badge("measured", "The numbers were recomputed here from the traces, and agree.", "●"),
    "self_reported": Badge(
        "self-reported", "The submitter reported the numbers; they were not recomputed.", "○"
    ),
    "reported": Badge(
        "reported elsewhere", "Numbers that others published, imported with their source.", "◇"
    ),
    "predicted": Badge("predicted", "Computed by a model of the run; nobody measured it.", "◌"),
    "withdrawn": Badge("withdrawn", "Withdrawn by its submitter; kept, but not ranked.", "✕"),
    "superseded": Badge("superseded", "Replaced by another run; kept, but not ranked.", "»"),
    "quarantined": Badge("in quarantine", "Received, but not checked yet.", "…"),
}
"""State → its word, meaning and glyph."""

_JOINTS = re.compile(r"([._])(?=\w)")
_CODE = re.compile(r"`([^`]+)`")

DIRECTIONS = {"higher": ("↑", "higher is better"), "lower": ("↓", "lower is better"), "neither": ("", "")}


@cache
def _read_asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def render_page(template: str, title: str, to: Links, *, at: str = "", **values: Any) -> str:
    """Return a page from a template; `at` is its entry in the navigation."""
    compiled = template_environment().get_template(template)
    frame = {
        "version": __version__,
        "names": _NAMES,
        "logo": report_frame.logo(),
        "icon": report_frame.icon(),
    }
    return compiled.render(title=title, to=to, at=at, **frame, **values)


def render_xml(template: str, **values: Any) -> str:
    """Return a document of XML from a template.

    Harmless text may hold two characters that no XML may: U+FFFE and U+FFFF become `?`.
    """
    document = template_environment().get_template(template).render(version=__version__, **values)
    return document.translate(dict.fromkeys((0xFFFE, 0xFFFF), "?"))


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
    **{name: partial(_read_asset, name) for name in (STYLES, SCRIPT, SITE_SCRIPT, SITE_COMPARE)},
}
ASSETS = tuple(_ASSETS)
"""Names of the style sheets and scripts that pages link to."""


def load_asset(name: str) -> str:
    """Return a style sheet or script."""
    return _ASSETS[name]()


def _with_line_breaks(text: str) -> Markup:
    """Return a name with possible line breaks after points and underscores."""
    return Markup(_JOINTS.sub(r"\1<wbr>", str(escape(harmless(text)))))  # noqa: S704  escaped before


def _with_code(text: str) -> Markup:
    """Return text with the parts between backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(harmless(text)))))  # noqa: S704  escaped before


@cache
def template_environment() -> Environment:
    """Return the template environment of the leaderboard."""
    environment = report_frame.template_environment("ccl_bench.leaderboard.pages")
    filters: dict[str, Callable[..., Any]] = {
        "amount": amount,
        "exact": exact,
        "breakable": _with_line_breaks,
        "with_code": _with_code,
        "counted": counted,
        "upper_first": lambda text: text[:1].upper() + text[1:],
        "day": lambda moment: moment[:10],
        "last_part": lambda name: name.rpartition("/")[2] or name,
        "thousands": lambda count: f"{count:,}",
        "rank_text": rank_text,
        "metric_title": metric_title,
        "metric_hint": metric_hint,
    }
    environment.filters |= filters
    environment.globals |= {"BADGES": BADGES, "DIRECTIONS": DIRECTIONS, "COLOURS": LIGHT}
    return environment
