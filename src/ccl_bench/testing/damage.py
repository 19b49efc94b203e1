"""Damage to a generated run, as jobs and people cause it."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING

from ccl_bench.base.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_BASE = re.compile(rb'("baseTimeNanoseconds":\s*)(\d+)')
_RANK = re.compile(rb'("distributedInfo":\s*\{.*?"rank":\s*)(\d+)', re.DOTALL)


def leave_out(path: Path) -> None:
    """Remove a trace, as when a rank was not recorded."""
    path.unlink()


def truncate(path: Path, share: float) -> int:
    """Keep the first `share` of a file's bytes on disk, as when a job is killed; return how many."""
    size = int(path.stat().st_size * share)
    with path.open("r+b") as stream:
        stream.truncate(size)
    return size


def swap_names(first: Path, second: Path) -> None:
    """Exchange the names of two traces, so that name and content disagree on the rank."""
    between = first.with_name(f"{first.name}.between")
    first.rename(between)
    second.rename(first)
    between.rename(second)


def shift_clock(path: Path, ns: int) -> None:
    """Set the clock of a written trace `ns` ahead, by the base of its times."""
    _replace(path, _BASE, lambda base: base + ns)


def claim_rank(path: Path, rank: int) -> None:
    """Make a trace claim to be of another rank in its `distributedInfo`."""
    _replace(path, _RANK, lambda _: rank)


def garble(path: Path, at: int, length: int = 200) -> None:
    """Overwrite `length` bytes from byte `at` of an uncompressed trace with bytes that are no text."""
    with path.open("r+b") as stream:
        stream.seek(at)
        stream.write(b"\xff\x00" * (length // 2))


def lose_kernels(path: Path, every: int, first: int = 0) -> int:
    """Remove one kernel in `every` from an uncompressed trace, as when buffers overflow; return how many."""
    content = json.loads(path.read_bytes())
    events = content["traceEvents"]
    kernels = [number for number, event in enumerate(events) if event.get("cat") == "kernel"]
    lost = set(kernels[first % every :: every])
    content["traceEvents"] = [event for number, event in enumerate(events) if number not in lost]
    path.write_text(json.dumps(content), encoding="utf-8")
    return len(lost)


def mix_in(path: Path, other: Path) -> None:
    """Add the events of another trace to an uncompressed one, as when two processes write one file."""
    content, other_content = (json.loads(trace.read_bytes()) for trace in (path, other))
    content["traceEvents"] += other_content["traceEvents"]
    path.write_text(json.dumps(content), encoding="utf-8")


def _replace(path: Path, pattern: re.Pattern[bytes], change: Callable[[int], int]) -> None:
    is_packed = path.suffix == ".gz"
    content = gzip.decompress(path.read_bytes()) if is_packed else path.read_bytes()
    new_content, count = pattern.subn(
        lambda match: match[1] + str(change(int(match[2]))).encode(), content, count=1
    )
    if not count:
        raise UsageError(
            "does not hold what is to be changed", where=str(path), fix="write it in another style"
        )
    path.write_bytes(gzip.compress(new_content, compresslevel=1, mtime=0) if is_packed else new_content)
