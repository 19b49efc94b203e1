"""Copying what was left elsewhere into the run directory; originals stay, nothing is overwritten."""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench.collect.gather.placing import aside, place_of
from ccl_bench.storage import replacing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccl_bench.collect.gather.finding import Left

_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(slots=True)
class Copied:
    """What was brought into the run directory."""

    files: int = 0
    in_place: int = 0
    """Files that lay there already."""
    linked: int = 0
    """Files that stay where they are, with a link to them, because the disk is full."""
    problems: list[str] = field(default_factory=list)


def copied(left: Left, target: Path) -> Copied:
    """Copy traces and small files below `target`, where they do not lie there already."""
    done = Copied()
    for source, places in _wanted(left):
        if _is_below(source, target):
            done.in_place += 1
            continue
        place = _free(source, target, places)
        if place is None:
            done.in_place += 1
            continue
        try:
            done.linked += _copy(source, place)
            done.files += 1
        except OSError as error:
            done.problems.append(f"{source} could not be copied: {error.strerror or error}")
    return done


def _wanted(left: Left) -> Iterator[tuple[Path, list[Path]]]:
    """Yield each file once with the places where it may go, the best first."""
    seen = set()
    for trace in left.traces:
        if trace.path not in seen:
            seen.add(trace.path)
            yield trace.path, [Path(place_of(trace)), Path(aside(trace))]
    for path in (*left.side_files, *left.configurations):
        yield path, [Path(path.name), path.relative_to(left.root) if path != left.root else Path(path.name)]


def _is_below(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _free(source: Path, target: Path, places: Iterable[Path]) -> Path | None:
    """Return the first free place, or None where one already holds the same."""
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


def _copy(source: Path, place: Path) -> bool:
    """Copy a file, or link to it where the disk is full; return whether it was linked."""
    try:
        with replacing(place) as temporary:
            shutil.copyfile(source, temporary)
            shutil.copystat(source, temporary)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(source.resolve())
        return True
    return False
