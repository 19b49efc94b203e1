"""The YAML tree of a card, with the line of each value, and readers of single values.

Plain values only: no tags, no aliases without end. Numbers written as text, units, and the many ways to
leave a value out are understood here. Issues are collected, so that all are reported at once.
"""

from __future__ import annotations

import math
import re
from collections import Counter, abc
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Issue, Severity
from ccl_bench.base.registry import spelling
from ccl_bench.base.text import plain

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

T = TypeVar("T")

MOST_ALIKE = 100
"""Issues with one message that are listed: nobody reads more, and laying 70,000 out takes 23 GB."""


@dataclass(slots=True)
class IssueLog:
    """Collects issues about one file, so that all of them are reported at once."""

    file: str = ""
    entries: list[Issue] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    """Line of every path seen while reading, for checks that run afterwards."""

    def error(self, path: str, message: str, fix: str = "", *, line: int | None = None) -> None:
        """Record something that could not be used."""
        self._add(Severity.ERROR, path, message, fix, line)

    def warning(self, path: str, message: str, fix: str = "", *, line: int | None = None) -> None:
        """Record something the writer should look at."""
        self._add(Severity.WARNING, path, message, fix, line)

    def note(self, path: str, message: str, fix: str = "", *, line: int | None = None) -> None:
        """Record something that was understood though written unusually."""
        self._add(Severity.NOTE, path, message, fix, line)

    def locate(self, path: str, line: int | None) -> None:
        """Record the line of a path, the first if there are several."""
        if line is not None:
            self.lines.setdefault(path, line)

    def _add(self, severity: Severity, path: str, message: str, fix: str, line: int | None) -> None:
        line_number = line or self.lines.get(path)
        self.entries.append(Issue(severity, message, file=self.file, line=line_number, path=path, fix=fix))

    def in_order(self) -> list[Issue]:
        """Return the issues by line, those without a line last, those of one line in order of recording.

        Of more than `MOST_ALIKE` that say the same, the last states how many more there are.
        """
        listed, counts = [], Counter[str]()
        for issue in sorted(self.entries, key=lambda issue: issue.line or math.inf):
            counts[issue.message] += 1
            if counts[issue.message] <= MOST_ALIKE:
                listed.append(issue)
        left_out = [
            Issue(
                issue.severity,
                f"{issue.message}; {counts[issue.message] - MOST_ALIKE:,} more are like this",
                file=issue.file,
                line=issue.line,
                path=issue.path,
                fix=issue.fix,
            )
            for issue in {issue.message: issue for issue in self.entries}.values()
            if counts[issue.message] > MOST_ALIKE
        ]
        return listed + left_out


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """The content of a file, and all mistakes in it."""

    value: T
    issues: list[Issue]
    file: str = ""

    @property
    def errors(self) -> list[Issue]:
        """The issues that kept something from being used."""
        return [issue for issue in self.issues if issue.severity is Severity.ERROR]


def shown(value: object, limit: int = 60) -> str:
    """Return `value` as it can be quoted in a message: on one line and not too long."""
    text = value if isinstance(value, str) else repr(value)
    flat = plain(text)
    return f"{flat[:limit]}…" if len(flat) > limit else flat


ABSENT = frozenset(
    {"", "-", "--", "~", "?", "n/a", "na", "n.a.", "none", "null", "nil", "tbd", "unknown", "not applicable"}
)
"""Texts that say there is no value; compared in lower case."""

_NUMBER = re.compile(r"([-+]?(?:\d[\d_,]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)\s*(.*)", re.DOTALL)
_GROUPED = re.compile(r"[-+]?\d{1,3}(,\d{3})+")
_TRUE = frozenset({"yes", "on", "true", "enabled"})
_FALSE = frozenset({"no", "off", "false", "disabled"})


