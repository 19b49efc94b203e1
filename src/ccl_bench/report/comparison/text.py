"""A comparison as text: comparability, changes of metrics, changes in the step, limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.text import plain
from ccl_bench.report.comparison import phrases
from ccl_bench.report.console import Group, Text, aligned, heading, indented

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from ccl_bench.comparison.changes import Change
    from ccl_bench.comparison.comparability import Difference
    from ccl_bench.comparison.compare import Comparison, Pair
    from ccl_bench.comparison.step_breakdown import Attribution
    from ccl_bench.comparison.sweeps import SweepChange

_STYLES = {"worse": "red", "better": "green", "changed": "cyan", "cannot tell": "yellow"}
_LISTED = 5
"""Largest number of parts of a breakdown to show."""

_WORTH = 0.05
"""Smallest share of the step's change at which a part is shown."""


def page(comparison: Comparison) -> Group:
    """Return a comparison."""
    parts: list[RenderableType] = []
    for pair in comparison.pairs:
        comparability = pair.comparability
        parts += [Text()] if parts else []
        parts += _opening(comparison, pair)
        if comparability.workload:
            parts.append(indented(_fields(comparability.workload), 4))
        if compared := phrases.on_both_sides(comparability):
            parts += [indented(Text("what is compared:")), indented(_fields(compared), 4)]
        if one_sided := phrases.on_one_side(comparability):
            parts.append(indented(Text(plain(one_sided), "dim")))
        if pair.attribution is not None:
            parts += [Text(), heading("Where the step changed"), indented(_attribution(pair.attribution))]
        if pair.sweep is not None:
            parts += [Text(), heading(phrases.SWEEP), indented(_sweep(pair.sweep))]
        parts.append(Text())
        if comparability.workload:  # Different work: the values stand side by side, without a change.
            rows = [
                (each.metric, phrases.value(each.baseline, each.unit), phrases.value(each.other, each.unit))
                for each in pair.changes
            ]
            parts.append(aligned(("METRIC", "BASELINE", "RUN"), rows, right=(1, 2)))
        else:
            parts.append(_changes(pair.changes))
        if pair.judgements:
            parts += [Text(), heading("Limits")]
            for judgement in pair.judgements:
                style = {"crossed": "red", "not judged": "yellow"}.get(judgement.outcome, "green")
                parts.append(indented(Text(plain(phrases.judgement(judgement)), style)))
    return Group(*parts)


def verdicts(comparison: Comparison) -> Group:
    """Return the heading of a comparison, for each of its runs."""
    return Group(*(line for pair in comparison.pairs for line in _opening(comparison, pair)))


def _opening(comparison: Comparison, pair: Pair) -> Iterator[RenderableType]:
    yield heading(plain(phrases.title(comparison, pair)))
    if first := phrases.verdict(comparison, pair):
        yield indented(Text(plain(first), "bold"))
    style = {"not comparable": "red", "unknown": "yellow"}.get(pair.comparability.verdict, "")
    yield indented(Text(plain(phrases.comparability(pair.comparability)), style))


def _fields(differences: tuple[Difference, ...]) -> RenderableType:
    rows = [
        (each.field, *phrases.field_values(each), Text(plain(each.reason), "dim")) for each in differences
    ]
    return aligned(("FIELD", "BASELINE", "RUN", ""), rows)


def _changes(changes: tuple[Change, ...]) -> RenderableType:
    rows = []
    for change in phrases.ordered(changes):
        verdict = Text(change.verdict, _STYLES.get(change.verdict, "dim"))
        if change.remarks:
            verdict.append(f": {plain(phrases.why(change))}", "dim")
        rows.append(
            (
                change.metric,
                phrases.value(change.baseline, change.unit),
                phrases.value(change.other, change.unit),
                phrases.relative(change),
                phrases.interval(change),
                verdict,
            )
        )
    header = ("METRIC", "BASELINE", "RUN", "CHANGE", "INTERVAL", "VERDICT")
    return aligned(header, rows, right=(1, 2, 3, 4))


def _sweep(change: SweepChange) -> RenderableType:
    """Return the throughput of both sides at each interactivity, or why they are not compared."""
    lines: list[RenderableType] = [Text(plain(phrases.sweep_sentence(change)))]
    if change.points:
        head = tuple(column.upper() for column in phrases.sweep_head(change))
        lines.append(aligned(head, phrases.sweep_rows(change), right=(0, 1, 2, 3)))
        lines.append(Text(phrases.SWEEP_NOTE, "dim"))
    return Group(*lines)


def _attribution(attribution: Attribution) -> RenderableType:
    """Return the change of the step and of its parts; of each breakdown the largest on one line."""
    lines: list[RenderableType] = [Text(phrases.step_sentence(attribution))]
    least_s = _WORTH * abs(attribution.step.difference_s)
    rows = []
    for division in () if attribution.is_within_noise else attribution.further_divisions:
        large = [part for part in division.parts if abs(part.difference_s) >= least_s][:_LISTED]
        texts = [f"{plain(phrases.short_name(part.name))} {phrases.seconds(part)}" for part in large]
        rest = len(division.parts) - len(texts) + division.left_out
        if texts:
            texts += [f"{rest} smaller"] if rest else []
            rows.append((phrases.division_title(division), ", ".join(texts)))
    if rows:
        lines.append(aligned(("", ""), rows))
    return Group(*lines)
