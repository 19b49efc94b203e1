"""Writing workload cards: the empty template, a complete card, and filling the gaps of an existing file.

Filling keeps every other character of the file, comments included.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

from ruamel.yaml import YAML

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.base.registry import did_you_mean
from ccl_bench.card.fields import Section, key_of, unit_of
from ccl_bench.card.model import Bandwidth, Card
from ccl_bench.card.sections import leaf_paths, spelling, value_type
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
    text = before = read_text(path)
    filled: list[str] = []
    for name, (keys, value) in leaves.items():
        lines = text.split("\n")
        if _Filler(lines, yaml_mapping(text, IssueLog(str(path))), str(path)).put(keys, value):
            text = "\n".join(lines)
            filled.append(name)
    if filled:
        _verify(before, text, [leaves[name][0] for name in filled], str(path))
        replace_text(Path(path), text)
    return Filling(tuple(filled), tuple(name for name in leaves if name not in filled))


def _leaves(values: abc.Mapping[str, Any]) -> abc.Iterator[tuple[str, tuple[list[str], Any]]]:
    leaves = leaf_paths(Card)
    for name, value in values.items():
        parent, _, last = name.rpartition(".")
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
            yield name, ([*parent.split("."), last] if is_variable else name.split("."), value)


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
        inner = self.root
        for depth, key in enumerate(keys):
            entry = _entry(inner, key)
            if entry is None:
                indent, _ = self._key_line(inner.entries[0]) if inner.entries else ("", "")
                self._insert(self._end(inner, len(indent)), keys[depth:], value, indent)
                return True
            if depth == len(keys) - 1:
                return self._put_at(entry, value)
            if isinstance(entry.node, SequenceNode):
                return self._put_item(entry.node, Bandwidth.ordered_fields.index(keys[-1]), value)
            if not isinstance(entry.node, MappingNode) or not entry.node.entries:
                return self._put_below(entry, keys[depth + 1 :], value)
            inner = entry.node
        return False

    def _put_at(self, entry: Entry, value: Any) -> bool:
        node = entry.node
        if isinstance(node, SequenceNode) and node.items and all(map(_is_empty, node.items)):
            items = list(value) if isinstance(value, list | tuple) else [value]
            for extra in reversed(items[1:]):
                margin = re.match(r"\s*", self._line(node.items[0]))
                self.lines.insert(
                    node.items[0].line or 0, f"{margin[0] if margin else ''}- {yaml_scalar(extra)}"
                )
            return bool(items) and self._put_item(node, 0, items[0])
        if not _is_empty(node):
            return False
        text = (
            f"[{', '.join(map(yaml_scalar, value))}]"
            if isinstance(value, list | tuple)
            else yaml_scalar(value)
        )
        indent, head = self._key_line(entry)
        match = re.fullmatch(_REST, self._line(entry)[len(indent) + len(head) :])
        self._set(entry.line, f"{indent}{head} {text}{match['comment'].rstrip() if match else ''}", match)
        return True

    def _put_item(self, node: SequenceNode, index: int, value: Any) -> bool:
        item = node.items[index] if index < len(node.items) else None
        if item is None or not _is_empty(item):
            return False
        match = re.fullmatch(r"(?P<dash>\s*-)" + _REST, self._line(item))
        head, comment = (match["dash"], match["comment"].strip()) if match else ("", "")
        self._set(item.line, f"{head} {yaml_scalar(value)}" + (f"  {comment}" if comment else ""), match)
        return True

    def _put_below(self, entry: Entry, keys: list[str], value: Any) -> bool:
        if not _is_empty(entry.node):
            return False
        indent, head = self._key_line(entry)
        tail = self._line(entry)[len(indent) + len(head) :]
        match = re.fullmatch(_REST, tail)
        self._set(entry.line, f"{indent}{head}{match['comment'].rstrip() if match else ''}", match)
        self._insert(entry.line or 0, keys, value, f"{indent}  ")
        return True

    def _insert(self, at: int, keys: list[str], value: Any, indent: str) -> None:
        new = [f"{indent}{'  ' * depth}{_key(key)}:" for depth, key in enumerate(keys)]
        if isinstance(value, list | tuple):
            new += [f"{indent}{'  ' * len(keys)}- {yaml_scalar(item)}" for item in value]
        else:
            new[-1] += f" {yaml_scalar(value)}"
        self.lines[at:at] = new

    def _end(self, mapping: MappingNode, indent: int) -> int:
        """Return the index of the line behind the last line of a mapping in block style."""
        end = max(
            (_last_line(entry.node, entry.line or 0) for entry in mapping.entries), default=len(self.lines)
        )
        inside = re.compile(rf"\s*$|\s{{{indent + 1}}}|\s*#")
        while end < len(self.lines) and inside.match(self.lines[end]):
            end += 1
        while end and re.match(r"\s*(#.*)?$", self.lines[end - 1]):
            end -= 1
        return end

    def _key_line(self, entry: Entry) -> tuple[str, str]:
        match = re.match(rf"(\s*)((['\"]?){re.escape(entry.key)}\3\s*:)(?=\s|$)", self._line(entry))
        if match is None:
            raise self._refusal(entry.line)
        return match[1], match[2]

    def _line(self, place: Entry | Node) -> str:
        return self.lines[(place.line or 1) - 1]

    def _set(self, line: int | None, text: str, understood: object) -> None:
        if understood is None or line is None:
            raise self._refusal(line)
        self.lines[line - 1] = text

    def _refusal(self, line: int | None) -> InputError:
        where = f"{self.file}:{line}" if line else self.file
        return InputError(
            "is written in a style that cannot be filled", where=where, fix="fill this field by hand"
        )


def _verify(before: str, after: str, filled: list[list[str]], file: str) -> None:
    """Make sure that the new text states all that the old one stated, and the filled values."""
    old, new = (_stated_texts(yaml_mapping(text, IssueLog(file)), "") for text in (before, after))
    filled_paths = {".".join(map(spelling, keys)) for keys in filled}
    stated_paths = {re.sub(r"\[\d+\]", "", path) for path in new}
    places = {
        path.rsplit(".", 1)[0] if path.endswith(Bandwidth.ordered_fields) else path
        for path in filled_paths - stated_paths
    }
    if not old.items() <= new.items() or not places <= stated_paths:
        raise InputError("is written in a style that cannot be filled", where=file, fix="fill it by hand")


def _stated_texts(node: Node, path: str) -> dict[str, str]:
    texts: dict[str, str] = {}
    if isinstance(node, MappingNode):
        for entry in node.entries:
            texts |= _stated_texts(entry.node, f"{path}.{spelling(entry.key)}".lstrip("."))
    elif isinstance(node, SequenceNode):
        for index, item in enumerate(node.items):
            texts |= _stated_texts(item, f"{path}[{index}]")
    elif isinstance(node, ScalarNode) and not is_absent(node):
        texts[path] = node.text
    return texts


def _entry(mapping: MappingNode, key: str) -> Entry | None:
    return next((entry for entry in mapping.entries if spelling(entry.key) == spelling(key)), None)


def _is_empty(node: Node) -> bool:
    if isinstance(node, ScalarNode):
        return is_absent(node)
    if isinstance(node, SequenceNode):
        return not node.items
    return isinstance(node, MappingNode) and not node.entries


def _last_line(node: Node, line: int) -> int:
    inner = [entry.node for entry in node.entries] if isinstance(node, MappingNode) else []
    inner += list(node.items) if isinstance(node, SequenceNode) else []
    return max([line, node.line or 0, *(_last_line(item, 0) for item in inner)])


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
    yaml = YAML(typ="rt", pure=True)
    yaml.preserve_quotes = True
    yaml.width = 10**6
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    yaml.dump(card, stream)
    return stream.getvalue()
