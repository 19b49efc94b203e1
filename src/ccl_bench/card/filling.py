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
from ccl_bench.base.text import ACTING
from ccl_bench.card.fields import FileSection, key_of, unit_of
from ccl_bench.card.model import Card
from ccl_bench.card.reading import card_in_text
from ccl_bench.card.sections import field_names, is_section, leaf_paths, value_type
from ccl_bench.card.yaml_tree import (
    IssueLog,
    MappingEntry,
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


_WHOLE = re.compile(
    r"""\s* ( "([^"\\]|\\.)*" | '([^']|'')*' | \[[^\]\#]*\] | [^\s\#"'\[] (\S|\s+(?!\#|\s))* )
    \s*? (?P<comment>\s+\#.*)? \s*""",
    re.VERBOSE,
)
"""A value on one line, and the comment behind it."""


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
    before = read_text(path)
    text, filling = filled(before, values, file=str(path))
    if text != before:
        replace_text(Path(path), text)
    return filling


def filled(text: str, values: abc.Mapping[str, Any], *, file: str = "") -> tuple[str, Filling]:
    """Return the text of a card with values at dotted paths where it says nothing; see `fill`."""
    leaves = dict(_leaves(values))
    newline = "\r\n" if "\n" in text and text.count("\n") == text.count("\r\n") else "\n"
    text = text.replace(newline, "\n")
    tree, before = yaml_mapping(text, IssueLog(file)), card_values(card_in_text(text).value)
    done: list[str] = []
    for name, (keys, value) in leaves.items():
        lines = text.split("\n")
        if name in before or not _Filler(lines, file).put(tree, Card, keys, value):
            continue
        text, path_of_value = "\n".join(lines), ".".join(keys)
        if isinstance(value, list | tuple):
            texts = {
                f"{path_of_value}[{n}]": str(item) for n, item in enumerate(value) if not _says_nothing(item)
            }
        else:
            texts = {path_of_value: str(value) if isinstance(value, str) else yaml_scalar(value)}
        # The new text states what the old one stated, the value, and no more.
        tree = _checked_tree(text, _stated_texts(tree, Card) | texts, file)
        done.append(name)
    if done and not before.items() <= card_values(card_in_text(text).value).items():
        raise _refusal(file)
    return text.replace("\n", newline), Filling(
        tuple(done), tuple(name for name in leaves if name not in done)
    )


def cleared(text: str, path: str, *, file: str = "") -> str:
    """Return the text of a card without the value at a dotted path; its key and comments stay."""
    newline = "\r\n" if "\n" in text and text.count("\n") == text.count("\r\n") else "\n"
    text = text.replace(newline, "\n")
    tree, keys, lines = yaml_mapping(text, IssueLog(file)), path.split("."), text.split("\n")
    before = _stated_texts(tree, Card)
    left = {each: value for each, value in before.items() if each.partition("[")[0] != path}
    if left != before:
        _Filler(lines, file).clear(tree, Card, keys)
        text = "\n".join(lines)
        _checked_tree(text, left, file)
    return text.replace("\n", newline)


def _checked_tree(text: str, texts: dict[str, str], file: str) -> MappingNode:
    """Return the tree of a changed card; InputError unless it states these texts by path and no more."""
    try:
        tree = yaml_mapping(text, IssueLog(file))
    except InputError as problem:
        raise _refusal(file) from problem
    if _stated_texts(tree, Card) != texts:
        raise _refusal(file)
    return tree


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

    def __init__(self, lines: list[str], file: str) -> None:
        self.lines = lines
        self.file = file

    def put(self, mapping: MappingNode, kind: Any, keys: list[str], value: Any) -> bool:
        """Write `value` below the keys and return true, or return false if there is one already."""
        key, *below = keys
        if not mapping.entries:
            raise _refusal(self.file, mapping.line)
        entry = _entry(mapping, kind, key)
        if entry is None:
            indent, _ = self._key_line(mapping.entries[0])
            # Behind the last line of the mapping in block style, and before what follows it.
            end = max(line for each in mapping.entries for line in _line_numbers(each))
            inside = re.compile(rf"\s*$|\s{{{len(indent) + 1}}}|\s*#")
            while end < len(self.lines) and inside.match(self.lines[end]):
                end += 1
            while end and re.match(r"\s*(#.*)?$", self.lines[end - 1]):
                end -= 1
            self.lines[end:end] = _block(keys, value, indent)
            return True
        if not below:
            node, values = entry.node, list(value) if isinstance(value, list | tuple) else [value]
            if isinstance(node, SequenceNode) and node.items and all(map(_is_empty, node.items)):
                return self._put_item(node, 0, values)
            if not _is_empty(node):
                return False
            text = ", ".join(map(yaml_scalar, values))
            indent, head = self._key_line(entry)
            comment = self._comment(entry, indent + head)
            shown_value = f"[{text}]" if isinstance(value, list | tuple) else text
            self._replace(entry, f"{indent}{head} {shown_value}{comment}")
            return True
        if _is_empty(entry.node):
            indent, head = self._key_line(entry)
            comment = self._comment(entry, indent + head)
            self._replace(entry, f"{indent}{head}{comment}", *_block(below, value, f"{indent}  "))
            return True
        _, inner = _field_at(kind, key)
        if isinstance(entry.node, MappingNode):
            return self.put(entry.node, inner, below, value)
        ordered_fields = inner.ordered_fields if is_section(inner) else ()
        if isinstance(entry.node, SequenceNode) and below[0] in ordered_fields:
            return self._put_item(entry.node, ordered_fields.index(below[0]), [value])
        return False

    def clear(self, mapping: MappingNode, kind: Any, keys: list[str]) -> None:
        """Remove the value below the keys, which is there."""
        key, *below = keys
        entry = _entry(mapping, kind, key)
        if entry is None:
            raise _refusal(self.file)
        node, (_, inner) = entry.node, _field_at(kind, key)
        if below and isinstance(node, MappingNode):
            self.clear(node, inner, below)
        elif below and isinstance(node, SequenceNode) and is_section(inner):
            item = node.items[inner.ordered_fields.index(below[0])]
            dash = re.match(r"\s*-", self._line(item))
            self._clear_line(item, dash[0] if dash else "")
        elif below and not is_section(inner):
            raise _refusal(self.file, entry.line)
        elif isinstance(node, SequenceNode) and node.line != entry.line:
            places = [line for item in node.items for line in _line_numbers(item)]
            self.lines[min(places) - 1 : max(places)] = []
        else:
            self._clear_line(entry, "".join(self._key_line(entry)))

    def _clear_line(self, part: MappingEntry | Node, head: str) -> None:
        match = _WHOLE.fullmatch(self._line(part).removeprefix(head))
        if match is None or not head:
            raise _refusal(self.file, part.line)
        self._replace(part, head + (match["comment"] or "").rstrip())

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

    def _key_line(self, entry: MappingEntry) -> tuple[str, str]:
        match = re.match(rf"(\s*)((['\"]?){re.escape(entry.key)}\3\s*:)(?=\s|$)", self._line(entry))
        if match is None:
            raise _refusal(self.file, entry.line)
        return match[1], match[2]

    def _comment(self, part: MappingEntry | Node, head: str) -> str:
        """Return the comment behind an empty value, with the space before it."""
        match = re.fullmatch(_REST, self._line(part).removeprefix(head))
        if match is None:
            raise _refusal(self.file, part.line)
        return match["comment"].rstrip()

    def _line(self, part: MappingEntry | Node) -> str:
        return self.lines[part.line - 1] if part.line else ""

    def _replace(self, part: MappingEntry | Node, *lines: str) -> None:
        if part.line:
            self.lines[part.line - 1 : part.line] = lines


def _refusal(file: str, line: int | None = None) -> InputError:
    return InputError(
        "is written in a style that cannot be filled",
        where=f"{file}:{line}" if line else file,
        fix="fill this field by hand" if line else "fill it by hand",
    )


def _block(keys: list[str], value: Any, indent: str) -> list[str]:
    """Return the lines of a value below these keys."""
    plain = re.compile(r"[A-Za-z_][\w-]*")
    names = [key if plain.fullmatch(key) else yaml_scalar(key) for key in keys]
    lines = [f"{indent}{'  ' * depth}{name}:" for depth, name in enumerate(names)]
    if isinstance(value, list | tuple):
        return lines + [f"{indent}{'  ' * len(keys)}- {yaml_scalar(item)}" for item in value]
    return [*lines[:-1], f"{lines[-1]} {yaml_scalar(value)}"]


def card_values(part: FileSection, path: str = "") -> dict[str, Any]:
    """Return dotted path → value of all that a card states."""
    values: dict[str, Any] = {}
    for name, info in type(part).model_fields.items():
        value, inner = getattr(part, name), f"{path}.{key_of(name, info)}".lstrip(".")
        if isinstance(value, FileSection):
            values |= card_values(value, inner)
        elif isinstance(value, dict):
            values |= {f"{inner}.{key}": text for key, text in value.items()}
        elif value not in (None, ()):
            values[inner] = value
    return values


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


def _entry(mapping: MappingNode, kind: Any, key: str) -> MappingEntry | None:
    """Return the entry of a field; of several, the one that says something."""
    entries = [entry for entry in mapping.entries if _field_at(kind, entry.key)[0] == key]
    return next((entry for entry in entries if not _is_empty(entry.node)), entries[0] if entries else None)


def _is_empty(node: Node) -> bool:
    if isinstance(node, ScalarNode):
        return is_absent(node)
    if isinstance(node, SequenceNode):
        return not node.items
    return isinstance(node, MappingNode) and not node.entries


def _line_numbers(part: MappingEntry | Node) -> Iterator[int]:
    """Yield the line of a part of the tree and those of everything in it."""
    if part.line:
        yield part.line
    if isinstance(part, MappingEntry):
        yield from _line_numbers(part.node)
    elif isinstance(part, MappingNode | SequenceNode):
        for inner in part.entries if isinstance(part, MappingNode) else part.items:
            yield from _line_numbers(inner)


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


def _lines(part: FileSection, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for name, info in type(part).model_fields.items():
        key, value, kind = key_of(name, info), getattr(part, name), value_type(info)
        if isinstance(value, FileSection):
            yield f"{indent}{key}:  # {info.description}"
            for inner in value.ordered_fields:
                about = comment(type(value).model_fields[inner])
                item = _after(getattr(value, inner))
                yield f"{indent}  -{item}  # {inner.replace('_', '-')}: {about}"
            yield from () if value.ordered_fields else _lines(value, depth + 1)
        elif value or info.examples:
            is_collection = get_origin(kind) in (tuple, dict)
            yield f"{indent}{key}:{'' if is_collection else _after(value)}  # {comment(info)}"
            if get_origin(kind) is tuple:
                yield from (f"{indent}  - {yaml_scalar(item)}" for item in value)
            elif is_collection:
                yield from (f"{indent}  {yaml_scalar(k)}: {yaml_scalar(text)}" for k, text in value.items())
        if depth == 0 and (isinstance(value, FileSection) or name == "contact"):
            yield ""


def _after(value: Any) -> str:
    """Return a value as it stands behind a key or a hyphen."""
    return "" if value is None else f" {yaml_scalar(value)}"


def comment(info: FieldInfo) -> str:
    """Return what a field means, with its unit and examples."""
    unit = unit_of(info)
    unit_text = f" [{unit}]" if unit else ""
    words = (str(item).lower() if isinstance(item, bool) else str(item) for item in info.examples or ())
    examples = ", ".join(words)
    return f"{info.description}{unit_text}" + (f"; for example {examples}" if examples else "")


def yaml_scalar(value: Any) -> str:
    """Return a single value as YAML, quoted where it needs to be."""
    if isinstance(value, bool | int):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and value < 1e15 else repr(value)
    text = str(value)
    if _PLAIN.fullmatch(text) and text == text.strip() and isinstance(plain_value(text), str):
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    for refused in (_UNPRINTABLE, ACTING):
        quoted = refused.sub(lambda char: f"\\U{ord(char[0]):08x}", quoted)
    return quoted


def write_card(card: Card | Mapping[str, Any], path: str | Path, *, overwrite: bool = False) -> None:
    """Write a card laid out as the template, or a mapping that ruamel.yaml read with its comments."""
    target = Path(path)
    if target.exists() and not overwrite:
        raise UsageError("exists already", where=str(path), fix="choose another name, or allow overwriting")
    if isinstance(card, Card):
        replace_text(target, card_text(card))
        return
    yaml = YAML(typ="rt")
    yaml.width = sys.maxsize
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    yaml.dump(card, stream)
    replace_text(target, stream.getvalue())
