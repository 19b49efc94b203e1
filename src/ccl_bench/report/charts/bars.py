"""Axes and legends that charts share; bars, stacked bars and heat maps as Vega-Lite."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any

from ccl_bench.report.theme import CATEGORY, RAMP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ccl_bench.report.page_model import Spec

LYING = 16
"""Number of bars up to which they are horizontal, with their names at the left."""


def bars(rows: Sequence[tuple[str, float]], *, title: str, unit: str, colour: str = "var(--c1)") -> Spec:
    """Return one bar per row, in the given order; `unit` follows numbers in tooltips."""
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
    """Return one bar per row, stacked from `parts` as (name, colour); `of` names what a row is.

    Bars are horizontal; if there are many, vertical.
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
            "tooltip": [
                {"field": of, "title": of},
                {"field": "part", "title": "part"},
                {"field": "value", "title": title, "format": ",.4~g"},
            ],
        },
    }


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    of: tuple[str, str, str],
) -> Spec:
    """Return a heat map; `of` names what a row, a column and a colour are."""
    row_is, column_is, value_is = of
    cells: list[dict[str, Any]] = [
        {"row": row, "column": column, "value": value}
        for row, numbers in zip(rows, values, strict=True)
        for column, value in zip(columns, numbers, strict=True)
        if value is not None
    ]
    bounds = steps_of_ramp(max((cell["value"] for cell in cells), default=1.0))
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


Encoding = dict[str, Any]

HEIGHT = 220
"""Height of a chart whose data does not give it one, in pixels."""

_FEW, _MANY, _VERY_MANY = 16, 32, 72
_DECADES = 3
"""Number of powers of ten up to which an axis has marks between them."""
_MARKS = 8
_ALIKE = 0.05
"""Smallest range of an axis, as a share of the value: smaller differences look alike."""


def names(title: str, ordered: Sequence[str], **more: Any) -> Encoding:
    """Return an axis of names in the given order; if there are many, not all are written."""
    return {
        "type": "nominal",
        "sort": list(ordered),
        "title": title or None,
        "axis": more,
    }


def colours(chosen: Sequence[tuple[str, str]], **legend: Any) -> Encoding:
    """Return colours by name, with a legend if there are several."""
    return {
        "type": "nominal",
        "scale": {"domain": [name for name, _ in chosen], "range": [colour for _, colour in chosen]},
        "legend": {"title": None, "columns": 2, **legend} if len(chosen) > 1 else None,
    }


def in_order(ordered: Sequence[str]) -> list[tuple[str, str]]:
    """Return names with the colours of categories, in order."""
    return [(name, CATEGORY[place % len(CATEGORY)]) for place, name in enumerate(ordered)]


def steps_of_ramp(largest: float) -> list[float]:
    """Return the six bounds between the seven colours of the ramp: round numbers up to about `largest`."""
    steps = len(RAMP) - 1
    rough = (largest or 1.0) / (steps + 1)
    scale = 10.0 ** _exponent(rough)
    step = next(mark * scale for mark in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if mark * scale >= rough * 0.999)
    return [float(f"{step * place:.6g}") for place in range(1, steps + 1)]


def rows_height(rows: int) -> int:
    """Return the height of a chart with many rows: enough space for few, a limit for many."""
    each = 24 if rows <= _FEW else 14 if rows <= _MANY else 8 if rows <= _VERY_MANY else 5
    return rows * each


def linear_scale(values: Iterable[float]) -> Encoding:
    """Return a linear scale around values, wide enough that noise does not fill it."""
    listed = list(values)
    scale: Encoding = {"zero": False, "nice": True}
    if not listed:
        return scale
    low, high = min(listed), max(listed)
    if high - low >= _ALIKE * high:
        return scale
    middle = (low + high) / 2
    return scale | {"domain": [middle * (1 - _ALIKE / 2), middle * (1 + _ALIKE / 2)]}


def log_scale(least: float, most: float, *, room: float = 1.0) -> tuple[Encoding, list[float]]:
    """Return a logarithmic scale between two values with a margin of factor `room`, and its marks."""
    low, high = least / room, most * room
    decades = range(_exponent(low), _exponent(high) + 1)
    digits = (1, 2, 5) if len(decades) <= _DECADES else (1,)
    marks = [digit * 10.0**decade for decade in decades for digit in digits]
    marks_inside = [mark for mark in marks if low <= mark <= high]
    return {"type": "log", "domain": [low, high], "nice": False}, marks_inside[
        :: max(1, ceil(len(marks_inside) / _MARKS))
    ]


def _exponent(value: float) -> int:
    return floor(log10(value))
