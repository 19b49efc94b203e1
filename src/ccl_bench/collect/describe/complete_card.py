"""Completing the card of a run with values of a user and values that the run shows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccl_bench import card as cards
from ccl_bench.base.errors import UsageError
from ccl_bench.card.comparison_fields import fields_of, unknown_fields
from ccl_bench.card.reading import MISSING, missing_fields
from ccl_bench.collect.describe.fill_card import CARD_FILE_NAME, fillable
from ccl_bench.run.facts import fact_sources, merge_facts
from ccl_bench.storage.files import read_text, replace_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ccl_bench.base.findings import Issue
    from ccl_bench.run import Run

    Ask = Callable[[str, Any], Any]
    """Returns the value of a field, given its path and what the run shows; EOFError ends the questions."""


@dataclass(frozen=True, slots=True)
class CompletedCard:
    """What became of a card; values are by path in the file."""

    card: str
    """Its file."""
    changed: dict[str, Any]
    """Values that the user set; None for an emptied field."""
    filled: dict[str, Any]
    """Values that the run shows, in fields that were empty."""
    lacking: dict[str, str]
    """Field without which the run cannot be ranked → what it means."""
    issues: list[Issue]
    """Mistakes in the card as it is now, without the fields that ranking lacks."""
    remarks: list[str] = field(default_factory=list)
    """Contradictions between the card and what the run shows."""


def card_path(run: Run) -> Path:
    """Return the card of a run, or the place for one beside its traces.

    Raises UsageError for a run in a bucket, and for a card further below, which may be of another run.
    """
    folder = run.path if run.path.is_dir() else run.path.parent
    path = run.documents.origins.get("card") or folder / CARD_FILE_NAME
    if "://" in str(path):
        raise UsageError(f"{path} is not on this machine", fix="copy the run here, or write its card there")
    if path.parent != folder and path.is_relative_to(folder):
        raise UsageError(f"the card of {folder} is in a folder below", fix=f"name it: ccl-bench card {path}")
    return Path(path)


def complete_card(
    run: Run, shown: Mapping[str, Any], changes: Mapping[str, Any], ask: Ask | None = None
) -> CompletedCard:
    """Write the card of a run with `changes` by path, and with `shown` where it states nothing.

    Fields that metrics or the ranking need and that are still empty are asked for, if there is `ask`.
    Comments and order of an existing card stay. Raises InputError for a card that cannot be changed.
    """
    path = card_path(run)
    before = read_text(path) if path.exists() else cards.template()
    text = cards.assigned(before, changes, file=str(path))
    values, remarks = fillable(cards.card_in_text(text).value, shown)
    answers: dict[str, Any] = {}
    if ask is not None:
        done: set[str] = set()
        try:
            while waiting := [each for each in _needed(run, text) if each not in done]:
                answer = ask(waiting[0], values.get(waiting[0]))
                done.add(waiting[0])
                values.pop(waiting[0], None)
                if answer is not None:
                    text = cards.assigned(text, {waiting[0]: answer}, file=str(path))
                    answers[waiting[0]] = answer
        except EOFError:
            pass
    text, filling = cards.filled(
        text, {name: value for name, value in values.items() if name not in changes}, file=str(path)
    )
    if text != before or not path.exists():
        replace_text(path, text)
    reading = cards.card_in_text(text, file=path.name)
    lacking = _lacking(run, reading.value)
    now = cards.card_values(reading.value)
    return CompletedCard(
        str(path),
        {**changes, **answers},
        {name: now.get(name) for name in filling.filled},
        {name: cards.field_meaning(name) for name in lacking},
        [issue for issue in reading.issues if not (issue.path in lacking and issue.message == MISSING)],
        remarks,
    )


def _needed(run: Run, text: str) -> list[str]:
    card = cards.card_in_text(text).value
    return [*dict.fromkeys([*_lacking(run, card), *missing_fields(card)])]


def _lacking(run: Run, card: cards.Card) -> list[str]:
    """Return the paths of the fields that ranking needs and neither the card nor the run states."""
    documents = replace(run.documents, card=card)
    facts = merge_facts(fact_sources(documents, run.traces))
    return [cards.field_path(name) for name in unknown_fields(fields_of(card, facts))]
