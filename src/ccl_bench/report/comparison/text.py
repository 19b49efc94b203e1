"""A comparison as text: comparability, changes of metrics, changes in the step, limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.report.comparison import phrases
from ccl_bench.report.console import Group, Text, aligned, heading, indented
from ccl_bench.report.formatting import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from ccl_bench.comparison.changes import Change
    from ccl_bench.comparison.comparability import Difference
    from ccl_bench.comparison.compare import Comparison, Pair
    from ccl_bench.comparison.step_breakdown import Attribution, Division

_STYLES = {"worse": "red", "better": "green", "changed": "cyan", "cannot tell": "yellow"}
_LISTED = 5
"""Largest number of parts of a breakdown to show."""

_WORTH = 0.05
"""Smallest share of the step's change at which a part is shown."""


def page(comparison: Comparison) -> Group:
    """Return a comparison."""
    parts: list[RenderableType] = []
    for pair in comparison.pairs:
        parts += [Text()] if parts else []
        parts += _pair(comparison, pair)
    return Group(*parts)


def verdicts(comparison: Comparison) -> Group:
    """Return the heading of a comparison, for each of its runs."""
    return Group(*(line for pair in comparison.pairs for line in _opening(comparison, pair)))


def _opening(comparison: Comparison, pair: Pair) -> Iterator[RenderableType]:
    yield heading(plain(phrases.title(comparison, pair)))
    if first := phrases.verdict(comparison, pair):
        yield indented(Text(plain(first), "bold"))
    yield indented(Text(plain(phrases.comparability(pair.comparability)), _style(pair)))


def _pair(comparison: Comparison, pair: Pair) -> Iterator[RenderableType]:
    yield from _opening(comparison, pair)
    comparability = pair.comparability
    if comparability.workload:
        yield indented(_fields(comparability.workload), 4)
    if compared := phrases.on_both_sides(comparability):
        yield indented(Text("what is compared:"))
        yield indented(_fields(compared), 4)
    if one_sided := phrases.on_one_side(comparability):
        yield indented(Text(plain(one_sided), "dim"))
    if pair.attribution is not None:
        yield Text()
        yield heading("Where the step changed")
        yield indented(_attribution(pair.attribution))
    yield Text()
    yield _values(pair.changes) if comparability.workload else _changes(pair.changes)
    if pair.judgements:
        yield Text()
        yield heading("Limits")
        for judgement in pair.judgements:
            style = {"crossed": "red", "not judged": "yellow"}.get(judgement.outcome, "green")
            yield indented(Text(plain(phrases.judgement(judgement)), style))


def _style(pair: Pair) -> str:
    return {"not comparable": "red", "unknown": "yellow"}.get(pair.comparability.verdict, "")


def _fields(differences: tuple[Difference, ...]) -> RenderableType:
    rows = [
        (each.field, *phrases.field_values(each), Text(plain(each.reason), "dim")) for each in differences
    ]
    return aligned(("FIELD", "BASELINE", "RUN", ""), rows)


def _values(changes: tuple[Change, ...]) -> RenderableType:
    rows = [(c.metric, phrases.value(c.baseline, c.unit), phrases.value(c.other, c.unit)) for c in changes]
    return aligned(("METRIC", "BASELINE", "RUN"), rows, right=(1, 2))


def _changes(changes: tuple[Change, ...]) -> RenderableType:
    header = ("METRIC", "BASELINE", "RUN", "CHANGE", "INTERVAL", "VERDICT")
    rows = [
        (
            change.metric,
            phrases.value(change.baseline, change.unit),
            phrases.value(change.other, change.unit),
            phrases.relative(change),
            phrases.interval(change),
            _verdict(change),
        )
        for change in phrases.ordered(changes)
    ]
    return aligned(header, rows, right=(1, 2, 3, 4))


def _verdict(change: Change) -> Text:
    text = Text(change.verdict, _STYLES.get(change.verdict, "dim"))
    return text.append(f": {plain(phrases.why(change))}", "dim") if change.remarks else text


def _attribution(attribution: Attribution) -> RenderableType:
    lines: list[RenderableType] = [Text(phrases.step_sentence(attribution))]
    divisions = () if attribution.is_within_noise else attribution.further_divisions
    least_s = _WORTH * abs(attribution.step.difference_s)
    rows = [(phrases.division_title(each), _largest(each, least_s)) for each in divisions]
    rows = [row for row in rows if row[1]]
    if rows:
        lines.append(aligned(("", ""), rows))
    return Group(*lines)


def _largest(division: Division, least_s: float) -> str:
    """Return the differences of a breakdown of at least `least_s` on one line, the largest first."""
    large = [part for part in division.parts if abs(part.difference_s) >= least_s][:_LISTED]
    texts = [f"{plain(phrases.short_name(part.name))} {phrases.seconds(part)}" for part in large]
    rest = len(division.parts) - len(texts) + division.left_out
    return ", ".join([*texts, *([f"{rest} smaller"] if texts and rest else [])])
