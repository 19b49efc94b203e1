"""Read a Chakra execution trace into the tables of Execution Traces, in one pass and in bounded memory.

Its times stay unread: durations are exclusive, in whole microseconds, and no step is a range of time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench.base.counting import counted
from ccl_bench.base.errors import InputError, NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.catalog.dtypes import width_bytes
from ccl_bench.schema import TABLES
from ccl_bench.trace import memory
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.formats.chakra.messages import SHAPES, TYPES, Reading, attribute, frames, nodes
from ccl_bench.trace.process_groups import OPERATOR, listed_groups
from ccl_bench.trace.protobuf import DamagedMessageError, Message
from ccl_bench.trace.values import FACTORS, matrix_sizes, whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.trace.formats.chakra.messages import Frames, Node

_SEND, _RECEIVE, _COLLECTIVE = 5, 6, 7
_COLLECTIVES = (
    *("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all"),
    *("reduce_scatter", "reduce_scatter", "barrier"),
)
"""Names of `CollectiveCommType` by number; the block of `REDUCE_SCATTER_BLOCK` is MPI's word."""

_NUMBERS = {
    "forward_parent": "fw_parent",
    "rf_id": "rf_id",
    "sequence_number": "seq_id",
    "scope": "scope",
    "thread": "tid",
    "forward_thread": "fw_tid",
}
"""Column of `et_nodes` → attribute, as Chakra's converter names them."""

_BYTE = "uint8"
"""Element type of a message whose file states none: it is counted in bytes."""

_QUOTED = re.compile(r"'([^'\\]*)'|\"([^\"\\]*)\"")
_TENSOR = re.compile(r"Tensor\(([^()]*)\)")
_STATED = ("schema", "pid", "time", "start_ts", "finish_ts")


