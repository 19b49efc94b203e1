"""How much memory the machine, and the control groups that this process runs in, leave to it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARE = 0.8
"""Part of the available memory that is planned with; the rest is for results and for wrong estimates."""

_MEMINFO = Path("/proc/meminfo")
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def memory_budget_bytes() -> int:
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
