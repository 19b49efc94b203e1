"""Recording windows in a directory during writing: their files, and the times of changes."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.units import SECOND_NS
from ccl_bench.side_files.kinds import RUN_METADATA, kind_named
from ccl_bench.storage.files import walk
from ccl_bench.trace import discovery, formats
from ccl_bench.trace.file_names import window_in_path, windows_in_time, writer_in_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccl_bench.trace.file_names import Written

ALONE = "run"
"""Name of the window of traces without a window in their names."""

_NAME = re.compile(r"[\w.+-]{1,80}", re.ASCII)
_DESCRIBING = (".yaml", ".yml", ".toml")
_SKIPPED = {"__pycache__", "trace_analysis", "node_modules"}


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of a file in a scan."""

    relative: str
    size: int
    changed_ns: int
    """Its modification time."""


@dataclass(frozen=True, slots=True)
class Window:
    """The files of one recording window in a scan."""

    name: str
    number: int | None
    """Number in the names of its files, if any."""
    files: tuple[FileState, ...]

    @property
    def signature(self) -> str:
        """Fingerprint that changes when a file is added, removed or rewritten."""
        listed = "".join(f"{file.relative}\0{file.size}\0{file.changed_ns}\0" for file in self.files)
        return hashlib.sha256(listed.encode(errors="surrogatepass")).hexdigest()[:16]


@dataclass(slots=True)
class Scan:
    """The scan of a directory."""

    windows: list[Window] = field(default_factory=list)
    """In order of number or time."""
    shared: list[str] = field(default_factory=list)
    """Files that describe the whole run: cards, metadata, configurations."""


_LOGS = (".log", ".log.gz")
"""Suffixes of logs, which grow during the job and are rarely traces."""


class WatchedFolder:
    """A directory for repeated scans; it remembers which unnumbered files are traces."""

    def __init__(self, root: Path, without: Path | None = None) -> None:
        self.root = root
        self._without = without
        self._is_trace: dict[FileState, bool] = {}

    def look(self) -> Scan:
        """Return the current windows; raise InputError if the directory is missing."""
        numbered: dict[int, list[FileState]] = defaultdict(list)
        timed: list[tuple[Written, FileState]] = []
        others: list[FileState] = []
        suffixes = (*formats.suffixes(), *_DESCRIBING)
        for file in _files(self.root, self._without):
            if not file.relative.lower().endswith(suffixes):  # checkpoints, events
                continue
            if file.relative.lower().endswith(_LOGS) and not self._recognised(file):
                continue
            number = window_in_path(file.relative)
            if number is not None:
                numbered[number].append(file)
            elif written := writer_in_name(file.relative):
                timed.append((written, file))
            else:
                others.append(file)
        self._is_trace = {file: self._recognised(file) for file in others}
        windows = []
        for number, files in sorted(numbered.items()):
            # A window has the name of the folder with its number, such as `iteration_10`.
            ordered = tuple(sorted(files, key=_relative))
            folders = (part for file in ordered for part in file.relative.split("/")[:-1])
            named = (part for part in folders if window_in_path(part) == number and _NAME.fullmatch(part))
            windows.append(Window(next(named, f"window_{number}"), number, ordered))
        windows += _in_time(timed)
        if alone := [file for file in others if self._is_trace[file]]:
            beside = [file for file in others if not self._is_trace[file]] if not windows else []
            windows.append(Window(ALONE, None, tuple(sorted([*alone, *beside], key=_relative))))
        # Step times, samples and the like are measurements, of a window and not of the whole run.
        shared = [
            file.relative
            for file in others
            if not self._is_trace[file]
            and (kind_named(file.relative) is RUN_METADATA or file.relative.lower().endswith(_DESCRIBING))
        ]
        return Scan(windows, shared)

    def _recognised(self, file: FileState) -> bool:
        """Whether a file is a trace by its first bytes, which are read once per state of the file."""
        cached_answer = self._is_trace.get(file)
        if cached_answer is not None:
            return cached_answer
        if not file.relative.lower().endswith(formats.suffixes()) or kind_named(file.relative):
            return False
        try:
            head = storage.read_head(self.root / file.relative, discovery.HEAD_BYTES)
        except (OSError, InputError):
            return False
        return formats.recognised(head) is not None


