"""Reader of Execution Traces: one pass in bounded memory."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.schema import TABLES
from ccl_bench.trace import memory
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.formats.execution_trace import communication
from ccl_bench.trace.formats.execution_trace.nodes import NODES, decoded, numbers_of, read_nodes
from ccl_bench.trace.formats.execution_trace.recognition import identity
from ccl_bench.trace.json_array import Document, damage
from ccl_bench.trace.values import FACTORS, integers, json_list, matrix_sizes, table_of, whole

if TYPE_CHECKING:
    from typing import BinaryIO

    from ccl_bench.trace.formats.execution_trace.nodes import Node

_NUMBERS = {
    "forward_parent": "fw_parent",
    "rf_id": "rf_id",
    "sequence_number": "seq_id",
    "scope": "scope",
    "thread": "tid",
    "forward_thread": "fw_tid",
}
"""Column of `et_nodes` → name in the file."""

_TENSOR = re.compile(r"Tensor\(([^()]*)\)")
_ATTRIBUTES = re.compile(rb'"(schema|pid|time|start_ts|finish_ts)"\s*+:\s*+(?:"([^"\\]{0,64})"|(\d{1,19}))')

_ROWS_TOGETHER = 1 << 14
"""Rows that become a table together."""


@dataclass(slots=True)
class _NodeRows:
    """The rows of one file while they are gathered, piece by piece."""

    parts: list[pl.DataFrame] = field(default_factory=list)
    columns: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    """Rows behind those of `parts`."""
    names: dict[str, bool] = field(default_factory=dict)
    """Name of a node → whether more of it is read than its row."""
    calls: list[dict[str, object]] = field(default_factory=list)
    operators: list[dict[str, object]] = field(default_factory=list)
    """Communication operators, for files without a single `record_param_comms`."""
    groups: dict[str, dict[str, object]] = field(default_factory=dict)
    products: list[dict[str, object]] = field(default_factory=list)

    def take(self, text: bytes) -> bool:
        """Take the nodes in `text`, all or, if `decoded` cannot read it, none: then the result is False."""
        if (nodes := decoded(text)) is None:
            return False
        memory.hold_rows("et_nodes", len(nodes))
        names = [node.name for node in nodes]
        numbers = numbers_of(nodes)
        self.columns["node"] += [node.id for node in nodes]
        self.columns["name"] += names
        self.columns["parent"] += [
            node.parent if node.ctrl_deps is None else node.ctrl_deps for node in nodes
        ]
        for column, name in _NUMBERS.items():
            self.columns[column] += numbers[name]
        if len(self.columns["node"]) >= _ROWS_TOGETHER:
            self._add_part()
        for name in {*names} - self.names.keys():
            is_call = name == communication.OPERATOR or name.startswith(communication.C10D)
            self.names[name] = is_call or name in FACTORS or communication.GROUPS in name
        for node in nodes:
            if not self.names[node.name]:
                continue
            if node.name == communication.OPERATOR:
                self.calls.append(communication.call(node))
            elif node.name.startswith(communication.C10D):
                row = None if self.calls else communication.operator_call(node)
                self.operators += [row] if row else []
            elif node.name in FACTORS:
                self.products.append(_product(node))
            else:
                self.groups |= {str(group["name"]): group for group in communication.groups(node)}
        return True

    def _add_part(self) -> None:
        columns = {
            name: values if name == "name" else integers(values) for name, values in self.columns.items()
        }
        self.parts.append(TABLES["et_nodes"].frame(columns))
        self.columns.clear()

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return every table, with the nodes of one number as often as they are in the file."""
        if self.columns:
            self._add_part()
        nodes = TABLES["et_nodes"].concat(self.parts).sort("node", maintain_order=True, nulls_last=True)
        return {
            "et_nodes": nodes,
            "et_products": table_of("et_products", self.products),
            "et_communication": table_of("et_communication", self.calls or self.operators).sort(
                "node", nulls_last=True
            ),
            "et_groups": table_of("et_groups", [*self.groups.values()]),
        }


def _product(node: Node) -> dict[str, object]:
    """Return one product of matrices as a row; sizes are absent where the shapes do not fit."""
    read, first = node.read(), FACTORS[node.name]
    shapes, types = (json_list(part)[first : first + 2] for part in (read.shapes, read.types))
    match = _TENSOR.fullmatch(str(types[0])) if types else None
    row = {"node": whole(node.id), "name": node.name, "dtype": match[1] if match else None}
    return row | matrix_sizes(shapes)


def attributes_of(document: Document) -> dict[str, str]:
    """Return the attributes in the file's header and footer: schema, process, time of recording."""
    attributes = {}
    for part in (document.head, document.tail):
        for key, text, number in _ATTRIBUTES.findall(part):
            attributes[f"et_{key.decode()}"] = (text or number).decode("utf-8", "replace")
    return attributes


def read_execution_trace(stream: BinaryIO, file: str) -> TraceContent:
    """Return the content of the Execution Trace in `stream`; `file` names it in messages.

    Raises InputError when the file holds no array of nodes. Everything less is salvaged and reported.
    """
    text, rows = Document(), _NodeRows()
    read_nodes(stream, text, rows.take)
    if not text.found_array:
        raise InputError(
            text.broken_off or "no array of nodes in it",
            where=file,
            fix="record it again with torch.profiler.ExecutionTraceObserver, or leave it out of the run",
        )
    tables, findings = rows.tables(), [*damage(text, NODES, file)]
    # A file holds one process, which numbers each of its nodes anew: the first node with a number counts.
    is_first = pl.col("node").is_null() | pl.col("node").is_first_distinct()
    unique = {
        name: table.filter(is_first) if "node" in table.columns else table for name, table in tables.items()
    }
    if count := tables["et_nodes"].height - unique["et_nodes"].height:
        numbered = counted(count, "node has the number", "nodes have the numbers")
        message = f"{numbered} of an earlier one; left out"
        findings.append(
            Finding("events-repeated", "warning", message, file, count=count, touches=tuple(unique))
        )
        tables = unique
    if tables["et_nodes"].is_empty():
        findings.append(Finding("no-events", "error", "the file holds no nodes", file))
    place = identity(text.head + b'"nodes":[')
    sizes = [group["size"] for group in rows.groups.values() if group["name"] == "0"]
    world_size = place.world_size if place.world_size is not None else whole(next(iter(sizes), None))
    return TraceContent(tables, place.rank, world_size, findings, attributes_of(text))
