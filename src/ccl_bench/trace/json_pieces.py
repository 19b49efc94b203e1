"""Read a JSON trace a little at a time, up to its end or to where it is damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ccl_bench.storage import DAMAGED

if TYPE_CHECKING:
    from typing import BinaryIO

BLOCK_BYTES = 256 << 10
"""Bytes read at a time. What is made of one block fits in a core's cache and in memory that was used before:
blocks of 1 MB, which the system hands out anew each time, make the read of a small file a third slower."""


class Reading(Protocol):
    """What reading a file came to."""

    size: int
    """Bytes read, after decompression."""
    broken_off: str
    """Why reading stopped before the end of the file, if it did."""


def next_block(stream: BinaryIO, reading: Reading, held: int) -> bytes:
    """Return the next bytes; a damaged compressed stream ends the file where it is damaged.

    As many as are `held` already without an end, if those are more: then what is held is searched again
    as often as it doubles, and not once for each block.
    """
    try:
        block = b"" if reading.broken_off else stream.read(max(BLOCK_BYTES, held))
    except DAMAGED as error:
        reading.broken_off = str(error) or type(error).__name__
        return b""
    reading.size += len(block)
    return block
