"""The directory that a run is collected into: refused where it holds a run already, cleared by `--force`."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from ccl_bench.card.side_files import side_file_named
from ccl_bench.collect.gather.placing import EXECUTION_TRACES, SNAPSHOTS, TRACES
from ccl_bench.collect.profiling import parts
from ccl_bench.errors import UsageError
from ccl_bench.run import ENVIRONMENT
from ccl_bench.trace.discovery import found_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOGS = "logs"

_FOLDERS = (TRACES, EXECUTION_TRACES, SNAPSHOTS, LOGS, parts.FOLDER)
_REPORTS = ("*.nsys-rep", "*.qdrep", "*.qdstrm", "report*.sqlite")
_LINKS = ("kineto_trace_0.json*", "torch_et_0.json*")


def prepared(target: Path, *, force: bool) -> None:
    """Make the directory, empty of any earlier run; cards, configurations and scripts stay."""
    if target.exists() and not target.is_dir():
        raise UsageError("is a file", where=str(target), fix="name a directory with --output")
    if holds_run(target):
        if not force:
            fix = "choose another directory, or give --force to replace what is recorded there"
            raise UsageError("holds a run already", where=str(target), fix=fix)
        for path in _of_earlier_run(target):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    target.mkdir(parents=True, exist_ok=True)


def holds_run(target: Path) -> bool:
    """Whether something was recorded here; an attempt that failed before it did is no run."""
    if not target.is_dir():
        return False
    left = (target / parts.FOLDER, target / parts.STEP_TIMES)
    return any(path.exists() for path in left) or bool(found_in(target).traces)


def _of_earlier_run(target: Path) -> Iterator[Path]:
    """Yield what an earlier run left, and nothing that a person may have written."""
    yield from (target / name for name in _FOLDERS if (target / name).is_dir())
    yield from (path for pattern in (*_REPORTS, *_LINKS) for path in target.glob(pattern))
    for path in target.glob("*.json"):
        if path.name == ENVIRONMENT or side_file_named(path.name):
            yield path
