"""How much memory there is, and how much reading a trace takes: what bounds the traces read at once."""

from __future__ import annotations

import contextlib
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccl_bench.storage import GZIP_MAGIC, remote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.trace.format import TraceFile

SHARE = 0.8
"""Part of the available memory that is planned with; the rest is for results and for wrong estimates."""

PROCESS_BYTES = 128 << 20
"""Memory of a worker process before it reads anything."""

_KNOWN_RATIO = 4
"""Least ratio of a compressed trace: the size at its end is cut to 32 bits, and is that of its last part."""
_LIKELY_RATIO = 12
"""Ratio of compressed traces whose end cannot be looked at; real Kineto traces have 10 to 15."""

_MEMINFO = Path("/proc/meminfo")
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def room_bytes() -> int:
    """Return the memory that traces may take together, bytes."""
    return int(SHARE * min(available_bytes(), *_left_in_groups()))


def available_bytes() -> int:
    """Return what the kernel can hand out without swapping, bytes; a large number where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 1 << 62


def _left_in_groups() -> Iterator[int]:
    """Yield what the control groups of this process leave it, bytes, and the unlimited in any case."""
    yield 1 << 62
    with contextlib.suppress(OSError):
        for line in _OWN_GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _left(_GROUPS, path, "memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
                yield from _left(_GROUPS / "memory", path, *names)


def _left(mount: Path, path: str, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    """Yield what a group and each one around it has left; files in the page cache can be given up."""
    own = mount / path.lstrip("/")
    for group in (own, *own.parents):
        if not group.is_relative_to(mount):
            return
        with contextlib.suppress(OSError, ValueError):
            used = int((group / usage).read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            yield max(0, int((group / limit).read_text()) - used + int(stat.get(reclaimable, 0)))


@cache
def _footprints() -> dict[str, Any]:
    """Return the file that says how much memory formats take for each byte of their files, as measured."""
    return tomllib.loads(resources.files(__package__).joinpath("footprints.toml").read_text(encoding="utf-8"))


def needed_bytes(trace: TraceFile) -> int:
    """Return the memory that reading and reducing a trace is likely to take, bytes."""
    measured, size = _footprints(), inflated_bytes(trace)
    first = measured["memory_per_byte"].get(trace.form.name, measured["memory_per_byte"]["other"])
    further = measured["memory_per_further_byte"].get(trace.form.name, first)
    large = max(0, size - measured["large_bytes"])
    return int(first * (size - large) + further * large)


def inflated_bytes(trace: TraceFile) -> int:
    """Return the size of a trace after decompression, as its end tells it, else as is likely, bytes."""
    if remote.is_remote(trace.path):
        return trace.size * (_LIKELY_RATIO if trace.path.suffix == ".gz" else 1)
    with contextlib.suppress(OSError), trace.path.open("rb") as stream:
        if stream.read(2) != GZIP_MAGIC:
            return trace.size
        stream.seek(-4, 2)
        return max(int.from_bytes(stream.read(4), "little"), _KNOWN_RATIO * trace.size)
    return trace.size
