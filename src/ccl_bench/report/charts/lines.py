"""Lines, bands, curves and points as Vega-Lite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.base.units import GIGA
from ccl_bench.report.charts.bars import HEIGHT, colours, in_order, linear_scale, log_scale, names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccl_bench.report.page_model import Spec
    from ccl_bench.result.report_data import MemoryCurve

Spread = tuple[str, float, float, float]
"""Name, minimum, median and maximum."""

_MARKED = 60
"""Number of points on a line up to which each has a dot."""


def lines_over_names(
    columns: Sequence[str], rows: Mapping[str, Sequence[float | None]], *, x: str, y: str, of: str
) -> Spec:
    """Return one line per row over named columns; `of` names what a row is."""
    values = [
        {"x": column, "y": value, of: name}
        for name, numbers in rows.items()
        for column, value in zip(columns, numbers, strict=True)
        if value is not None
    ]
    all_values = (value for numbers in rows.values() for value in numbers if value is not None)
    return {
        "width": "container",
        "height": HEIGHT,
        "data": {"values": values},
        "mark": {"type": "line", "point": len(columns) <= _MARKED, "strokeWidth": 1.6},
        "encoding": {
            "x": {"field": "x", **names(x, columns, labelAngle=0)},
            "y": _quantity("y", y, linear_scale(all_values)),
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
    """Return a bar from minimum to maximum with a dot at the median for each row."""
    stroke = {"type": "rule", "color": "var(--c1)", "strokeWidth": 2, "opacity": 0.55}
    dot = {"type": "point", "color": "var(--c1)", "size": 36, "opacity": 1}
    return _spreads(rows, stroke, dot, x=x, y=y)


def _spreads(
    rows: Sequence[Spread], extent: dict[str, Any], middle: dict[str, Any], *, x: str, y: str
) -> Spec:
    """Return one mark from minimum to maximum of each row, and one at its median."""
    values = [{"x": name, "least": low, "median": mid, "most": high} for name, low, mid, high in rows]
    scale = linear_scale(end for _, low, _, high in rows for end in (low, high))
    return {
        "width": "container",
        "height": HEIGHT,
        "data": {"values": values},
        "encoding": {
            "x": {"field": "x", **names(x, [name for name, *_ in rows], labelAngle=0)},
            "tooltip": [
                {"field": "x", "title": x},
                *(
                    {"field": name, "title": f"{name}, {y.rpartition(', ')[2]}", "format": ",.4~g"}
                    for name in ("least", "median", "most")
                ),
            ],
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
    """Return one line per row through points of numbers."""
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


_BYTES = "format(datum.value, '.3~s') + 'B'"
"""10^3 bytes are a kB; Vega's `~s` adds the prefix."""

_APART_PX = 7
"""Distance between points of the same size, so that none hides another."""


