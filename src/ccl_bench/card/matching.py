"""Which field of a part a key means: spellings, synonyms, keys one level too high, keys written twice."""

from __future__ import annotations

import difflib
import types
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from ccl_bench.card.fields import Part, hint, key_of, unit_of
from ccl_bench.card.issues import shown
from ccl_bench.card.nodes import Entry, Mapping, Scalar
from ccl_bench.card.values import is_absent
from ccl_bench.registry import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic.fields import FieldInfo

    from ccl_bench.card.issues import IssueLog

MAX_UNKNOWN = 50
"""Unknown keys of one mapping that are reported one by one."""


def spelling(key: str) -> str:
    """Return `key` without the differences that carry no meaning: case, hyphens and spaces."""
    return key.strip().lower().replace("-", "_").replace(" ", "_")


def value_type(info: FieldInfo) -> Any:
    """Return the type of a field without `None` and limits: `int` for `Count | None`."""
    kind: Any = info.annotation
    while get_origin(kind) in (Union, types.UnionType, Annotated):
        kind = next(arg for arg in get_args(kind) if arg is not type(None))
    return kind


def may_be_none(part: type[Part], name: str) -> bool:
    """Whether None is a value of the field, so that an unreadable value hides its default."""
    info = part.model_fields[name]
    return type(None) in get_args(info.annotation)


def field_names(part: type[Part]) -> dict[str, str]:
    """Return spelling of a key → attribute, for every key by which a field may be called."""
    names = {
        spelling(other): name for name, info in part.model_fields.items() for other in hint(info, "also")
    }
    return names | {spelling(key_of(name, info)): name for name, info in part.model_fields.items()}


def file_path(part: type[Part], names: tuple[int | str, ...]) -> str:
    """Return the dotted path in the file of a field given by attribute names."""
    return ".".join(key_of(name, info) for name, info in _fields_along(part, names))


def meaning(part: type[Part], names: tuple[int | str, ...]) -> str:
    """Return the advice to write what a field given by attribute names stands for."""
    _, info = _fields_along(part, names)[-1]
    unit = unit_of(info)
    return f"this is: {info.description}" + (f", in {unit}" if unit else "")


def _fields_along(part: type[Part], names: tuple[int | str, ...]) -> list[tuple[str, FieldInfo]]:
    found: list[tuple[str, FieldInfo]] = []
    current: Any = part
    for name in map(str, names):
        if not (isinstance(current, type) and issubclass(current, Part)):
            break
        found.append((name, current.model_fields[name]))
        current = value_type(current.model_fields[name])
    return found


def near_miss_warner(part: type[Part], log: IssueLog) -> Callable[..., None]:
    """Return a receiver of unknown keys for formats that may hold any: only likely slips are reported."""
    known = {path.rsplit(".", 1)[-1] for path in leaf_paths(part)}

    def warn(path: str, message: str, _fix: str = "", *, line: int | None = None) -> None:
        close = difflib.get_close_matches(spelling(path.rsplit(".", 1)[-1]), known, n=1, cutoff=0.8)
        if close:
            log.warning(path, message, f"did you mean {close[0]}?", line=line)

    return warn


def leaf_paths(part: type[Part], path: str = "") -> list[str]:
    """Return the dotted file paths of all values of a part."""
    found: list[str] = []
    for name, info in part.model_fields.items():
        inner = f"{path}.{key_of(name, info)}" if path else key_of(name, info)
        kind = value_type(info)
        is_part = isinstance(kind, type) and issubclass(kind, Part)
        found += leaf_paths(kind, inner) if is_part else [inner]
    return found


class KeyMatcher:
    """Sorts the keys of a mapping to the fields of a part; `unknown` receives those of no field."""

    def __init__(self, log: IssueLog, root: type[Part], unknown: Callable[..., None]) -> None:
        self.log = log
        self.root = root
        self.unknown = unknown

    def by_field(self, node: Mapping, part: type[Part], path: str) -> dict[str, list[Entry]]:
        """Return attribute → the entries that mean it."""
        names, grouped = field_names(part), dict[str, list[Entry]]()
        strays: list[Entry] = []
        for entry in node.entries:
            name = names.get(spelling(entry.key))
            if name is None:
                strays.append(entry)
                continue
            grouped.setdefault(name, []).append(entry)
            key = key_of(name, part.model_fields[name])
            if entry.key != key:
                self.log.note(path, f"{shown(entry.key)} is read as {key}", f"write {key}", line=entry.line)
        unknown = [entry for entry in strays if not self._adopted(entry, part, grouped, path)]
        for entry in unknown[:MAX_UNKNOWN]:
            self._stray(entry, part, path)
        if len(unknown) > MAX_UNKNOWN:
            more = f"{len(unknown) - MAX_UNKNOWN} more keys are not of this format and are ignored"
            self.log.warning(path, more, "check that this is the right file")
        return grouped

    def _adopted(self, entry: Entry, part: type[Part], grouped: dict[str, list[Entry]], path: str) -> bool:
        for child in part.adopted_parts:
            info = part.model_fields[child]
            if spelling(entry.key) not in field_names(value_type(info)):
                continue
            key = key_of(child, info)
            place = f"{path}.{key}" if path else key
            self.log.note(
                f"{path}.{entry.key}", f"is read as {place}.{entry.key}", "move it there", line=entry.line
            )
            present = grouped.get(child, [Entry(key, Mapping(()), entry.line)])
            inner = present[0].node
            own = inner.entries if isinstance(inner, Mapping) else (Entry("name", inner, inner.line),)
            grouped[child] = [Entry(key, Mapping((*own, entry), inner.line), present[0].line), *present[1:]]
            return True
        return False

    def _stray(self, entry: Entry, part: type[Part], path: str) -> None:
        if entry.key in part.other_keys:
            return
        keys = [key_of(name, info) for name, info in part.model_fields.items()]
        places = [
            place
            for place in leaf_paths(self.root)
            if spelling(place.rsplit(".", 1)[-1]) == spelling(entry.key)
        ]
        fix = f"write it as {' or '.join(places)}" if places else did_you_mean(entry.key, keys)
        full = f"{path}.{entry.key}" if path else entry.key
        self.unknown(shown(full), "is not a key of this format and is ignored", fix, line=entry.line)

    def only(self, entries: list[Entry], path: str) -> Entry | None:
        """Return the one entry, or None where several say different things."""
        entries = [entry for entry in entries if not _says_nothing(entry)] or entries[:1]
        if len(entries) == 1:
            return entries[0]
        lines = ", ".join(str(entry.line) for entry in entries if entry.line)
        where = f" (lines {lines})" if lines else ""
        texts = {entry.node.text if isinstance(entry.node, Scalar) else None for entry in entries}
        if len(texts) == 1 and None not in texts:
            self.log.warning(
                path, f"is written {len(entries)} times{where}", "keep one", line=entries[-1].line
            )
            return entries[0]
        self.log.error(
            path,
            f"is written {len(entries)} times{where} with different content",
            "keep one",
            line=entries[-1].line,
        )
        return None


def _says_nothing(entry: Entry) -> bool:
    return isinstance(entry.node, Scalar) and is_absent(entry.node)
