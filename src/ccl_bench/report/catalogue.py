"""The catalogue of metrics as text: the list, the manual page of one, and what it and diagnoses assume."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ccl_bench.analysis.derived import DERIVED, tables_behind
from ccl_bench.base.text import csv_lines
from ccl_bench.catalog.assumptions import assumed_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ccl_bench.base.registry import Registry
    from ccl_bench.catalog.assumptions import Assumption
    from ccl_bench.metrics import Metric
    from ccl_bench.report.console import Aligned

_WIDTH = 100
"""Columns of a page."""

_DIRECTIONS = {"higher": "higher is better", "lower": "lower is better", "neither": "neither is better"}


@dataclass(frozen=True, slots=True)
class ListedMetric:
    """One line of the catalogue."""

    metric: str
    unit: str
    better: str
    aliases: tuple[str, ...]
    """Other names of the same number."""
    summary: str


def entries(registry: Registry[Metric]) -> list[ListedMetric]:
    """Return the catalogue in order of names."""
    listed = []
    for each in registry:
        variant = f"{each.variant_of} in another unit: {each.unit}" if each.variant_of else ""
        listed.append(ListedMetric(each.name, each.unit, each.better, each.aliases, variant or each.summary))
    return listed


def names(listed: Iterable[ListedMetric]) -> str:
    """Return the name of every metric, one per line."""
    return "".join(f"{name}\n" for name, *_ in _rows(listed))


def as_csv(listed: Iterable[ListedMetric]) -> str:
    """Return the catalogue as CSV with a header."""
    head = ("metric", "unit", "better", "aliases", "summary")
    rows = ((each.metric, each.unit, each.better, " ".join(each.aliases), each.summary) for each in listed)
    return "".join(csv_lines([head, *rows]))


def as_json(listed: Iterable[ListedMetric]) -> str:
    """Return the catalogue as indented JSON."""
    from ccl_bench.base.text import encode_json

    return encode_json([asdict(entry) for entry in listed]).decode() + "\n"


def table(listed: Iterable[ListedMetric]) -> Aligned:
    """Return the catalogue as a table."""
    from ccl_bench.report.console import aligned

    return aligned(("METRIC", "UNIT", "BETTER", "WHAT IT IS"), _rows(listed))


def _rows(listed: Iterable[ListedMetric]) -> list[tuple[str, str, str, str]]:
    """Return a row for every name, in order; the row of an alias names its metric."""
    rows = []
    for entry in listed:
        rows.append((entry.metric, entry.unit, entry.better, entry.summary))
        same = f"Same as {entry.metric}."
        rows += [(alias, entry.unit, entry.better, same) for alias in entry.aliases]
    return sorted(rows)


def manual_page(metric: Metric, aliases: Mapping[str, str]) -> str:
    """Return the manual page of a metric."""
    other_names = [alias for alias, name in aliases.items() if name == metric.name]
    facts = {
        "unit": f"{metric.unit} ({_DIRECTIONS[metric.better]})",
        "also called": ", ".join(other_names),
        "variant of": f"{metric.variant_of}, times {metric.scale:g}" if metric.variant_of else "",
        "computed from": "; else ".join(", ".join(way.needs) for way in metric.sources),
        "details from": ", ".join(metric.explained_by),
        "revision": str(metric.revision),
        "defined in": metric.defined_in,
    }
    lines = [f"  {name + ':':<15}{value}" for name, value in facts.items() if value]
    DERIVED.load()
    assumed = assumptions_text(assumed_in(tables_behind(metric.needs)))
    return "\n".join([metric.name, *lines, "", metric.manual, "", assumed])


def assumptions_text(assumptions: Iterable[Assumption]) -> str:
    """Return assumptions as the last part of a manual page, each with what watches it."""
    lines = ["Assumes:"]
    for assumption in assumptions:
        watched = {
            "checked by": ", ".join(assumption.guards),
            "no number:": assumption.refused,
            "not checked:": assumption.unwatched,
        }
        lines.append(_indented(assumption.assumes, 1))
        lines += [_indented(f"{label} {text}", 2) for label, text in watched.items() if text]
    return "\n".join([*lines, ""])


def _indented(text: str, depth: int) -> str:
    """Return a text wrapped to the page and indented."""
    margin = "    " * depth
    return textwrap.fill(
        text, _WIDTH, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )
