"""Single charts as pictures: SVG and PNG, without a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.base.extras import require
from ccl_bench.base.text import shown_json
from ccl_bench.report.theme import CHART_CONFIG, LIGHT, with_plain_colours

if TYPE_CHECKING:
    from ccl_bench.report.page_model import PageChart
    from ccl_bench.report.render import ImageForm

_WIDTH = 720
_PIXELS_PER_POINT = 2
SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
_FONT = "DejaVu Sans, Liberation Sans, Arial, sans-serif"
"""Fonts that the renderer finds by name; it knows no `system-ui`."""


def renderer() -> Any:
    """Return the package that draws pictures; raise UsageError if it is not installed."""
    return require("vl_convert", "images")


def image(chart: PageChart, form: ImageForm) -> bytes:
    """Return a chart as a picture with its title, on white, in the colours of the light theme.

    Raises UsageError without the package that draws.
    """
    spec = shown_json(static_spec(chart))
    if form == "svg":
        return str(renderer().vegalite_to_svg(spec)).encode()
    return bytes(renderer().vegalite_to_png(spec, scale=_PIXELS_PER_POINT))


def static_spec(chart: PageChart) -> dict[str, Any]:
    """Return the specification of a chart that stands alone: titled, on white, in the light theme."""
    config = {
        **with_plain_colours(CHART_CONFIG),
        "font": _FONT,
        "background": LIGHT["surface"],
        "padding": 16,
    }
    title = {"text": chart.title, "anchor": "start", "fontSize": 15, "color": LIGHT["text"], "offset": 10}
    return {
        "$schema": SCHEMA,
        **with_plain_colours(chart.spec),
        "width": _WIDTH,
        "title": title,
        "config": config,
    }
