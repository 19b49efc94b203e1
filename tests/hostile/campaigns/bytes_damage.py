"""Damage that happens to any file: cut short, blocks lost, zeroed, repeated or of another file, bits flipped.

Each function takes content, a source of chance and the content of a file like it, and returns new content.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    Damage = Callable[[bytes, random.Random, bytes], bytes]

BLOCK = 4096

STRUCTURE = b'{}[]":,'


def cut_short(content: bytes, chance: random.Random, _: bytes) -> bytes:
    """Keep only the first part, as when a job is killed or a disk is full."""
    return content[: chance.randrange(len(content))]


def block_zeroed(content: bytes, chance: random.Random, _: bytes) -> bytes:
    """Fill a block with zeros, as a file system does after a crash."""
    at = _block(content, chance)
    return content[:at] + bytes(len(content[at : at + BLOCK])) + content[at + BLOCK :]


def block_lost(content: bytes, chance: random.Random, _: bytes) -> bytes:
    """Leave a block out."""
    at = _block(content, chance)
    return content[:at] + content[at + BLOCK :]


def block_repeated(content: bytes, chance: random.Random, _: bytes) -> bytes:
    """Write a block twice."""
    at = _block(content, chance)
    return content[: at + BLOCK] + content[at : at + BLOCK] + content[at + BLOCK :]


def block_of_another(content: bytes, chance: random.Random, other: bytes) -> bytes:
    """Put a block of another file in the place of one."""
    at = _block(content, chance)
    return content[:at] + other[at : at + BLOCK] + content[at + BLOCK :]


def two_writers(content: bytes, chance: random.Random, other: bytes) -> bytes:
    """Let two processes write one file, each block by whichever comes."""
    size = chance.choice((512, BLOCK, 64 << 10))
    ends = range(0, max(len(content), len(other)), size)
    return b"".join(chance.choice((content, other))[at : at + size] for at in ends)


def appended_twice(content: bytes, _: random.Random, other: bytes) -> bytes:
    """Let a second process append to the file of a first one."""
    return content + other


def bit_flipped(content: bytes, chance: random.Random, _: bytes) -> bytes:
    """Flip one bit anywhere."""
    return _flipped(content, chance.randrange(len(content)), chance)


def structure_flipped(content: bytes, chance: random.Random, _: bytes) -> bytes:
    """Flip one bit of a character that structures JSON."""
    start = chance.randrange(len(content))
    at = next((i for i in range(start, len(content)) if content[i] in STRUCTURE), 0)
    return _flipped(content, at, chance)


def _flipped(content: bytes, at: int, chance: random.Random) -> bytes:
    return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]


def _block(content: bytes, chance: random.Random) -> int:
    return BLOCK * chance.randrange(1 + max(0, len(content) - 1) // BLOCK)


def packed(content: bytes) -> bytes:
    """Return content as gzip, the same bytes every time."""
    return gzip.compress(content, compresslevel=1, mtime=0)
