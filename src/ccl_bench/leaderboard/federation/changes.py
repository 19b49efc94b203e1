"""What a merge request changes in the runs of a board: its folder, compared with a git revision or a folder.

Git is only asked for objects and hashes: it runs no filter, hook or program that the checkout names.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ccl_bench import storage
from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.leaderboard.store.store import FOLDER
from ccl_bench.storage.files import walk

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

KEYS = "keys"
"""Folder of a board with the public keys of its submitters, `NAME.pub`."""
_LINK, _OTHER = "link", "no plain file"
_LINK_MODE, _TREE = "120000", "blob"
_SINCE_FIX = "give a branch, tag or commit of the board's repository, or a folder with an earlier state of it"


@dataclass(frozen=True, slots=True)
class BoardChanges:
    """The changes of a board's runs since an earlier state of it."""

    board: Path
    """The folder of the board as it is now."""
    earlier: Path
    """A folder with its keys, and the runs that have changed since, as they were."""
    changed: list[str]
    """Names below `runs/` that were added, changed or removed, sorted."""
    unchanged: list[str]
    """Those that are as they were."""

    def before(self, name: str) -> Path | None:
        """Return the folder of a run in the earlier state; None if there was none."""
        folder = (self.board if name in self.unchanged else self.earlier) / FOLDER / name
        return folder if folder.is_dir() else None

    def after(self, name: str) -> Path | None:
        """Return the folder of a run as it is now; None if it is missing."""
        folder = self.board / FOLDER / name
        return folder if os.path.lexists(folder) else None


def board_changes(board: Path, since: str, scratch: Path) -> BoardChanges:
    """Return the changes of a board since a folder or a git revision.

    Of a revision, the commit counts at which the checkout branched off: what others merged since is no
    change. Writes the earlier state into the empty folder `scratch`. Raises InputError if the board is no
    folder, UsageError if there is no such revision.
    """
    board = board.expanduser().resolve()
    for folder in (board, board / FOLDER):
        if not folder.is_dir() or folder.is_symlink():
            fix = "name a folder into which ccl-bench publish --to wrote runs"
            raise InputError("is not a folder", where=str(folder), fix=fix)
    if since and Path(since).is_dir():
        earlier = Path(since).expanduser().resolve()
        was, now = ({path: _digest(root / path) for path in _files(root)} for root in (earlier, board))
        changed = _names(was, now)
    else:
        earlier = scratch
        revision = _branching_point(board, since)
        was = _tree(board, revision)
        now = _object_names(board, _files(board))
        changed = _names(was, now)
        wanted = [
            path for path in was if path.startswith(f"{KEYS}/") or PurePosixPath(path).parts[1] in changed
        ]
        _extract(board, {path: was[path] for path in wanted}, earlier)
    every = {PurePosixPath(path).parts[1] for path in (*was, *now) if path.startswith(f"{FOLDER}/")}
    return BoardChanges(board, earlier, sorted(changed), sorted(every - changed))


def _files(root: Path) -> list[str]:
    """Return the files below runs and keys, relative to a board; a link is a file, also one to a folder."""
    paths = []
    for part in (FOLDER, KEYS):
        for place, folders, names in walk(root / part):
            links = [name for name in folders if Path(place, name).is_symlink()]
            paths += [Path(place, name).relative_to(root).as_posix() for name in (*names, *links)]
    return paths


def _digest(path: Path) -> str:
    if path.is_symlink():
        return f"{_LINK} {path.readlink()}"
    return storage.sha256(path) if path.is_file() else _OTHER


def _names(was: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """Return the names below `runs/` of which a file differs."""
    paths = (path for path in was.keys() | now.keys() if was.get(path) != now.get(path))
    return {PurePosixPath(path).parts[1] for path in paths if path.startswith(f"{FOLDER}/")}


def _git(board: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    try:
        return subprocess.run(  # noqa: S603  a fixed command
            ["git", "-C", str(board), *arguments],  # noqa: S607  the user's git
            input=stdin,
            capture_output=True,
            check=True,
        ).stdout
    except FileNotFoundError as error:
        raise InputError("git is not installed", fix="install it, or compare with a folder") from error


def _branching_point(board: Path, since: str) -> str:
    """Return the last common commit of the checkout and a revision."""
    try:
        commit = (
            _git(board, "rev-parse", "--verify", "--end-of-options", f"{since}^{{commit}}").decode().strip()
        )
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise UsageError(f"--since {since} is no folder and no revision: {reason}", fix=_SINCE_FIX) from error
    try:
        return _git(board, "merge-base", "HEAD", commit).decode().strip()
    except subprocess.CalledProcessError as error:
        fix = "fetch the whole history: fetch-depth: 0 on GitHub, GIT_DEPTH: 0 on GitLab"
        raise UsageError(f"the checkout and {since} have no common commit", fix=fix) from error


def _tree(board: Path, revision: str) -> dict[str, str]:
    """Return the files below runs and keys of a revision, with the names of their objects."""
    listed = _git(board, "ls-tree", "-r", "-z", revision, "--", FOLDER, KEYS)
    objects = {}
    for line in listed.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        about, _, path = line.partition("\t")
        mode, kind, name = about.split()
        if "/" in path:
            objects[path] = name if kind == _TREE and mode != _LINK_MODE else f"{_LINK} {name}"
    return objects


def _object_names(board: Path, paths: Collection[str]) -> dict[str, str]:
    """Return files of the checkout with the names that their bytes have as git objects."""
    plain = [path for path in paths if (board / path).is_file() and not (board / path).is_symlink()]
    if broken := next((path for path in paths if "\n" in path), None):
        raise InputError("has a line break in its name", where=repr(broken)[:200], fix="remove it")
    listed = "".join(f"{board / path}\n" for path in plain)
    stdin = listed.encode("utf-8", "surrogateescape")
    names = _git(board, "hash-object", "--no-filters", "--stdin-paths", stdin=stdin).decode().split()
    return dict.fromkeys(paths, _OTHER) | dict(zip(plain, names, strict=True))


def _extract(board: Path, objects: Mapping[str, str], folder: Path) -> None:
    """Write objects as files below a folder; links are left out."""
    wanted = {path: name for path, name in objects.items() if not name.startswith(_LINK)}
    stdin = "".join(f"{name}\n" for name in wanted.values()).encode()
    left = _git(board, "cat-file", "--batch", stdin=stdin)
    place = 0
    for path in wanted:
        head, _, _ = left[place : place + 200].partition(b"\n")
        start, size = place + len(head) + 1, int(head.split()[2])
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(left[start : start + size])
        place = start + size + 1
