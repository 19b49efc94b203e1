"""What was learnt: loss and other values that the training wrote down."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from ccl_bench.report.charts.lines import curves
from ccl_bench.report.numbers import amount
from ccl_bench.report.parts import Chart, Quantity, Section
from ccl_bench.report.sections.seen import absent, table, tile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.report.sections.seen import Seen

KEY, TITLE = "training", "Training quality"

_POINTS = 500
_CHARTS = 4


def training(looked: Seen) -> Section:
    """Return the section."""
    result = looked.valued("training_quality")
    if result is None:
        return absent(KEY, TITLE, looked.why("training_quality"))
    perplexity = result.details.get("perplexity")
    note = f"perplexity {amount(perplexity)}" if perplexity else ""
    return Section(
        KEY,
        TITLE,
        "As the training wrote it down. A fast run that learns nothing is no good run.",
        tuple(tile(looked, "training_quality", "Loss at the last step", note=note)),
        tuple(_charts(result.details.get("series", {}))),
    )


def _charts(series: dict[str, list[dict[str, Any]]]) -> Iterator[Chart]:
    for name, points in [*series.items()][:_CHARTS]:
        if len(points) < 2:
            continue
        each = ceil(len(points) / _POINTS)
        kept = [*points[::each], *([points[-1]] if (len(points) - 1) % each else [])]
        pairs = [(float(point["step"]), float(point["value"])) for point in kept]
        title = name.replace("_", " ")
        spec = curves({title: pairs}, x="step", y=title, of="value", zero=False)
        first, last = pairs[0], pairs[-1]
        summary = (
            f"From {amount(first[1])} at step {first[0]:,.0f} to {amount(last[1])} at step {last[0]:,.0f}."
        )
        rows = [(f"{step:,.0f}", Quantity(value, amount(value))) for step, value in pairs]
        note = f"One of every {each:,} of {len(points):,} values, and the last." if each > 1 else ""
        key = f"training-{name.replace('_', '-').lower()}"
        yield Chart(key, title.capitalize(), spec, summary, table(("step", title), rows, left=()), note)
