"""Numbers and degrees as the cells of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ccl_bench.leaderboard.store.known import known_metrics
from ccl_bench.leaderboard.store.question import AXES
from ccl_bench.report.formatting import amount, counted, exact

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccl_bench.leaderboard.store.answer import Number


@dataclass(frozen=True, slots=True)
class Cell:
    """One number as a cell."""

    metric: str
    number: Number | None = None
    text: str = ""
    """As people read it, without its unit."""
    told: str = ""
    """Everything about it, in one line."""
    note: str = ""
    """What makes it another number than its neighbours, if anything."""


def cell(metric: str, number: Number | None) -> Cell:
    """Return the cell of a metric's number."""
    if number is None:
        return Cell(metric)
    known = known_metrics().get(metric)
    note = number.unit if known and known.unit != number.unit else ""
    if known and known.revision != number.revision:
        note = f"{note} revision {number.revision}".strip()
    return Cell(metric, number, amount(number.value), _told(metric, number), note)


def _told(metric: str, number: Number) -> str:
    parts = [f"{metric} {exact(number.value)} {number.unit}", standing(number), number.measured]
    parts += [f"{counted(number.doubts, 'finding')} about the data"] if number.doubts else []
    return "; ".join(filter(None, parts))


def standing(number: Number) -> str:
    """Return the rank of a number in words, or why it has none."""
    if number.place is None:
        if number.better == "neither":
            return ""
        return "not ranked: the data has an error" if number.errors else "not ranked"
    if number.ranked == 1:
        return "the only one like it"
    return f"rank {number.place} of {number.ranked}"


def parallelism(run: Mapping[str, Any]) -> str:
    """Return the degrees of parallelism above 1, or that there are none, or that they are not known."""
    degrees = [f"{axis} {run[axis]}" for axis in AXES if (run[axis] or 1) > 1]
    is_known = any(run[axis] for axis in AXES)
    return ", ".join(degrees) or ("not parallel" if is_known else "parallelism unknown")


def hardware(run: Mapping[str, Any]) -> str:
    """Return what a run ran on, such as `16 x A100, 4 nodes`."""
    devices = f"{run['device_count']} × " if run["device_count"] else ""
    nodes = f", {counted(run['node_count'], 'node')}" if (run["node_count"] or 0) > 1 else ""
    return f"{devices}{run['hardware']}{nodes}" if run["hardware"] else ""


def versioned(run: Mapping[str, Any], name: str, version: str) -> str:
    """Return a name with its version, where they are known."""
    return f"{run[name]} {run[version] or ''}".strip() if run[name] else ""
