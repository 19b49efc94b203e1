"""The memory of a device over time: what is reserved, and what of it tensors hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.report.charts.scales import HEIGHT, colours
from ccl_bench.report.numbers import GIGA

if TYPE_CHECKING:
    from ccl_bench.report.parts import Spec
    from ccl_bench.result.observation import MemoryCurve

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
            _remarks(x),
        ],
    }


def _remarks(x: str) -> Spec:
    """Return what is told under the pointer, on a line at the nearest point."""
    return {
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
