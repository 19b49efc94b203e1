"""Files that are no traces of a run and are told by what they are, not only by what they are not."""

from __future__ import annotations

from dataclasses import dataclass

from ccl_bench.catalog.facts import facts


@dataclass(frozen=True, slots=True)
class OtherFile:
    """One kind of file that people take for a trace."""

    what: str
    """What it is, to stand after its name and "is"."""
    way_out: str


def other_file(head: bytes) -> OtherFile | None:
    """Return what a file is that begins with `head` and is no trace; None where nobody knows."""
    for row in facts("other_files")["file"]:
        if all(mark.encode() in head for mark in row["marks"]):
            return OtherFile(row["is"], row["way_out"])
    return None
