"""Writing workload cards: the empty template, a complete card, and filling the gaps of an existing file.

Filling keeps every other character of the file, comments included.
"""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

from ruamel.yaml import YAML

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.base.registry import did_you_mean, spelling
from ccl_bench.card.fields import Section, key_of, unit_of
from ccl_bench.card.model import Card
from ccl_bench.card.reading import card_in_text
from ccl_bench.card.sections import field_names, is_section, leaf_paths, value_type
from ccl_bench.card.yaml_tree import (
    Entry,
    IssueLog,
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    is_absent,
    plain_value,
    says_absent,
    yaml_mapping,
)
from ccl_bench.storage.files import read_text, replace_text

if TYPE_CHECKING:
    from collections import abc
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo

_REST = r"\s*?(?P<old>[^\s#][^#]*?)?(?P<comment>\s+#.*|\s*)$"


@dataclass(frozen=True, slots=True)
class Filling:
    """What `fill` did, as dotted paths."""

    filled: tuple[str, ...]
    kept: tuple[str, ...]
    """Paths that already had a value, which was kept."""


def fill(path: str | Path, values: abc.Mapping[str, Any]) -> Filling:
    """Put values at dotted paths of a card's file where it says nothing.

    A value is a text, a number, true or false, a list of texts, or a mapping for environment variables;
    empty ones are skipped.
    """
    leaves = dict(_leaves(values))
    file, text = str(path), read_text(path)
    newline = "\r\n" if "\n" in text and text.count("\n") == text.count("\r\n") else "\n"
    text = text.replace(newline, "\n")
    tree, before = yaml_mapping(text, IssueLog(file)), _values(card_in_text(text).value)
    filled: list[str] = []
    for name, (keys, value) in leaves.items():
        lines = text.split("\n")
        if name not in before and _Filler(lines, tree, file).put(keys, value):
            text = "\n".join(lines)
            tree = _verified_tree(tree, text, keys, value, file)
            filled.append(name)
    if filled:
        if not before.items() <= _values(card_in_text(text).value).items():
            raise _refusal(file)
        replace_text(Path(path), text.replace("\n", newline))
    return Filling(tuple(filled), tuple(name for name in leaves if name not in filled))


def _leaves(values: abc.Mapping[str, Any]) -> abc.Iterator[tuple[str, tuple[list[str], Any]]]:
    leaves = leaf_paths(Card)
    for name, value in values.items():
        parent, _, _ = name.rpartition(".")
        is_variable = parent.endswith(".env") and parent in leaves
        if name not in leaves and not is_variable:
            raise UsageError(
                f"a card has no {name}", fix=did_you_mean(name, leaves) or f"known: {', '.join(leaves)}"
            )
        if isinstance(value, dict):
            yield from (
                (f"{name}.{key}", ([*name.split("."), str(key)], item))
                for key, item in value.items()
                if not _says_nothing(item)
            )
        elif not _says_nothing(value):
            yield name, (name.split("."), value)


def _says_nothing(value: Any) -> bool:
    """Whether a value would be read back as absent."""
    return value is None or value in ([], (), {}) or (isinstance(value, str) and says_absent(value))


