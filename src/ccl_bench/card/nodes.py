"""A file's content as a tree that remembers lines, repeated keys and the text as written."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass

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
