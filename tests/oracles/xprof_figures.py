"""What `xprof` makes of a JAX profile with its own code: operations, kernels, steps and peaks.

Of a profile of CPUs it gives step times alone, and those of the host.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30


class Operation(NamedTuple):
    """An HLO operation over all devices of a profile."""

    count: int
    total_us: float
    flops: float
    """Floating-point operations of one run of it."""
    bytes: float
    """Bytes that one run of it reads and writes."""


class Kernel(NamedTuple):
    """A kernel of a GPU over all devices of a profile."""

    count: int
    total_us: float
    shortest_us: float
    longest_us: float


def operations(profile: Path) -> dict[str, Operation]:
    """Return the HLO operations by name."""
    found = {}
    for row in _table(profile, "hlo_stats")[0]:
        mean_s = row["avg_self_time"] / 1e6
        found[row["hlo_op_name"]] = Operation(
            int(row["occurrences"]),
            row["total_self_time"],
            row["model_flop_rate"] * 1e9 * mean_s,
            row["measured_memory_bw"] * GIB * mean_s,
        )
    return found


def kernels(profile: Path) -> dict[str, Kernel]:
    """Return the kernels of GPUs by name, summed over the operations that run them."""
    found: dict[str, Kernel] = {}
    for row in _table(profile, "kernel_stats")[0]:
        own = Kernel(
            int(row["occurrences"]), row["total_duration_us"], row["min_duration_us"], row["max_duration_us"]
        )
        one = found.setdefault(row["kernel_name"], own)
        if one is not own:
            shortest, longest = min(one.shortest_us, own.shortest_us), max(one.longest_us, own.longest_us)
            found[row["kernel_name"]] = Kernel(
                one.count + own.count, one.total_us + own.total_us, shortest, longest
            )
    return found


def step_seconds(profile: Path) -> dict[int, float]:
    """Return the length of each step by its number; empty where xprof finds none."""
    steps = json.loads(_figures(profile, "pod_viewer"))["podStatsSequence"]["podStatsMap"]
    return {
        step["stepNum"]: max(core["totalDurationUs"] for core in step["podStatsPerCore"].values()) / 1e6
        for step in steps
    }


def peaks(profile: Path) -> tuple[float, float]:
    """Return the peak FLOP/s of a device, and the peak bytes/s of its memory."""
    said = _table(profile, "roofline_model")[1]
    return float(said["peak_flop_rate"]) * 1e9, float(said["peak_hbm_bw"]) * GIB


def duty_cycle(profile: Path) -> float:
    """Return the share of the recorded time in which devices run programs."""
    tables = json.loads(_figures(profile, "overview_page"))
    said = next(table["p"] for table in tables if "device_duty_cycle_percent" in table.get("p", {}))
    return float(said["device_duty_cycle_percent"].rstrip("%")) / 100


def _table(profile: Path, tool: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the first table of a tool: its rows, and what it says of all of them."""
    tables = json.loads(_figures(profile, tool))
    table = tables[0] if isinstance(tables, list) else tables
    names = [column["id"] for column in table["cols"]]
    rows = [dict(zip(names, (cell["v"] for cell in row["c"]), strict=True)) for row in table["rows"]]
    return rows, table.get("p", {})


def _figures(profile: Path, tool: str) -> str:
    """Return what a tool of xprof makes of a copy of a profile: it leaves files beside what it reads."""
    from xprof.convert import raw_to_tool_data

    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(profile, folder)
        figures, _ = raw_to_tool_data.xspace_to_tool_data([copy], tool, {})
    return figures if isinstance(figures, str) else figures.decode()
