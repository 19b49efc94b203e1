"""YAML 1.2 text as a tree that keeps lines, repeated keys and the text as written.

The parser's events are used and its constructors are not: a tag is therefore only a word, dates and
times stay text, and every value keeps its line. Nothing in the text is ever executed, and its size is
limited. YAML: https://yaml.org/spec/1.2.2/.
"""

from __future__ import annotations

import re
from collections import abc
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ccl_bench.base.errors import InputError

if TYPE_CHECKING:
    from ccl_bench.card.issues import IssueLog

Plain = None | bool | int | float | str


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value."""

    value: Plain
    text: str
    """The characters in the file: `2.10` stays `2.10` although its value is 2.1."""
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list."""

    items: tuple[Node, ...]
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a mapping with its value."""

    key: str
    node: Node
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Mapping:
    """Keys and values in file order; a key may occur more than once."""

    entries: tuple[Entry, ...]
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Something that is never turned into a value, such as a tag that names a Python object."""

    reason: str
    line: int | None = None


Node = Scalar | Sequence | Mapping | Refused


def node_of(value: object) -> Node:
    """Return the tree for plain Python data, as a TOML or JSON reader gives it."""
    if isinstance(value, abc.Mapping):
        return mapping_of(value)
    if isinstance(value, list | tuple):
        return Sequence(tuple(node_of(inner) for inner in value))
    if value is None or isinstance(value, bool | int | float | str):
        return Scalar(value, value if isinstance(value, str) else repr(value))
    return Scalar(str(value), str(value))


def mapping_of(value: abc.Mapping[str, object]) -> Mapping:
    """Return the tree for a mapping of plain Python data."""
    return Mapping(tuple(Entry(str(key), node_of(inner)) for key, inner in value.items()))


def kind_of(node: Node) -> str:
    """Return the word for what `node` is, for messages."""
    if isinstance(node, Mapping):
        return "a mapping"
    if isinstance(node, Sequence):
        return "a list"
    return "a single value"


MAX_DEPTH = 64
MAX_NODES = 100_000
"""Nodes in the expanded tree: an alias counts as everything it stands for."""
CORE_TAGS = (
    "!",
    *(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "map", "seq")),
)
# Past this many digits a number is not one that a card can mean, and Python refuses to convert it.
MAX_DIGITS = 40

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf", ".nan": "nan"}
_WORDS: dict[str, Plain] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip

# What the parser lets through, beside its own errors, on some malformed directives, tags and depths.
_PARSER_FAULTS = (ValueError, RecursionError, AttributeError, TypeError, IndexError, KeyError)


def yaml_mapping(text: str, log: IssueLog) -> Mapping:
    """Return the mapping that `text` holds, or raise InputError if it is not one."""
    root = _Tree(log).root(text)
    if isinstance(root, Mapping):
        return root
    found = "is empty" if root is None else "holds no mapping at its top level"
    raise InputError(found, where=log.file, fix="write `key: value` lines, as in workload_card_template.yaml")


def plain_value(text: str) -> Plain:
    """Return what an unquoted scalar means under the core schema of YAML 1.2."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= MAX_DIGITS:
        if _INT.fullmatch(text):
            return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
        if text.lower() in _SPECIAL:
            return float(_SPECIAL[text.lower()])
    return text


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end has not come yet."""

    is_mapping: bool
    tag: str
    anchor: str | None
    line: int
    nodes: list[Node] = field(default_factory=list)
    size: int = 1


