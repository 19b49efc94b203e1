"""Charts of a comparison: changes with their noise, and the parts that a step's difference is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.report.charts.scales import colours, names, rows_height
from ccl_bench.report.comparison import phrases
from ccl_bench.report.numbers import duration, time_unit
from ccl_bench.report.parts import Chart, Quantity, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.comparison.attribution import Attribution
    from ccl_bench.comparison.changes import Change
    from ccl_bench.report.parts import Spec

_VERDICTS = (
    ("worse", "var(--error)"),
    ("better", "var(--good)"),
    ("changed", "var(--c5)"),
    ("cannot tell", "var(--warning)"),
    ("no change", "var(--idle)"),
)
_PART_COLOURS = (
    ("compute", "var(--compute)"),
    ("fused", "var(--c5)"),
    ("exposed communication", "var(--communication)"),
    ("exposed memory", "var(--memory)"),
    ("idle", "var(--idle)"),
)
_ROOM = 1.25
_ROW = 20
_LEAST_PERCENT = 5.0


def changes_chart(key: str, changes: Sequence[Change]) -> Chart | None:
    """Return the relative changes that have an interval, each with it; None where there is none."""
    shown = [_row(change) for change in phrases.ordered(changes) if _is_drawn(change)]
    if not shown:
        return None
    told = [abs(row["change"]) for row in shown if row["verdict"] in {"worse", "better", "changed"}]
    reach = max([_LEAST_PERCENT, *told]) * _ROOM
    cut = sum(max(abs(row["low"]), abs(row["high"])) > reach for row in shown)
    counts = phrases.headline(changes)
    return Chart(
        key,
        "Changes with their noise",
        _spec(shown, reach),
        f"{counts}. A bar is where the change lies, as far as the spread over steps tells; equal numbers are "
        "left out.",
        _data(shown),
        f"{cut} wider than the chart." if cut else "",
    )


def _is_drawn(change: Change) -> bool:
    interval = change.interval
    return bool(interval and change.baseline and (interval.low or interval.high))


def _row(change: Change) -> dict[str, Any]:
    interval, scale = change.interval, 100 / abs(change.baseline or 1.0)
    return {
        "metric": change.metric,
        "verdict": change.verdict,
        "change": scale * (change.difference or 0.0),
        "low": scale * (interval.low if interval else 0.0),
        "high": scale * (interval.high if interval else 0.0),
    }


def _spec(rows: list[dict[str, Any]], reach: float) -> Spec:
    across = {
        "type": "quantitative",
        "title": "change, %",
        "scale": {"domain": [-reach, reach], "nice": False},
        "axis": {"tickCount": 7},
    }
    along = {"field": "metric", **names("", [row["metric"] for row in rows])}
    coloured = {"field": "verdict", **colours(_VERDICTS)}
    tooltip = [
        {"field": "metric", "title": "metric"},
        {"field": "verdict", "title": "verdict"},
        *({"field": name, "title": f"{name}, %", "format": "+.3~g"} for name in ("change", "low", "high")),
    ]
    shared = {"y": along, "color": coloured, "tooltip": tooltip}
    bar = {"type": "rule", "strokeWidth": 5, "opacity": 0.55, "clip": True}
    dot = {"type": "point", "filled": True, "size": 60, "clip": True}
    return {
        "width": "container",
        "height": _ROW * len(rows),
        "data": {"values": rows},
        "layer": [
            {"mark": {"type": "rule", "color": "var(--quiet)"}, "encoding": {"x": {"datum": 0}}},
            {"mark": bar, "encoding": {**shared, "x": {"field": "low", **across}, "x2": {"field": "high"}}},
            {"mark": dot, "encoding": {**shared, "x": {"field": "change", **across}}},
        ],
    }


def _data(rows: list[dict[str, Any]]) -> Table:
    cells = tuple(
        (
            row["metric"],
            *(Quantity(row[name], f"{row[name]:+.3g} %") for name in ("change", "low", "high")),
            row["verdict"],
        )
        for row in rows
    )
    return Table(("metric", "change", "from", "to", "verdict"), cells, numeric=frozenset({1, 2, 3}))


def parts_chart(key: str, found: Attribution) -> Chart:
    """Return by how much each part of a step changed."""
    per, unit = time_unit([part.difference_s for part in found.parts])
    rows = [{"part": phrases.words(p.name), "change": per * p.difference_s} for p in found.parts]
    shown = {row["part"] for row in rows}
    coloured = [(name, colour) for name, colour in _PART_COLOURS if name in shown]
    spec: Spec = {
        "width": "container",
        "height": rows_height(len(rows)),
        "data": {"values": rows},
        "mark": {"type": "bar", "height": {"band": 0.72}},
        "encoding": {
            "y": {"field": "part", **names("", [name for name, _ in coloured])},
            "x": {"field": "change", "type": "quantitative", "title": f"change of the mean step, {unit}"},
            "color": {"field": "part", **colours(coloured), "legend": None},
            "tooltip": [
                {"field": "part", "title": "part"},
                {"field": "change", "title": unit, "format": "+.4~g"},
            ],
        },
    }
    return Chart(key, "Where in the step", spec, phrases.step_sentence(found), _parts(found))


def _parts(found: Attribution) -> Table:
    rows = tuple(
        (
            phrases.words(part.name) if part is not found.step else "step",
            Quantity(part.baseline_s, duration(part.baseline_s)),
            Quantity(part.other_s, duration(part.other_s)),
            Quantity(part.difference_s, phrases.seconds(part)),
        )
        for part in (*found.parts, found.step)
    )
    return Table(("part", "baseline", "run", "change"), rows, numeric=frozenset({1, 2, 3}))
