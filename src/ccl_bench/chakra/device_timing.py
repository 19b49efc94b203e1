"""Device work and times of one rank, from the Kineto trace that matches its Execution Trace."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.arguments import launched
from ccl_bench.analysis.execution_trace.calls import call_operators
from ccl_bench.analysis.execution_trace.linking import Link, link_operators, linkable_nodes, linkable_ops
from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from ccl_bench.trace.content import TraceContent

TABLES = ("cpu_ops", "launches", "kernels", "memcpy", "annotations")
"""Tables of a Kineto trace that are used."""


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """One kernel, copy or memory set."""

    name: str
    start_ns: int
    end_ns: int
    device: int
    stream: int
    node: int | None
    """Node that launched it."""
    call: int | None
    """Node of its communication call."""


@dataclass(slots=True)
class Timing:
    """Times and device work of a Kineto trace, for an Execution Trace."""

    link: Link | None = None
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Node → start and end on the CPU, ns."""
    calls: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Node of a communication call without device work → start and end of the communication, ns."""
    work: list[DeviceWork] = field(default_factory=list)
    """Device work in order of start."""


def timing(et_nodes: pl.DataFrame, kineto: TraceContent) -> Timing:
    """Return the times of the nodes and the device work that they launched."""
    ops = linkable_ops(kineto.table("cpu_ops"))
    link = link_operators(linkable_nodes(et_nodes), ops)
    spans = kineto.table("cpu_ops").select("start_ns", "end_ns", "thread").with_columns(ops["op"])
    linked_spans = link.pairs.join(spans, on="op", how="inner", maintain_order="left")
    columns = linked_spans.select("node", "start_ns", "end_ns")
    result = Timing(link, {node: (start, end) for node, start, end in columns.iter_rows()})
    if not linked_spans.height:
        return result
    tables = [kineto.table(name) for name in ("kernels", "launches", "annotations")]
    calls = call_operators(*tables, ops, kineto.table("cpu_ops"), kineto.table("collectives"))
    nodes_of_calls = calls.join(link.pairs, on="op", how="inner").select("start_ns", "stream", "node")
    is_call = {(start, stream): node for start, stream, node in nodes_of_calls.iter_rows()}
    result.work = _work(kineto, linked_spans, is_call)
    if not result.work:
        ranges = kineto.table("annotations").select("start_ns", "end_ns", "thread").iter_rows()
        result.calls = {
            is_call[start, thread]: (start, end)
            for start, end, thread in ranges
            if (start, thread) in is_call
        }
    return result


def _work(kineto: TraceContent, ops: pl.DataFrame, is_call: dict[tuple[int, int], int]) -> list[DeviceWork]:
    columns = ["name", "start_ns", "end_ns", "device", "stream", "correlation"]
    copy_name = (
        pl.when(pl.col("kind") == "memset").then(pl.lit("Memset")).otherwise("Memcpy " + pl.col("kind"))
    )
    copies = kineto.table("memcpy").with_columns(copy_name.alias("name"))
    kernels = kineto.table("kernels").with_columns(pl.col("name").cast(pl.String))
    work = pl.concat([kernels.select(columns), copies.select(columns)]).sort("start_ns", maintain_order=True)
    rows = launched(work, kineto.table("launches"))
    innermost = _Innermost(ops)
    fields = ("name", "start_ns", "end_ns", "device", "stream", "launch_ns", "launch_thread")
    return [
        DeviceWork(
            str(name),
            start,
            end,
            device if device is not None else 0,
            stream if stream is not None else 0,
            innermost.at(thread, launch),
            is_call.get((start, stream)),
        )
        for name, start, end, device, stream, launch, thread in rows.select(fields).iter_rows()
    ]


class _Innermost:
    """Finds the innermost operator that ran on a thread at a time."""

    def __init__(self, ops: pl.DataFrame) -> None:
        self.starts: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self.parents: dict[int, list[int]] = {}
        """Thread → for each of its operators the place of the one around it, or -1."""
        for start, end, thread, node in ops.select("start_ns", "end_ns", "thread", "node").iter_rows():
            self.starts[thread].append((start, -end, node))
        for thread, spans in self.starts.items():
            spans.sort()
            parents = self.parents[thread] = []
            stack: list[int] = []
            for place, (start, _, _) in enumerate(spans):
                while stack and -spans[stack[-1]][1] <= start:
                    stack.pop()
                parents.append(stack[-1] if stack else -1)
                stack.append(place)

    def at(self, thread: int | None, time_ns: int | None) -> int | None:
        """Return the node of the operator, or None if none ran."""
        if thread is None or time_ns is None or thread not in self.starts:
            return None
        spans = self.starts[thread]
        place = bisect_right(spans, time_ns, key=lambda span: span[0]) - 1
        while place >= 0 and -spans[place][1] <= time_ns:
            place = self.parents[thread][place]
        return spans[place][2] if place >= 0 else None
