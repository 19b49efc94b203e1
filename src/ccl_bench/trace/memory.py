"""Memory of reading a trace: the estimate, the bound, and the refusal of traces beyond it.

A trace may take 1 GB, or half more than traces of its kind and size take if that is larger, and never more
than the machine has left. `--memory` sets another bound. Readers count what they hold with `hold`, while they
read: a small file that stands for far more than its size is refused before memory is full.
"""

from __future__ import annotations

import contextlib
import os
import tomllib
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ccl_bench import storage
from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.base.units import GIGA
from ccl_bench.storage import GZIP_MAGIC, is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from ccl_bench.trace.formats import Format, TraceFile

LEAST_BOUND_BYTES = 1_000_000_000
"""What any trace may take, however small its file is."""

_TIMES = 1.5
"""How often what traces of a kind and size take, one of them may."""

_KNOWN_RATIO = 4
"""Least ratio of a compressed trace: the size at its end is cut to 32 bits, and is that of its last part."""
_LIKELY_RATIO = 12
"""Ratio of compressed traces whose end cannot be looked at; real Kineto traces have 10 to 15."""
_MOST_RATIO = 24
"""Ratio up to which the size at the end of a compressed file counts as its size. Traces reach 22."""

_CONTAINER_BYTES, _ITEM_BYTES = 64, 40
"""An empty list or dictionary of Python with its place in another, and a number with its place."""

_PIECE_BYTES = 16 << 20

_COUNTED_BYTES = 1 << 18
"""Bytes of a text whose characters are counted together: what they are compared to fits in a core's cache."""

_UNITS = {"": 1, "B": 1, "K": 1e3, "M": 1e6, "G": GIGA, "T": 1e12}


def parse_size(text: str) -> int:
    """Return the bytes that a text such as `8GB`, `500M` or `1e9` stands for; UsageError for none."""
    number = text.strip().upper().removesuffix("B").rstrip()
    unit = number[-1:] if number[-1:] in _UNITS else ""
    with contextlib.suppress(ValueError, OverflowError):
        size = int(float(number.removesuffix(unit)) * _UNITS[unit])
        if size > 0:
            return size
    raise UsageError(f"{text!r} is not an amount of memory", fix="write it as 8GB or 500MB")


def amount(count: float) -> str:
    """Return bytes for a message, such as `1.5 GB`."""
    unit, size = next(
        (unit for unit in (("GB", GIGA), ("MB", 1e6), ("kB", 1e3)) if count >= unit[1]), ("B", 1)
    )
    return f"{count / size:,.3g} {unit}" if count < 1000 * size else f"{count / size:,.0f} {unit}"


@cache
def _footprints() -> dict[str, Any]:
    """Return the file that says how much memory formats take for each byte and row, as measured."""
    return tomllib.loads(resources.files(__package__).joinpath("footprints.toml").read_text(encoding="utf-8"))


def needed_bytes(trace: TraceFile) -> int:
    """Return the memory that reading and reducing a trace is likely to take, bytes."""
    return _footprint(trace.form, inflated_bytes(trace))


def _footprint(form: Format, size: int) -> int:
    """Return the memory that traces of a format take that have so many bytes after decompression."""
    footprints = _footprints()
    first = footprints["memory_per_byte"].get(form.name, footprints["memory_per_byte"]["other"])
    further = footprints["memory_per_further_byte"].get(form.name, first)
    large = max(0, size - footprints["large_bytes"])
    return int(first * (size - large) + further * large)


def inflated_bytes(trace: TraceFile) -> int:
    """Return the size of a trace after decompression, as its end states it, else as is likely, bytes.

    The end of a file that is cut off states anything: no more counts than traces compress.
    """
    if is_remote(trace.path):
        return trace.size * (_LIKELY_RATIO if trace.path.suffix == ".gz" else 1)
    with contextlib.suppress(OSError), storage.open_raw(trace.path) as stream:
        if stream.read(2) != GZIP_MAGIC:
            return trace.size
        stream.seek(-4, 2)
        stated_bytes = int.from_bytes(stream.read(4), "little")
        return min(max(stated_bytes, _KNOWN_RATIO * trace.size), _MOST_RATIO * trace.size)
    return trace.size