class NotUnderstoodError(ValueError):
    """A value whose meaning would have to be guessed."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


def is_absent(scalar: ScalarNode) -> bool:
    """Whether the value says that there is none."""
    return scalar.value is None or (isinstance(scalar.value, str) and says_absent(scalar.value))


def says_absent(text: str) -> bool:
    """Whether a text says that there is no value."""
    return text.strip().lower() in ABSENT


def number(scalar: ScalarNode, units: Collection[str]) -> tuple[float | int, str]:
    """Return the number and a note on its spelling, or raise NotUnderstoodError."""
    value = scalar.value
    if isinstance(value, bool) or value is None:
        raise NotUnderstoodError(f"{scalar.text} is not a number")
    if isinstance(value, str):
        text = value.strip()
        return _number_in_text(text, units), f"read {shown(text)} as a number"
    if not math.isfinite(value):
        raise NotUnderstoodError(f"{scalar.text} is not a finite number")
    return value, ""


def whole_number(scalar: ScalarNode, units: Collection[str]) -> tuple[int, str]:
    """Return the whole number and a note on its spelling, or raise NotUnderstoodError."""
    value, note = number(scalar, units)
    if isinstance(value, float) and not value.is_integer():
        raise NotUnderstoodError(
            f"{shown(scalar.text)} is not a whole number", "write a whole number, for example 2"
        )
    return int(value), note


def truth(scalar: ScalarNode) -> tuple[bool, str]:
    """Return true or false and a note on its spelling, or raise NotUnderstoodError."""
    if isinstance(scalar.value, bool):
        return scalar.value, ""
    word = str(scalar.value).strip().lower()
    if word in _TRUE | _FALSE:
        return word in _TRUE, f"read as {str(word in _TRUE).lower()}"
    raise NotUnderstoodError(f"{shown(scalar.text)} is neither true nor false", "write true or false")


def word(scalar: ScalarNode, known_words: Collection[str], synonyms: Mapping[str, str]) -> tuple[str, str]:
    """Return one of the `known_words` and a note on its spelling, or raise NotUnderstoodError."""
    text = scalar.text.strip()
    for candidate in (text.lower(), spelling(text)):
        intended = synonyms.get(candidate, candidate)
        if intended in known_words:
            return intended, "" if intended == text else f"read as {intended}"
    raise NotUnderstoodError(
        f"{shown(text)} is not a known value", f"write one of {', '.join(sorted(known_words))}"
    )


_BYTES_PER_SECOND = frozenset({"GB/s", "GBps", "GBPS", "GByte/s"})


def _number_in_text(text: str, units: Collection[str]) -> float | int:
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > 40:
        raise NotUnderstoodError(f"{shown(text)} is not a number", "write a number")
    bare, unit = match[1].replace(",", "").replace("_", ""), match[2].strip()
    # b is a bit and B is a byte: their case is never ignored.
    in_any_case = "b" not in unit.lower() and unit.lower() in {spelling.lower() for spelling in units}
    if unit and unit not in units and not in_any_case:
        expected = f" in {min(units, key=len)}" if units else ""
        fix = f"write the number alone{expected}"
        if unit in _BYTES_PER_SECOND and "Gbit/s" in units:
            fix = f"write {8 * float(bare):g}: the field is in Gbit/s"
        raise NotUnderstoodError(f"{shown(text)}: {shown(unit)} is not a unit of this field", fix)
    if "," in match[1] and not _GROUPED.fullmatch(match[1]):
        raise NotUnderstoodError(
            f"{shown(text)}: the comma can be read in two ways", "write a point for decimals"
        )
    if re.fullmatch(r"[-+]?\d+", bare):
        return int(bare)
    value = float(bare)
    if not math.isfinite(value):
        raise NotUnderstoodError(f"{shown(text)} is not a finite number")
    return value


Plain = None | bool | int | float | str


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """A single value."""

    value: Plain
    text: str
    """The characters in the file: `2.10` stays `2.10` although its value is 2.1."""
    line: int | None = None


@dataclass(frozen=True, slots=True)
class SequenceNode:
    """A list."""

    items: tuple[Node, ...]
    line: int | None = None


@dataclass(frozen=True, slots=True)
class MappingEntry:
    """One key of a mapping with its value."""

    key: str
    node: Node
    line: int | None = None


@dataclass(frozen=True, slots=True)
class MappingNode:
    """Keys and values in file order; a key may occur more than once."""

    entries: tuple[MappingEntry, ...]
    line: int | None = None


@dataclass(frozen=True, slots=True)
class RefusedNode:
    """Something that is never turned into a value, such as a tag that names a Python object."""

    reason: str
    line: int | None = None


Node = ScalarNode | SequenceNode | MappingNode | RefusedNode


def node_of(value: object) -> Node:
    """Return the tree for plain Python data, as a TOML or JSON reader gives it."""
    if isinstance(value, abc.Mapping):
        return mapping_of(value)
    if isinstance(value, list | tuple):
        return SequenceNode(tuple(node_of(inner) for inner in value))
    if value is None or isinstance(value, bool | int | float | str):
        return ScalarNode(value, value if isinstance(value, str) else repr(value))
    return ScalarNode(str(value), str(value))


def mapping_of(value: abc.Mapping[str, object]) -> MappingNode:
    """Return the tree for a mapping of plain Python data."""
    return MappingNode(tuple(MappingEntry(str(key), node_of(inner)) for key, inner in value.items()))


def node_at(root: MappingNode, keys: Sequence[str]) -> Node | None:
    """Return the node below these keys; None if a key is missing or written twice."""
    node: Node = root
    for key in keys:
        inner = (
            [entry.node for entry in node.entries if entry.key == key]
            if isinstance(node, MappingNode)
            else []
        )
        if len(inner) != 1:
            return None
        node = inner[0]
    return node


def replaced_at(root: MappingNode, keys: Sequence[str], node: Node) -> MappingNode:
    """Return the tree with another node below these keys, which must exist."""
    key, *inner_keys = keys

    def changed(entry: MappingEntry) -> MappingEntry:
        if entry.key != key:
            return entry
        if inner_keys and isinstance(entry.node, MappingNode):
            return replace(entry, node=replaced_at(entry.node, inner_keys, node))
        return replace(entry, node=node)

    return replace(root, entries=tuple(map(changed, root.entries)))


def kind_of(node: Node) -> str:
    """Return the word for the kind of `node`, for messages."""
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
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
# Escapes as JSON writes them: a pair is one character, and a half of one could not be written anywhere.
_SURROGATE = re.compile("[\ud800-\udfff]")
_WORDS: dict[str, Plain] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip

# What the parser lets through, beside its own errors, on some malformed directives, tags and depths.
_PARSER_FAULTS = (ValueError, OverflowError, RecursionError, AttributeError, TypeError, IndexError, KeyError)


def yaml_mapping(text: str, log: IssueLog) -> MappingNode:
    """Return the mapping that `text` holds, or raise InputError if it is not one."""
    try:
        root, second_line = _parse(text)
    except InputError as error:
        where = f"{log.file or 'line'}{error.where}" if error.where else log.file
        raise InputError(error.message, where=where, fix=error.fix) from error.__cause__
    if second_line is not None:
        message = "more than one YAML document; only the first is read"
        log.error("", message, "keep one card in a file", line=second_line)
    if isinstance(root, MappingNode):
        return root
    problem = "is empty" if root is None else "holds no mapping at its top level"
    fix = "write `key: value` lines, as in workload_card_template.yaml"
    raise InputError(problem, where=log.file, fix=fix)


def plain_value(text: str) -> Plain:
    """Return the value of an unquoted scalar under the core schema of YAML 1.2."""
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


@lru_cache(maxsize=16)  # a command looks whether a file is a card, and then reads it
def _parse(text: str) -> tuple[Node | None, int | None]:
    """Return the root of the first document, and the line of a second; errors say where in the text."""
    return _Tree().read(text)


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

    def __init__(self) -> None:
        self.stack: list[_Open] = []
        self.anchors: dict[str, tuple[Node, int] | None] = {}
        self.top: Node | None = None
        self.total = 0

    def read(self, text: str) -> tuple[Node | None, int | None]:
        """Return the root of the first document, and the line where a second one begins."""
        documents = 0
        try:
            for event in YAML(typ="safe", pure=True).parse(text):
                kind = type(event).__name__
                documents += kind == "DocumentStartEvent"
                if documents > 1:
                    return self.top, _line(event)
                self._take(kind, event)
        except (YAMLError, *_PARSER_FAULTS) as error:
            raise _malformed(error) from error
        return self.top, None

    def _take(self, kind: str, event: Any) -> None:
        if kind == "ScalarEvent":
            text, tag = str(event.value), event.tag or ""
            if _SURROGATE.search(text):
                text = text.encode("utf_16", "surrogatepass").decode("utf_16", "replace")
            is_text = event.style is not None or tag in ("!", "tag:yaml.org,2002:str")
            scalar: Node = ScalarNode(text if is_text else plain_value(text), text, _line(event))
            if tag and tag not in CORE_TAGS:
                scalar = _refused(tag, _line(event))
            self._add(scalar, 1, event.anchor)
        elif kind == "AliasEvent":
            complete = self.anchors.get(event.anchor)
            if complete is None:
                message = f"alias *{event.anchor} refers to nothing that is complete before it"
                raise _refusal(message, _line(event))
            self._add(*complete, None)
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            if len(self.stack) >= MAX_DEPTH:
                raise _refusal(f"is nested more than {MAX_DEPTH} levels deep", _line(event))
            if event.anchor:
                self.anchors[event.anchor] = None
            is_mapping = kind == "MappingStartEvent"
            self.stack.append(_Open(is_mapping, event.tag or "", event.anchor, _line(event)))
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            ended = self.stack.pop()
            node: Node = SequenceNode(tuple(ended.nodes), ended.line)
            if ended.tag and ended.tag not in CORE_TAGS:
                node = _refused(ended.tag, ended.line)
            elif ended.is_mapping:
                node = _mapping(ended)
            self._add(node, ended.size, ended.anchor)

    def _add(self, node: Node, size: int, anchor: str | None) -> None:
        self.total += 1
        if anchor:
            self.anchors[anchor] = (node, size)
        if not self.stack:
            self.top = node
            return
        self.stack[-1].nodes.append(node)
        self.stack[-1].size += size
        if max(self.total, self.stack[-1].size) > MAX_NODES:
            raise _refusal(f"holds, or expands to, more than {MAX_NODES:,} values", node.line)


def _malformed(error: Exception) -> InputError:
    """Return the parser's complaint with its line and column, and what to do about it."""
    problem = getattr(error, "problem", None) or str(error).split("\n")[0] or type(error).__name__
    context = getattr(error, "context", None) or ""
    began = getattr(error, "context_mark", None) if context.endswith(_BEGUN) else None
    mark = began or getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    fix = next((fix for sign, fix in _YAML_FIXES if sign in f"{context} {problem}"), "correct it there")
    where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
    return InputError(f"is not valid YAML: {problem}", where=where, fix=fix)


