"""Values of a documented section from a tree: every mistake is recorded, and no value is guessed."""

from __future__ import annotations

import difflib
import math
import types
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError

from ccl_bench.base.registry import did_you_mean, spelling
from ccl_bench.base.text import counted
from ccl_bench.card import yaml_tree
from ccl_bench.card.fields import SYNONYMS, FileSection, hint, is_literal, is_unlimited, key_of, unit_of
from ccl_bench.card.yaml_tree import (
    MappingEntry,
    MappingNode,
    Node,
    NotUnderstoodError,
    RefusedNode,
    ScalarNode,
    SequenceNode,
    is_absent,
    kind_of,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic.fields import FieldInfo

    from ccl_bench.card.yaml_tree import IssueLog

MAX_UNKNOWN = 50
"""Unknown keys of one mapping that are reported one by one."""


_INFINITE = frozenset({"inf", "infinity", "infinite", "unlimited"})


def value_type(info: FieldInfo) -> Any:
    """Return the type of a field without `None` and limits: `int` for `Count | None`."""
    kind: Any = info.annotation
    while get_origin(kind) in (Union, types.UnionType, Annotated):
        kind = next(arg for arg in get_args(kind) if arg is not type(None))
    return kind


def is_section(kind: Any) -> bool:
    """Whether a type of a field is a part with fields of its own."""
    return isinstance(kind, type) and issubclass(kind, FileSection)


def may_be_none(part: type[FileSection], name: str) -> bool:
    """Whether None is a value of the field, so that an unreadable value hides its default."""
    info = part.model_fields[name]
    return type(None) in get_args(info.annotation)


def field_names(part: type[FileSection]) -> dict[str, str]:
    """Return spelling of a key → attribute, for every key by which a field may be called."""
    names = {
        spelling(synonym): name for name, info in part.model_fields.items() for synonym in hint(info, "also")
    }
    return names | {spelling(key_of(name, info)): name for name, info in part.model_fields.items()}


def file_path(part: type[FileSection], names: tuple[int | str, ...]) -> str:
    """Return the dotted path in the file of a field given by attribute names."""
    return ".".join(key_of(name, info) for name, info in _fields_along(part, names))


def meaning(part: type[FileSection], names: tuple[int | str, ...]) -> str:
    """Return the advice on the value of a field that attribute names give."""
    _, info = _fields_along(part, names)[-1]
    unit = unit_of(info)
    return f"this is: {info.description}" + (f", in {unit}" if unit else "")


def _fields_along(part: type[FileSection], names: tuple[int | str, ...]) -> list[tuple[str, FieldInfo]]:
    fields: list[tuple[str, FieldInfo]] = []
    current: Any = part
    for name in map(str, names):
        if not is_section(current):
            break
        fields.append((name, current.model_fields[name]))
        current = value_type(current.model_fields[name])
    return fields


def near_miss_warner(part: type[FileSection], log: IssueLog) -> Callable[..., None]:
    """Return a receiver of unknown keys for formats that may hold any: only likely slips are reported."""
    known_keys = {path.rpartition(".")[2] for path in leaf_paths(part)}

    def warn(path: str, message: str, _fix: str = "", *, line: int | None = None) -> None:
        close = difflib.get_close_matches(spelling(path.rpartition(".")[2]), known_keys, cutoff=0.8)
        if close:
            log.warning(path, message, f"did you mean {close[0]}?", line=line)

    return warn


def leaf_paths(part: type[FileSection], path: str = "") -> list[str]:
    """Return the dotted file paths of all values of a part."""
    paths: list[str] = []
    for name, info in part.model_fields.items():
        inner, kind = _below(path, key_of(name, info)), value_type(info)
        paths += leaf_paths(kind, inner) if is_section(kind) else [inner]
    return paths


P = TypeVar("P", bound=FileSection)


def read_section(node: MappingNode, part: type[P], log: IssueLog, *, unknown: Callable[..., None]) -> P:
    """Return a whole file's part; `unknown` is the log's method for keys the part does not have."""
    return validated(part, _Walk(log, part, unknown).values(node, part, ""), log)


def validated(part: type[P], raw: dict[str, Any], log: IssueLog) -> P:
    """Return the part with every value that breaks a limit recorded and left out."""
    try:
        return part.model_validate(raw)
    except ValidationError as error:
        for problem in error.errors():
            *parts, name = (step for step in problem["loc"] if isinstance(step, str))
            inner: Any = raw
            for step in parts:
                inner = inner[step]
            if isinstance(problem["loc"][-1], int):
                inner.pop(name, None)  # a list of which one value breaks a limit; None would be no list
            else:
                inner[name] = None
            path, message = file_path(part, problem["loc"]), problem["msg"].removeprefix("Value error, ")
            text = f"{shown(repr(problem['input']))} {message.removeprefix('Input ')}"
            log.error(path, text, meaning(part, problem["loc"]))
    return part.model_validate(raw)


class _Walk:
    """One pass over a file; `unknown` receives the keys of no field."""

    def __init__(self, log: IssueLog, root: type[FileSection], unknown: Callable[..., None]) -> None:
        self.log = log
        self.root = root
        self.unknown = unknown

    def values(self, node: MappingNode, part: type[FileSection], path: str) -> dict[str, Any]:
        """Return attribute → value for everything in `node` that is understood."""
        values: dict[str, Any] = {}
        for name, entries in self._by_field(node, part, path).items():
            info = part.model_fields[name]
            inner = _below(path, key_of(name, info))
            self.log.locate(inner, entries[0].line)
            entry = self._only(entries, inner)
            sweep = hint(info, "sweep")
            if entry and sweep and isinstance(entry.node, SequenceNode) and (items := entry.node.items):
                if len(items) == 1:
                    message = "a list of one value is read as the value"
                    fix = "write it without brackets and hyphen"
                    entry = MappingEntry(entry.key, items[0], entry.line)
                else:
                    message = f"is read as a sweep over {len(items)} values"
                    fix = "write one value if the traces are of one: numbers that need one are unknown"
                    name, info = sweep[0], part.model_fields[sweep[0]]
                self.log.note(inner, message, fix, line=entry.line)
            values[name] = self._value(entry, info, inner) if entry else None
        return {name: value for name, value in values.items() if value is not None or may_be_none(part, name)}

    def _by_field(
        self, node: MappingNode, part: type[FileSection], path: str
    ) -> dict[str, list[MappingEntry]]:
        """Return attribute → the entries that mean it."""
        names, grouped = field_names(part), dict[str, list[MappingEntry]]()
        strays: list[MappingEntry] = []
        for entry in node.entries:
            name = names.get(spelling(entry.key))
            if name is None:
                strays.append(entry)
                continue
            grouped.setdefault(name, []).append(entry)
            key = key_of(name, part.model_fields[name])
            if entry.key != key:
                self.log.note(path, f"{shown(entry.key)} is read as {key}", f"write {key}", line=entry.line)
        strays = [entry for entry in strays if not self._adopted(entry, part, grouped, path)]
        for entry in strays[:MAX_UNKNOWN]:
            if entry.key in part.other_keys:
                continue
            known_keys = [key_of(name, info) for name, info in part.model_fields.items()]
            paths = (accumulate(leaf.split("."), _below) for leaf in leaf_paths(self.root))
            elsewhere = dict.fromkeys(
                known_path
                for known_path in chain.from_iterable(paths)
                if spelling(known_path.rpartition(".")[2]) == spelling(entry.key)
            )
            near = did_you_mean(entry.key, known_keys, cutoff=0.7)
            fix = f"write it as {' or '.join(elsewhere)}" if elsewhere else near
            message = "is not a key of this format and is ignored"
            self.unknown(shown(_below(path, entry.key)), message, fix, line=entry.line)
        if len(strays) > MAX_UNKNOWN:
            more = f"{len(strays) - MAX_UNKNOWN} more keys are not part of this format and are ignored"
            self.log.warning(path, more, "check that this is the right file")
        return grouped

    def _adopted(
        self, entry: MappingEntry, part: type[FileSection], grouped: dict[str, list[MappingEntry]], path: str
    ) -> bool:
        """Read a key one level too high as that of a nested part that adopts it; say whether one does."""
        for child in part.adopted_parts:
            info = part.model_fields[child]
            if spelling(entry.key) not in field_names(value_type(info)):
                continue
            key = key_of(child, info)
            message = f"is read as {_below(_below(path, key), entry.key)}"
            self.log.note(_below(path, entry.key), message, "move it there", line=entry.line)
            first, *others = grouped.get(child, [MappingEntry(key, MappingNode(()), entry.line)])
            inner = first.node
            # In place of the mapping there may be the name alone, as in `framework: vllm`.
            named = (MappingEntry("name", inner, inner.line),)
            entries = inner.entries if isinstance(inner, MappingNode) else named
            joined = MappingNode((*entries, entry), inner.line)
            grouped[child] = [MappingEntry(key, joined, first.line), *others]
            return True
        return False

    def _only(self, entries: list[MappingEntry], path: str) -> MappingEntry | None:
        """Return the one entry, or None if several say different things."""
        saying = [entry for entry in entries if not _says_nothing(entry.node)] or entries[:1]
        if len(saying) == 1:
            return saying[0]
        lines = ", ".join(str(entry.line) for entry in saying if entry.line)
        message = f"is written {len(saying)} times" + (f" (lines {lines})" if lines else "")
        texts = {entry.node.text if isinstance(entry.node, ScalarNode) else None for entry in saying}
        if len(texts) == 1 and None not in texts:
            self.log.warning(path, message, "keep one", line=saying[-1].line)
            return saying[0]
        self.log.error(path, f"{message} with different content", "keep one", line=saying[-1].line)
        return None

    def _value(self, entry: MappingEntry, info: FieldInfo, path: str) -> Any:
        node, kind = entry.node, value_type(info)
        if isinstance(node, RefusedNode):
            self.log.error(path, node.reason, "write a plain value", line=node.line)
            return None
        try:
            if is_section(kind):
                return self._part(node, kind, path)
            if get_origin(kind) is dict:
                return self._variables(node, path)
            if get_origin(kind) is tuple and get_args(kind)[0] is str:
                return self._texts(node, path)
            if get_origin(kind) is tuple:
                return _counts(node, info)
            return self._scalar(node, kind, info, path)
        except NotUnderstoodError as problem:
            self.log.error(path, problem.message, problem.fix, line=node.line)
            return None

    def _part(self, node: Node, part: type[FileSection], path: str) -> dict[str, Any]:
        if isinstance(node, MappingNode):
            return self.values(node, part, path)
        if _says_nothing(node):
            return {}
        if isinstance(node, ScalarNode) and part.scalar_field:
            key = part.scalar_field
            self.log.note(path, f"is read as {path}.{key}", f"write {key}: below it", line=node.line)
            return self.values(MappingNode((MappingEntry(key, node, node.line),), node.line), part, path)
        if not isinstance(node, SequenceNode) or not part.ordered_fields:
            raise NotUnderstoodError(
                f"is {kind_of(node)} where a mapping is expected", "write `key: value` lines below it"
            )
        names, items = part.ordered_fields, node.items
        if all(map(_says_nothing, items)):
            return {}
        if len(items) != len(names):
            raise NotUnderstoodError(
                f"holds {counted(len(items), 'value')} where {len(names)} are expected",
                f"write {' or '.join(f'{name}:' for name in names)} before it, below the key"
                if len(items) == 1
                else f"write {' and '.join(names)}, in this order",
            )
        pairs = zip(names, items, strict=True)
        values = self.values(
            MappingNode(tuple(MappingEntry(name, item, item.line) for name, item in pairs)), part, path
        )
        rates = [values[name] for name in names if values.get(name) is not None]
        if part.order_rises and rates != sorted(rates):
            raise NotUnderstoodError(
                f"{' then '.join(map(str, rates))}: the list means {' then '.join(names)} and looks reversed",
                f"swap them, or write {' and '.join(f'{name}:' for name in names)} below the key",
            )
        return values

    def _scalar(self, node: Node, kind: Any, info: FieldInfo, path: str) -> Any:
        if not isinstance(node, ScalarNode):
            several = isinstance(node, SequenceNode) and len(node.items) > 1
            fix = "write the value of this run: a card describes one run" if several else "write one value"
            raise NotUnderstoodError(f"is {kind_of(node)} where a single value is expected", fix)
        if is_absent(node) and not is_literal(info):
            return None
        if kind is str:
            return node.text.strip()
        if is_unlimited(info) and node.text.strip().lower().lstrip(".") in _INFINITE:
            return math.inf
        value: Any
        if kind is bool:
            value, note = yaml_tree.truth(node)
        elif kind is int:
            value, note = yaml_tree.whole_number(node, hint(info, "units"))
        elif kind is float:
            value, note = yaml_tree.number(node, hint(info, "units"))
        else:
            value, note = yaml_tree.word(node, set(kind), SYNONYMS.get(kind, {}))
        if note and not is_literal(info):
            self.log.note(path, note, f"write {value}", line=node.line)
        return value

    def _texts(self, node: Node, path: str) -> tuple[str, ...]:
        if isinstance(node, MappingNode):
            raise NotUnderstoodError(
                "is a mapping where a list is expected", "write one `- item` line for each"
            )
        items = node.items if isinstance(node, SequenceNode) else (node,)
        texts: list[str] = []
        for index, item in enumerate(items):
            if not isinstance(item, ScalarNode):
                self.log.error(
                    f"{path}[{index}]", f"is {kind_of(item)} where a single value is expected", line=item.line
                )
            elif not is_absent(item):
                self.log.locate(f"{path}[{len(texts)}]", item.line)
                texts.append(item.text.strip())
        if isinstance(node, ScalarNode) and texts:
            texts = [part.strip() for part in texts[0].split(",") if part.strip()]
            self.log.note(
                path, "a single value is read as a list", "write one `- item` line for each", line=node.line
            )
        return tuple(texts)

    def _variables(self, node: Node, path: str) -> dict[str, str]:
        if _says_nothing(node):
            return {}
        if not isinstance(node, MappingNode):
            raise NotUnderstoodError(
                f"is {kind_of(node)} where a mapping is expected", "write `NAME: value` lines"
            )
        variables: dict[str, str] = {}
        for entry in node.entries:
            if not isinstance(entry.node, ScalarNode):
                self.log.error(f"{path}.{shown(entry.key)}", f"is {kind_of(entry.node)}", line=entry.line)
            elif entry.node.value is not None:
                variables[entry.key] = entry.node.text
        return variables


def _counts(node: Node, info: FieldInfo) -> list[int]:
    """Return whole numbers in order; limits of them are checked with those of all values."""
    items = node.items if isinstance(node, SequenceNode) else (node,)
    counts = []
    for item in items:
        if not isinstance(item, ScalarNode):
            raise NotUnderstoodError(f"holds {kind_of(item)} where numbers are expected")
        counts.append(yaml_tree.whole_number(item, hint(info, "units"))[0])
    return counts


def _says_nothing(node: Node) -> bool:
    return isinstance(node, ScalarNode) and is_absent(node)


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
