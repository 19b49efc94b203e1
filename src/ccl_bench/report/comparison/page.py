"""A comparison as a page: its sections, its charts, and the whole as HTML that opens without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench import metrics
from ccl_bench.report.charts.bars import colours, names, rows_height
from ccl_bench.report.comparison import phrases
from ccl_bench.report.formatting import duration, time_unit
from ccl_bench.report.page_model import ManualPage, PageChart, PageSection, PageTable, Quantity, Term
from ccl_bench.report.render.html import definitions, html_page, section
from ccl_bench.report.theme import COMMUNICATION_PARTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ccl_bench.base.registry import Registry
    from ccl_bench.comparison.changes import Change
    from ccl_bench.comparison.comparability import Comparability, Difference
    from ccl_bench.comparison.compare import Comparison, Pair
    from ccl_bench.comparison.step_breakdown import Attribution, Division
    from ccl_bench.metrics import Metric
    from ccl_bench.report.page_model import Cell, Spec

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
    ("waiting", COMMUNICATION_PARTS["waiting"]),
    ("transfer", COMMUNICATION_PARTS["transfer"]),
    ("unknown communication", COMMUNICATION_PARTS["unknown"]),
    ("exposed memory", "var(--memory)"),
    ("idle", "var(--idle)"),
    ("beyond the mean rank", "var(--c6)"),
)
_ROOM = 1.25
_ROW = 20
_LEAST_PERCENT = 5.0


def changes_chart(key: str, changes: Sequence[Change]) -> PageChart | None:
    """Return the relative changes that have an interval, with it; None if there is none."""
    rows = [row for change in phrases.ordered(changes) if (row := _row(change)) is not None]
    if not rows:
        return None
    clear = [abs(row["change"]) for row in rows if row["verdict"] in {"worse", "better", "changed"}]
    reach = max([_LEAST_PERCENT, *clear]) * _ROOM
    cut = sum(max(abs(row["low"]), abs(row["high"])) > reach for row in rows)
    counts = phrases.headline(changes)
    return PageChart(
        key,
        "Changes with their noise",
        _spec(rows, reach),
        f"{counts}. A bar is the interval of the change, estimated from the spread over steps. "
        "Unchanged numbers are left out.",
        _data(rows),
        f"{cut} extend beyond the chart." if cut else "",
    )


def _row(change: Change) -> dict[str, Any] | None:
    """Return a change in percent of its baseline; None without an interval, and for unchanged numbers."""
    interval = change.interval
    if interval is None or not change.baseline or not (interval.low or interval.high):
        return None
    scale = 100 / abs(change.baseline)
    return {
        "metric": change.metric,
        "verdict": change.verdict,
        "change": scale * (change.difference or 0.0),
        "low": scale * interval.low,
        "high": scale * interval.high,
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


def _data(rows: list[dict[str, Any]]) -> PageTable:
    cells = tuple(
        (
            row["metric"],
            *(Quantity(row[name], f"{row[name]:+.3g} %") for name in ("change", "low", "high")),
            row["verdict"],
        )
        for row in rows
    )
    return PageTable(("metric", "change", "from", "to", "verdict"), cells, numeric=frozenset({1, 2, 3}))


def parts_chart(key: str, attribution: Attribution) -> PageChart:
    """Return the change of each part of a step."""
    parts = attribution.finest_parts
    per, unit = time_unit([part.difference_s for part in parts])
    rows = [{"part": phrases.label(p.name), "change": per * p.difference_s} for p in parts]
    part_names = {row["part"] for row in rows}
    coloured = [(name, colour) for name, colour in _PART_COLOURS if name in part_names]
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
    return PageChart(key, "Where in the step", spec, phrases.step_sentence(attribution), _parts(attribution))


def _parts(attribution: Attribution) -> PageTable:
    rows = tuple(
        (
            phrases.label(part.name) if part is not attribution.step else "step",
            Quantity(part.baseline_s, duration(part.baseline_s)),
            Quantity(part.other_s, duration(part.other_s)),
            Quantity(part.difference_s, phrases.seconds(part)),
        )
        for part in (*attribution.finest_parts, attribution.step)
    )
    return PageTable(("part", "baseline", "run", "change"), rows, numeric=frozenset({1, 2, 3}))


TITLE = "Runs compared"


def html(comparison: Comparison) -> str:
    """Return the page of a comparison."""
    from markupsafe import Markup

    page_sections = list(sections(comparison))
    head = Markup("<header><h1>{}</h1><p>{}</p></header>").format(TITLE, phrases.noise_note(comparison))
    definition_list = definitions(_definitions(comparison))
    last = Markup('<section id="definitions"><h2>Definitions</h2>{}</section>').format(definition_list)
    charts = {chart.key: chart.spec for each in page_sections for chart in each.charts}
    body = Markup("\n").join([head, *map(section, page_sections), last])
    navigation = [(f"#{each.key}", each.title) for each in page_sections]
    return html_page(TITLE, str(body), charts=charts, navigation=navigation)


def sections(comparison: Comparison) -> Iterator[PageSection]:
    """Yield the sections of each run against the baseline, in order."""
    for place, pair in enumerate(comparison.pairs):
        of = f" in {pair.name}" if len(comparison.pairs) > 1 else ""
        first = phrases.verdict(comparison, pair)
        yield _whether(f"pair-{place}", phrases.title(comparison, pair), pair, first)
        if pair.attribution is not None:
            yield _where(f"where-{place}", f"Where the step changed{of}", pair.attribution)
        yield _changes(f"changes-{place}", f"What changed{of}", pair)


def _whether(key: str, title: str, pair: Pair, first: str) -> PageSection:
    """Return whether two runs are comparable, how they differ, and which limits they meet."""
    comparability = pair.comparability
    notes = filter(None, (phrases.on_one_side(comparability), *map(phrases.judgement, pair.judgements)))
    compared = phrases.comparability(comparability)
    about = f"{first} {compared}." if first else compared
    return PageSection(key, title, about, tables=tuple(_fields(comparability)), notes=tuple(notes))


def _fields(comparability: Comparability) -> Iterator[PageTable]:
    if comparability.workload:
        yield _field_table("Fields that define the workload and differ", comparability.workload)
    if compared := phrases.on_both_sides(comparability):
        yield _field_table("What is compared", compared)


def _field_table(caption: str, differences: Iterable[Difference]) -> PageTable:
    rows = tuple((each.field, *phrases.field_values(each), each.reason) for each in differences)
    return PageTable(("field", "baseline", "run", "reason"), rows, caption, wide=frozenset({3}))


def _changes(key: str, title: str, pair: Pair) -> PageSection:
    """Return the changes, in a chart and in a table."""
    chart = changes_chart(f"{key}-chart", pair.changes) if not pair.comparability.workload else None
    head = ("metric", "baseline", "run", "change", "interval", "verdict")
    registry = metrics.load()
    rows = tuple(_change(change, registry) for change in phrases.ordered(pair.changes))
    change_table = PageTable(head, rows, numeric=frozenset({1, 2, 3, 4}), wide=frozenset({5}))
    counts = phrases.headline(pair.changes)
    return PageSection(key, title, f"{counts}.", charts=(chart,) if chart else (), tables=(change_table,))


def _change(change: Change, registry: Registry[Metric]) -> tuple[Cell, ...]:
    return (
        Term(change.metric) if change.metric in registry else change.metric,
        _quantity(change.baseline, phrases.value(change.baseline, change.unit)),
        _quantity(change.other, phrases.value(change.other, change.unit)),
        phrases.relative(change),
        phrases.interval(change),
        ": ".join(filter(None, (change.verdict, phrases.why(change)))),
    )


def _quantity(value: float | None, text: str) -> Cell:
    return text if value is None else Quantity(value, text)


def _where(key: str, title: str, attribution: Attribution) -> PageSection:
    """Return the section about where the step changed."""
    tables = tuple(_division(each) for each in attribution.further_divisions)
    chart = parts_chart(f"{key}-chart", attribution)
    return PageSection(key, title, phrases.step_sentence(attribution), charts=(chart,), tables=tables)


def _division(division: Division) -> PageTable:
    rows = tuple(
        (
            phrases.short_name(part.name),
            Quantity(part.baseline_s, duration(part.baseline_s)),
            Quantity(part.other_s, duration(part.other_s)),
            Quantity(part.difference_s, phrases.seconds(part)),
        )
        for part in division.parts
    )
    rest = f"{division.left_out} more with smaller changes." if division.left_out else ""
    return PageTable(
        ("part", "baseline", "run", "change"),
        rows,
        phrases.division_title(division).capitalize(),
        rest,
        numeric=frozenset({1, 2, 3}),
        wide=frozenset({0}),
    )


def _definitions(comparison: Comparison) -> Sequence[ManualPage]:
    """Return the manual pages of the metrics on the page."""
    registry = metrics.load()
    metric_names = {change.metric for pair in comparison.pairs for change in pair.changes}
    page_metrics = (registry.get(name) for name in sorted(metric_names, key=str.lower) if name in registry)
    return [ManualPage(m.name, m.unit, m.better, m.revision, m.manual) for m in page_metrics]
