"""Damage to the structure of JSON: keys, types, sizes and numbers of what stands in it.

Each function takes a document that it may change, a source of chance, and the path of what is struck: the
list of objects that matter most in this kind of file, such as the events of a trace.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

ODD = (
    *(None, True, False, "", "x", "7", "-1", "NaN", [], {}, [[]], {"a": {}}, 0, -1, 1.5, -0.0),
    *(2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, 1e300, -1e300, 1e-300, 5e-324),
    *(float("nan"), float("inf"), float("-inf"), "\x00", "\ud800", "\ud83d\ude00", "a" * 10_000, "\x1b[31m"),
    *([1, None, "x"], [2**70], [{}], {"": ""}, "../../../etc/passwd", "${HOME}", "<script>", "'; DROP TABLE"),
)
DEPTH = 100_000
_DEEP = "ccl-bench: thousands of lists"


def text(document: Any) -> bytes:
    """Return a document as a profiler writes it: compact, odd characters as asked."""
    written = json.dumps(document, ensure_ascii=True, separators=(",", ":"))
    return written.replace(f'"{_DEEP}"', "[" * DEPTH + "]" * DEPTH).encode()


def objects(document: Any) -> list[dict[str, Any]]:
    """Return every object in a document."""
    return [found for found in _walked(document) if isinstance(found, dict) and found]


def _walked(document: Any) -> Iterator[Any]:
    pending = [document]
    while pending:
        found = pending.pop()
        yield found
        pending += found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()


def key_lost(struck: list[dict[str, Any]], chance: random.Random, keys: tuple[str, ...] = ()) -> None:
    """Take a key away from some objects, one of `keys` where there are any."""
    for found in _some(struck, chance):
        held = [key for key in found if not keys or key in keys]
        if held:
            del found[chance.choice(held)]


def value_odd(struck: list[dict[str, Any]], chance: random.Random, keys: tuple[str, ...] = ()) -> None:
    """Put something else in the place of a value."""
    for found in _some(struck, chance):
        held = [key for key in found if not keys or key in keys]
        if held:
            found[chance.choice(held)] = copy.deepcopy(chance.choice(ODD))


def key_renamed(struck: list[dict[str, Any]], chance: random.Random) -> None:
    """Change a letter of a key."""
    for found in _some(struck, chance):
        key = chance.choice([*found])
        if key:
            at = chance.randrange(len(key))
            found[key[:at] + chr(ord(key[at]) ^ 1) + key[at + 1 :]] = found.pop(key)


def nested_deeply(struck: list[dict[str, Any]], chance: random.Random) -> None:
    """Put as many lists inside each other as no stack holds in the place of a value."""
    found = chance.choice(struck)
    found[chance.choice([*found])] = _DEEP


def repeated(items: list[Any], chance: random.Random) -> None:
    """Write some items twice, right after each other or at the end."""
    for item in _some(items, chance):
        items.insert(items.index(item) if chance.random() < 0.5 else len(items), copy.deepcopy(item))


def shuffled(items: list[Any], chance: random.Random) -> None:
    """Write the items in another order."""
    chance.shuffle(items)


def keys_shuffled(struck: list[dict[str, Any]], chance: random.Random) -> None:
    """Write the keys of every object in another order, and one that nobody knows."""
    for found in struck:
        keys = [*found]
        chance.shuffle(keys)
        for key in keys:
            found[key] = found.pop(key)
        found["no reader knows this"] = [1, {"a": None}]


def _some(items: list[Any], chance: random.Random) -> list[Any]:
    """Return one item, a few, or most of them."""
    count = chance.choice((1, 1, 1, 3, max(1, len(items) * 2 // 3)))
    return chance.sample(items, min(count, len(items)))
