"""The Chakra graph of one rank: operators of the Execution Trace, launched work, dependencies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench.chakra.protobuf import (
    COLLECTIVE,
    COLLECTIVES,
    COMPUTE,
    METADATA,
    RECEIVE,
    SEND,
    attribute,
    message,
)
from ccl_bench.trace.formats.execution_trace.communication import GROUPS, tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.chakra.device_timing import DeviceWork, Timing


@dataclass(frozen=True, slots=True)
class NodeStart:
    """A node at its start."""

    node: int
    parent: int
    thread: int
    reads: tuple[int, ...] = ()
    """Storages of its inputs."""
    writes: tuple[int, ...] = ()
    """Storages of its outputs."""


@dataclass(slots=True)
class Dependencies:
    """State before a node, thread by thread."""

    running: dict[int, list[NodeStart]] = field(default_factory=dict)
    makers: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    def of(self, start: NodeStart) -> list[int]:
        """Return the nodes that the next node depends on; nodes must come in order of their number."""
        stack = self.running.setdefault(start.thread, [])
        while stack and stack[-1].node != start.parent:
            ended = stack.pop()
            for storage in ended.writes:
                self.makers[storage] = max(self.makers.get(storage, 0), ended.node)
        before = {self.makers[storage] for storage in start.reads if storage in self.makers}
        if start.thread in self.last:
            before.add(self.last[start.thread])
        self.last[start.thread] = start.node
        stack.append(start)
        return sorted(before)


_ROOTS = ("[pytorch|profiler|execution_",)
_NUMBERS = {
    "rf_id": "rf_id",
    "forward_parent": "fw_parent",
    "sequence_number": "seq_id",
    "scope": "scope",
    "thread": "tid",
    "forward_thread": "fw_tid",
}
"""Column of `et_nodes` → attribute, named as Chakra's converter names it."""

_LONGEST_NAME = 6
"""Digits of the longest group name that is a counter; longer ones are addresses, different on every rank."""

_INT32 = 2**31
_STORAGE = 1


@dataclass(frozen=True, slots=True)
class OperandTexts:
    """Inputs and outputs of a node as JSON text: values, shapes, types."""

    inputs: list[str]
    outputs: list[str]
    schema: str = ""


