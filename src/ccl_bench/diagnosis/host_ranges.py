"""In which range of the program each operation of the host lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.whatif.run_graph import RunGraph

OUTSIDE = "outside all ranges"

_STEPS = r"^ProfilerStep#?\s*\d*$"
_OPENS, _CLOSES = "+", "-"


def ranges_of_rows(graph: RunGraph, trace: int) -> dict[int, str]:
    """Return the innermost range around each operation of a trace's host threads, by row.

    The time before an operation belongs to its range too; the bounds of a range belong to it.
    """
    found: dict[int, str] = {}
    mine = graph.operations.filter((pl.col("trace") == trace) & (pl.col("place") == "host"))
    for lane in mine.sort("lane", "start_ns", "row").partition_by("lane", maintain_order=True):
        names = lane["name"].cast(pl.String).fill_null("")
        is_step = names.str.slice(1).str.contains(_STEPS)
        rows = zip(lane["row"], lane["kind"], names, is_step, strict=True)
        found |= _innermost(rows)
    return found


def _innermost(rows: Iterable[tuple[int, str, str, bool]]) -> dict[int, str]:
    found: dict[int, str] = {}
    stack: list[str] = []
    for row, kind, name, is_step in rows:
        found[row] = stack[-1] if stack else OUTSIDE
        if kind != "mark" or is_step:
            continue
        if name.startswith(_OPENS):
            stack.append(name[1:])
        elif name.startswith(_CLOSES) and name[1:] in stack:
            del stack[len(stack) - 1 - stack[::-1].index(name[1:])]
    return found
