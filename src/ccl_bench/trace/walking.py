"""Walk over the files of a run: each real file once, hidden ones and devices left out, links marked."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.storage import remote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_SKIPPED_FOLDERS = {"__pycache__", "trace_analysis", "node_modules"}

MOST_FILES = 50_000
"""Files that a run may hold: 1,024 ranks with 48 each. Looking at so many takes 3 s."""

_OF_THE_KERNEL = (Path("/proc"), Path("/sys"))
"""Places that look like folders: they lead to every process, and reading there can wait or have effects."""

NO_NUMBER = ("no table",)
"""What a finding touches that concerns files and no number."""

_NAMED = 3
"""Files that a message names."""


def files_under(root: Path) -> tuple[list[Path], list[Finding]]:
    """Return the files below `root` in order, and what is odd about them: folders that are closed, links out.

    Each real file is there once, links after what they point to. A link to nothing, and what the system does
    not let be looked at, are files too, unreadable ones. Raises InputError where `root` may not be entered,
    or holds so many files that it cannot be a run.
    """
    if remote.is_remote(root):
        shown = (path for path in root.rglob("*") if _is_shown(relative(path, root)))
        return sorted(shown, key=str), []
    _refuse_the_kernels(root)
    plain: dict[str, Path] = {}
    links: list[Path] = []
    closed: list[OSError] = []
    for folder, real, names in _folders(root, closed):
        for path in (Path(folder, name) for name in sorted(names) if not name.startswith(".")):
            if _is_link(path):
                links.append(path)
            elif not _is_something_else(path):
                plain[f"{real}/{path.name}"] = path
        if len(plain) + len(links) > MOST_FILES:
            what = f"holds more than {MOST_FILES:,} files, and is no directory of one run"
            raise InputError(what, where=str(root), fix="name the directory of the run itself")
    for link in links:
        if not _is_something_else(link):
            plain.setdefault(_real(link), link)
    inside = _real(root).rstrip("/") + "/"
    outside = [path for real, path in plain.items() if not real.startswith(inside)]
    return list(plain.values()), [*_closed(closed, root), *_links_out(outside, root)]


def _refuse_the_kernels(root: Path) -> None:
    real = Path(_real(root))
    if any(real.is_relative_to(place) for place in _OF_THE_KERNEL):
        what = "is a view into the kernel, and holds no run"
        raise InputError(what, where=str(root), fix="name the directory of the run itself")


def _is_shown(name: str) -> bool:
    """Whether a remote key is a file that a walk over local folders would come to."""
    *folders, name = name.split("/")
    hidden = name.startswith(".") or any(n.startswith(".") or n in _SKIPPED_FOLDERS for n in folders)
    return bool(name) and not hidden


def _real(path: str | Path) -> str:
    """Return what a path is after its links; itself where the system does not let its links be read."""
    try:
        return os.path.realpath(path)
    except OSError:
        return str(path)


def _is_something_else(path: Path) -> bool:
    """Whether a path surely is no file but a folder, a device, a pipe or a socket."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _is_link(path: Path) -> bool:
    try:
        return path.is_symlink()
    except OSError:
        return False


def _folders(root: Path, closed: list[OSError]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each real folder below `root` once, what it is after its links, and the names in it.

    Links to folders come after what they point to. Folders that cannot be listed go to `closed`.
    """
    seen = {str(above) for above in Path(os.path.realpath(root)).parents}
    pending = [root]
    while pending:
        for folder, subfolders, names in os.walk(pending.pop(0), onerror=closed.append):
            real = _real(folder)
            if real in seen:
                subfolders.clear()
                continue
            seen.add(real)
            subfolders[:] = sorted(n for n in subfolders if n[0] != "." and n not in _SKIPPED_FOLDERS)
            pending += [link for name in subfolders if _is_link(link := Path(folder, name))]
            yield folder, real, names


def relative(path: Path, folder: Path) -> str:
    """Return a path below a folder, local or remote, with `/`."""
    if remote.is_remote(folder):
        return str(path)[len(str(folder)) :].lstrip("/")
    return path.relative_to(folder).as_posix()


def _closed(errors: Iterable[OSError], root: Path) -> Iterator[Finding]:
    """Yield a finding for each folder that cannot be listed; InputError where that is the run itself."""
    for error in errors:
        if error.filename == str(root):
            raise storage.unreadable(root, error) from error
        name = relative(Path(error.filename), root)
        yield Finding("file-unreadable", "error", f"the folder cannot be read: {error.strerror}", name)


def _links_out(outside: Sequence[Path], root: Path) -> list[Finding]:
    """Return a finding about files that are there by links out of the run; none without any."""
    if not outside:
        return []
    names = [relative(path, root) for path in outside[:_NAMED]]
    listed = ", ".join(names) + (", ..." if len(outside) > _NAMED else "")
    count = len(outside)
    links = "1 file is a link that leads" if count == 1 else f"{count} files are links that lead"
    message = f"{links} out of the run: {listed}"
    return [Finding("links-outside", "note", message, names[0], count=count, touches=NO_NUMBER)]
