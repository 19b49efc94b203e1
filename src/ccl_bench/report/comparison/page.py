"""A comparison as a page: its sections, its charts, and the whole as HTML that opens without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench import metrics
from ccl_bench.base.text import harmless
from ccl_bench.report.charts.bars import colours, names, rows_height
from ccl_bench.report.comparison import phrases
from ccl_bench.report.formatting import duration, time_unit
from ccl_bench.report.page_model import ManualPage, PageChart, PageSection, PageTable, Quantity, Term
from ccl_bench.report.render.html import definitions, html_page, section
from ccl_bench.report.theme import COMMUNICATION_PARTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccl_bench.comparison.changes import Change
    from ccl_bench.comparison.compare import Comparison, Pair
    from ccl_bench.comparison.step_breakdown import Attribution, Division
    from ccl_bench.comparison.sweeps import SweepChange
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
    rows: list[dict[str, Any]] = []
    for change in phrases.ordered(changes):
        interval = change.interval
        if interval is None or not change.baseline or not (interval.low or interval.high):
            continue
        percent = 100 / abs(change.baseline)
        rows.append(
            {
                "metric": change.metric,
                "verdict": change.verdict,
                "change": percent * (change.difference or 0.0),
                "low": percent * interval.low,
                "high": percent * interval.high,
            }
        )
    if not rows:
        return None
    # The axis reaches to the clear changes: an interval that says nothing may be a hundred times as wide.
    clear = [abs(row["change"]) for row in rows if row["verdict"] in {"worse", "better", "changed"}]
    reach = max([_LEAST_PERCENT, *clear]) * _ROOM
    cut = sum(max(abs(row["low"]), abs(row["high"])) > reach for row in rows)
    across = {
        "type": "quantitative",
        "title": "change, %",
        "scale": {"domain": [-reach, reach], "nice": False},
        "axis": {"tickCount": 7},
    }
    tooltip = [
        {"field": "metric", "title": "metric"},
        {"field": "verdict", "title": "verdict"},
        *({"field": name, "title": f"{name}, %", "format": "+.3~g"} for name in ("change", "low", "high")),
    ]
    shared = {
        "y": {"field": "metric", **names("", [row["metric"] for row in rows])},
        "color": {"field": "verdict", **colours(_VERDICTS)},
        "tooltip": tooltip,
    }
    bar = {"type": "rule", "strokeWidth": 5, "opacity": 0.55, "clip": True}
    dot = {"type": "point", "filled": True, "size": 60, "clip": True}
    spec: Spec = {
        "width": "container",
        "height": _ROW * len(rows),
        "data": {"values": rows},
        "layer": [
            {"mark": {"type": "rule", "color": "var(--quiet)"}, "encoding": {"x": {"datum": 0}}},
            {"mark": bar, "encoding": {**shared, "x": {"field": "low", **across}, "x2": {"field": "high"}}},
            {"mark": dot, "encoding": {**shared, "x": {"field": "change", **across}}},
        ],
    }
    cells = tuple(
        (
            row["metric"],
            *(Quantity(row[name], f"{row[name]:+.3g} %") for name in ("change", "low", "high")),
            row["verdict"],
        )
        for row in rows
    )
    head = ("metric", "change", "from", "to", "verdict")
    return PageChart(
        key,
        "Changes with their noise",
        spec,
        f"{phrases.headline(changes)}. A bar is the interval of the change, estimated from the spread over "
        "steps. Unchanged numbers are left out.",
        PageTable(head, cells, numeric=frozenset({1, 2, 3})),
        f"{cut} extend beyond the chart." if cut else "",
    )


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
    cells = tuple(
        (
            phrases.label(part.name) if part is not attribution.step else "step",
            Quantity(part.baseline_s, duration(part.baseline_s)),
            Quantity(part.other_s, duration(part.other_s)),
            Quantity(part.difference_s, phrases.seconds(part)),
        )
        for part in (*parts, attribution.step)
    )
    data = PageTable(("part", "baseline", "run", "change"), cells, numeric=frozenset({1, 2, 3}))
    return PageChart(key, "Where in the step", spec, phrases.step_sentence(attribution), data)


TITLE = "Runs compared"


def html(comparison: Comparison) -> str:
    """Return the page of a comparison."""
    from markupsafe import Markup

    page_sections = list(sections(comparison))
    note = harmless(phrases.noise_note(comparison))
    head = Markup("<header><h1>{}</h1><p>{}</p></header>").format(TITLE, note)
    registry = metrics.load()
    metric_names = {change.metric for pair in comparison.pairs for change in pair.changes}
    page_metrics = (registry.get(name) for name in sorted(metric_names, key=str.lower) if name in registry)
    manual = definitions(ManualPage(m.name, m.unit, m.better, m.revision, m.manual) for m in page_metrics)
    last = Markup('<section id="definitions"><h2>Definitions</h2>{}</section>').format(manual)
    charts = {chart.key: chart.spec for each in page_sections for chart in each.charts}
    body = Markup("\n").join([head, *map(section, page_sections), last])
    navigation = [(f"#{each.key}", each.title) for each in page_sections]
    return html_page(TITLE, str(body), charts=charts, navigation=navigation)


def sections(comparison: Comparison) -> Iterator[PageSection]:
    """Yield the sections of each run against the baseline, in order."""
    for place, pair in enumerate(comparison.pairs):
        of = f" in {pair.name}" if len(comparison.pairs) > 1 else ""
        yield _comparability_section(f"pair-{place}", comparison, pair)
        if pair.attribution is not None:
            key = f"where-{place}"
            yield PageSection(
                key,
                f"Where the step changed{of}",
                phrases.step_sentence(pair.attribution),
                charts=(parts_chart(f"{key}-chart", pair.attribution),),
                tables=tuple(_division_table(each) for each in pair.attribution.further_divisions),
            )
        if pair.sweep is not None:
            yield _sweep_section(f"sweep-{place}", f"{phrases.SWEEP}{of}", pair.sweep)
        yield _changes_section(f"changes-{place}", f"What changed{of}", pair)


def _comparability_section(key: str, comparison: Comparison, pair: Pair) -> PageSection:
    """Return whether two runs are comparable, how they differ, and which limits they meet."""
    comparability = pair.comparability
    notes = filter(None, (phrases.on_one_side(comparability), *map(phrases.judgement, pair.judgements)))
    compared = phrases.comparability(comparability)
    first = phrases.verdict(comparison, pair)
    captioned = {
        "Fields that define the workload and differ": comparability.workload,
        "What is compared": phrases.on_both_sides(comparability),
    }
    tables = tuple(
        PageTable(
            ("field", "baseline", "run", "reason"),
            tuple((each.field, *phrases.field_values(each), each.reason) for each in differences),
            caption,
            wide=frozenset({3}),
        )
        for caption, differences in captioned.items()
        if differences
    )
    about = f"{first} {compared}." if first else compared
    return PageSection(key, phrases.title(comparison, pair), about, tables=tables, notes=tuple(notes))


def _division_table(division: Division) -> PageTable:
    rows = tuple(
        (
            phrases.short_name(part.name),
            Quantity(part.baseline_s, duration(part.baseline_s)),
            Quantity(part.other_s, duration(part.other_s)),
            Quantity(part.difference_s, phrases.seconds(part)),
        )
        for part in division.parts
    )
    return PageTable(
        ("part", "baseline", "run", "change"),
        rows,
        phrases.division_title(division).capitalize(),
        f"{division.left_out} more with smaller changes." if division.left_out else "",
        numeric=frozenset({1, 2, 3}),
        wide=frozenset({0}),
    )


def _sweep_section(key: str, title: str, change: SweepChange) -> PageSection:
    """Return the throughput of two sweeps at each interactivity, or why they are not compared."""
    head, rows = phrases.sweep_head(change), tuple(phrases.sweep_rows(change))
    note = f"{phrases.SWEEP_NOTE}."
    tables = (PageTable(head, rows, note=note, numeric=frozenset({0, 1, 2, 3})),) if rows else ()
    return PageSection(key, title, phrases.sweep_sentence(change), tables=tables)


def _changes_section(key: str, title: str, pair: Pair) -> PageSection:
    """Return the changes in a chart and in a table, and folded those numbers that are not comparable."""
    chart = changes_chart(f"{key}-chart", pair.changes) if not pair.comparability.workload else None
    compared = [change for change in pair.changes if not phrases.is_apart(change)]
    apart = [change for change in pair.changes if phrases.is_apart(change)]
    tables = [_changes_table(compared)] if compared or not apart else []
    if apart:
        tables.append(_changes_table(apart, folded=phrases.apart(pair.comparability, pair.changes)))
    counts = phrases.headline(pair.changes)
    return PageSection(key, title, f"{counts}.", charts=(chart,) if chart else (), tables=tuple(tables))


def _changes_table(changes: Sequence[Change], folded: str = "") -> PageTable:
    registry = metrics.load()
    rows = tuple(
        (
            Term(change.metric) if change.metric in registry else change.metric,
            _quantity(change.baseline, change.unit),
            _quantity(change.other, change.unit),
            phrases.relative(change),
            phrases.interval(change),
            ": ".join(filter(None, (change.verdict, phrases.why(change)))),
        )
        for change in phrases.ordered(changes)
    )
    head = ("metric", "baseline", "run", "change", "interval", "verdict")
    return PageTable(head, rows, folded=folded, numeric=frozenset({1, 2, 3, 4}), wide=frozenset({5}))


def _quantity(value: float | None, unit: str) -> Cell:
    text = phrases.value(value, unit)
    return text if value is None else Quantity(value, text)
