"""What a run is, in a few lines: where it lies, its model, its parallelism, its ranks, its traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.report.numbers import size
from ccl_bench.report.words import counted, ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.result.inspection import Inspection

_AXES = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")


def title(found: Inspection) -> str:
    """Return the name of a run: its model, else its directory."""
    return found.model or found.run.rstrip("/").rpartition("/")[2] or found.run


def identity(found: Inspection) -> Iterator[tuple[str, str]]:
    """Yield what is said of a run, as (name, text); the text is empty where nothing is known."""
    traces = found.traces
    formats = ", ".join(dict.fromkeys(trace.format for trace in traces))
    yield "directory", found.run
    yield "model", found.model
    degrees = [f"{axis} {found.facts[axis].value}" for axis in _AXES if axis in found.facts]
    yield "parallelism", ", ".join(degrees)
    of_all = f" of {found.world_size}" if found.world_size else ""
    missing = f"; missing {ranges(found.missing_ranks)}" if found.missing_ranks else ""
    yield "ranks", f"{len(found.ranks)}{of_all}: {ranges(found.ranks)}{missing}" if found.ranks else ""
    yield "devices", "; ".join(f"{each.count} x {each.name}" for each in found.devices)
    yield "libraries", ", ".join(f"{name} {' and '.join(v)}" for name, v in found.libraries.items())
    yield "traces", f"{counted(len(traces), f'{formats} file')}, {size(sum(t.size_bytes for t in traces))}"
    windows = sorted({trace.window for trace in traces if trace.window is not None})
    yield "windows", ranges(windows)
    steps = sorted({step for trace in traces for step in trace.steps})
    sources = ", ".join(sorted({trace.step_source for trace in traces if trace.step_source}))
    chosen = f"; chosen: {found.choice}" if found.choice else ""
    yield "steps", f"{ranges(steps)}, from {sources}{chosen}" if steps else ""
