"""Peaks of a memory snapshot by lists: the recorded events undone one by one, from the state at the end."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


class _Plain(pickle.Unpickler):
    """Builtin containers and numbers only."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain data")


def metrics_of(path: Path) -> dict[str, float | None]:
    """Return metric -> value for one snapshot."""
    with path.open("rb") as stream:
        snapshot = _Plain(stream).load()
    peaks = []
    for device, events in enumerate(snapshot["device_traces"]):
        segments = [segment for segment in snapshot["segments"] if segment["device"] == device]
        allocated = sum(segment["allocated_size"] for segment in segments)
        peak = allocated
        for event in reversed(events):
            if event["action"] == "alloc":
                allocated -= event["size"]
            elif event["action"] == "free_requested":
                allocated += event["size"]
            peak = max(peak, allocated)
        peaks.append(peak)
    return {"peak_memory_allocated": max(peaks) / 1e9}
