"""Access control: only runs in allowed folders may be read, also through links and `..`."""

from __future__ import annotations

import hashlib
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench import storage
from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.run.grouping import above
from ccl_bench.side_files import metadata
from ccl_bench.trace import discovery, formats
from ccl_bench.trace.file_names import window_in_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST_SECONDS = 5.0
"""Time limit of the search for runs: an allowed folder may be a whole disk."""

_DEPTH = 8
_SKIPPED = {"__pycache__", "node_modules", "site-packages"}
_LOOKED_AT = 4
"""Number of possible traces of a folder whose first bytes are read."""

_SAYS_RUN = {"workload_card.yaml", metadata.FILE_NAME}
_TRACE_FOLDERS = {"profile_trace", "profile_traces"}
_PLAIN = re.compile(r"[A-Za-z0-9._/+=@,~-]{1,160}")
"""Names that an agent can repeat and that contain no sentences; others are replaced by a handle."""

_HANDLE_DIGITS = 12


@dataclass(slots=True)
class AllowedFolders:
    """Folders that may be read, with their subfolders."""

    roots: list[Path]
    """After their links."""
    _handles: dict[str, Path] = field(default_factory=dict)

    @classmethod
    def of(cls, folders: Iterable[str]) -> AllowedFolders:
        """Return the folders of these names; raise UsageError if one is not a folder."""
        roots = [Path(os.path.realpath(Path(name).expanduser())) for name in folders]
        for root in roots:
            if not root.is_dir():
                raise UsageError(f"{root} is not a folder", fix="give a folder that contains runs")
        return cls([*dict.fromkeys(roots)])

    def run(self, name: str) -> Path:
        """Return the run or file of results called `name`; raise InputError if it may not be read.

        Every file of the run is checked: a link that leaves the folders refuses the run.
        """
        path = self._place(name)
        for file in self._files_of(path):
            if not self._holds(Path(os.path.realpath(file))):
                raise self._refused(f"{file} leads out of the allowed folders")
        return path

    def name(self, path: Path) -> str:
        """Return the name of a run for agents: its path below the folder, or a handle if that is unsafe."""
        run_name = path.relative_to(self.roots[0]).as_posix() if len(self.roots) == 1 else str(path)
        if _PLAIN.fullmatch(run_name):
            return run_name
        handle = f"#{hashlib.sha256(os.fsencode(path)).hexdigest()[:_HANDLE_DIGITS]}"
        self._handles[handle] = path
        return handle

    def runs(self, under: str = "") -> tuple[list[Path], bool]:
        """Return the folders below `under` that contain a run, and whether the search was complete."""
        places = [self._place(under)] if under else self.roots
        runs: dict[Path, None] = {}
        until_s = time.monotonic() + MOST_SECONDS
        for place in places:
            for name, subfolders, names in os.walk(place):
                if time.monotonic() > until_s:
                    return [*runs], False
                folder = Path(name)
                if _is_run(folder, sorted(names)):
                    whole = folder  # of which this may be a recording window
                    while whole not in self.roots and (
                        window_in_path(whole.name) is not None or whole.name in _TRACE_FOLDERS
                    ):
                        whole = whole.parent
                    runs[whole] = None
                is_deep = len(folder.relative_to(place).parts) >= _DEPTH
                visible = sorted(each for each in subfolders if each[0] != "." and each not in _SKIPPED)
                subfolders[:] = [] if is_deep or _SAYS_RUN & {*names} else visible
        return [*runs], True

    def _place(self, name: str) -> Path:
        if "://" in name:
            raise self._refused("addresses are not read")
        if name.startswith("#"):
            if name not in self._handles:
                for path in self.runs()[0]:
                    self.name(path)
            if name not in self._handles:
                raise InputError("no run has this handle", where=name, fix="call list_runs")
            return self._place(str(self._handles[name]))
        try:
            real = [Path(os.path.realpath(root / name)) for root in self.roots]
            inside = [path for path in real if self._holds(path)]
            existing = [path for path in inside if path.exists()]
        except (OSError, ValueError) as error:
            raise self._refused(f"{name} is not a path") from error
        if not inside:
            raise self._refused(f"{name} is outside the allowed folders")
        if not existing:
            fix = "list_runs shows the runs"
            raise InputError("the file or directory does not exist", where=name, fix=fix)
        return existing[0]

    def _holds(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self.roots)

    def _files_of(self, path: Path) -> Iterator[Path]:
        if not path.is_dir():  # cards beside a file of results count
            yield from discovery.files_under(path.parent)[0]
            return
        yield from discovery.files_under(path)[0]
        higher = above(path, [])
        yield from (*higher.files, *(trace.path for trace in higher.snapshots))

    def _refused(self, why: str) -> InputError:
        roots = ", ".join(map(str, self.roots[:3]))
        return InputError(f"refused: {why}", fix=f"give a run below {roots}; --allow DIR adds a folder")


def _is_run(folder: Path, names: list[str]) -> bool:
    """Whether a folder has a card, metadata, or a file that begins like a trace."""
    if _SAYS_RUN & {*names}:
        return True
    possible = [name for name in names if name.lower().endswith(formats.suffixes()) and name[0] != "."]
    # Logs last: many a folder has more of them than files are looked at.
    possible.sort(key=lambda name: name.lower().endswith((".log", ".log.gz")))
    for path in [folder / name for name in possible][:_LOOKED_AT]:
        with suppress(OSError, InputError):
            if path.is_symlink() or not path.is_file():
                continue
            if formats.recognised(storage.read_head(path, discovery.HEAD_BYTES)):
                return True
    return False
