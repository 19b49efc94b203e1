"""What users of a served model met, as text: rates, and how times spread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.report.console import Group, Text, aligned
from ccl_bench.report.numbers import duration, with_unit
from ccl_bench.report.sections.serving import RATES, STATISTICS, TIMES, distribution

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ccl_bench.result import Result

_SHOWN = tuple(name for name in STATISTICS if name not in {"min", "max"})


def serving(results: dict[str, Result]) -> RenderableType | None:
    """Return the serving results; what has no value is left out, and so is all where nothing has one."""
    rates = [
        (Text(label, "dim"), with_unit(result.value, result.unit))
        for name, label in RATES.items()
        if (result := results.get(name)) and result.value is not None
    ]
    times = [
        (label, *_spread(result))
        for name, label in TIMES.items()
        if (result := results.get(name)) and result.value is not None
    ]
    parts: list[RenderableType] = []
    if rates:
        parts.append(aligned(("", ""), rates))
    if times:
        header = ("TIME", *(name.upper() for name in _SHOWN))
        parts.append(aligned(header, times, right=range(1, len(header))))
    return Group(*parts) if parts else None


def _spread(result: Result) -> list[str]:
    """Return the statistics of a time; the mean is the result's own."""
    known = distribution(result.details) | {"mean": result.value or 0.0}
    return [duration(known[name]) if name in known else "-" for name in _SHOWN]
