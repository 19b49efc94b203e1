"""How charts look everywhere: fonts, grid and colours, as a Vega-Lite configuration."""

from __future__ import annotations

from typing import Any

from ccl_bench.report.html.colours import CATEGORY

_SIZE = 12
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', 'DejaVu Sans', sans-serif"

CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": FONT,
    "aria": False,
    "mark": {"aria": False},
    "padding": 4,
    "view": {"stroke": None},
    "range": {"category": list(CATEGORY)},
    "axis": {
        "domainColor": "var(--line)",
        "gridColor": "var(--line)",
        "gridOpacity": 0.6,
        "tickColor": "var(--line)",
        "labelColor": "var(--quiet)",
        "labelFontSize": _SIZE,
        "titleColor": "var(--quiet)",
        "titleFontSize": _SIZE,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelLimit": 220,
        "labelOverlap": True,
        "labelSeparation": 7,
    },
    "axisX": {"labelFlush": True},
    "axisY": {"ticks": False, "domain": False},
    "legend": {
        "labelColor": "var(--text)",
        "labelFontSize": _SIZE,
        "titleColor": "var(--quiet)",
        "titleFontSize": _SIZE,
        "titleFontWeight": "normal",
        "orient": "top",
        "symbolType": "square",
        "symbolStrokeWidth": 0,
        "labelLimit": 260,
        "offset": 8,
    },
    "line": {"strokeWidth": 1.8},
    "point": {"filled": True, "size": 45},
    "rule": {"color": "var(--quiet)"},
    "text": {"color": "var(--text)", "fontSize": _SIZE},
}
