"""Lines over steps, time or a share; bands between a least and a most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.report.charts.scales import HEIGHT, colours, in_order, measured, names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccl_bench.report.parts import Spec

Spread = tuple[str, float, float, float]
"""Name, least, median and most."""

_MARKED = 60
"""Points along a line up to which each has a dot."""


def lines_over_names(
    columns: Sequence[str], rows: Mapping[str, Sequence[float | None]], *, x: str, y: str, of: str
) -> Spec:
    """Return a line a row over named columns; `of` says what a row is."""
    values = [
        {"x": column, "y": value, of: name}
        for name, numbers in rows.items()
        for column, value in zip(columns, numbers, strict=True)
        if value is not None
    ]
    known = (value for numbers in rows.values() for value in numbers if value is not None)
    return {
        "width": "container",
        "height": HEIGHT,
        "data": {"values": values},
        "mark": {"type": "line", "point": len(columns) <= _MARKED, "strokeWidth": 1.6},
        "encoding": {
            "x": {"field": "x", **names(x, columns, labelAngle=0)},
            "y": _quantity("y", y, measured(known)),
            "color": {"field": of, **colours(in_order(list(rows)), title=of, columns=8, symbolType="stroke")},
            "tooltip": [
                {"field": "x", "title": x},
                {"field": of, "title": of},
                {"field": "y", "title": y, "format": ",.4~g"},
            ],
        },
    }


def band_over_names(rows: Sequence[Spread], *, x: str, y: str) -> Spec:
    """Return a line of medians in a band."""
    line = {
        "type": "line",
        "color": "var(--c1)",
        "point": {"color": "var(--c1)"} if len(rows) <= _MARKED else False,
    }
    return _spreads(rows, {"type": "area", "color": "var(--c1)", "opacity": 0.25}, line, x=x, y=y)


def ranges_over_names(rows: Sequence[Spread], *, x: str, y: str) -> Spec:
    """Return a stroke from least to most with a dot at the median for each row."""
    stroke = {"type": "rule", "color": "var(--c1)", "strokeWidth": 2, "opacity": 0.55}
    dot = {"type": "point", "color": "var(--c1)", "size": 36, "opacity": 1}
    return _spreads(rows, stroke, dot, x=x, y=y)


def _spreads(
    rows: Sequence[Spread], extent: dict[str, Any], middle: dict[str, Any], *, x: str, y: str
) -> Spec:
    """Return one mark from least to most of each row, and one at its median."""
    values = [{"x": name, "least": low, "median": mid, "most": high} for name, low, mid, high in rows]
    scale = measured(end for _, low, _, high in rows for end in (low, high))
    return {
        "width": "container",
        "height": HEIGHT,
        "data": {"values": values},
        "encoding": {
            "x": {"field": "x", **names(x, [name for name, *_ in rows], labelAngle=0)},
            "tooltip": _of_band(x, y),
        },
        "layer": [
            {
                "mark": extent,
                "encoding": {"y": _quantity("least", y, scale), "y2": {"field": "most"}},
            },
            {"mark": middle, "encoding": {"y": _quantity("median", y, scale)}},
        ],
    }


def curves(
    rows: Mapping[str, Sequence[tuple[float, float]]], *, x: str, y: str, of: str, zero: bool = True
) -> Spec:
    """Return a line a row through points of numbers."""
    values = [{"x": at, "y": value, of: name} for name, points in rows.items() for at, value in points]
    return {
        "width": "container",
        "height": HEIGHT,
        "data": {"values": values},
        "mark": {"type": "line"},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "title": x, "axis": {"tickCount": 6, "grid": False}},
            "y": _quantity("y", y, {"zero": zero, "nice": True}),
            "color": {"field": of, **colours(in_order(list(rows)), title=of, columns=4, symbolType="stroke")},
            "order": {"field": "x"},
            "tooltip": [
                {"field": of, "title": of},
                {"field": "x", "title": x, "format": ",.4~g"},
                {"field": "y", "title": y, "format": ",.4~g"},
            ],
        },
    }


def _quantity(field: str, title: str, scale: dict[str, Any]) -> dict[str, Any]:
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": scale,
        "axis": {"tickCount": 5},
    }


def _of_band(x: str, y: str) -> list[dict[str, Any]]:
    return [
        {"field": "x", "title": x},
        *(
            {"field": name, "title": f"{name}, {y.rpartition(', ')[2]}", "format": ",.4~g"}
            for name in ("least", "median", "most")
        ),
    ]
