"""Flame graphs and stacked areas as Vega-Lite."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ccl_bench.report.charts.bars import HEIGHT, colours, in_order
from ccl_bench.report.theme import CATEGORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ccl_bench.report.page_model import Spec

_LEVEL = 18
"""Height of a level, in pixels."""
_DEEPEST = 24
_LEAST_SHARE = 0.001
"""Share of the whole below which a box cannot be seen."""


_WARM = (CATEGORY[1], CATEGORY[5], CATEGORY[3], CATEGORY[6])
"""Colours that neighbours take one after the other; they have no meaning."""


@dataclass(slots=True)
class _Node:
    """A frame and the frames below it."""

    value: float = 0.0
    below: dict[str, _Node] = field(default_factory=dict)


def flame(
    rows: Iterable[tuple[Sequence[str], float]], *, of: str, unit: str, shorter: Mapping[str, str]
) -> Spec:
    """Return a flame graph of values by path, the outermost name at the top.

    `shorter` are the names written into boxes, `of` names what a box is, `unit` is that of the values.
    """
    root = _Node()
    for path, value in rows:
        node = root
        node.value += value
        for name in path[:_DEEPEST]:
            node = node.below.setdefault(name, _Node())
            node.value += value
    boxes = list(_boxes(root, 0.0, 0, root.value)) if root.value else []
    for box in boxes:
        box["short"] = shorter.get(box["name"], box["name"])
    place: dict[str, Any] = {
        "x": {"field": "x", "type": "quantitative", "axis": None, "scale": {"domain": [0, 1], "nice": False}},
        "y": {"field": "level", "type": "ordinal", "axis": None},
    }
    filled = {
        "mark": {"type": "rect", "stroke": "var(--surface)", "strokeWidth": 1},
        "encoding": {
            **place,
            "x2": {"field": "x2"},
            "color": {
                "field": "colour",
                "type": "nominal",
                "scale": {"domain": list(range(len(_WARM))), "range": list(_WARM)},
                "legend": None,
            },
            "tooltip": [
                {"field": "name", "title": of},
                {"field": "value", "title": unit, "format": ",.4~g"},
                {"field": "pct", "title": "share, %", "format": ".3~g"},
            ],
        },
    }
    named = {
        # Narrower boxes have no room for a name.
        "transform": [{"filter": "datum.x2 - datum.x > 0.02"}],
        "mark": {
            "type": "text",
            "align": "left",
            "dx": 4,
            "fontSize": 11,
            "color": "var(--surface)",
            "limit": {"expr": "scale('x', datum.x2) - scale('x', datum.x) - 6"},
            "tooltip": None,
        },
        "encoding": {**place, "text": {"field": "short"}},
    }
    levels = 1 + max((box["level"] for box in boxes), default=0)
    return {
        "width": "container",
        "height": levels * _LEVEL,
        "data": {"values": boxes},
        "layer": [filled, named],
    }


def _boxes(node: _Node, start: float, level: int, whole: float) -> Iterator[dict[str, Any]]:
    """Yield the boxes below a node, the largest first."""
    ordered = sorted(node.below.items(), key=lambda item: (-item[1].value, item[0]))
    for number, (name, child) in enumerate(ordered):
        share = child.value / whole
        if share < _LEAST_SHARE:
            continue
        yield {
            "name": name,
            "level": level,
            "x": start,
            "x2": start + share,
            "value": child.value,
            "pct": 100 * share,
            "colour": (level + number) % len(_WARM),
        }
        yield from _boxes(child, start, level + 1, whole)
        start += share


def stacked_areas(
    at: Sequence[float], rows: Mapping[str, Sequence[float]], *, x: str, y: str, of: str
) -> Spec:
    """Return values by name over numbers, stacked; each value holds until the next point."""
    values = [
        {"x": place, "y": value, of: name}
        for name, numbers in rows.items()
        for place, value in zip(at, numbers, strict=True)
    ]
    return {
        "width": "container",
        "height": HEIGHT,
        "data": {"values": values},
        "mark": {"type": "area", "interpolate": "step-after", "line": False},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "title": x, "scale": {"nice": False}},
            "y": {"field": "y", "type": "quantitative", "title": y, "stack": "zero"},
            "color": {"field": of, **colours(in_order(list(rows)), title=of, columns=4)},
            "tooltip": [
                {"field": of, "title": of},
                {"field": "x", "title": x, "format": ",.4~g"},
                {"field": "y", "title": y, "format": ",.4~g"},
            ],
        },
    }