class _Tree:
    """Builds the tree from parser events without recursion, counting depth and size."""

    def __init__(self, log: IssueLog) -> None:
        self.log = log
        self.stack: list[_Open] = []
        self.anchors: dict[str, tuple[Node, int] | None] = {}
        self.found: Node | None = None
        self.total = 0

    def root(self, text: str) -> Node | None:
        """Return the first document's root."""
        documents = 0
        try:
            for event in YAML(typ="safe", pure=True).parse(text):
                kind = type(event).__name__
                documents += kind == "DocumentStartEvent"
                if documents > 1:
                    self._more_documents(_line(event))
                    break
                self._take(kind, event)
        except (YAMLError, *_PARSER_FAULTS) as error:
            raise self._refusal(f"is not valid YAML: {_problem(error)}", _error_line(error)) from error
        return self.found

    def _more_documents(self, line: int) -> None:
        self.log.error(
            "", "more than one YAML document; only the first is read", "keep one card in a file", line=line
        )

    def _take(self, kind: str, event: Any) -> None:
        if kind == "ScalarEvent":
            self._add(_scalar(event), 1, event.anchor)
        elif kind == "AliasEvent":
            self._add(*self._alias(event), None)
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            self._start(kind == "MappingStartEvent", event)
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            self._close()

    def _start(self, is_mapping: bool, event: Any) -> None:
        if len(self.stack) >= MAX_DEPTH:
            raise self._refusal(f"is nested more than {MAX_DEPTH} levels deep", _line(event))
        if event.anchor:
            self.anchors[event.anchor] = None
        self.stack.append(_Open(is_mapping, event.tag or "", event.anchor, _line(event)))

    def _close(self) -> None:
        done = self.stack.pop()
        node: Node
        if done.tag and done.tag not in CORE_TAGS:
            node = _refused(done.tag, done.line)
        elif done.is_mapping:
            node = _mapping(done)
        else:
            node = Sequence(tuple(done.nodes), done.line)
        self._add(node, done.size, done.anchor)

    def _add(self, node: Node, size: int, anchor: str | None) -> None:
        self.total += 1
        if anchor:
            self.anchors[anchor] = (node, size)
        if not self.stack:
            self.found = node
            return
        self.stack[-1].nodes.append(node)
        self.stack[-1].size += size
        if max(self.total, self.stack[-1].size) > MAX_NODES:
            raise self._refusal(f"holds, or expands to, more than {MAX_NODES:,} values", node.line)

    def _alias(self, event: Any) -> tuple[Node, int]:
        known = self.anchors.get(event.anchor)
        if known is None:
            raise self._refusal(f"alias *{event.anchor} points to nothing finished before it", _line(event))
        return known

    def _refusal(self, message: str, line: int | None) -> InputError:
        where = f"{self.log.file or 'line'}:{line}" if line else self.log.file
        return InputError(message, where=where, fix="see workload_card_template.yaml for the layout")


def _mapping(done: _Open) -> Mapping:
    pairs = zip(done.nodes[::2], done.nodes[1::2], strict=True)
    own: list[Entry] = []
    merged: list[Entry] = []
    for key, node in pairs:
        if isinstance(key, Scalar) and key.text == "<<" and isinstance(node, Mapping):
            merged += node.entries
        else:
            if isinstance(node, Scalar) and not node.text:
                node = replace(node, line=key.line)  # the parser sees an empty value where the next token is
            own.append(Entry(key.text if isinstance(key, Scalar) else "?", node, key.line))
    names = {entry.key for entry in own}
    return Mapping((*own, *(entry for entry in merged if entry.key not in names)), done.line)


def _scalar(event: Any) -> Node:
    text, line = str(event.value), _line(event)
    tag = event.tag or ""
    if tag and tag not in CORE_TAGS:
        return _refused(tag, line)
    is_text = event.style is not None or tag in ("!", "tag:yaml.org,2002:str")
    return Scalar(text if is_text else plain_value(text), text, line)


def _refused(tag: str, line: int) -> Refused:
    return Refused(f"the tag {tag} names an object; it is ignored and nothing was run", line)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _problem(error: Exception) -> str:
    return str(getattr(error, "problem", None) or str(error).split("\n")[0] or type(error).__name__)


def _error_line(error: Exception) -> int | None:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return mark.line + 1 if mark else None