def _refusal(message: str, line: int | None) -> InputError:
    fix = "see workload_card_template.yaml for the layout"
    return InputError(message, where=f":{line}" if line else "", fix=fix)


def _mapping(container: _Open) -> MappingNode:
    pairs = zip(container.nodes[::2], container.nodes[1::2], strict=True)
    entries: list[MappingEntry] = []
    merged: list[MappingEntry] = []
    for key, node in pairs:
        if isinstance(key, ScalarNode) and key.text == "<<" and isinstance(node, MappingNode):
            merged += node.entries
        else:
            if isinstance(node, ScalarNode) and not node.text:
                node = replace(node, line=key.line)  # the parser sees an empty value where the next token is
            entries.append(MappingEntry(key.text if isinstance(key, ScalarNode) else "?", node, key.line))
    names = {entry.key for entry in entries}
    return MappingNode((*entries, *(entry for entry in merged if entry.key not in names)), container.line)


def _refused(tag: str, line: int) -> RefusedNode:
    return RefusedNode(f"the tag {tag} names an object; it is ignored, and no code was run", line)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


_BEGUN = ("a simple key", "a quoted scalar", "a flow sequence", "a flow mapping")
"""What the parser was reading where the mistake is at its begin, and not where the parser noticed."""
_YAML_FIXES = (
    ("simple key", "write `key: value` in this line, or remove it"),
    ("quoted scalar", "close the quotes that begin here"),
    ("flow", "close the bracket that begins here"),
    (r"'\t'", "indent with spaces, not tabs"),
    ("mapping values", "put a value that contains `: ` into quotes, and indent keys of one level equally"),
    ("found character", "put the value into quotes"),
    ("<block end>", "indent lines of one level equally"),
)
"""Part of the parser's message → fix."""
