"""Colours and fonts of pages and charts, as CSS variables for a light and a dark theme.

People with any of the common colour-vision deficiencies can distinguish the eight colours of a category
[Okabe and Ito, Color Universal Design, 2008]. They are darkened on white and lightened on black, to a
contrast of 3:1 or more.
"""

from __future__ import annotations

import re
from typing import Any

LIGHT = {
    "page": "#f5f6f8",
    "surface": "#ffffff",
    "raised": "#f0f2f5",
    "text": "#1a1f29",
    "quiet": "#596273",
    "line": "#d9dde4",
    "link": "#0b5cad",
    "error": "#b3261e",
    "warning": "#8a5a00",
    "note": "#4a5568",
    "good": "#1b7340",
    "compute": "#2f6db5",
    "communication": "#b08968",
    "waiting": "#8e1b3a",
    "transfer": "#d9691e",
    "memory": "#8a5fb0",
    "idle": "#b9c0cb",
    "bubble": "#d1a92b",
    "bubble-steady": "#ecd98f",
    "bubble-end": "#8c6a00",
    "c1": "#2f6db5",
    "c2": "#d9691e",
    "c3": "#15875f",
    "c4": "#b3508b",
    "c5": "#3c93c2",
    "c6": "#a57a00",
    "c7": "#6b5bbd",
    "c8": "#7b8494",
    "ramp-0": "#edf2f8",
    "ramp-1": "#cfe0ef",
    "ramp-2": "#a3c6e1",
    "ramp-3": "#6ba5cf",
    "ramp-4": "#3a7fb8",
    "ramp-5": "#1c5794",
    "ramp-6": "#0b2f5e",
}

DARK = {
    "page": "#11151b",
    "surface": "#191e26",
    "raised": "#222833",
    "text": "#e6e9ee",
    "quiet": "#a0a9b8",
    "line": "#333b48",
    "link": "#7ab6f5",
    "error": "#ff8a80",
    "warning": "#f2b84b",
    "note": "#b3bccb",
    "good": "#6fd097",
    "compute": "#5b9be6",
    "communication": "#7a6a45",
    "waiting": "#ff5c80",
    "transfer": "#f08a45",
    "memory": "#b48be0",
    "idle": "#5a6475",
    "bubble": "#e0bd4f",
    "bubble-steady": "#8f7526",
    "bubble-end": "#fff0b3",
    "c1": "#5b9be6",
    "c2": "#f08a45",
    "c3": "#3dbd8d",
    "c4": "#e07fb8",
    "c5": "#6fc3ee",
    "c6": "#d9a92b",
    "c7": "#a094f0",
    "c8": "#98a2b3",
    "ramp-0": "#1f2631",
    "ramp-1": "#223a56",
    "ramp-2": "#27527d",
    "ramp-3": "#3470a8",
    "ramp-4": "#5394cc",
    "ramp-5": "#8abde6",
    "ramp-6": "#d3e9fb",
}

COMMUNICATION_PARTS = {
    "waiting": "var(--waiting)",
    "transfer": "var(--transfer)",
    "unknown": "var(--communication)",
}
"""The parts of communication and their colours, the same everywhere; undivided communication is unknown."""

CATEGORY = tuple(f"var(--c{number})" for number in range(1, 9))
RAMP = tuple(f"var(--ramp-{step})" for step in range(7))

_VARIABLE = re.compile(r"var\(--([\w-]+)\)")
_DATA = {"data", "datasets"}


def css_variables() -> str:
    """Return the variables: light, dark if the reader prefers or selects it, light in print."""
    light, dark = _declared(LIGHT, "light"), _declared(DARK, "dark")
    return (
        f":root {{{light}}}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{{dark}}} }}\n"
        f"@media screen {{ :root[data-theme=dark] {{{dark}}} }}\n"
    )


def _declared(colours: dict[str, str], scheme: str) -> str:
    variables = " ".join(f"--{name}: {value};" for name, value in colours.items())
    return f" color-scheme: {scheme}; {variables} "


def with_plain_colours(part: Any, colours: dict[str, str] = LIGHT) -> Any:
    """Return a specification with plain colours instead of variables; its data is unchanged."""
    if isinstance(part, dict):
        return {
            key: each if key in _DATA else with_plain_colours(each, colours) for key, each in part.items()
        }
    if isinstance(part, list):
        return [with_plain_colours(each, colours) for each in part]
    if isinstance(part, str):
        return _VARIABLE.sub(lambda match: colours.get(match[1], match[0]), part)
    return part


_FONT_SIZE = 12
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', 'DejaVu Sans', sans-serif"

CHART_CONFIG: dict[str, Any] = {
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
        "labelFontSize": _FONT_SIZE,
        "titleColor": "var(--quiet)",
        "titleFontSize": _FONT_SIZE,
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
        "labelFontSize": _FONT_SIZE,
        "titleColor": "var(--quiet)",
        "titleFontSize": _FONT_SIZE,
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
    "text": {"color": "var(--text)", "fontSize": _FONT_SIZE},
}
