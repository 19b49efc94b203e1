"""Metrics of an Nsight Systems export by SQL rows, lists and loops, the whole recording being one window.

Counts and sums leave out work that was launched before the recording; shares of busy time contain it.
"""

from __future__ import annotations

import gzip
import math
import sqlite3
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from plain_kineto import Interval, covered_by_both, length

PID = 1 << 24
"""`globalTid` holds the process above this bit and the thread below."""

MEMORY = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")


def mean(values: list[float]) -> float | None:
    """Return the mean, None of nothing."""
    return math.fsum(values) / len(values) if values else None


class Process:
    """What one recorded process did, ns."""

    def __init__(self, base: sqlite3.Connection, process: int) -> None:
        self.kernels = self._rows(base, "CUPTI_ACTIVITY_KIND_KERNEL", process)
        names = dict(base.execute("SELECT id, value FROM StringIds"))
        for kernel in self.kernels:
            kernel["name"] = names[kernel["demangledName"]]
        self.copies, sets = (self._rows(base, table, process) for table in MEMORY)
        self.memory = [*self.copies, *sets]
        calls = self._rows(base, "CUPTI_ACTIVITY_KIND_RUNTIME", process)
        self._first_number = min((call["correlationId"] for call in calls), default=0)
        timed = [*self.kernels, *self.memory, *calls]
        timed += [row for row in self._rows(base, "NVTX_EVENTS", process) if row["eventType"] in (59, 60)]
        self.window = min(row["start"] for row in timed), max(row["end"] or row["start"] for row in timed)

    @staticmethod
    def _rows(base: sqlite3.Connection, table: str, process: int) -> list[dict[str, Any]]:
        if not base.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
            return []
        base.row_factory = sqlite3.Row
        rows = [dict(row) for row in base.execute(f"SELECT * FROM {table}")]
        return [
            row for row in rows if (row.get("globalPid") or row.get("globalTid")) // PID == process // PID
        ]

    def launched(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows that were launched in the recording, which numbers launches in their order."""
        return [row for row in rows if row["correlationId"] >= self._first_number]

    def spans(self, rows: list[dict[str, Any]]) -> list[Interval]:
        """Return the times of rows."""
        return [(row["start"], row["end"]) for row in rows]


def metrics_of(exports: list[Path]) -> dict[str, float | None]:
    """Return metric -> value of the recorded processes that used a device."""
    processes = [process for export in exports for process in _processes(export)]
    busy, exposed, rates, times, concentration = [], [], [], [], []
    for process in processes:
        window = process.window[1] - process.window[0]
        kernels, copies = process.spans(process.kernels), process.spans(process.copies)
        busy.append(100 * length([*kernels, *process.spans(process.memory)]) / window)
        exposed.append(100 * (length(copies) - covered_by_both(copies, kernels)) / window)
        own_copies = process.launched(process.copies)
        lengths = sum(end - start for start, end in process.spans(own_copies))
        rates += [sum(copy["bytes"] for copy in own_copies) / lengths] if lengths else []
        own_kernels = process.launched(process.kernels)
        times.append(sum(end - start for start, end in process.spans(own_kernels)) / 1e9)
        by_name: Counter[str] = Counter()
        for kernel in own_kernels:
            by_name[kernel["name"]] += kernel["end"] - kernel["start"]
        concentration.append(100 * max(by_name.values()) / sum(by_name.values()))
    share = mean(busy)
    assert share is not None
    found = {
        "gpu_busy": share,
        "gpu_idle": 100 - share,
        "memory_transfer_overhead": mean(exposed),
        "average_memory_bandwidth": mean(rates),
        "total_kernel_time": mean(times),
        "dominant_kernel_concentration": mean(concentration),
    }
    return found | _communication(processes)


def _processes(export: Path) -> list[Process]:
    with tempfile.TemporaryDirectory() as folder:
        if export.suffix == ".gz":
            inflated = Path(folder) / "export.sqlite"
            inflated.write_bytes(gzip.decompress(export.read_bytes()))
            export = inflated
        base = sqlite3.connect(f"file:{export}?mode=ro", uri=True)
        found = base.execute("SELECT DISTINCT globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchall()
        return [Process(base, process) for (process,) in found]


def _communication(processes: list[Process]) -> dict[str, float | None]:
    hidden, total, exposed, share, counts = [], [], [], [], []
    for process in processes:
        calls = process.spans([k for k in process.kernels if "nccl" in k["name"].lower()])
        compute = process.spans([k for k in process.kernels if "nccl" not in k["name"].lower()])
        if not calls:
            return {}
        counts.append(float(sum("nccl" in k["name"].lower() for k in process.launched(process.kernels))))
        hidden.append(100 * covered_by_both(calls, compute) / length(calls))
        total.append(length(calls) / 1e9)
        exposed.append((length(calls) - covered_by_both(calls, compute)) / 1e9)
        share.append(100 * length(calls) / (process.window[1] - process.window[0]))
    return {
        "coll_call_num": counts[0],
        "comm_comp_overlap": mean(hidden),
        "total_communication_time": mean(total),
        "exposed_communication_time": mean(exposed),
        "communication_fraction": mean(share),
    }
