"""Points of two quantities as Vega-Lite: measured ones with their spread, their front, interpolated ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.report.charts.bars import HEIGHT, colours, log_scale

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.report.page_model import Spec

_FEWEST_MARKS = 3
"""Round numbers that an axis needs; with fewer between its ends it has others."""

FRONT, DOMINATED, INTERPOLATED = "on the Pareto front", "dominated", "interpolated, not measured"


def points_with_front(
    points: Sequence[dict[str, Any]],
    *,
    x: str,
    y: str,
    front: Sequence[int] = (),
    labels: dict[int, str] | None = None,
    hollow: Sequence[dict[str, Any]] = (),
) -> Spec:
    """Return points with `name`, `x`, `x_low`, `x_high`, `y`, `y_low` and `y_high`.

    `front` are the places of points that a line joins, in its order; without one all points are alike.
    `labels` are written at points. Hollow points have a `name`, `x` and `y`.
    """
    on_front = set(front)
    values = [
        {**point, "kind": FRONT if place in on_front or not front else DOMINATED}
        for place, point in enumerate(points)
    ]
    drawn_hollow = [{**point, "kind": INTERPOLATED} for point in hollow]
    across = _axis(x, [*(point[key] for point in points for key in ("x_low", "x_high")), *_all(hollow, "x")])
    up = _axis(y, [*(point[key] for point in points for key in ("y_low", "y_high")), *_all(hollow, "y")])
    kinds = [(FRONT, "var(--c1)"), (DOMINATED, "var(--quiet)"), (INTERPOLATED, "var(--c2)")]
    used = {point["kind"] for point in (*values, *drawn_hollow)}
    colour = {"field": "kind", **colours([kind for kind in kinds if kind[0] in used], symbolOpacity=1)}
    at = {"x": {"field": "x", **across}, "y": {"field": "y", **up}}
    tooltip = [
        {"field": "name", "title": "load"},
        {"field": "kind", "title": " "},
        {"field": "x", "title": x, "format": ",.4~g"},
        {"field": "y", "title": y, "format": ",.4~g"},
    ]
    bar = {"type": "rule", "strokeWidth": 1.5, "opacity": 0.5}
    layers: list[Spec] = []
    if len(front) > 1:
        line = {"type": "line", "color": "var(--c1)", "strokeWidth": 1.4, "opacity": 0.7}
        joined = [values[place] for place in front]
        layers.append({"data": {"values": joined}, "mark": line, "encoding": {**at, "order": {"field": "x"}}})
    layers.append(
        {
            "data": {"values": values},
            "encoding": {"color": colour, "tooltip": tooltip},
            "layer": [
                {
                    "mark": bar,
                    "encoding": {
                        "x": {"field": "x", **across},
                        "y": {"field": "y_low", **up},
                        "y2": {"field": "y_high"},
                    },
                },
                {
                    "mark": bar,
                    "encoding": {
                        "x": {"field": "x_low", **across},
                        "x2": {"field": "x_high"},
                        "y": {"field": "y", **up},
                    },
                },
                {"mark": {"type": "point", "filled": True, "size": 60, "opacity": 1}, "encoding": at},
            ],
        }
    )
    if drawn_hollow:
        ring = {"type": "point", "filled": False, "size": 80, "opacity": 1, "strokeWidth": 2}
        encoding = {**at, "color": colour, "tooltip": tooltip}
        layers.append({"data": {"values": drawn_hollow}, "mark": ring, "encoding": encoding})
    if labels:
        text = {"type": "text", "align": "left", "baseline": "bottom", "dx": 6, "dy": -4}
        written = [{**values[place], "label": label} for place, label in labels.items()]
        layers.append(
            {
                "data": {"values": written},
                "mark": {**text, "color": "var(--text)"},
                "encoding": {**at, "text": {"field": "label"}},
            }
        )
    return {"width": "container", "height": HEIGHT, "layer": layers}


def _all(points: Sequence[dict[str, Any]], key: str) -> list[float]:
    return [point[key] for point in points]


def _axis(title: str, values: Sequence[float]) -> dict[str, Any]:
    """Return a logarithmic axis around values: on it, the lines of the front are the interpolated values."""
    scale, marks = log_scale(min(values), max(values), room=1.2)
    axis = {"format": "~s", "labelFlush": False, "labelOverlap": True}
    axis |= {"values": marks} if len(marks) >= _FEWEST_MARKS else {"tickCount": 5}
    return {"type": "quantitative", "title": title, "scale": scale, "axis": axis}
