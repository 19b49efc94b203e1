"""Findings where the sources of a run contradict each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.steps.steps import slowest
from ccl_bench.analysis.steps.steps import step_times as recorded_step_times
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import GIGA, SECOND_NS
from ccl_bench.result import WHOLE_TRACE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccl_bench.analysis.facts import Facts

STEP_TOLERANCE = 0.05
"""Share by which step times of two sources may differ without a word; profilers cost time."""

_ABOUT = ("sources",)
"""What these findings touch: no metric, since a metric alone does not gather all sources."""


def source_findings(inputs: Mapping[str, Any]) -> list[Finding]:
    """Return where the sources of a run contradict each other, as far as those tables were computed."""
    return [*_step_times(inputs), *_memory(inputs, inputs["facts"])]


def _step_times(tables: Mapping[str, object]) -> list[Finding]:
    """Compare the step times of a side file with those of the traces."""
    stated, steps = tables.get("step_times"), tables.get("steps")
    if not isinstance(stated, pl.DataFrame) or not isinstance(steps, pl.DataFrame):
        return []
    marked = steps.filter(pl.col("source") != WHOLE_TRACE)
    source = "".join(stated["source"].unique().sort().head(1))
    if marked.is_empty() or stated.is_empty() or source in set(steps["source"]):
        return []
    ours, theirs = (_mean_s(table) for table in (stated, recorded_step_times(marked)))
    if abs(theirs - ours) <= STEP_TOLERANCE * ours:
        return []
    message = (
        f"a step takes {ours:.4g} s in {source} and {theirs:.4g} s in the traces; the file gives the step "
        "time; shares of a step refer to the traced step"
    )
    return [Finding("step-times-differ", "note", message, touches=_ABOUT)]


def _mean_s(step_times: pl.DataFrame) -> float:
    return float(slowest(step_times).select(pl.col("duration_ns").mean()).item()) / SECOND_NS


def _memory(tables: Mapping[str, object], facts: Facts) -> list[Finding]:
    """Compare what the allocator reserved with what the device has."""
    peaks = tables.get("memory_peaks")
    if not isinstance(peaks, pl.DataFrame) or peaks["peak_reserved_bytes"].drop_nulls().is_empty():
        return []
    known = _device_memory(tables, facts)
    reserved = int(peaks.select(pl.col("peak_reserved_bytes").max()).item())
    if known is None or reserved <= known[0]:
        return []
    message = (
        f"the allocator held {reserved / GIGA:.4g} GB of a device with {known[0] / GIGA:.4g} GB ({known[1]})"
    )
    return [Finding("memory-beyond-device", "error", message, touches=_ABOUT)]


def _device_memory(tables: Mapping[str, object], facts: Facts) -> tuple[int, str] | None:
    """Return the largest memory of a device, bytes, and who says so."""
    if facts.gpu_hbm_bytes:
        return facts.gpu_hbm_bytes.value, facts.gpu_hbm_bytes.source
    devices = tables.get("devices")
    if not isinstance(devices, pl.DataFrame) or devices["memory_bytes"].drop_nulls().is_empty():
        return None
    return int(devices.select(pl.col("memory_bytes").max()).item()), "the traces"
