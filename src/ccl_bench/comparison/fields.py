"""The fields of a workload card as a comparison takes them: plain values by name, and what each means."""

from __future__ import annotations

import pkgutil
import re
import tomllib
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccl_bench.analysis.facts import Facts
    from ccl_bench.card import Card

Plain = str | int | float | bool | list[str]
Fields = dict[str, Plain]
"""Name of a field, such as `data.seq_len` → its value; what nobody wrote is absent."""

Role = Literal["workload", "studied", "ignored"]


@dataclass(frozen=True, slots=True)
class Rule:
    """What one field means to a comparison."""

    name: str
    role: Role
    reason: str
    needed: str = ""
    """`always`, or the phase in which both sides must say it."""
    fact: str = ""
    """Fact that has the last word where the run is at hand."""
    rounded: float = 0.0
    """Share by which two numbers may differ and still agree."""
    implied: bool = False
    """Whether another field says it too."""

    def is_needed(self, phase: object) -> bool:
        """Whether both sides must say it in this phase."""
        return self.needed == "always" or (self.needed != "" and self.needed == phase)


@cache
def rules() -> dict[str, Rule]:
    """Return the rule of each field, in the order in which differences are told."""
    raw = pkgutil.get_data(__package__, "fields.toml") or b""
    found = (Rule(**row) for row in tomllib.loads(raw.decode())["field"])
    return {rule.name: rule for rule in found}


def rule_of(field: str) -> Rule:
    """Return the rule of a field; one variable of an environment has that of the environment."""
    known = rules()
    whole = next((name for name in known if field.startswith(f"{name}.")), "")
    return known.get(field) or known[whole]


_SHORTENED = ("workload.", "executor.")


def fields_of(card: Card | None, facts: Facts | None = None) -> Fields:
    """Return what a card says, by the names of `fields.toml`; facts of the run have the last word."""
    found: Fields = {}
    if card is not None:
        for path, value in _leaves(card, ""):
            name = next((path.removeprefix(p) for p in _SHORTENED if path.startswith(p)), path)
            found[name] = value
        derived = {
            "data.global_batch_size": card.global_batch_size,
            "hardware.device.device_count": card.world_size,
            "parallelism.microbatches": card.microbatches,
        }
        found |= {name: value for name, value in derived.items() if value is not None}
    for rule in rules().values():
        fact = getattr(facts, rule.fact) if facts and rule.fact else None
        if fact is not None:
            found[rule.name] = fact.value
    return found


def _leaves(part: Any, path: str) -> Iterator[tuple[str, Plain]]:
    """Yield each value that is written somewhere in a part of a card."""
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
        elif isinstance(value, (bool, int, float)):
            yield f"{path}{name}", value
        elif value is not None:
            yield f"{path}{name}", str(value)


def agree(rule: Rule, one: Plain, other: Plain) -> bool:
    """Whether two values mean the same: spelling, and what people round, do not count."""
    if rule.rounded and isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) <= rule.rounded * max(abs(one), abs(other))
    return canonical(rule.name, one) == canonical(rule.name, other)


def canonical(name: str, value: Plain) -> Plain:
    """Return a value in the one spelling that stands for all of its own."""
    if isinstance(value, list):
        return sorted(_folded(item) for item in value)
    if not isinstance(value, str):
        return value
    return _known_model(_folded(value)) if name == "model.model_family" else _folded(value)


def _folded(text: str) -> str:
    return re.sub(r"[\s_-]+", "-", text.strip().lower())


def _known_model(name: str) -> str:
    """Return the catalog's name of a public model without its owner, else the name as it is."""
    from ccl_bench.base.errors import NotMeasurable
    from ccl_bench.catalog.models import model

    try:
        return _folded(model(name).name).rpartition("/")[2]
    except NotMeasurable:
        return name


def unknown_fields(fields: Mapping[str, Plain]) -> list[str]:
    """Return the fields without which nobody can tell what was run."""
    phase = fields.get("model.phase")
    return [rule.name for rule in rules().values() if rule.is_needed(phase) and rule.name not in fields]


def comparison_key(fields: Mapping[str, Plain]) -> tuple[tuple[str, Plain | None], ...]:
    """Return what two runs must have in common to be ranked together.

    Every field that defines the workload and that no other implies, in a canonical spelling; None
    where it is not written, which is a value of its own: a ranking does not guess.
    """
    defining = (rule for rule in rules().values() if rule.role == "workload" and not rule.implied)
    return tuple((rule.name, _keyed(rule.name, fields.get(rule.name))) for rule in defining)


def _keyed(name: str, value: Plain | None) -> Plain | None:
    return None if value is None else canonical(name, value)
