"""A comparison as a page of HTML that opens without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench import metrics
from ccl_bench.report.comparison import phrases
from ccl_bench.report.comparison.charts import changes_chart, parts_chart
from ccl_bench.report.html import html_page, section
from ccl_bench.report.html.pieces import definitions
from ccl_bench.report.numbers import duration
from ccl_bench.report.parts import Definition, Quantity, Section, Table, Term

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ccl_bench.comparison.attribution import Attribution
    from ccl_bench.comparison.changes import Change
    from ccl_bench.comparison.comparable import Comparability, Difference
    from ccl_bench.comparison.compared import Comparison, Pair
    from ccl_bench.comparison.divisions import Division
    from ccl_bench.report.parts import Cell

TITLE = "Runs compared"


def html(comparison: Comparison) -> str:
    """Return the page of a comparison."""
    from markupsafe import Markup

    shown = list(sections(comparison))
    head = Markup("<header><h1>{}</h1><p>{}</p></header>").format(TITLE, phrases.noise_note(comparison))
    known = definitions(_definitions(comparison))
    last = Markup('<section id="definitions"><h2>Definitions</h2>{}</section>').format(known)
    charts = {chart.key: chart.spec for each in shown for chart in each.charts}
    body = Markup("\n").join([head, *map(section, shown), last])
    navigation = [(f"#{each.key}", each.title) for each in shown]
    return html_page(TITLE, str(body), charts=charts or None, navigation=navigation)


def sections(comparison: Comparison) -> Iterator[Section]:
    """Yield what there is to show of each run against the baseline, in order."""
    for place, pair in enumerate(comparison.pairs):
        of = f" in {pair.name}" if len(comparison.pairs) > 1 else ""
        yield _whether(f"pair-{place}", phrases.title(comparison, pair), pair)
        yield _changes(f"changes-{place}", f"What changed{of}", pair)
        if pair.attribution is not None:
            yield _where(f"where-{place}", f"Where the step changed{of}", pair.attribution)


def _whether(key: str, title: str, pair: Pair) -> Section:
    """Return whether two runs compare, in what they differ, and which limits are kept."""
    found = pair.comparability
    notes = filter(None, (phrases.on_one_side(found), *map(phrases.judgement, pair.judgements)))
    return Section(key, title, phrases.comparability(found), tables=tuple(_fields(found)), notes=tuple(notes))


def _fields(found: Comparability) -> Iterator[Table]:
    if found.workload:
        yield _field_table("Fields that define the workload and differ", found.workload)
    if compared := phrases.on_both_sides(found):
        yield _field_table("What is compared", compared)


def _field_table(caption: str, found: Iterable[Difference]) -> Table:
    rows = tuple((each.field, *phrases.field_values(each), each.reason) for each in found)
    return Table(("field", "baseline", "run", "why it counts so"), rows, caption, wide=frozenset({3}))


def _changes(key: str, title: str, pair: Pair) -> Section:
    """Return the changes, in a chart and in a table."""
    chart = changes_chart(f"{key}-chart", pair.changes) if not pair.comparability.workload else None
    head = ("metric", "baseline", "run", "change", "interval", "verdict")
    rows = tuple(_change(change) for change in phrases.ordered(pair.changes))
    shown = Table(head, rows, numeric=frozenset({1, 2, 3, 4}), wide=frozenset({5}))
    counts = phrases.headline(pair.changes)
    return Section(key, title, f"{counts}.", charts=(chart,) if chart else (), tables=(shown,))


def _change(change: Change) -> tuple[Cell, ...]:
    return (
        Term(change.metric) if change.metric in metrics.load() else change.metric,
        _quantity(change.baseline, phrases.value(change.baseline, change.unit)),
        _quantity(change.other, phrases.value(change.other, change.unit)),
        phrases.relative(change),
        phrases.interval(change),
        ": ".join(filter(None, (change.verdict, phrases.why(change)))),
    )


def _quantity(value: float | None, text: str) -> Cell:
    return text if value is None else Quantity(value, text)


def _where(key: str, title: str, found: Attribution) -> Section:
    """Return where the step changed."""
    tables = tuple(_division(each) for each in found.divisions)
    chart = parts_chart(f"{key}-chart", found)
    return Section(key, title, phrases.step_sentence(found), charts=(chart,), tables=tables)


def _division(division: Division) -> Table:
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
    return Table(
        ("part", "baseline", "run", "change"),
        rows,
        phrases.division_title(division).capitalize(),
        rest,
        numeric=frozenset({1, 2, 3}),
        wide=frozenset({0}),
    )


def _definitions(comparison: Comparison) -> Sequence[Definition]:
    """Return the manual pages of the metrics on the page."""
    registry = metrics.load()
    named = {change.metric for pair in comparison.pairs for change in pair.changes}
    known = (registry.get(name) for name in sorted(named, key=str.lower) if name in registry)
    return [Definition(m.name, m.unit, m.better, m.revision, m.manual) for m in known]
