"""The machine: name, system, processor and memory."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

_CPU_INFO, _MEMORY_INFO = Path("/proc/cpuinfo"), Path("/proc/meminfo")


def described() -> dict[str, str | int | None]:
    """Return what the system says of itself."""
    return {
        "name": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _field(_CPU_INFO, "model name") or platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_bytes": _memory_bytes(),
    }


def _memory_bytes() -> int | None:
    kibibytes = re.match(r"\d+", _field(_MEMORY_INFO, "MemTotal"))
    return int(kibibytes[0]) * 1024 if kibibytes else None


def _field(path: Path, name: str) -> str:
    """Return the first value of a `name : value` file, empty where there is none."""
    text = path.read_text(errors="replace") if path.is_file() else ""
    found = re.search(rf"^{name}\s*:\s*(.*)$", text, flags=re.MULTILINE)
    return found[1].strip() if found else ""
