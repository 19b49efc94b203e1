"""Reading a workload card: everything that can be understood, and every mistake at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Issue, Severity
from ccl_bench.card.checks import check_card
from ccl_bench.card.model import Card
from ccl_bench.card.sections import read_section, spelling
from ccl_bench.card.yaml_tree import IssueLog, MappingNode, mapping_of, yaml_mapping
from ccl_bench.storage.files import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping as AnyMapping

    from ccl_bench.storage.files import Location

_TOP_KEYS = frozenset({"workload", "model_executor", "metric_source", "hf_url", "trace_url"})
_WORKLOAD_KEYS = frozenset({"model", "data", "hardware"})


@dataclass(frozen=True, slots=True)
class CardReading:
    """A card and everything that is wrong with its file."""

    card: Card
    issues: list[Issue]
    file: str = ""

    @property
    def errors(self) -> list[Issue]:
        """The issues that kept something from being used."""
        return [issue for issue in self.issues if issue.severity is Severity.ERROR]


def read_card(path: Location) -> CardReading:
    """Return the card in a YAML file; InputError only where the file holds no mapping at all."""
    return card_in_text(read_text(path), file=str(path))


def card_in_text(text: str, *, file: str = "") -> CardReading:
    """Return the card in YAML text; `file` names it in messages."""
    log = IssueLog(file)
    return _reading(yaml_mapping(text, log), log)


def card_in_mapping(mapping: AnyMapping[str, object], *, file: str = "") -> CardReading:
    """Return the card in plain data laid out as the file is, such as a form or JSON document."""
    return _reading(mapping_of(mapping), IssueLog(file))


def _reading(root: MappingNode, log: IssueLog) -> CardReading:
    card = read_section(root, Card, log, unknown=log.warning)
    check_card(card, log)
    return CardReading(card, log.in_order(), log.file)


def is_card(mapping: object) -> bool:
    """Whether data read from a YAML file has a workload card's keys."""
    if not hasattr(mapping, "items"):
        return False
    keys = {spelling(str(key)): value for key, value in mapping.items()}
    workload = keys.get("workload")
    inner = (
        {spelling(str(key)) for key in workload}
        if hasattr(workload, "items") and workload is not None
        else set()
    )
    return bool(inner & _WORKLOAD_KEYS) or len(keys.keys() & _TOP_KEYS) >= 2


def is_card_file(path: Location) -> bool:
    """Whether a file is YAML with a workload card's keys; never raises for what the file holds."""
    try:
        root = yaml_mapping(read_text(path), IssueLog(str(path)))
    except InputError:
        return False
    shape = {
        entry.key: dict.fromkeys(inner.key for inner in entry.node.entries)
        if isinstance(entry.node, MappingNode)
        else None
        for entry in root.entries
    }
    return is_card(shape)


@cache
def _schema() -> dict[str, Any]:
    return Card.model_json_schema(by_alias=True)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a card's file, for editors and upload forms."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_schema()}
