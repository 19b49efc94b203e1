"""Bars, stacked bars and heat maps as Vega-Lite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.report.charts.axes import HEIGHT, colours, names, rows_height, steps_of_ramp
from ccl_bench.report.theme import RAMP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccl_bench.report.page_model import Spec

LYING = 16
"""Bars up to which they lie, with their names beside them."""


def bars(rows: Sequence[tuple[str, float]], *, title: str, unit: str, colour: str = "var(--c1)") -> Spec:
    """Return one bar a row, in the order given; `unit` follows numbers in remarks."""
    return {
        "width": "container",
        "height": rows_height(len(rows)),
        "data": {"values": [{"name": name, "value": value} for name, value in rows]},
        "mark": {"type": "bar", "color": colour, "height": {"band": 0.72}, "cornerRadiusEnd": 2},
        "encoding": {
            "y": {"field": "name", **names("", [name for name, _ in rows])},
            "x": {"field": "value", "type": "quantitative", "title": title, "axis": {"tickCount": 5}},
            "tooltip": [
                {"field": "name", "title": " "},
                {"field": "value", "title": unit, "format": ",.4~g"},
            ],
        },
    }


def stacked(
    rows: Sequence[tuple[str, Mapping[str, float]]],
    parts: Sequence[tuple[str, str]],
    *,
    title: str,
    of: str,
) -> Spec:
    """Return a bar a row, made of `parts` given as (name, colour); `of` says what a row is.

    Bars are horizontal, and vertical where they are many.
    """
    values = [
        {of: name, "part": part, "value": amounts[part], "place": place}
        for name, amounts in rows
        for place, (part, _) in enumerate(parts)
    ]
    lying = len(rows) <= LYING
    along = {
        "field": "value",
        "type": "quantitative",
        "stack": "zero",
        "title": title,
        "axis": {"tickCount": 6},
    }
    across = {"field": of, **names(of, [name for name, _ in rows], **({} if lying else {"labelAngle": 0}))}
    return {
        "width": "container",
        "height": rows_height(len(rows)) if lying else HEIGHT,
        "data": {"values": values},
        "mark": {"type": "bar", "height" if lying else "width": {"band": 0.8}},
        "encoding": {
            "y": across if lying else along,
            "x": along if lying else across,
            "color": {"field": "part", **colours(parts)},
            "order": {"field": "place", "type": "ordinal"},
            "tooltip": _tooltip(of, title),
        },
    }


def _tooltip(of: str, title: str) -> list[dict[str, Any]]:
    return [
        {"field": of, "title": of},
        {"field": "part", "title": "part"},
        {"field": "value", "title": title, "format": ",.4~g"},
    ]


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    of: tuple[str, str, str],
) -> Spec:
    """Return a heat map; `of` says what a row, a column and a colour is."""
    row_is, column_is, value_is = of
    cells: list[dict[str, Any]] = [
        {"row": row, "column": column, "value": value}
        for row, numbers in zip(rows, values, strict=True)
        for column, value in zip(columns, numbers, strict=True)
        if value is not None
    ]
    bounds = steps_of_ramp(max((cell["value"] for cell in cells), default=0.0))
    return {
        "width": "container",
        "height": rows_height(len(rows)),
        "data": {"values": cells},
        "mark": {"type": "rect", "stroke": "var(--surface)", "strokeWidth": 1 if len(rows) <= 32 else 0},
        "encoding": {
            "x": {"field": "column", **names(column_is, columns, labelAngle=0)},
            "y": {"field": "row", **names(row_is, rows)},
            "color": {
                "field": "value",
                "type": "quantitative",
                "scale": {"type": "threshold", "domain": bounds, "range": list(RAMP)},
                "legend": {"title": value_is, "format": "~g", "gradientLength": 260},
            },
            "tooltip": [
                {"field": "row", "title": row_is},
                {"field": "column", "title": column_is},
                {"field": "value", "title": value_is, "format": ",.4~g"},
            ],
        },
    }
