"""The layout of a run directory: clear it for a new run, place each file, link the last traces."""

from __future__ import annotations

import os
import re
import shutil
from datetime import datetime
from glob import escape
from itertools import chain, pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ccl_bench.base.errors import UsageError
from ccl_bench.collect.profiling import rank_summary
from ccl_bench.collect.profiling.jax_recorder import PROFILES
from ccl_bench.run import ENVIRONMENT, REPORT
from ccl_bench.side_files.kinds import kind_named
from ccl_bench.trace.discovery import discover_traces

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccl_bench.trace.formats import TraceFile

TRACES, EXECUTION_TRACES, SNAPSHOTS = "profile_trace", "execution_trace", "memory_snapshot"

_FOLDER_OF_FORMAT = {"kineto": TRACES, "execution_trace": EXECUTION_TRACES, "memory_snapshot": SNAPSHOTS}
_NAME_OF_FORMAT = {
    "kineto": "trace.json",
    "execution_trace": "et.json",
    "memory_snapshot": "memory_snapshot.pickle",
}

_OF_JAX = ("xplane", "jax_trace")
"""Formats whose files keep their names, which are those of hosts, in a folder for each recording."""

_UNPLAIN = re.compile(r"[^\w.]+")
"""Characters that a name of a directory should not contain."""

_WINDOW = re.compile(r"(?:iteration|iter|step)[-_]\d+(?:_exit)?")


def destination(trace: TraceFile) -> PurePosixPath:
    """Return the path of a trace: a folder for its format, one for its window, and its rank in the name.

    A file of unknown rank keeps its own name.
    """
    path = PurePosixPath(trace.relative.partition("#")[0])
    kind = trace.form.name
    if kind in _OF_JAX:
        return PurePosixPath(PROFILES, *path.parts[-2:])
    if kind not in _FOLDER_OF_FORMAT:
        return PurePosixPath(path.name)
    window_of_trace = "" if trace.iteration is None else f"iteration_{trace.iteration}"
    window = next((part for part in reversed(path.parts[:-1]) if _WINDOW.fullmatch(part)), window_of_trace)
    name = (
        path.name
        if trace.rank is None
        else trace_file_name(kind, trace.rank) + (".gz" * (path.suffix == ".gz"))
    )
    return PurePosixPath(_FOLDER_OF_FORMAT[kind], window, name)


def trace_file_name(kind: str, rank: int) -> str:
    """Return the file name of the trace of one rank."""
    return f"rank{rank}_{_NAME_OF_FORMAT[kind]}"


def fallback_destination(trace: TraceFile) -> PurePosixPath:
    """Return the path of a trace if its destination is taken: the folder of its format, and its own path."""
    path = PurePosixPath(trace.relative.partition("#")[0])
    return PurePosixPath(_FOLDER_OF_FORMAT.get(trace.form.name, "others"), *path.parts)


LOGS = "logs"
FLIGHT_RECORDER_PREFIX = "comm_lib_trace_rank_"
"""Prefix of dumps of torch's Flight Recorder, before the rank."""

_RECORDED_FOLDERS = (TRACES, EXECUTION_TRACES, SNAPSHOTS, LOGS, PROFILES.parts[0], rank_summary.FOLDER)
_REPORT_PATTERNS = ("*.nsys-rep", "*.qdrep", "*.qdstrm")


def default_directory(command: Sequence[str]) -> Path:
    """Return a unique directory for a run of a command, from program, time and process id."""
    scripts = (Path(word).stem for word in command if word.endswith(".py"))
    modules = (module for option, module in pairwise(command) if option == "-m")
    program = next(chain(scripts, modules), Path(command[0]).name)
    name = _UNPLAIN.sub("-", program).strip("-.") or "run"
    return Path("runs", f"{name}-{datetime.now().astimezone():%Y%m%dT%H%M%S}-{os.getpid()}")


def prepare_run_directory(target: Path, *, force: bool) -> None:
    """Make the directory and remove an earlier run from it; cards, configurations and scripts stay."""
    if target.exists() and not target.is_dir():
        raise UsageError("is a file", where=str(target), fix="give a directory with --output")
    if holds_run(target):
        if not force:
            fix = "choose another directory, or replace the run with --force"
            raise UsageError("already holds a run", where=str(target), fix=fix)
        for path in _files_of_earlier_run(target):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    target.mkdir(parents=True, exist_ok=True)


def holds_run(target: Path) -> bool:
    """Whether anything was recorded here; a failed attempt is not a run."""
    if not target.is_dir():
        return False
    places = (target / rank_summary.FOLDER, target / rank_summary.STEP_TIMES)
    return any(path.exists() for path in places) or bool(discover_traces(target).traces)


def _files_of_earlier_run(target: Path) -> Iterator[Path]:
    """Yield the files of an earlier run, except those that a person may have written."""
    yield from (target / name for name in _RECORDED_FOLDERS if (target / name).is_dir())
    for report in (path for pattern in _REPORT_PATTERNS for path in target.glob(pattern)):
        yield report
        yield from target.glob(f"{escape(report.stem)}.sqlite")
    yield from target.glob(f"{FLIGHT_RECORDER_PREFIX}*")
    for name in _LINK_NAMES.values():
        yield from (path for path in target.glob(f"{name}_*.json*") if path.is_symlink())
    for path in target.iterdir():
        if path.name in {ENVIRONMENT, REPORT} or (path.suffix == ".json" and kind_named(path.name)):
            yield path


_LINK_NAMES = {"kineto": "kineto_trace", "execution_trace": "torch_et"}


def make_links(target: Path) -> list[str]:
    """Link to the last trace of each rank at the top and beside the windows; return the kinds of names.

    Paths are relative, since directories move.
    """
    last: dict[tuple[str, int], TraceFile] = {}
    for trace in sorted(discover_traces(target).traces, key=lambda t: (t.iteration or -1, t.relative)):
        if trace.form.name in _LINK_NAMES and trace.rank is not None:
            last[trace.form.name, trace.rank] = trace
    link_names = set()
    for (kind, rank), trace in last.items():
        compressed = ".gz" * (trace.path.suffix == ".gz")
        if _link(target / f"{_LINK_NAMES[kind]}_{rank}.json{compressed}", trace.path):
            link_names.add(f"{_LINK_NAMES[kind]}_<rank>.json{compressed}")
        window = trace.path.parent
        if _WINDOW.fullmatch(window.name) and window.parent != target:
            _link(window.parent / trace.path.name, trace.path)
    return sorted(link_names)


def _link(link: Path, trace: Path) -> bool:
    """Link to a trace; a file of that name stays."""
    if os.path.lexists(link) and not link.is_symlink():
        return False
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(trace, link.parent))
    return True
