"""Links at the top of a run directory to the last traces of rank 0, under the names that people look for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ccl_bench.trace.discovery import found_in

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.trace.discovery import TraceFile

NAMES = {"kineto": "kineto_trace_0.json", "execution_trace": "torch_et_0.json"}


def linked(target: Path) -> list[str]:
    """Make the links, relative so that the directory can be moved; return their names."""
    traces = found_in(target).traces
    return [name for kind, name in NAMES.items() if _link(target, name, _last(traces, kind))]


def _last(traces: list[TraceFile], kind: str) -> TraceFile | None:
    """Return the trace of rank 0 in the last recording window."""
    of_rank_0 = [trace for trace in traces if trace.form.name == kind and trace.rank == 0]
    return max(of_rank_0, key=lambda trace: (trace.iteration or -1, trace.relative), default=None)


def _link(target: Path, name: str, trace: TraceFile | None) -> bool:
    """Link to a trace; a compressed one keeps its suffix, a file of that name its place."""
    if trace is None:
        return False
    link = target / (f"{name}.gz" if trace.path.suffix == ".gz" else name)
    if os.path.lexists(link) and not link.is_symlink():
        return False
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(trace.path, target))
    return True