@dataclass(slots=True)
class _Rows:
    """The rows of one file while they are gathered."""

    operators: list[pl.DataFrame] = field(default_factory=list)
    device_work: list[pl.DataFrame] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    products: list[dict[str, object]] = field(default_factory=list)
    groups: dict[str, dict[str, object]] = field(default_factory=dict)

    def add(self, found: list[Node]) -> None:
        """Take the nodes of one piece."""
        memory.hold_rows("et_nodes", len(found))
        is_device = [node.attributes.get("is_cpu_op") is False for node in found]
        for parts, wanted in ((self.operators, False), (self.device_work, True)):
            chosen = [node for node, known in zip(found, is_device, strict=True) if known is wanted]
            parts.append(_operators(chosen))
        for node in found:
            if _SEND <= node.type <= _COLLECTIVE:
                self.calls.append(_call(node))
            if node.name in FACTORS:
                self.products.append(_product(node))
            elif OPERATOR in node.name:
                values = _json(_inputs(node).text(1))
                text = values[0] if isinstance(values, list) and values else None
                self.groups |= {str(group["name"]): group for group in listed_groups(text)}

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return every table; work of a device is no operator, unless the file holds nothing else."""
        for call in self.calls:
            _complete(call, self.groups)
        table = TABLES["et_nodes"].concat(self.operators)
        if table.is_empty():
            table = TABLES["et_nodes"].concat(self.device_work)
        return {
            "et_nodes": table.sort("node", maintain_order=True, nulls_last=True),
            "et_products": _frame("et_products", self.products),
            "et_communication": _frame("et_communication", self.calls).sort("node", nulls_last=True),
            "et_groups": _frame("et_groups", [*self.groups.values()]),
        }


def _frame(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    table = TABLES[name]
    return table.frame({key: [row.get(key) for row in rows] for key in table.columns})


def _operators(found: list[Node]) -> pl.DataFrame:
    numbers = {
        column: [whole(node.attributes.get(name)) for node in found] for column, name in _NUMBERS.items()
    }
    return TABLES["et_nodes"].frame(
        {
            "node": [_number(node.id) for node in found],
            "name": [node.name for node in found],
            "parent": [_number(node.caller) for node in found],
            **numbers,
        }
    )


def _number(value: int | None) -> int | None:
    """Return the number of a node; those that do not fit a column are none."""
    return None if value is None else whole(value if value >= 0 else None)


def _call(node: Node) -> dict[str, Any]:
    """Return one send, receive or collective; work of a device counts where it was launched."""
    stated = node.attributes
    launched = stated.get("is_cpu_op") is False and node.caller is not None
    row: dict[str, Any] = {"node": _number(node.caller if launched else node.id), "name": _collective(node)}
    size = whole(stated.get("comm_size"))
    side = "out" if node.type == _RECEIVE else "in"
    if size is not None and size > 0:
        dtype = stated.get("dtype")
        width = _width(dtype)
        is_known = width is not None and size % width == 0
        row |= {
            f"{side}_bytes": size,
            f"{side}_elements": round(size / width) if is_known and width else size,
            "dtype": dtype if is_known else _BYTE,
        }
    group = stated.get("pg_name")
    row |= {"group_name": None if group in (None, "") else str(group), "rf_id": whole(stated.get("rf_id"))}
    row |= {"group_size": whole(stated.get("pg_size"))}
    if node.type != _COLLECTIVE:
        row["peer"] = whole(stated.get("comm_src" if node.type == _RECEIVE else "comm_dst"))
    return row


def _collective(node: Node) -> str:
    if node.type != _COLLECTIVE:
        return "send" if node.type == _SEND else "recv"
    kind = whole(node.attributes.get("comm_type"))
    return _COLLECTIVES[kind] if kind is not None and 0 <= kind < len(_COLLECTIVES) else node.name


def _width(dtype: object) -> float | None:
    try:
        return width_bytes(dtype) if isinstance(dtype, str) else None
    except NotMeasurable:
        return None


def _complete(call: dict[str, Any], groups: dict[str, dict[str, Any]]) -> None:
    """Add what the list of groups knows, and of a message the place of the other rank."""
    peer, listed = call.pop("peer", None), groups.get(str(call["group_name"]), {})
    call["group_description"] = listed.get("description")
    if call["group_size"] is None:
        call["group_size"] = listed.get("size")
    ranks = listed.get("ranks")
    if peer is not None:
        call["rank_argument"] = ranks.index(peer) if ranks and peer in ranks else peer


def _product(node: Node) -> dict[str, object]:
    """Return one product of matrices; sizes are absent where the shapes do not fit."""
    inputs, first = _inputs(node), FACTORS[node.name]
    shapes = _json(inputs.text(SHAPES))
    named = [one or other for one, other in _QUOTED.findall(inputs.text(TYPES))]
    known = _TENSOR.fullmatch(named[first]) if len(named) > first else None
    row = {"node": _number(node.id), "name": node.name, "dtype": known[1] if known else None}
    return row | matrix_sizes(shapes[first : first + 2] if isinstance(shapes, list) else [])


def _inputs(node: Node) -> Message:
    try:
        return Message(node.inputs)
    except DamagedMessageError:
        return Message(b"")


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def read_chakra(stream: BinaryIO, file: str) -> TraceContent:
    """Return the content of the Chakra execution trace in `stream`; `file` names it in messages.

    Raises InputError where its nodes are of another schema. Everything less is salvaged and reported.
    """
    reading, rows = Reading(), _Rows()
    stated: dict[str, Any] | None = None
    for found in frames(stream, reading):
        if stated is None and found.starts:
            stated = _metadata(found)
        if found.starts:
            rows.add(nodes(found, reading))
        if reading.nodes and reading.other_fields == reading.nodes:
            raise InputError(
                "holds nodes of a schema of Chakra other than 0.0.4",
                where=file,
                fix="convert it again with a present chakra_converter",
            )
    stated = stated or {}
    tables = rows.tables()
    findings = [*_damage(reading, file), *_silence(rows.calls, file)]
    if tables["et_nodes"].is_empty() and tables["et_communication"].is_empty():
        findings.append(Finding("no-events", "error", "the file holds no nodes", file))
    rank, size = (whole(stated.get(name)) for name in ("rank", "world_size"))
    sizes = [group["size"] for name, group in rows.groups.items() if name == "0"]
    known = {f"et_{name}": str(stated[name]) for name in _STATED if stated.get(name) is not None}
    return TraceContent(tables, rank, size or whole(next(iter(sizes), None)), findings, known)


def _metadata(found: Frames) -> dict[str, Any]:
    """Take the metadata, the first message, from the others, and return its attributes."""
    start, end = found.starts.pop(0), found.ends.pop(0)
    try:
        return dict(attribute(each) for each in Message(found.data, start, end).messages(2))
    except DamagedMessageError:
        return {}


def _silence(calls: list[dict[str, Any]], file: str) -> Iterator[Finding]:
    """Say what Chakra does not state: the parts of an all-to-all."""
    if count := sum(call["name"] == "all_to_all" for call in calls):
        message = f"Chakra does not state the parts of {counted(count, 'call')} of all_to_all: taken as even"
        touches = ("et_communication",)
        yield Finding("splits-unknown", "warning", message, file, count=count, touches=touches)


def _damage(reading: Reading, file: str) -> Iterator[Finding]:
    if reading.broken_off:
        message = f"reading stopped after {reading.size:,} bytes: {reading.broken_off}"
        yield Finding("file-broken-off", "error", message, file)
    elif reading.rest:
        message = f"the file ends within a node, after {reading.size:,} bytes"
        yield Finding("file-truncated", "error", message, file)
    if reading.lost:
        message = f"{counted(reading.lost, 'node is', 'nodes are')} unreadable"
        yield Finding("events-lost", "error", message, file, count=reading.lost)
