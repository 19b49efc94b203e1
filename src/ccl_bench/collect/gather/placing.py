"""Where each file of a run belongs in its directory."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccl_bench.trace.discovery import TraceFile

TRACES, EXECUTION_TRACES, SNAPSHOTS = "profile_trace", "execution_trace", "memory_snapshot"

_FOLDERS = {"kineto": TRACES, "execution_trace": EXECUTION_TRACES, "memory_snapshot": SNAPSHOTS}
_NAMES = {"kineto": "trace.json", "execution_trace": "et.json", "memory_snapshot": "memory_snapshot.pickle"}

_WINDOW = re.compile(r"(?:iteration|iter|step)[-_]\d+(?:_exit)?")


def place_of(trace: TraceFile) -> PurePosixPath:
    """Return where a trace belongs: a folder for its kind, one for its window, and its rank in the name.

    A file that says nothing of its rank keeps its own name.
    """
    own = PurePosixPath(trace.relative.partition("#")[0])
    kind = trace.form.name
    if kind not in _FOLDERS:
        return PurePosixPath(own.name)
    numbered = "" if trace.iteration is None else f"iteration_{trace.iteration}"
    window = next((part for part in reversed(own.parts[:-1]) if _WINDOW.fullmatch(part)), numbered)
    name = own.name if trace.rank is None else name_of(kind, trace.rank) + (".gz" * (own.suffix == ".gz"))
    return PurePosixPath(_FOLDERS[kind], window, name)


def name_of(kind: str, rank: int) -> str:
    """Return the name of a trace of one rank."""
    return f"rank{rank}_{_NAMES[kind]}"


def aside(trace: TraceFile) -> PurePosixPath:
    """Return where a trace goes whose place is taken: as `place_of`, with the path that it had."""
    own = PurePosixPath(trace.relative.partition("#")[0])
    return PurePosixPath(_FOLDERS.get(trace.form.name, "others"), *own.parts)
