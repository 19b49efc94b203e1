"""Call stacks of a snapshot, each kept once however many events share it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.schema import TABLES
from ccl_bench.trace.formats.memory_snapshot.values import mappings, text, whole

if TYPE_CHECKING:
    from ccl_bench.base.lazy_polars import pl

Frame = tuple[str | None, str | None, int | None]
"""Function, file, line."""


class Stacks:
    """The stacks met so far, by number.

    A number is looked up by the identity of a list that the whole snapshot keeps alive: a
    file in which many events share one long stack costs no more than its bytes.
    """

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._frames_seen: dict[int, int] = {}
        self._stacks_seen: dict[int, int | None] = {}

    def number(self, frames: object) -> int | None:
        """Return the number of a stack; None where no frames were recorded."""
        known = self._stacks_seen.get(id(frames), -1)
        if known != -1:
            return known
        found = tuple(self._frame(frame) for frame in mappings(frames))
        number = self._stacks.setdefault(found, len(self._stacks)) if found else None
        if isinstance(frames, list | tuple):
            self._stacks_seen[id(frames)] = number
        return number

    def _frame(self, frame: dict[str, object]) -> int:
        known = self._frames_seen.get(id(frame))
        if known is None:
            content = (text(frame.get("name")), text(frame.get("filename")), whole(frame.get("line")))
            known = self._frames.setdefault(content, len(self._frames))
            self._frames_seen[id(frame)] = known
        return known

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the stacks and their frames."""
        functions, files, lines = zip(*self._frames, strict=True) if self._frames else ((), (), ())
        stacks = {"stack": range(len(self._stacks)), "frames": [list(stack) for stack in self._stacks]}
        frames = {
            "frame": range(len(self._frames)),
            "function": list(functions),
            "file": list(files),
            "line": list(lines),
        }
        return {
            "memory_stacks": TABLES["memory_stacks"].frame(stacks),
            "memory_frames": TABLES["memory_frames"].frame(frames),
        }
