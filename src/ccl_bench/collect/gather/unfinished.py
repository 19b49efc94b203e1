"""Traces that were not written to their end: given their final name, so that they are read as far as they go.

Kineto writes `rank0_trace.json.tmp` and renames it when it is whole. A job that is killed meanwhile, or a
full disk, leaves the beginning under the first name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SUFFIX = ".tmp"


def named(target: Path) -> list[str]:
    """Rename the unfinished traces below `target`, and return what is to be said of each."""
    return list(_named(target))


def _named(target: Path) -> Iterator[str]:
    for path in sorted(target.rglob(f"*.json{_SUFFIX}")):
        whole = path.with_name(path.name.removesuffix(_SUFFIX))
        if whole.exists() or not path.stat().st_size:
            continue
        try:
            path.rename(whole)
        except OSError as error:
            yield f"{path} was not written to its end, and cannot be renamed: {error.strerror or error}"
        else:
            yield (
                f"{whole} was not written to its end (the job was killed, or disk or quota was full); "
                "it is read as far as it goes"
            )