_WATCHING: ContextVar[Callable[[float], None] | None] = ContextVar("watching", default=None)
"""Called with the part of the trace at work that is read; set by `watch_reading` alone."""


@contextlib.contextmanager
def watch_reading(show: Callable[[float], None]) -> Iterator[None]:
    """Let `show` know how much of a trace is read, from 0 to 1, while it is read in this thread."""
    token = _WATCHING.set(show)
    try:
        yield
    finally:
        _WATCHING.reset(token)


_STATED: ContextVar[int | None] = ContextVar("memory", default=None)
"""The bound that the user set, bytes; set by `use_memory` alone."""


@contextlib.contextmanager
def use_memory(count: int | None) -> Iterator[None]:
    """Let each trace take so many bytes of memory until the end of the block; None for the usual bound."""
    token = _STATED.set(count)
    try:
        yield
    finally:
        _STATED.reset(token)


def stated_bound() -> int | None:
    """Return the bound that the user set, bytes; None if none was set."""
    return _STATED.get()


def memory_bound(trace: TraceFile) -> int:
    """Return the memory that a trace may take, bytes."""
    if (bound := _STATED.get()) is not None:
        return bound
    return max(LEAST_BOUND_BYTES, min(int(_TIMES * needed_bytes(trace)), memory_budget_bytes()))


@dataclass(slots=True)
class _Account:
    """Memory of one trace while it is read."""

    trace: TraceFile
    bound: int
    size: int
    """Bytes that the file is likely to have after decompression."""
    read: int = 0
    """Bytes read, after decompression."""
    held_bytes: int = 0
    """Bytes that readers said to hold."""
    zeros: int = 0
    """Bytes right before `read` that are zero."""

    def note_read(self, block: bytes) -> None:
        """Count bytes of the file; InputError if so many take too much memory, or too many are zero."""
        self.read += len(block)
        self.zeros = 0 if block.strip(b"\0") else self.zeros + len(block)
        if self.zeros > storage.MOST_ZEROS:
            raise storage.unwritten(self.read - self.zeros, self.zeros, self.trace.relative)
        if show := _WATCHING.get():
            show(min(1.0, self.read / max(1, self.size)))
        if _footprint(self.trace.form, self.read) > self.bound:
            raise self._refusal(f"its first {amount(self.read)} alone")

    def note_held(self, count: int) -> None:
        """Count memory; InputError if it becomes too much."""
        self.held_bytes += count
        if self.held_bytes > self.bound:
            raise self._refusal("what it holds")

    def _refusal(self, subject: str) -> InputError:
        message = f"is refused: {subject} would take more than {amount(self.bound)} of memory, the bound"
        return InputError(f"{message} that --memory raises", where=self.trace.relative, fix=_RAISE)


_RAISE = "give --memory 8GB, for instance, if you trust the file and the machine has as much"

_AT_WORK: ContextVar[_Account | None] = ContextVar("account", default=None)
"""Of the trace that is being read; set by `bounded` alone."""


@contextlib.contextmanager
def bounded(trace: TraceFile) -> Iterator[None]:
    """Hold the reading of a trace in the block to its bound.

    Raises InputError at once where the size of the file alone shows that it would take more.
    """
    bound, needed = memory_bound(trace), needed_bytes(trace)
    if needed > bound:
        suggested = amount(1.1 * needed).replace(" ", "").replace(",", "")
        message = (
            f"is not read: {amount(inflated_bytes(trace))} of it would take about {amount(needed)} of "
            f"memory, and the bound is {amount(bound)}; --memory {suggested} raises it"
        )
        raise InputError(message, where=trace.relative, fix=_RAISE)
    token = _AT_WORK.set(_Account(trace, bound, inflated_bytes(trace)))
    try:
        yield
    finally:
        _AT_WORK.reset(token)


