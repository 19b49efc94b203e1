"""Heat maps: one coloured cell for each row and column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.report.charts.scales import names, rows_height, steps_of_ramp
from ccl_bench.report.html.colours import RAMP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.report.parts import Spec


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
