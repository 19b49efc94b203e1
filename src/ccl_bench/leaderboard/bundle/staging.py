"""A run as its traces are published: without links out of it, and Nsight Systems' reports scrubbed.

Where nothing has to change, the run is published from where it lies.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.collect.environment.capture import FILE_NAME
from ccl_bench.leaderboard.bundle.making import files_of, name_of
from ccl_bench.leaderboard.bundle.scrubbing import scrub
from ccl_bench.run import open_run
from ccl_bench.run.completeness import RANK_MAP
from ccl_bench.storage import remote
from ccl_bench.trace.formats.nsys.export import export_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ccl_bench.run import Run

_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Staged:
    """A run whose files can be handed out."""

    run: Run
    scrubbed: list[str] = field(default_factory=list)
    """Reports that are published in part, by their names below the run as it lies."""


def links_out(run: Run, files: Mapping[str, Path]) -> list[str]:
    """Return which of some files of a run, its card among them, lie outside of it."""
    if remote.is_remote(run.path):
        return []
    folder = (run.path if run.path.is_dir() else run.path.parent).resolve()
    return [
        name for name, path in {**files, **_beside(run)}.items() if not path.resolve().is_relative_to(folder)
    ]


def staged(run: Run, folder: Path, reopened: Callable[[Path], Run] = open_run) -> Staged:
    """Return the run as its traces are published; a copy that differs is made in an empty folder.

    `reopened` opens the copy as the run was opened.
    """
    reports = [
        trace.relative.removesuffix(f"#{trace.part}") for trace in run.traces if trace.form.name == "nsys"
    ]
    if not reports:
        return Staged(run)
    files, place = files_of(run), folder / name_of(run)
    if RANK_MAP in files and any(not name.endswith(".sqlite") for name in reports):
        fix = f"export them with nsys export --type sqlite, and name the exports in {RANK_MAP}"
        raise InputError(
            f"names reports that are published under other names in {RANK_MAP}", where=str(run.path), fix=fix
        )
    for name, path in {**files, **_beside(run)}.items():
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if name in reports:
            scrub(export_of(path, name), target.with_name(_as_export(target.name)))
        else:
            _bring(path, target)
    return Staged(reopened(place), sorted(set(reports)))


def _beside(run: Run) -> dict[str, Path]:
    """Return the run's own card and description of its environment, by their names below the run.

    A card that lies elsewhere is named again by whoever opens the copy.
    """
    paths = [run.stated.origins.get("card"), run.path / FILE_NAME]
    found = [path for path in paths if path is not None and path.is_relative_to(run.path) and path.is_file()]
    return {path.relative_to(run.path).as_posix(): path for path in found}


def _as_export(name: str) -> str:
    """Return the name of the export of a report."""
    bare = Path(name.removesuffix(".gz"))
    return f"{bare.stem}.sqlite"


def _bring(path: Path, target: Path) -> None:
    """Have a file at another place, without copying it where the system can do without."""
    try:
        os.link(path, target)
    except (OSError, TypeError):
        try:
            with path.open("rb") as source, target.open("xb") as copy:
                shutil.copyfileobj(source, copy, _BLOCK_BYTES)
        except OSError as error:
            raise storage.unreadable(path, error) from error
