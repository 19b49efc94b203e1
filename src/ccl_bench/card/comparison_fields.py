"""The fields of a run by which it is compared and ranked: what its card states, facts of the run before it.

`comparison_fields.toml` has the rule of each field and its reason.
"""

from __future__ import annotations

import math
import pkgutil
import tomllib
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from ccl_bench.base.findings import Issue
from ccl_bench.card.model import Card
from ccl_bench.card.sections import file_path, is_section, value_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccl_bench.card.fields import FileSection

Plain = str | int | float | bool | list[str]
Fields = dict[str, Plain]
"""Name of a field, such as `data.seq_len` → its value; unstated fields are absent."""

Role = Literal["workload", "studied", "ignored"]


@dataclass(frozen=True, slots=True)
class FieldRule:
    """The rule of one field in a comparison."""

    name: str
    role: Role
    reason: str
    needed: str = ""
    """`always`, or the phase in which both sides must state it."""
    fact: str = ""
    """Fact that takes precedence if the run is available."""
    rounded: float = 0.0
    """Share by which two numbers may differ and still agree."""
    implied: bool = False
    """Whether another field implies it."""

    def is_needed(self, phase: object) -> bool:
        """Whether both sides must state it in this phase."""
        return self.needed == "always" or (self.needed != "" and self.needed == phase)


@cache
def field_rules() -> dict[str, FieldRule]:
    """Return the rule of each field, in the order of listed differences."""
    raw = pkgutil.get_data(__package__, "comparison_fields.toml") or b""
    rules = (FieldRule(**row) for row in tomllib.loads(raw.decode())["field"])
    return {rule.name: rule for rule in rules}


def rule_of(field: str) -> FieldRule:
    """Return the rule of a field; one variable of an environment has that of the environment."""
    rules = field_rules()
    whole = next((name for name in rules if field.startswith(f"{name}.")), "")
    return rules.get(field) or rules[whole]


_SHORTENED = ("workload.", "executor.")


def fields_of(card: Card | None, facts: object = None) -> Fields:
    """Return the fields of a card by the names of `comparison_fields.toml`.

    Facts of the run (`analysis.facts.Facts`) take precedence.
    """
    fields: Fields = {}
    if card is not None:
        fields = values_in_card(card)
        derived = {
            "data.global_batch_size": card.global_batch_size,
            "hardware.device.device_count": card.world_size,
            "parallelism.microbatches": card.microbatches,
        }
        fields |= {name: value for name, value in derived.items() if value is not None}
    for rule in field_rules().values():
        fact = getattr(facts, rule.fact) if facts and rule.fact else None
        if fact is not None:
            fields[rule.name] = fact.value
    return fields


def values_in_card(card: Card) -> Fields:
    """Return the fields that a card states, without those that follow from others."""
    return {_shortened(path): value for path, value in _leaves(card, "")}


def _shortened(path: str) -> str:
    return next((path.removeprefix(each) for each in _SHORTENED if path.startswith(each)), path)


def _leaves(part: Any, path: str) -> Iterator[tuple[str, Plain]]:
    """Yield each value in a part of a card, with its path."""
    for name in type(part).model_fields:
        value = getattr(part, name)
        if hasattr(type(value), "model_fields"):
            yield from _leaves(value, f"{path}{name}.")
        elif isinstance(value, dict):
            yield from ((f"{path}{name}.{key}", str(text)) for key, text in value.items())
        elif isinstance(value, Enum):
            yield f"{path}{name}", str(value.value)
        elif isinstance(value, (list, tuple)):
            if value:
                yield f"{path}{name}", [str(item) for item in value]
        elif isinstance(value, (bool, int, float)) and math.isfinite(value):
            yield f"{path}{name}", value
        elif value is not None:
            yield f"{path}{name}", str(value)


def unknown_fields(fields: Mapping[str, Plain]) -> list[str]:
    """Return the fields that are required to identify the workload."""
    phase = fields.get("model.phase")
    return [rule.name for rule in field_rules().values() if rule.is_needed(phase) and rule.name not in fields]


def unranked_reason(fields: Mapping[str, Plain]) -> str:
    """Return why a leaderboard lists a run with these fields without ranking it; empty if it ranks it.

    Every command that judges this uses this function: `validate`, `inspect`, `publish`, `review`, the server.
    """
    missing = unknown_fields(fields)
    return f"the card lacks {', '.join(missing)}" if missing else ""


def unranked_issue(fields: Mapping[str, Plain], file: str) -> list[Issue]:
    """Return what keeps a run from being ranked, as an issue of its card; none if a leaderboard ranks it."""
    reason = unranked_reason(fields)
    if not reason:
        return []
    keys = keys_in_card()
    # Sequences of all ranks are a field of their own, which a card writes as batch_size and its scope.
    paths = [
        ".".join(keys.get(name) or keys["data.batch_size"]) + ("" if name in keys else " of all ranks")
        for name in unknown_fields(fields)
    ]
    return [
        Issue(
            "note",
            f"a leaderboard would list the run but not rank it: {reason}",
            "card-unranked",
            file,
            fix=f"write {', '.join(paths)}",
        )
    ]


@cache
def keys_in_card() -> dict[str, tuple[str, ...]]:
    """Return field → the keys that lead to it in the file of a card."""
    fields: dict[str, tuple[str, ...]] = {}
    parts: list[tuple[type[FileSection], tuple[str, ...]]] = [(Card, ())]
    for part, names in parts:
        for name, info in part.model_fields.items():
            path = (*names, name)
            if is_section(kind := value_type(info)):
                parts.append((kind, path))
            else:
                fields[_shortened(".".join(path))] = tuple(file_path(Card, path).split("."))
    return fields
