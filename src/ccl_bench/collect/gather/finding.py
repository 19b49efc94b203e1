"""What lies in the places where a framework wrote, told apart by content."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ccl_bench.card import is_card_file, is_train_config_file, side_file
from ccl_bench.trace.discovery import found_in
from ccl_bench.trace.walking import files_under

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ccl_bench.trace.discovery import TraceFile

State = dict["Path", tuple[int, int]]
"""File -> size and time of its last change, ns."""


@dataclass(slots=True)
class Left:
    """What a framework left at one place."""

    root: Path
    traces: list[TraceFile] = field(default_factory=list)
    side_files: list[Path] = field(default_factory=list)
    configurations: list[Path] = field(default_factory=list)
    cards: list[Path] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """What could not be read, with the reason."""


def state_of(roots: Iterable[Path]) -> State:
    """Return the files below `roots` as they are, so that later ones can be told from them."""
    found: State = {}
    for root in roots:
        for path in files_under(root)[0] if root.is_dir() else ():
            try:
                stat = path.stat()
            except OSError:
                continue
            found[path] = (stat.st_size, stat.st_mtime_ns)
    return found


def left_at(root: Path, before: State) -> Left:
    """Return what lies at `root` and was not there `before` in the same state."""
    left = Left(root)
    if not root.exists():
        return left
    found = found_in(root)
    left.unreadable = [f"{f.file}: {f.message}" for f in found.findings if f.code == "file-unreadable"]
    left.traces = [trace for trace in found.traces if _is_fresh(trace.path, before)]
    for path in (path for path in found.others if _is_fresh(path, before)):
        suffix = path.suffix.lower()
        if suffix == ".toml" and is_train_config_file(path):
            left.configurations.append(path)
        elif suffix in {".yaml", ".yml"} and is_card_file(path):
            left.cards.append(path)
        elif side_file(path) is not None:
            left.side_files.append(path)
    return left


def _is_fresh(path: Path, before: State) -> bool:
    try:
        stat = path.stat()
    except OSError:
        return False
    return before.get(path) != (stat.st_size, stat.st_mtime_ns)
