"""Assignments such as `framework.version=2.5`: the field of a card, and its value as a card is read."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, get_origin

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.base.registry import did_you_mean, spelling
from ccl_bench.card.fields import FileSection, hint, key_of
from ccl_bench.card.filling import card_values, cleared, comment, filled
from ccl_bench.card.model import Card
from ccl_bench.card.sections import is_section, read_section, value_type
from ccl_bench.card.yaml_tree import (
    IssueLog,
    MappingEntry,
    MappingNode,
    ScalarNode,
    SequenceNode,
    plain_value,
    says_absent,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo


@cache
def _leaves() -> dict[str, FieldInfo]:
    """Return the path in the file of every value of a card → its field."""
    return dict(_leaves_of(Card, ""))


def _leaves_of(part: type[FileSection], path: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, info in part.model_fields.items():
        inner, kind = f"{path}.{key_of(name, info)}".lstrip("."), value_type(info)
        if is_section(kind):
            yield from _leaves_of(kind, inner)
        else:
            yield inner, info


@cache
def _paths_by_name() -> dict[str, set[str]]:
    """Return the spelling of every ending of a path → the paths in the file that it may mean.

    A key may be called by its name in the file, by its attribute, or by a synonym.
    """
    names: dict[str, set[str]] = {}

    def add(part: type[FileSection], places: list[tuple[str, ...]], path: str) -> None:
        for name, info in part.model_fields.items():
            key = key_of(name, info)
            inner = f"{path}.{key}".lstrip(".")
            words = dict.fromkeys(map(spelling, (key, name, *hint(info, "also"))))
            longer = [(*place, word) for place in places for word in words]
            if is_section(kind := value_type(info)):
                add(kind, longer, inner)
                continue
            for place in longer:
                for start in range(len(place)):
                    names.setdefault(".".join(place[start:]), set()).add(inner)

    add(Card, [()], "")
    return names


def field_path(name: str) -> str:
    """Return the path in the file of a field that its end names, such as `framework.version`.

    Also `attribute.NAME` for one variable of an environment. Raises UsageError for an unknown or ambiguous
    name.
    """
    paths = _paths_by_name()
    section, _, variable = name.strip().rpartition(".")
    meant = {f"{path}.{variable}" for path in paths.get(spelling(section), ()) if path.endswith(".env")}
    meant = meant or paths.get(spelling(name), set())
    whole = [path for path in meant if spelling(path) == spelling(name)]
    if len(meant) == 1 or whole:
        return (whole or [*meant])[0]
    if meant:
        raise UsageError(
            f"{name} is the end of {len(meant)} fields", fix=f"write one of {', '.join(sorted(meant))}"
        )
    alike = (each for each in paths if each.count(".") == name.count("."))
    likely = did_you_mean(spelling(name), alike, cutoff=0.6)
    raise UsageError(
        f"a card has no field {name}",
        fix=likely or "workload_card_template.yaml lists them; their last words suffice",
    )


def field_meaning(path: str) -> str:
    """Return what a field means, with its unit and an example."""
    return comment(_leaves()[path])


def read_value(path: str, text: str) -> Any:
    """Return the value that a text means in a field, as a card is read; None for "unknown" and the like.

    The words of a list are separated by commas. Raises UsageError for a value that the field cannot have.
    """
    if says_absent(text):
        return None
    if path not in _leaves():  # one variable of an environment
        return text
    kind = value_type(_leaves()[path])
    if get_origin(kind) is dict:
        raise UsageError(f"{path} has variables", fix=f"write {path}.NAME=value")
    words = [ScalarNode(plain_value(word), word) for word in map(str.strip, text.split(","))]
    is_list = get_origin(kind) is tuple
    *above, last = path.split(".")
    inner = SequenceNode(tuple(words)) if is_list else ScalarNode(plain_value(text), text)
    tree = MappingNode((MappingEntry(last, inner),))
    for key in reversed(above):
        tree = MappingNode((MappingEntry(key, tree),))
    log = IssueLog()
    card = read_section(tree, Card, log, unknown=log.error)
    errors = [issue for issue in log.entries if issue.severity == "error"]
    if errors:
        raise UsageError(f"{path}: {errors[0].message}", fix=errors[0].fix)
    return card_values(card).get(path)


def assigned(text: str, values: Mapping[str, Any], *, file: str = "") -> str:
    """Return the text of a card with these values by path, in place of what it states; None empties a field.

    Comments and order stay. Raises InputError for a card in a style that cannot be changed line by line.
    """
    for path in values:
        text = cleared(text, path, file=file)
    text, filling = filled(text, values, file=file)
    if kept := [path for path in filling.kept if values[path] is not None]:
        raise InputError(
            f"states {kept[0]} in a style that cannot be changed", where=file, fix="change it by hand"
        )
    return text