class _Filler:
    """Edits the lines of one file, guided by the tree that was read from them."""

    def __init__(self, lines: list[str], root: MappingNode, file: str) -> None:
        self.lines = lines
        self.root = root
        self.file = file

    def put(self, keys: list[str], value: Any) -> bool:
        """Write `value` and return true, or return false if there is one already."""
        return self._put_in(self.root, Card, keys, value)

    def _put_in(self, mapping: MappingNode, kind: Any, keys: list[str], value: Any) -> bool:
        key, *below = keys
        if not mapping.entries:
            raise _refusal(self.file, mapping.line)
        entry = _entry(mapping, kind, key)
        if entry is None:
            indent, _ = self._key_line(mapping.entries[0])
            end = self._end(mapping, len(indent))
            self.lines[end:end] = _block(keys, value, indent)
            return True
        if not below:
            return self._put_at(entry, value)
        if _is_empty(entry.node):
            indent, head = self._key_line(entry)
            comment = self._comment(entry, indent + head)
            self._replace(entry, f"{indent}{head}{comment}", *_block(below, value, f"{indent}  "))
            return True
        _, inner = _field_at(kind, key)
        if isinstance(entry.node, MappingNode):
            return self._put_in(entry.node, inner, below, value)
        ordered_fields = inner.ordered_fields if is_section(inner) else ()
        if isinstance(entry.node, SequenceNode) and below[0] in ordered_fields:
            return self._put_item(entry.node, ordered_fields.index(below[0]), [value])
        return False

    def _put_at(self, entry: Entry, value: Any) -> bool:
        node = entry.node
        values = list(value) if isinstance(value, list | tuple) else [value]
        if isinstance(node, SequenceNode) and node.items and all(map(_is_empty, node.items)):
            return self._put_item(node, 0, values)
        if not _is_empty(node):
            return False
        text = ", ".join(map(yaml_scalar, values))
        if isinstance(value, list | tuple):
            text = f"[{text}]"
        indent, head = self._key_line(entry)
        comment = self._comment(entry, indent + head)
        self._replace(entry, f"{indent}{head} {text}{comment}")
        return True

    def _put_item(self, node: SequenceNode, index: int, values: list[Any]) -> bool:
        item = node.items[index] if index < len(node.items) else None
        if item is None or not _is_empty(item):
            return False
        dash = re.match(r"\s*-", self._line(item))
        if dash is None:
            raise _refusal(self.file, item.line)
        comment = self._comment(item, dash[0]).strip()
        first, *others = (f"{dash[0]} {yaml_scalar(value)}" for value in values)
        self._replace(item, first + (f"  {comment}" if comment else ""), *others)
        return True

    def _end(self, mapping: MappingNode, indent: int) -> int:
        """Return the index of the line behind the last line of a mapping in block style."""
        end = max(line for entry in mapping.entries for line in _line_numbers(entry))
        inside = re.compile(rf"\s*$|\s{{{indent + 1}}}|\s*#")
        while end < len(self.lines) and inside.match(self.lines[end]):
            end += 1
        while end and re.match(r"\s*(#.*)?$", self.lines[end - 1]):
            end -= 1
        return end

    def _key_line(self, entry: Entry) -> tuple[str, str]:
        match = re.match(rf"(\s*)((['\"]?){re.escape(entry.key)}\3\s*:)(?=\s|$)", self._line(entry))
        if match is None:
            raise _refusal(self.file, entry.line)
        return match[1], match[2]

    def _comment(self, place: Entry | Node, head: str) -> str:
        """Return the comment behind an empty value, with the space before it."""
        match = re.fullmatch(_REST, self._line(place).removeprefix(head))
        if match is None:
            raise _refusal(self.file, place.line)
        return match["comment"].rstrip()

    def _line(self, place: Entry | Node) -> str:
        return self.lines[place.line - 1] if place.line else ""

    def _replace(self, place: Entry | Node, *lines: str) -> None:
        if place.line:
            self.lines[place.line - 1 : place.line] = lines


def _refusal(file: str, line: int | None = None) -> InputError:
    return InputError(
        "is written in a style that cannot be filled",
        where=f"{file}:{line}" if line else file,
        fix="fill this field by hand" if line else "fill it by hand",
    )


def _block(keys: list[str], value: Any, indent: str) -> list[str]:
    """Return the lines of a value below these keys."""
    lines = [f"{indent}{'  ' * depth}{_key(key)}:" for depth, key in enumerate(keys)]
    if isinstance(value, list | tuple):
        return lines + [f"{indent}{'  ' * len(keys)}- {yaml_scalar(item)}" for item in value]
    return [*lines[:-1], f"{lines[-1]} {yaml_scalar(value)}"]


def _values(part: Section, path: str = "") -> dict[str, Any]:
    """Return dotted path → value of all that a card states."""
    values: dict[str, Any] = {}
    for name, info in type(part).model_fields.items():
        value, inner = getattr(part, name), f"{path}.{key_of(name, info)}".lstrip(".")
        if isinstance(value, Section):
            values |= _values(value, inner)
        elif isinstance(value, dict):
            values |= {f"{inner}.{key}": text for key, text in value.items()}
        elif value not in (None, ()):
            values[inner] = value
    return values


