"""A comparison as Markdown, for the summary of a CI pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.text import counted
from ccl_bench.report.comparison import phrases
from ccl_bench.report.render.markdown import escaped, table_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.comparison.changes import Change
    from ccl_bench.comparison.compare import Comparison

_SIGNS = {"crossed": "❌", "not judged": "⚠️"}
_KEPT = "✅"

_SHOWN = ("worse", "better", "changed")
"""Verdicts of the metrics that are not collapsed."""


def markdown(comparison: Comparison) -> str:
    """Return a comparison: limits first, unchanged metrics collapsed."""
    blocks = []
    for pair in comparison.pairs:
        comparability = pair.comparability
        blocks.append(f"## {escaped(phrases.title(comparison, pair))}")
        if first := phrases.verdict(comparison, pair):
            blocks.append(f"**{escaped(first)}**")
        blocks.append(escaped(phrases.comparability(comparability)))
        if pair.judgements:
            limits = (
                f"- {_SIGNS.get(each.outcome, _KEPT)} {escaped(phrases.judgement(each))}"
                for each in pair.judgements
            )
            blocks.append("\n".join(limits))
        if differences := [*comparability.workload, *phrases.on_both_sides(comparability)]:
            fields = [[each.field, *phrases.field_values(each), each.reason] for each in differences]
            blocks.append(_table(("field", "baseline", "run", ""), fields))
        if pair.attribution is not None:
            blocks.append(escaped(phrases.step_sentence(pair.attribution)))
        if pair.sweep is not None:
            blocks.append(f"**{phrases.SWEEP}.** {escaped(phrases.sweep_sentence(pair.sweep))}")
            if pair.sweep.points:
                table = _table(phrases.sweep_head(pair.sweep), phrases.sweep_rows(pair.sweep), (0, 1, 2, 3))
                blocks += [table, escaped(f"{phrases.SWEEP_NOTE}.")]
        ordered = phrases.ordered(pair.changes)
        changed = [change for change in ordered if change.verdict in _SHOWN]
        others = [change for change in ordered if change.verdict not in _SHOWN]
        if changed:
            blocks.append(_changes(changed))
        if others:
            title = counted(len(others), "other metric" if changed else "metric")
            blocks.append(f"<details><summary>{title}</summary>\n\n{_changes(others)}\n\n</details>")
    return "\n\n".join([*blocks, escaped(phrases.noise_note(comparison))]) + "\n"


def _changes(changes: Iterable[Change]) -> str:
    rows = [
        [
            change.metric,
            phrases.value(change.baseline, change.unit),
            phrases.value(change.other, change.unit),
            phrases.relative(change),
            phrases.interval(change),
            f"{change.verdict}: {phrases.why(change)}" if change.remarks else change.verdict,
        ]
        for change in changes
    ]
    return _table(("metric", "baseline", "run", "change", "interval", "verdict"), rows, (1, 2, 3, 4))


def _table(head: tuple[str, ...], rows: Iterable[Iterable[str]], numeric: tuple[int, ...] = ()) -> str:
    return table_rows(head, [[escaped(cell) for cell in row] for row in rows], numeric)