def _files(root: Path, without: Path | None) -> Iterator[FileState]:
    """Yield the files below a directory; raise InputError if it is missing."""
    if not root.is_dir():
        raise InputError(
            "the watched directory no longer exists", where=str(root), fix="start again with its new path"
        )
    start = len(str(root)) + 1
    for folder, subfolders, names in walk(root):
        subfolders[:] = [n for n in subfolders if n[0] != "." and n not in _SKIPPED]
        if without and without.parent == Path(folder):
            subfolders[:] = [name for name in subfolders if name != without.name]
        for name in names:
            path = f"{folder}/{name}"
            if name[0] != "." and (state := file_state(path, path[start:])):
                yield state


def file_state(path: str | Path, relative: str) -> FileState | None:
    """Return the current state of a file; None if it is missing or not a regular file."""
    try:
        status = os.stat(path)  # noqa: PTH116  many files are looked at often
    except OSError:
        return None
    return FileState(relative, status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


def _relative(file: FileState) -> str:
    return file.relative


def _in_time(timed: list[tuple[Written, FileState]]) -> list[Window]:
    """Return the windows of files with a time in their names, each named after its first time."""
    timed.sort(key=lambda each: (each[0].time_ns, each[0].stage, each[1].relative))
    numbers = windows_in_time([(w.time_ns, (w.worker, Path(f.relative).parent)) for w, f in timed])
    groups: dict[int, list[tuple[Written, FileState]]] = defaultdict(list)
    for number, each in zip(numbers, timed, strict=True):
        groups[number].append(each)
    windows = []
    for group in groups.values():
        first_ns = group[0][0].time_ns
        began = datetime.fromtimestamp(first_ns / SECOND_NS, UTC)
        name = f"at_{began:%Y%m%dT%H%M%S}.{first_ns % SECOND_NS // 1_000_000:03d}Z"
        windows.append(Window(name, None, tuple(sorted((file for _, file in group), key=_relative))))
    return windows


@dataclass(slots=True)
class _WindowState:
    """The state of one window."""

    files: tuple[FileState, ...]
    since: float
    """Time of its last observed change, on the monotonic clock."""
    refused: bool = False
    """Whether the current files were found to be incomplete."""


class WindowTracker:
    """Detection of complete windows: their files have not changed for some time."""

    def __init__(self, settle_s: float, patience_s: float) -> None:
        self._settle_s = settle_s
        self._patience_s = patience_s
        self._states: dict[str, _WindowState] = {}

    def update(self, windows: Iterable[Window], now_s: float, clock_s: float) -> None:
        """Process a scan; `clock_s` is the current time on the clock of modification times."""
        states = {}
        for window in windows:
            before = self._states.get(window.name)
            if before and before.files == window.files:
                states[window.name] = before
                continue
            age_s = max(0.0, clock_s - max(file.changed_ns for file in window.files) / SECOND_NS)
            states[window.name] = _WindowState(window.files, now_s if before else now_s - age_s)
        self._states = states

    def is_written(self, window: Window, now_s: float) -> bool:
        """Whether a window may be measured: it is stable, and its current files were not refused."""
        state = self._states[window.name]
        unchanged_s = now_s - state.since
        return unchanged_s >= self._settle_s and (not state.refused or unchanged_s >= self._patience_s)

    def is_given_up(self, window: Window, now_s: float) -> bool:
        """Whether an incomplete window is old enough to be measured as it is."""
        return now_s - self._states[window.name].since >= self._patience_s

    def refuse(self, window: Window) -> None:
        """Skip a window until its files change."""
        self._states[window.name].refused = True