def _verified_tree(old: MappingNode, text: str, keys: list[str], value: Any, file: str) -> MappingNode:
    """Return the tree of the new text, which states what the old one stated, the value, and no more."""
    try:
        new = yaml_mapping(text, IssueLog(file))
    except InputError as problem:
        raise _refusal(file) from problem
    if _stated_texts(new, Card) != _stated_texts(old, Card) | _texts_of(value, ".".join(keys)):
        raise _refusal(file)
    return new


def _texts_of(value: Any, path: str) -> dict[str, str]:
    if isinstance(value, list | tuple):
        return {f"{path}[{n}]": str(item) for n, item in enumerate(value) if not _says_nothing(item)}
    return {path: str(value) if isinstance(value, str) else yaml_scalar(value)}


def _stated_texts(node: Node, kind: Any, path: str = "") -> dict[str, str]:
    """Return dotted path → text of all values in a tree."""
    texts: dict[str, str] = {}
    if isinstance(node, MappingNode):
        for entry in node.entries:
            key, inner = _field_at(kind, entry.key)
            texts |= _stated_texts(entry.node, inner, f"{path}.{key}".lstrip("."))
    elif isinstance(node, SequenceNode):
        names = kind.ordered_fields if is_section(kind) else ()
        for index, item in enumerate(node.items):
            step = f".{names[index]}" if index < len(names) else f"[{index}]"
            texts |= _stated_texts(item, None, path + step)
    elif isinstance(node, ScalarNode) and not is_absent(node):
        texts[path] = node.text
    return texts


def _field_at(kind: Any, key: str) -> tuple[str, Any]:
    """Return the proper key and the type of a field; keys of no field stay as they are."""
    name = field_names(kind).get(spelling(key)) if is_section(kind) else None
    if name is None:
        return key, None
    info = kind.model_fields[name]
    return key_of(name, info), value_type(info)


def _entry(mapping: MappingNode, kind: Any, key: str) -> Entry | None:
    """Return the entry of a field; of several, the one that says something."""
    entries = [entry for entry in mapping.entries if _field_at(kind, entry.key)[0] == key]
    return next((entry for entry in entries if not _is_empty(entry.node)), entries[0] if entries else None)


def _is_empty(node: Node) -> bool:
    if isinstance(node, ScalarNode):
        return is_absent(node)
    if isinstance(node, SequenceNode):
        return not node.items
    return isinstance(node, MappingNode) and not node.entries


def _line_numbers(place: Entry | Node) -> Iterator[int]:
    """Yield the line of a place and those of everything in it."""
    if place.line:
        yield place.line
    if isinstance(place, Entry):
        yield from _line_numbers(place.node)
    elif isinstance(place, MappingNode | SequenceNode):
        for inner in place.entries if isinstance(place, MappingNode) else place.items:
            yield from _line_numbers(inner)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z_][\w-]*", key) else yaml_scalar(key)


HEADER = """\
# Workload card: facts about a run that traces do not show.
# Copy it into the run directory, fill in what you know and leave the rest empty; empty means unknown.
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
        scalar = "" if value is None else f" {yaml_scalar(value)}"
        yield f"{indent}{key}:{scalar}  # {_comment(info)}"


def _pair(part: Section, depth: int) -> Iterator[str]:
    for name in part.ordered_fields:
        value = getattr(part, name)
        scalar = "" if value is None else f" {yaml_scalar(value)}"
        comment = _comment(type(part).model_fields[name])
        yield f"{'  ' * depth}-{scalar}  # {name.replace('_', '-')}: {comment}"


def _comment(info: FieldInfo) -> str:
    unit = unit_of(info)
    unit_text = f" [{unit}]" if unit else ""
    examples = ", ".join(_example(item) for item in info.examples or ())
    return f"{info.description}{unit_text}" + (f"; for example {examples}" if examples else "")


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
    yaml = YAML(typ="rt")
    yaml.width = sys.maxsize
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    yaml.dump(card, stream)
    return stream.getvalue()
