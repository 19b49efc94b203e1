"""The pieces of a page as HTML: sections, numbers, findings, charts and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.report.html.frame import environment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from markupsafe import Markup

    from ccl_bench.report.parts import Chart, Definition, Finding, Number, Section, Table


def section(shown: Section) -> Markup:
    """Return a section with its heading, numbers, charts and tables."""
    return _piece("section", shown)


def folded(shown: Section) -> Markup:
    """Return a section that opens when its title is chosen."""
    return _piece("folded", shown)


def numbers(shown: Iterable[Number]) -> Markup:
    """Return numbers as tiles."""
    return _piece("numbers", list(shown))


def findings(shown: Iterable[Finding]) -> Markup:
    """Return what is wrong, one after the other, each with its way out."""
    return _piece("findings", list(shown))


def figure(shown: Chart) -> Markup:
    """Return the place of a chart, with its summary and its data as a table.

    The page that holds it must be given `shown.spec` under `shown.key`.
    """
    return _piece("figure", shown)


def table(shown: Table) -> Markup:
    """Return a table that scrolls sideways where it is too wide."""
    return _piece("table", shown)


def definitions(shown: Iterable[Definition]) -> Markup:
    """Return the definitions that `Term`s and numbers lead to."""
    return _piece("definitions", list(shown))


def _piece(name: str, *arguments: Any) -> Markup:
    macro: Any = getattr(environment().get_template("pieces.html").module, name)
    made: Markup = macro(*arguments)
    return made
