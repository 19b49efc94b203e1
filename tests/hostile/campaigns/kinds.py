"""What can be done to a file, and what of that must show."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import bytes_damage
import database_damage
import json_damage
import pickle_damage
import stated_damage
import trace_damage
from judging import FACT, MUST_SHOW, NEUTRAL

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    Change = Callable[[bytes, random.Random, bytes], bytes]


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to damage a file."""

    name: str
    expected: str
    """`must show`, `neutral` or `fact`."""
    apply: Change


def _of_bytes(*changes: Change, expected: str) -> list[Kind]:
    return [Kind(change.__name__.replace("_", " "), expected, change) for change in changes]


def _of_document(name: str, expected: str, change: Callable[[Any, random.Random], None]) -> Kind:
    def apply(content: bytes, chance: random.Random, _: bytes) -> bytes:
        document = json.loads(content)
        change(document, chance)
        return json_damage.text(document)

    return Kind(name, expected, apply)


def _documents(table: dict[str, tuple[str, Callable[[Any, random.Random], None]]]) -> list[Kind]:
    return [_of_document(name, expected, change) for name, (expected, change) in table.items()]


_ANY_TEXT = [
    *_of_bytes(bytes_damage.cut_short, bytes_damage.block_zeroed, expected=MUST_SHOW),
    *_of_bytes(
        bytes_damage.bit_flipped,
        bytes_damage.structure_flipped,
        bytes_damage.block_lost,
        bytes_damage.block_repeated,
        bytes_damage.block_of_another,
        bytes_damage.two_writers,
        expected=FACT,
    ),
]

_ANY_JSON = {
    "key lost anywhere": (FACT, lambda d, c: json_damage.key_lost(json_damage.objects(d), c)),
    "odd value anywhere": (FACT, lambda d, c: json_damage.value_odd(json_damage.objects(d), c)),
    "key renamed anywhere": (FACT, lambda d, c: json_damage.key_renamed(json_damage.objects(d), c)),
    "nested deeply": (FACT, lambda d, c: json_damage.nested_deeply(json_damage.objects(d), c)),
}

PACKED = _of_bytes(
    bytes_damage.cut_short,
    bytes_damage.block_zeroed,
    bytes_damage.block_lost,
    bytes_damage.block_repeated,
    bytes_damage.block_of_another,
    bytes_damage.two_writers,
    bytes_damage.bit_flipped,
    expected=MUST_SHOW,
)
"""What happens to a compressed file, whose checksum tells."""

_APPENDED = _of_bytes(bytes_damage.appended_twice, expected=MUST_SHOW)

KINDS: dict[str, list[Kind]] = {
    "kineto": [*_ANY_TEXT, *_APPENDED, *_documents(trace_damage.KINETO | _ANY_JSON)],
    "execution trace": [*_ANY_TEXT, *_documents(trace_damage.EXECUTION_TRACE | _ANY_JSON)],
    "viewer trace": [*_ANY_TEXT, *_documents(_ANY_JSON)],
    "serving": [*_ANY_TEXT, *_documents(trace_damage.SERVING | _ANY_JSON)],
    "samples": _of_bytes(
        bytes_damage.cut_short,
        bytes_damage.block_zeroed,
        bytes_damage.bit_flipped,
        bytes_damage.structure_flipped,
        bytes_damage.block_lost,
        bytes_damage.block_repeated,
        expected=FACT,
    ),
    "rocprof": [*_ANY_TEXT, *_documents(_ANY_JSON)],
    "serving lines": _ANY_TEXT,
    "chakra": _of_bytes(bytes_damage.cut_short, bytes_damage.bit_flipped, expected=FACT),
    "records": _ANY_TEXT,
    "table": _of_bytes(
        bytes_damage.cut_short, bytes_damage.bit_flipped, bytes_damage.block_lost, expected=FACT
    ),
    "side file": [*_ANY_TEXT, *_documents(_ANY_JSON)],
    "card": [
        *_of_bytes(bytes_damage.bit_flipped, bytes_damage.cut_short, expected=FACT),
        *[Kind(name, expected, change) for name, (expected, change) in stated_damage.CARD.items()],
    ],
    "snapshot": [
        *_of_bytes(bytes_damage.cut_short, expected=MUST_SHOW),
        *_of_bytes(
            bytes_damage.bit_flipped, bytes_damage.block_zeroed, bytes_damage.block_lost, expected=FACT
        ),
        *[Kind(name, expected, change) for name, (expected, change) in pickle_damage.SNAPSHOT.items()],
    ],
    "dump": [
        *_of_bytes(bytes_damage.cut_short, expected=MUST_SHOW),
        *_of_bytes(
            bytes_damage.bit_flipped, bytes_damage.block_zeroed, bytes_damage.block_lost, expected=FACT
        ),
        *[Kind(name, expected, change) for name, (expected, change) in pickle_damage.SNAPSHOT.items()],
    ],
    "profile": [
        *_of_bytes(bytes_damage.cut_short, expected=MUST_SHOW),
        *_of_bytes(
            *(bytes_damage.bit_flipped, bytes_damage.block_zeroed, bytes_damage.block_lost),
            *(bytes_damage.block_repeated, bytes_damage.block_of_another),
            expected=FACT,
        ),
    ],
    "rocpd": _of_bytes(
        bytes_damage.cut_short,
        bytes_damage.block_zeroed,
        bytes_damage.bit_flipped,
        bytes_damage.block_of_another,
        expected=FACT,
    ),
    "database": [
        *_of_bytes(bytes_damage.cut_short, bytes_damage.block_zeroed, expected=MUST_SHOW),
        *_of_bytes(bytes_damage.bit_flipped, bytes_damage.block_of_another, expected=FACT),
        *[Kind(name, expected, change) for name, (expected, change) in database_damage.EXPORT.items()],
    ],
}


def damaged(kind: Kind, content: bytes, chance: random.Random, other: bytes) -> bytes:
    """Return content after damage, packed again where it was; kinds of PACKED strike the packed bytes."""
    if kind in PACKED or not content.startswith(b"\x1f\x8b"):
        return kind.apply(content, chance, other)
    like = gzip.decompress(other) if other.startswith(b"\x1f\x8b") else other
    return bytes_damage.packed(kind.apply(gzip.decompress(content), chance, like))


__all__ = ["KINDS", "NEUTRAL", "PACKED", "Kind", "damaged"]