_NONE = OperandTexts(["[]"] * 3, ["[]"] * 3)


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The Execution Trace of a rank."""

    nodes: pl.DataFrame
    calls: pl.DataFrame
    operands: dict[int, OperandTexts]
    rank: int | None


def nodes_of(trace: RankTrace, timing: Timing) -> Iterator[Any]:
    """Yield the nodes of one rank: those of the CPU by number, then device work in order of start."""
    table = trace.nodes.filter(trace.nodes["node"] > 0).unique("node", keep="first", maintain_order=True)
    rows = list(table.sort("node").iter_rows(named=True))
    calls = {row["node"]: row for row in trace.calls.iter_rows(named=True)}
    on_device = {work.call for work in timing.work}
    exclusive = _exclusive_ns(rows, timing)
    node_ids: set[int] = set()
    dependencies = Dependencies()
    for row in rows:
        node = _operator(row, trace, timing, exclusive)
        if row["parent"] in node_ids:
            node.ctrl_deps.append(row["parent"])
        operands = trace.operands.get(row["node"], _NONE)
        reads, writes = _storages(operands.inputs[0]), _storages(operands.outputs[0])
        start = NodeStart(row["node"], row["parent"] or 0, row["thread"] or 0, reads, writes)
        node.data_deps.extend(dependencies.of(start))
        if row["node"] in calls and row["node"] not in on_device:
            make_communication(node, calls[row["node"]], trace.rank)
        node_ids.add(row["node"])
        yield node
    yield from _device_nodes(timing.work, max(node_ids, default=0) + 1, calls, trace.rank)


def _exclusive_ns(rows: list[dict[str, Any]], timing: Timing) -> dict[int, int]:
    """Return the CPU time of each node without that of the nodes that it called, ns."""
    exclusive = {node: end - start for node, (start, end) in timing.spans.items()}
    holder: dict[int, int | None] = {}
    for row in rows:
        node, parent = row["node"], row["parent"]
        holder[node] = parent if parent in timing.spans else holder.get(parent)
        above = holder[node]
        if node in timing.spans and above is not None and above != node:
            start, end = timing.spans[node]
            exclusive[above] -= end - start
    return exclusive


def _operator(row: dict[str, Any], trace: RankTrace, timing: Timing, exclusive: dict[int, int]) -> Any:
    """Return a node of the CPU without its dependencies."""
    number, name = row["node"], str(row["name"])
    is_metadata = name.startswith(_ROOTS) or GROUPS in name
    node = message("Node")(id=number, name=_printable(name), type=METADATA if is_metadata else COMPUTE)
    start, duration = timing.spans.get(number, (0, 0))[0], exclusive.get(number, 0)
    if number in timing.calls:
        start, end = timing.calls[number]
        duration = end - start
    set_time(node, start, duration)
    operands = trace.operands.get(number, _NONE)
    for side, texts in ((node.inputs, operands.inputs), (node.outputs, operands.outputs)):
        side.values, side.shapes, side.types = texts
    for column, attribute_name in _NUMBERS.items():
        if row[column] is not None:
            node.attr.append(attribute(attribute_name, "int64", row[column]))
    node.attr.append(attribute("op_schema", "string", _printable(operands.schema)))
    node.attr.append(attribute("is_cpu_op", "bool", value=True))
    return node


def _device_nodes(
    work: list[DeviceWork], first: int, calls: dict[int, dict[str, Any]], rank: int | None
) -> Iterator[Any]:
    """Yield device work; it depends on its launch and on earlier work of its stream."""
    last: dict[tuple[int, int], int] = {}
    for number, item in enumerate(work, first):
        node = message("Node")(id=number, name=_printable(item.name), type=COMPUTE)
        set_time(node, item.start_ns, item.end_ns - item.start_ns)
        launcher = item.call if item.node is None else item.node
        if launcher is not None:
            node.ctrl_deps.append(launcher)
        lane = (item.device, item.stream)
        node.data_deps.extend(sorted({n for n in (launcher, last.get(lane)) if n is not None}))
        last[lane] = number
        node.attr.append(attribute("is_cpu_op", "bool", value=False))
        node.attr.append(attribute("stream", "int64", item.stream))
        if item.call in calls:
            make_communication(node, calls[item.call], rank)
        yield node


def make_communication(node: Any, call: dict[str, Any], rank: int | None) -> None:
    """Set type, size and group of a call on a node; a call without a Chakra type stays work."""
    collective = call["collective"]
    if collective in {"send", "recv"}:
        node.type = SEND if collective == "send" else RECEIVE
        ends = (rank, call["peer"]) if collective == "send" else (call["peer"], rank)
        for name, end in zip(("comm_src", "comm_dst"), ends, strict=True):
            if end is not None and 0 <= end < _INT32:
                node.attr.append(attribute(name, "int32", end))
    elif collective in COLLECTIVES:
        node.type = COLLECTIVE
        node.attr.append(attribute("comm_type", "int64", COLLECTIVES[collective]))
    else:
        return
    size = call["out_bytes"] if collective == "recv" and call["in_bytes"] is None else call["in_bytes"]
    node.attr.append(attribute("comm_size", "int64", size or 0))
    group = call["group_name"]
    if group and not (group.isdecimal() and len(group) > _LONGEST_NAME):
        node.attr.append(attribute("pg_name", "string", _printable(group)))
    if call["group_size"] is not None:
        node.attr.append(attribute("pg_size", "int64", call["group_size"]))
    if call["dtype"]:
        node.attr.append(attribute("dtype", "string", _printable(call["dtype"])))


def set_time(node: Any, start_ns: int, duration_ns: int) -> None:
    """Set start and duration of a node, in whole microseconds."""
    node.start_time_micros = max(0, start_ns // 1000)
    node.duration_micros = max(0, round(duration_ns / 1000))


def _storages(values: str) -> tuple[int, ...]:
    """Return the storages of the tensors among operands; 0 stands for a tensor without any."""
    try:
        storages = [tensor[_STORAGE] for tensor in tensors(msgspec.json.decode(values))]
    except (msgspec.DecodeError, RecursionError):
        return ()
    return tuple(dict.fromkeys(storage for storage in storages if storage > 0))


def _printable(text: str) -> str:
    """Return text that protobuf accepts: without unpaired surrogates."""
    return text.encode("utf-8", "replace").decode()
