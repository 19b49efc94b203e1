"""What belongs to a recording window that is measured alone, and lies above it in the directory of its run.

`RUN/profile_traces/iteration_10` is one window of the run `RUN`. Cards and side files lie in `RUN` or in
folders between, memory snapshots of the same window in `RUN/memory_snapshot/iteration_10`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench.storage import remote
from ccl_bench.trace import discovery
from ccl_bench.trace.file_names import window_in_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.trace.format import TraceFile

_TRACES = {"profile_trace", "profile_traces"}
_SNAPSHOTS = "memory_snapshot"


@dataclass(frozen=True, slots=True)
class Above:
    """What lies above a window."""

    files: list[Path] = field(default_factory=list)
    """Cards, side files and whatever else lies in the folders above, the top first."""
    snapshots: list[TraceFile] = field(default_factory=list)


def above(root: Path, traces: Sequence[TraceFile]) -> Above:
    """Return what belongs to the window in `root` and lies above it; nothing where it is no window of a run.

    `traces` are those in it: snapshots are not looked for where some are there.
    """
    window, trace_folder = root.absolute(), _trace_folder(root)
    if trace_folder is None:
        return Above()
    run = trace_folder.parent
    between = [folder for folder in window.parents if folder.is_relative_to(run)]
    files = [path for folder in reversed(between) for path in _files(folder)]
    has_own = any("memory_segments" in trace.form.tables for trace in traces)
    inside = Path(_SNAPSHOTS) / window.relative_to(trace_folder)
    return Above(files, [] if has_own else _snapshots(run, inside))


def run_above(root: Path) -> Path | None:
    """Return the directory of the run whose window `root` is; None where it is no window of a run."""
    trace_folder = _trace_folder(root)
    return trace_folder and trace_folder.parent


def _trace_folder(root: Path) -> Path | None:
    window = root.absolute()
    if remote.is_remote(root) or not root.is_dir() or window_in_path(window.name) is None:
        return None
    return next((folder for folder in window.parents if folder.name in _TRACES), None)


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name[0] != "." and path.is_file())
    except OSError:
        return []


def _snapshots(run: Path, inside: Path) -> list[TraceFile]:
    """Return the snapshots in a folder of the run, as traces of the window that is measured."""
    folder = run / inside
    if not folder.is_dir():
        return []
    return [
        replace(trace, relative=f"{inside.as_posix()}/{trace.relative}", iteration=None)
        for trace in discovery.discover_traces(folder).traces
        if "memory_segments" in trace.form.tables
    ]