def hold(count: int) -> None:
    """Count bytes that the reader at work now holds; InputError if they are more than it may take."""
    if account := _AT_WORK.get():
        account.note_held(count)


def may_hold(count: int) -> bool:
    """Whether the reader at work may hold so many bytes more."""
    account = _AT_WORK.get()
    return account is None or account.held_bytes + count <= account.bound


def hold_rows(kind: str, count: int, *, on_disk: bool = False) -> None:
    """Count rows of a table that the reader at work has made, which may lie on disk for now."""
    footprints = _footprints()
    row_bytes = footprints["memory_per_row"].get(kind, footprints["memory_per_row"]["other"])
    hold(int(count * row_bytes * (footprints["share_of_row_on_disk"] if on_disk else 1)))


def hold_json(text: bytes | bytearray) -> None:
    """Count the memory of a JSON text as objects of Python, before it is parsed."""
    hold(len(text))
    hold_values(text)


def hold_values(text: bytes | bytearray) -> None:
    """Count the memory of the containers and items of JSON texts as objects of Python."""
    containers = _occurrences(text, b"{") + _occurrences(text, b"[")
    hold(_CONTAINER_BYTES * containers + _ITEM_BYTES * _occurrences(text, b","))


def _occurrences(text: bytes | bytearray, character: bytes) -> int:
    """Return the number of occurrences of a character; Python's own search starts anew after each one."""
    if len(text) < _COUNTED_BYTES:
        return text.count(character)
    import numpy as np

    codes = np.frombuffer(text, np.uint8)
    blocks = (codes[at : at + _COUNTED_BYTES] for at in range(0, len(codes), _COUNTED_BYTES))
    return sum(int(np.count_nonzero(block == character[0])) for block in blocks)


class _CountedStream:
    """A stream whose bytes count for the trace at work."""

    def __init__(self, stream: BinaryIO, account: _Account) -> None:
        self._stream = stream
        self._account = account

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, or all that is left, asked for in pieces."""
        if size is not None and size >= 0:
            block = self._stream.read(size)
            self._account.note_read(block)
            return block
        return b"".join(iter(lambda: self.read(_PIECE_BYTES), b""))

    def readline(self, size: int = -1) -> bytes:
        """Return the next line, or up to `size` bytes of it."""
        line = self._stream.readline(size)
        self._account.note_read(line)
        return line

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the lines that are left."""
        return iter(self.readline, b"")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def open_trace(path: Path) -> Iterator[BinaryIO]:
    """Open a trace decompressed, whose bytes count for the trace at work."""
    with storage.open_file(path) as stream:
        account = _AT_WORK.get()
        yield cast("BinaryIO", _CountedStream(stream, account)) if account else stream


SHARE = 0.8
"""Part of the available memory that is planned with; the rest is for results and for wrong estimates."""

_MEMINFO = Path("/proc/meminfo")
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def memory_budget_bytes() -> int:
    """Return the memory that traces may take together, also by the control groups of this process, bytes."""
    left = [available_bytes()]
    with contextlib.suppress(OSError):
        for line in _OWN_GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:  # version 2 of control groups
                left += _free_bytes(_GROUPS, path, "memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
                left += _free_bytes(_GROUPS / "memory", path, *names)
    return int(SHARE * min(left))


def available_bytes() -> int:
    """Return the memory that the kernel can hand out without swapping, bytes.

    Where it does not state that, as on macOS, it is all memory of the machine; on Windows a large number.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 1 << 62


def _free_bytes(mount: Path, path: str, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    """Yield the memory left to a group and each one around it; files in the page cache can be given up."""
    group_path = mount / path.lstrip("/")
    for group in (group_path, *group_path.parents):
        if not group.is_relative_to(mount):
            return
        with contextlib.suppress(OSError, ValueError):
            used_bytes = int((group / usage).read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            yield max(0, int((group / limit).read_text()) - used_bytes + int(stat.get(reclaimable, 0)))
