"""Decompress gzip to the last byte before any damage.

A library's `read` raises where the stream is cut or damaged and drops what it had decompressed on
the way there, up to all of a small file. This one returns that first and raises after it. It also raises
where far more comes out than any trace holds.
"""

from __future__ import annotations

import contextlib
import io
import zlib
from typing import TYPE_CHECKING, cast

from isal import igzip
from isal.igzip_lib import IsalError

from ccl_bench.base.errors import InputError

if TYPE_CHECKING:
    from typing import BinaryIO

_GZIP = 31
"""zlib's window bits for a stream with a gzip header."""

_BLOCK_BYTES = 64 << 10

FREE_BYTES = 256 << 20
"""What any file may decompress to, however small it is."""

MOST_RATIO = 64
"""Bytes out of one byte beyond that. Traces reach 22, indented ones included; DEFLATE reaches 1032."""


def most_inflated(stored_bytes: int) -> int:
    """Return the most bytes that so many bytes of gzip decompress to in any file that is no attack."""
    return max(FREE_BYTES, MOST_RATIO * stored_bytes)


_HEADER_BYTES = 512 << 10
"""Longest header that the library reads; a name and a comment take a few hundred bytes."""

_DAMAGED = (EOFError, OSError, ValueError, cast("type[Exception]", IsalError))


class GzipFile(igzip.IGzipFile):
    """A gzip file open for reading, which raises OSError only after all that could be read.

    InputError if its header is longer than that of any file that is no attack.
    """

    def __init__(self, raw: BinaryIO) -> None:
        super().__init__(fileobj=raw, mode="rb")  # type: ignore[no-untyped-call]
        self._raw = raw
        self._returned_bytes = 0
        self._remainder = io.BytesIO()
        self._damage = ""

    def read(self, size: int | None = -1) -> bytes:
        """Return up to `size` bytes; none at the end of an undamaged file."""
        if not self._damage:
            try:
                block = bytes(super().read(size))
            except OverflowError as error:
                fix = "unpack it, or pack it again: gunzip FILE.gz && gzip -n FILE"
                problem = f"has a gzip header of more than {_HEADER_BYTES >> 10} KiB"
                raise InputError(problem, fix=fix) from error
            except _DAMAGED as error:
                self._damage = str(error) or type(error).__name__
                self._remainder = io.BytesIO(_inflated_after(self._raw, self._returned_bytes))
            else:
                self._returned_bytes += len(block)
                # So much out of so little: the file was made to fill memory.
                if self._returned_bytes <= most_inflated(self._raw.tell()):
                    return block
                self._damage = f"decompresses to more than {MOST_RATIO} times its size, more than any trace"
        if remainder := self._remainder.read(size):
            return remainder
        raise OSError(self._damage)


def _inflated_after(raw: BinaryIO, inflated_bytes: int) -> bytes:
    """Return the content after its first `inflated_bytes` bytes, up to the damage."""
    raw.seek(0)
    inflated = bytearray()
    seen, is_sound, inflator = 0, True, zlib.decompressobj(_GZIP)
    while is_sound and (block := raw.read(_BLOCK_BYTES)):
        before = inflator.copy()
        try:
            content = inflator.decompress(block)
            while inflator.eof and inflator.unused_data:  # the next member of the file
                following, inflator = inflator.unused_data, zlib.decompressobj(_GZIP)
                content += inflator.decompress(following)
        except zlib.error:  # it drops what it inflated before the damage; byte by byte it does not
            whole, is_sound = bytearray(), False
            with contextlib.suppress(zlib.error):
                for at in range(len(block)):
                    whole += before.decompress(block[at : at + 1])
            content = bytes(whole)
        inflated += content[max(0, inflated_bytes - seen) :]
        seen += len(content)
    return bytes(inflated)