def spread_over_size(
    points: Sequence[Mapping[str, Any]],
    *,
    x: str,
    y: str,
    peaks: Sequence[tuple[str, float]],
    references: Sequence[Mapping[str, Any]] = (),
) -> Spec:
    """Return points with `kind`, `bytes`, `low`, `middle`, `high` and `calls`, and peaks as (name, value).

    References are points of dotted lines, with `kind`, `bytes`, `rate` and what `reaches` it.
    """
    kinds = list(dict.fromkeys(point["kind"] for point in points))
    values = [value for point in points for value in (point["low"], point["high"])]
    values += [*(peak for _, peak in peaks), *(point["rate"] for point in references)]
    across, sizes = log_scale(*_ends(point["bytes"] for point in points), room=2)
    up, rates = log_scale(*_ends(values), room=1.6)
    unit = y.rpartition(", ")[2]
    shared = {
        "x": {
            "field": "bytes",
            "type": "quantitative",
            "title": x,
            "scale": across,
            "axis": {"labelExpr": _BYTES, "values": sizes, "grid": False, "labelFlush": False},
        },
        "color": {
            "field": "kind",
            **colours(in_order(kinds), symbolOpacity=1),
        },
        "tooltip": [
            {"field": "kind", "title": "collective"},
            {"field": "size", "title": "message"},
            {"field": "calls", "title": "calls", "format": ","},
            {"field": "middle", "title": f"median, {unit}", "format": ",.4~g"},
            {"field": "low", "title": f"10 % are below, {unit}", "format": ",.4~g"},
            {"field": "high", "title": f"10 % are above, {unit}", "format": ",.4~g"},
        ],
    }
    axis = {"type": "quantitative", "title": y, "scale": up, "axis": {"values": rates, "format": "~g"}}
    layers: list[Spec] = []
    for place, kind in enumerate(kinds):
        aside = (place - (len(kinds) - 1) / 2) * _APART_PX
        bar = {"type": "rule", "strokeWidth": 2, "opacity": 0.5, "xOffset": aside}
        dot = {"type": "point", "filled": True, "size": 60, "opacity": 1, "xOffset": aside}
        layers.append(
            {
                "data": {"values": [dict(point) for point in points if point["kind"] == kind]},
                "encoding": shared,
                "layer": [
                    {
                        "mark": bar,
                        "encoding": {"y": {"field": "low", **axis}, "y2": {"field": "high"}},
                    },
                    {"mark": dot, "encoding": {"y": {"field": "middle", **axis}}},
                ],
            }
        )
    if references:
        tooltip = [
            {"field": "reaches", "title": "reference"},
            {"field": "bytes", "title": "bytes", "format": ","},
            {"field": "rate", "title": unit, "format": ",.4~g"},
        ]
        dotted = {"type": "line", "strokeDash": [2, 3], "strokeWidth": 1.5, "clip": True}
        layers.append(
            {
                "data": {"values": [dict(point) for point in references]},
                "mark": dotted,
                "encoding": {
                    **shared,
                    "y": {"field": "rate", **axis},
                    "detail": {"field": "reaches"},
                    "tooltip": tooltip,
                },
            }
        )
    label = {"type": "text", "align": "right", "baseline": "bottom", "dy": -4, "color": "var(--quiet)"}
    for name, value in peaks:
        at = {"y": {"field": "peak", **axis}}
        layers.append(
            {
                "data": {"values": [{"peak": value, "name": name}]},
                "layer": [
                    {"mark": {"type": "rule", "strokeDash": [5, 4], "color": "var(--quiet)"}, "encoding": at},
                    {"mark": label, "encoding": {**at, "x": {"value": "width"}, "text": {"field": "name"}}},
                ],
            }
        )
    return {"width": "container", "height": HEIGHT, "layer": layers}


def _ends(values: Any) -> tuple[float, float]:
    listed = list(values)
    return min(listed), max(listed)


_PARTS = [("allocated", "var(--memory)"), ("reserved", "var(--quiet)")]


def memory_curve(curve: MemoryCurve, x: str) -> Spec:
    """Return reserved memory as a line, allocated as an area with the range of each point."""
    values = [
        {"at": at, "low": low / GIGA, "allocated": high / GIGA, "reserved": reserved / GIGA}
        for at, low, high, reserved in zip(
            curve.at,
            curve.lowest_allocated_bytes,
            curve.highest_allocated_bytes,
            curve.highest_reserved_bytes,
            strict=True,
        )
    ]
    axis = {"type": "quantitative", "title": "memory, GB", "axis": {"tickCount": 5}}
    # The tooltip is on a line at the nearest point, since an area is hit only between its points.
    remarks = {
        "params": [
            {
                "name": "near",
                "select": {
                    "type": "point",
                    "fields": ["at"],
                    "nearest": True,
                    "on": "pointerover",
                    "clear": "pointerout",
                },
            }
        ],
        "mark": {"type": "rule", "color": "var(--quiet)"},
        "encoding": {
            "opacity": {"condition": {"param": "near", "empty": False, "value": 0.6}, "value": 0},
            "tooltip": [
                {"field": "at", "title": x, "format": ",.4~g"},
                {"field": "low", "title": "least allocated, GB", "format": ",.4~g"},
                {"field": "allocated", "title": "most allocated, GB", "format": ",.4~g"},
                {"field": "reserved", "title": "most reserved, GB", "format": ",.4~g"},
            ],
        },
    }
    colour = {"type": "nominal", **colours(_PARTS, symbolOpacity=1)}
    return {
        "width": "container",
        "height": HEIGHT,
        "data": {"values": values},
        "encoding": {
            "x": {"field": "at", "type": "quantitative", "title": x, "axis": {"tickCount": 6, "grid": False}},
        },
        "layer": [
            {
                "mark": {"type": "area", "interpolate": "step-after", "opacity": 0.3},
                "encoding": {"y": {"field": "allocated", **axis}, "color": {"datum": "allocated", **colour}},
            },
            {
                "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.2},
                "encoding": {"y": {"field": "allocated", **axis}, "color": {"datum": "allocated", **colour}},
            },
            {
                "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.6},
                "encoding": {"y": {"field": "reserved", **axis}, "color": {"datum": "reserved", **colour}},
            },
            remarks,
        ],
    }
