"""What a host did in the time that a variant saves: a range, an operator or a call, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from ccl_bench.whatif.event_graph import Mask, Numbers
    from ccl_bench.whatif.run_graph import RunGraph


OUTSIDE = "outside all ranges"

_STEPS = r"^(?:ProfilerStep#?\s*\d*|step)$"
_OPENS, _CLOSES = "+", "-"


def places_by_activity(operations: pl.DataFrame, before_ns: Numbers, activity: pl.DataFrame) -> list[str]:
    """Return what the host did before each operation, or in it where `before_ns` is 0; empty without a name.

    `activity` holds what the hosts did, on the clock of the operations, in order of its start.
    """
    middle = operations.select("trace", at=pl.col("start_ns") - pl.Series((before_ns + 1) // 2))
    traces = operations["trace"].unique()
    stretches = activity.filter(pl.col("trace").is_in(traces.implode())).select(
        "trace", "name", at="start_ns"
    )
    last_begun = (
        middle.with_row_index("place")
        .sort("at")
        .join_asof(stretches, on="at", by="trace", check_sortedness=False)
        .sort("place")
    )
    names: list[str] = last_begun["name"].fill_null("").to_list()
    return names


def places_by_range(graph: RunGraph, operations: pl.DataFrame, before_ns: Numbers) -> list[str]:
    """Return the same on a run without a device: the innermost range before an operation, or its own name."""
    around: dict[int, str] = {}
    for trace in operations["trace"].unique().sort():
        around |= ranges_of_rows(graph, trace)
    own_names = operations["name"].cast(pl.String).fill_null("").to_list()
    ranges = [around.get(row, OUTSIDE) for row in operations["row"]]
    is_before: Mask = before_ns > 0
    return [
        name if not before else "" if place == OUTSIDE else place
        for place, name, before in zip(ranges, own_names, is_before.tolist(), strict=True)
    ]


def ranges_of_rows(graph: RunGraph, trace: int) -> dict[int, str]:
    """Return the innermost range around each operation of a trace's host threads, by row.

    The time before an operation belongs to its range too; the bounds of a range belong to it.
    """
    ranges: dict[int, str] = {}
    host_operations = graph.operations.filter((pl.col("trace") == trace) & (pl.col("place") == "host"))
    for lane in host_operations.sort("lane", "start_ns", "row").partition_by("lane", maintain_order=True):
        names = lane["name"].cast(pl.String).fill_null("")
        is_step = names.str.slice(1).str.contains(_STEPS)
        stack: list[str] = []
        for row, kind, name, of_step in zip(lane["row"], lane["kind"], names, is_step, strict=True):
            ranges[row] = stack[-1] if stack else OUTSIDE
            if kind != "mark" or of_step:
                continue
            if name.startswith(_OPENS):
                stack.append(name[1:])
            elif name.startswith(_CLOSES) and name[1:] in stack:
                del stack[len(stack) - 1 - stack[::-1].index(name[1:])]
    return ranges
