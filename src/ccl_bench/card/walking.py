"""From a tree of nodes to the values of a documented part, with every doubt recorded and nothing guessed."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

from pydantic import ValidationError

from ccl_bench.card import values
from ccl_bench.card.fields import Part, hint, is_literal, key_of
from ccl_bench.card.issues import shown
from ccl_bench.card.matching import KeyMatcher, file_path, may_be_none, meaning, value_type
from ccl_bench.card.nodes import Entry, Mapping, Node, Refused, Scalar, Sequence, kind_of
from ccl_bench.card.values import NotUnderstoodError
from ccl_bench.card.words import SYNONYMS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic.fields import FieldInfo

    from ccl_bench.card.issues import IssueLog

P = TypeVar("P", bound=Part)


def read_part(node: Mapping, part: type[P], log: IssueLog, *, unknown: Callable[..., None]) -> P:
    """Return a whole file's part; `unknown` is the log's method for keys the part does not have."""
    return validated(part, _Walk(log, part, unknown).values(node, part, ""), log)


def validated(part: type[P], raw: dict[str, Any], log: IssueLog) -> P:
    """Return the part with every value that breaks a limit recorded and left out."""
    try:
        return part.model_validate(raw)
    except ValidationError as error:
        for problem in error.errors(include_url=False, include_context=False):
            _leave_out(raw, problem["loc"])
            path, said = file_path(part, problem["loc"]), problem["msg"].removeprefix("Value error, ")
            text = f"{shown(repr(problem['input']))} {said.removeprefix('Input ')}"
            log.error(path, text, meaning(part, problem["loc"]))
    return part.model_validate(raw)


def _leave_out(raw: dict[str, Any], loc: tuple[int | str, ...]) -> None:
    inner: Any = raw
    for step in loc[:-1]:
        inner = inner[step]
    inner[loc[-1]] = None


class _Walk:
    """One pass over a file."""

    def __init__(self, log: IssueLog, root: type[Part], unknown: Callable[..., None]) -> None:
        self.log = log
        self.keys = KeyMatcher(log, root, unknown)

    def values(self, node: Mapping, part: type[Part], path: str) -> dict[str, Any]:
        """Return attribute → value for everything in `node` that is understood."""
        found: dict[str, Any] = {}
        for name, entries in self.keys.by_field(node, part, path).items():
            info = part.model_fields[name]
            inner = f"{path}.{key_of(name, info)}" if path else key_of(name, info)
            self.log.lines.setdefault(inner, entries[0].line or 0)
            chosen = self.keys.only(entries, inner)
            found[name] = self._value(chosen, info, inner) if chosen else None
        return {name: value for name, value in found.items() if value is not None or may_be_none(part, name)}

    def _value(self, entry: Entry, info: FieldInfo, path: str) -> Any:
        node, kind = entry.node, value_type(info)
        if isinstance(node, Refused):
            self.log.error(path, node.reason, "write a plain value", line=node.line)
            return None
        try:
            if isinstance(kind, type) and issubclass(kind, Part):
                return self._part(node, kind, path)
            if get_origin(kind) is dict:
                return self._variables(node, path)
            if get_origin(kind) is tuple:
                return self._texts(node, path)
            return self._scalar(node, kind, info, path)
        except NotUnderstoodError as problem:
            self.log.error(path, problem.message, problem.fix, line=node.line)
            return None

    def _part(self, node: Node, part: type[Part], path: str) -> dict[str, Any]:
        if isinstance(node, Mapping):
            return self.values(node, part, path)
        if isinstance(node, Scalar) and values.is_absent(node):
            return {}
        if isinstance(node, Scalar) and part.scalar_field:
            key = part.scalar_field
            self.log.note(path, f"is read as {path}.{key}", f"write {key}: below it", line=node.line)
            return self.values(Mapping((Entry(key, node, node.line),), node.line), part, path)
        if isinstance(node, Sequence) and part.ordered_fields:
            return self._ordered(node, part, path)
        raise NotUnderstoodError(
            f"is {kind_of(node)} where a mapping belongs", "write `key: value` lines below it"
        )

    def _ordered(self, node: Sequence, part: type[Part], path: str) -> dict[str, Any]:
        names = part.ordered_fields
        if all(isinstance(item, Scalar) and values.is_absent(item) for item in node.items):
            return {}
        if len(node.items) != len(names):
            raise NotUnderstoodError(
                f"holds {len(node.items)} values where {len(names)} belong",
                f"write {' and '.join(names)}, in this order",
            )
        pairs = zip(names, node.items, strict=True)
        found = self.values(Mapping(tuple(Entry(name, item, item.line) for name, item in pairs)), part, path)
        known = [found[name] for name in names if found.get(name) is not None]
        if part.order_rises and known != sorted(known):
            raise NotUnderstoodError(
                f"{' then '.join(map(str, known))}: the list means {' then '.join(names)} and looks reversed",
                f"swap them, or write {' and '.join(f'{name}:' for name in names)} below the key",
            )
        return found

    def _scalar(self, node: Node, kind: Any, info: FieldInfo, path: str) -> Any:
        if not isinstance(node, Scalar):
            raise NotUnderstoodError(f"is {kind_of(node)} where a single value belongs", "write one value")
        if values.is_absent(node) and not is_literal(info):
            return None
        if kind is str:
            return node.text.strip()
        units = hint(info, "units")
        value, note = _readers(kind, units)(node)
        if note and not is_literal(info):
            self.log.note(path, note, f"write {value}", line=node.line)
        return value

    def _texts(self, node: Node, path: str) -> tuple[str, ...]:
        if isinstance(node, Mapping):
            raise NotUnderstoodError("is a mapping where a list belongs", "write one `- item` line for each")
        items = node.items if isinstance(node, Sequence) else (node,)
        found: list[str] = []
        for index, item in enumerate(items):
            if not isinstance(item, Scalar):
                self.log.error(
                    f"{path}[{index}]", f"is {kind_of(item)} where a single value belongs", line=item.line
                )
            elif not values.is_absent(item):
                self.log.lines[f"{path}[{len(found)}]"] = item.line or 0
                found.append(item.text.strip())
        if isinstance(node, Scalar) and found:
            found = [part.strip() for part in found[0].split(",") if part.strip()]
            self.log.note(
                path, "a single value is read as a list", "write one `- item` line for each", line=node.line
            )
        return tuple(found)

    def _variables(self, node: Node, path: str) -> dict[str, str]:
        if isinstance(node, Scalar) and values.is_absent(node):
            return {}
        if not isinstance(node, Mapping):
            raise NotUnderstoodError(
                f"is {kind_of(node)} where a mapping belongs", "write `NAME: value` lines"
            )
        found: dict[str, str] = {}
        for entry in node.entries:
            if not isinstance(entry.node, Scalar):
                self.log.error(f"{path}.{shown(entry.key)}", f"is {kind_of(entry.node)}", line=entry.line)
            elif entry.node.value is not None:
                found[entry.key] = entry.node.text
        return found


def _readers(kind: Any, units: list[str]) -> Callable[[Scalar], tuple[Any, str]]:
    if kind is bool:
        return values.truth
    if kind is int:
        return lambda node: values.whole_number(node, units)
    if kind is float:
        return lambda node: values.number(node, units)
    if not issubclass(kind, StrEnum):
        raise TypeError(f"no reader for {kind}")
    return lambda node: values.word(node, set(kind), SYNONYMS.get(kind, {}))
