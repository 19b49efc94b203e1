"""Points over a logarithmic size, with their spread and a peak that they cannot pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.report.charts.scales import HEIGHT, colours, in_order, logarithmic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccl_bench.report.parts import Spec

_BYTES = "format(datum.value, '.3~s') + 'B'"
"""10^3 bytes are a kB; Vega's `~s` writes the prefix."""

_APART_PX = 7
"""Between points of the same size, so that none hides another."""


def spread_over_size(
    points: Sequence[Mapping[str, Any]], *, x: str, y: str, peaks: Sequence[tuple[str, float]]
) -> Spec:
    """Return points with `kind`, `bytes`, `low`, `middle`, `high` and `calls`, and peaks as (name, value)."""
    kinds = list(dict.fromkeys(point["kind"] for point in points))
    values = [value for point in points for value in (point["low"], point["high"])]
    values += [peak for _, peak in peaks]
    across, sizes = logarithmic(*_ends(point["bytes"] for point in points), room=2)
    up, rates = logarithmic(*_ends(values), room=1.6)
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
        "tooltip": _tooltip(y),
    }
    axis = {"type": "quantitative", "title": y, "scale": up, "axis": {"values": rates, "format": "~g"}}
    return {
        "width": "container",
        "height": HEIGHT,
        "layer": [
            *(
                {
                    "data": {"values": [dict(point) for point in points if point["kind"] == kind]},
                    "encoding": shared,
                    "layer": _marks(axis, (place - (len(kinds) - 1) / 2) * _APART_PX),
                }
                for place, kind in enumerate(kinds)
            ),
            *(_peak(name, value, axis) for name, value in peaks),
        ],
    }


def _ends(values: Any) -> tuple[float, float]:
    listed = list(values)
    return min(listed), max(listed)


def _marks(axis: dict[str, Any], aside: float) -> list[Spec]:
    """Return the stroke and the dot of each point, moved aside by some pixels."""
    return [
        {
            "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.5, "xOffset": aside},
            "encoding": {"y": {"field": "low", **axis}, "y2": {"field": "high"}},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1, "xOffset": aside},
            "encoding": {"y": {"field": "middle", **axis}},
        },
    ]


def _peak(name: str, value: float, axis: dict[str, Any]) -> Spec:
    at = {"y": {"field": "peak", **axis}}
    label = {"type": "text", "align": "right", "baseline": "bottom", "dy": -4, "color": "var(--quiet)"}
    return {
        "data": {"values": [{"peak": value, "name": name}]},
        "layer": [
            {"mark": {"type": "rule", "strokeDash": [5, 4], "color": "var(--quiet)"}, "encoding": at},
            {"mark": label, "encoding": {**at, "x": {"value": "width"}, "text": {"field": "name"}}},
        ],
    }


def _tooltip(y: str) -> list[dict[str, Any]]:
    unit = y.rpartition(", ")[2]
    return [
        {"field": "kind", "title": "collective"},
        {"field": "size", "title": "message"},
        {"field": "calls", "title": "calls", "format": ","},
        {"field": "middle", "title": f"median, {unit}", "format": ",.4~g"},
        {"field": "low", "title": f"10 % are below, {unit}", "format": ",.4~g"},
        {"field": "high", "title": f"10 % are above, {unit}", "format": ",.4~g"},
    ]
