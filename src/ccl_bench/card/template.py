"""The workload card as text: the empty template, and a card laid out like it with the same comments."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

from ruamel.yaml import YAML

from ccl_bench.base.errors import UsageError
from ccl_bench.card.fields import Section, key_of, unit_of
from ccl_bench.card.model import Card
from ccl_bench.card.sections import value_type
from ccl_bench.card.yaml_tree import plain_value
from ccl_bench.storage.files import replace_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo

HEADER = """\
# Workload card: what a person knows about a run and no trace holds.
# Copy it beside the traces, fill in what you know and leave the rest empty; empty means not known.
# `ccl-bench validate` reports every mistake at once.
"""
_PLAIN = re.compile(r"[A-Za-z0-9_/.+][A-Za-z0-9_/.+@() -]*(:/[A-Za-z0-9_/.+@-]*)?")
_UNPRINTABLE = re.compile(
    r"[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


def card_text(card: Card) -> str:
    """Return a card as YAML in the template's layout, with a comment at each field."""
    return HEADER + "\n".join(_lines(card, 0)).rstrip() + "\n"


def template() -> str:
    """Return the empty template."""
    return card_text(Card(version=1))


def _lines(part: Section, depth: int) -> Iterator[str]:
    for name, info in type(part).model_fields.items():
        value = getattr(part, name)
        if isinstance(value, Section) or value or info.examples:
            yield from _field(key_of(name, info), value, info, depth)
        if depth == 0 and (isinstance(value, Section) or name == "contact"):
            yield ""


def _field(key: str, value: Any, info: FieldInfo, depth: int) -> Iterator[str]:
    indent, kind = "  " * depth, value_type(info)
    if isinstance(value, Section):
        yield f"{indent}{key}:  # {info.description}"
        yield from _pair(value, depth + 1) if value.ordered_fields else _lines(value, depth + 1)
    elif get_origin(kind) is tuple:
        yield f"{indent}{key}:  # {_comment(info)}"
        yield from (f"{indent}  - {yaml_scalar(item)}" for item in value)
    elif get_origin(kind) is dict:
        yield f"{indent}{key}:  # {_comment(info)}"
        yield from (f"{indent}  {yaml_scalar(name)}: {yaml_scalar(text)}" for name, text in value.items())
    else:
        written = "" if value is None else f" {yaml_scalar(value)}"
        yield f"{indent}{key}:{written}  # {_comment(info)}"


def _pair(part: Section, depth: int) -> Iterator[str]:
    for name in part.ordered_fields:
        value = getattr(part, name)
        written = "" if value is None else f" {yaml_scalar(value)}"
        comment = _comment(type(part).model_fields[name])
        yield f"{'  ' * depth}-{written}  # {name.replace('_', '-')}: {comment}"


def _comment(info: FieldInfo) -> str:
    unit = unit_of(info)
    measured = f" [{unit}]" if unit else ""
    examples = ", ".join(_example(item) for item in info.examples or ())
    return f"{info.description}{measured}" + (f"; for example {examples}" if examples else "")


def _example(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def yaml_scalar(value: Any) -> str:
    """Return a single value as YAML, quoted where it needs to be."""
    if isinstance(value, bool | int):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and value < 1e15 else repr(value)
    text = str(value)
    if _PLAIN.fullmatch(text) and text == text.strip() and isinstance(plain_value(text), str):
        return text
    return _UNPRINTABLE.sub(lambda char: f"\\U{ord(char[0]):08x}", json.dumps(text, ensure_ascii=False))


def write_card(card: Card | Mapping[str, Any], path: str | Path, *, overwrite: bool = False) -> None:
    """Write a card laid out as the template, or a mapping that ruamel.yaml read with its comments."""
    target = Path(path)
    if target.exists() and not overwrite:
        raise UsageError("exists already", where=str(path), fix="choose another name, or allow overwriting")
    replace_text(target, card_text(card) if isinstance(card, Card) else _dumped(card))


def _dumped(card: Mapping[str, Any]) -> str:
    yaml = YAML(typ="rt", pure=True)
    yaml.preserve_quotes = True
    yaml.width = 10**6
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    yaml.dump(card, stream)
    return stream.getvalue()
