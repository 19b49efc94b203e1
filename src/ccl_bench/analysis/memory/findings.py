"""Findings about memory snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.counting import counted
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import GIGA

if TYPE_CHECKING:
    from collections.abc import Mapping

TOUCHES = ("memory_peaks",)


def memory_findings(tables: Mapping[str, object]) -> list[Finding]:
    """Return the findings that follow from the peaks of snapshots, where these were computed."""
    peaks = tables.get("memory_peaks")
    if not isinstance(peaks, pl.DataFrame) or peaks.is_empty():
        return []
    looks = (_without_history, _with_late_history, _contradicting, _out_of_memory)
    return [finding for look in looks for finding in look(peaks)]


def _without_history(peaks: pl.DataFrame) -> list[Finding]:
    silent = peaks.filter((pl.col("events") == 0) & (pl.col("reserved_bytes") > 0))
    if silent.is_empty():
        return []
    message = f"snapshots without a history: {silent.height}, so their peaks are unknown"
    return [Finding("memory-history-missing", "warning", message, count=silent.height, touches=TOUCHES)]


def _with_late_history(peaks: pl.DataFrame) -> list[Finding]:
    late = peaks.filter(pl.col("start_allocated_bytes") > 0)
    if late.is_empty():
        return []
    most = int(late["start_allocated_bytes"].max()) / GIGA  # type: ignore[arg-type]
    message = (
        f"histories that begin with memory allocated, up to {most:.3g} GB: {late.height}; earlier peaks are "
        "not visible and may be higher"
    )
    return [Finding("memory-history-late", "warning", message, count=late.height, touches=TOUCHES)]


def _contradicting(peaks: pl.DataFrame) -> list[Finding]:
    count = int(peaks["contradictions"].sum())
    if not count:
        return []
    which = counted(count, "event contradicts", "events contradict")
    message = f"{which} later ones of the allocator, or its state at the snapshot"
    return [Finding("memory-history-contradicts", "error", message, count=count, touches=TOUCHES)]


def _out_of_memory(peaks: pl.DataFrame) -> list[Finding]:
    count = int(peaks["ooms"].sum())
    if not count:
        return []
    devices = peaks.filter(pl.col("ooms") > 0).height
    message = f"times that memory ran out: {count}; devices where it did: {devices}"
    return [Finding("memory-ran-out", "warning", message, count=count, touches=TOUCHES)]
