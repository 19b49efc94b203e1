"""Gathering of the files of a run: discover them by content and copy them into the run directory.

Originals stay, and no file is overwritten.
"""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench.card import is_card_file
from ccl_bench.collect.layout import destination, fallback_destination
from ccl_bench.side_files import is_train_config_file, side_file
from ccl_bench.storage import write_atomically
from ccl_bench.storage.files import walk
from ccl_bench.trace.discovery import discover_traces, files_under

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccl_bench.trace.formats import TraceFile

FileStates = dict["Path", tuple[int, int]]
"""File -> size and time of its last change, ns."""


@dataclass(slots=True)
class FoundFiles:
    """The files that a framework left below one folder."""

    root: Path
    traces: list[TraceFile] = field(default_factory=list)
    side_files: list[Path] = field(default_factory=list)
    configurations: list[Path] = field(default_factory=list)
    cards: list[Path] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """Files that cannot be read, with the reason."""


def file_states(roots: Iterable[Path]) -> FileStates:
    """Return the files below `roots` with size and time, to recognise later ones."""
    states: FileStates = {}
    for root in roots:
        for path in files_under(root)[0] if root.is_dir() else ():
            try:
                stat = path.stat()
            except OSError:
                continue
            states[path] = (stat.st_size, stat.st_mtime_ns)
    return states


def discover(root: Path, before: FileStates) -> FoundFiles:
    """Return the files below `root` that are new or changed since `before`."""
    files = FoundFiles(root)
    if not root.exists():
        return files
    traces = discover_traces(root)
    files.unreadable = [f"{f.file}: {f.message}" for f in traces.findings if f.code == "file-unreadable"]
    files.traces = [trace for trace in traces.traces if _is_new(trace.path, before)]
    for path in (path for path in traces.others if _is_new(path, before)):
        suffix = path.suffix.lower()
        if suffix == ".toml" and is_train_config_file(path):
            files.configurations.append(path)
        elif suffix in {".yaml", ".yml"} and is_card_file(path):
            files.cards.append(path)
        elif side_file(path) is not None:
            files.side_files.append(path)
    return files


def _is_new(path: Path, before: FileStates) -> bool:
    try:
        stat = path.stat()
    except OSError:
        return False
    return before.get(path) != (stat.st_size, stat.st_mtime_ns)


_UNFINISHED_SUFFIX = ".tmp"


def rename_unfinished_traces(target: Path) -> list[str]:
    """Give unfinished traces below `target` their final name, and return a remark on each.

    Kineto writes `rank0_trace.json.tmp` and renames it at the end. A killed job or a full disk leaves a
    partial file under the first name; its complete events are read.
    """
    remarks = []
    suffix = f".json{_UNFINISHED_SUFFIX}"
    below = (Path(folder, name) for folder, _, names in walk(target) for name in names)
    for path in sorted(path for path in below if path.name.endswith(suffix)):
        final_path = path.with_name(path.name.removesuffix(_UNFINISHED_SUFFIX))
        if final_path.exists() or not path.stat().st_size:
            continue
        try:
            path.rename(final_path)
        except OSError as error:
            remarks.append(f"{path} is incomplete and cannot be renamed: {error.strerror or error}")
        else:
            remarks.append(
                f"{final_path} is incomplete (the job was killed, or the disk or quota was full); "
                "its complete events are read"
            )
    return remarks


_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(slots=True)
class CopyResult:
    """How many files were copied into the run directory."""

    files: int = 0
    linked: int = 0
    """Files that got a link instead of a copy because the disk is full."""
    problems: list[str] = field(default_factory=list)


def copy_files(files: FoundFiles, target: Path) -> CopyResult:
    """Copy traces and small files below `target`, unless the same file already exists."""
    result = CopyResult()
    for source, places in _files_to_copy(files):
        if source.resolve().is_relative_to(target.resolve()):
            continue
        place = _free_destination(source, target, places)
        if place is None:
            continue
        try:
            result.linked += _copy_or_link(source, place)
            result.files += 1
        except OSError as error:
            result.problems.append(f"{source} cannot be copied: {error.strerror or error}")
    return result


def _files_to_copy(files: FoundFiles) -> Iterator[tuple[Path, list[Path]]]:
    """Yield each file once with its possible destinations, the best first."""
    seen = set()
    for trace in files.traces:
        if trace.path not in seen:
            seen.add(trace.path)
            yield trace.path, [Path(destination(trace)), Path(fallback_destination(trace))]
    for path in (*files.side_files, *files.configurations):
        yield path, [Path(path.name), path.relative_to(files.root) if path != files.root else Path(path.name)]


def _free_destination(source: Path, target: Path, places: Iterable[Path]) -> Path | None:
    """Return the first free destination, or None if one already holds the same file."""
    tried = [target / place for place in places]
    for place in tried:
        if not os.path.lexists(place):
            return place
        if filecmp.cmp(source, place, shallow=False):
            return None
    last = tried[-1]
    return next(
        place
        for number in range(1, 10**9)
        if not os.path.lexists(place := last.with_name(f"{number}_{last.name}"))
    )


def _copy_or_link(source: Path, place: Path) -> bool:
    """Copy a file, or link to it if the disk is full; return whether it was linked."""
    try:
        with write_atomically(place) as temporary:
            shutil.copyfile(source, temporary)
            shutil.copystat(source, temporary)
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(source.resolve())
        return True
    return False
