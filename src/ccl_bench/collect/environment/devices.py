"""Accelerators of the node as the driver lists them, by `nvidia-smi`.

Serial numbers and unique identifiers are left out: they name a machine and explain no number.
"""

from __future__ import annotations

import csv
from typing import Any

from ccl_bench.collect.environment.sources import Absent, output_of

_FIELDS = {
    "index": "index",
    "name": "name",
    "memory_mib": "memory.total",
    "driver_version": "driver_version",
    "pcie_generation": "pcie.link.gen.max",
    "pcie_width": "pcie.link.width.max",
    "power_limit_w": "power.limit",
    "sm_clock_limit_mhz": "clocks.max.sm",
    "memory_clock_limit_mhz": "clocks.max.mem",
    "persistence_mode": "persistence_mode",
    "mig_mode": "mig.mode.current",
    "ecc_mode": "ecc.mode.current",
}
"""Name here -> name in `nvidia-smi --help-query-gpu`."""

_NOTHING = {"", "[n/a]", "n/a", "[not supported]", "[unknown error]"}


def listed() -> list[dict[str, Any]]:
    """Return one record for each device of this node."""
    return parsed(
        output_of("nvidia-smi", f"--query-gpu={','.join(_FIELDS.values())}", "--format=csv,noheader,nounits")
    )


def parsed(text: str) -> list[dict[str, Any]]:
    """Return the records in what `nvidia-smi` printed; fields it has no value for are left out."""
    rows = [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if row]
    if not rows or any(len(row) != len(_FIELDS) for row in rows):
        raise Absent(f"nvidia-smi printed no list of devices: {text.strip()[:80]!r}")
    return [
        {
            name: _number(value)
            for name, value in zip(_FIELDS, row, strict=True)
            if value.strip().lower() not in _NOTHING
        }
        for row in rows
    ]


def _number(text: str) -> str | int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip()
