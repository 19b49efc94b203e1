"""Communication calls of an Execution Trace, as each generation of PyTorch recorded them.

`record_param_comms` has the inputs of `ParamCommsUtils.hpp`: [tensors,] sequence, group, rank, collective,
in split, out split [, [start, stride,] size [, async]], where sequence and group are pairs since schema
1.0.3. Since 1.1.0 the node's `attrs` say most of it by name, and those are believed first. Backends
that record none, such as gloo, leave the operators `c10d::*`, whose operands are at fixed places.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ccl_bench.catalog.collectives import operands
from ccl_bench.schema import TABLES
from ccl_bench.trace import process_groups
from ccl_bench.trace.formats.execution_trace.nodes import listed, whole
from ccl_bench.trace.process_groups import listed_groups, recorded_numbers
from ccl_bench.trace.values import column_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.trace.formats.execution_trace.nodes import Node, UsualNode

OPERATOR = "record_param_comms"
GROUPS = process_groups.OPERATOR

C10D = "c10d::"

_TENSOR_TYPE = re.compile(r"Tensor\(([^()]*)\)")
_ELEMENTS, _WIDTH, _DEVICE, _TENSOR_FIELDS = 3, 4, 5, 6


def tensors(values: object, depth: int = 4) -> Iterator[list[Any]]:
    """Yield the tensors among values: [tensor, storage, offset, elements, bytes per element, device]."""
    if not isinstance(values, list) or not depth:
        return
    if len(values) == _TENSOR_FIELDS and isinstance(values[_DEVICE], str):
        if all(type(value) is int for value in values[:_DEVICE]):
            yield values
        return
    for value in values:
        yield from tensors(value, depth - 1)


def _moved(values: list[Any]) -> tuple[int | None, int | None]:
    """Return elements and bytes of all tensors among values, None if there is no tensor."""
    found_tensors = list(tensors(values))
    if not found_tensors:
        return None, None
    sizes = [tensor[_ELEMENTS] * tensor[_WIDTH] for tensor in found_tensors]
    return whole(sum(tensor[_ELEMENTS] for tensor in found_tensors)), whole(sum(sizes))


def _text(value: object) -> str | None:
    return None if value is None or value == "" else str(value)


def _first(value: object) -> Any:
    """Return the first of a pair, or the single value that older schemas have."""
    return value[0] if isinstance(value, list) and value else value


def _at(items: Sequence[Any], index: int) -> Any:
    return items[index] if -len(items) <= index < len(items) else None


def _group(value: object) -> tuple[str | None, str | None]:
    """Return name and description of a group."""
    if isinstance(value, list):
        return _text(_at(value, 0)), _text(_at(value, 1))
    return _text(value), None


def _by_place(inputs: list[Any], types: list[Any]) -> dict[str, object]:
    """Return the arguments that are known by their place only."""
    first = str(_at(types, 0) or "")
    shift = 1 if first.startswith(("Tensor", "GenericList", "OptionalTensor")) else 0
    sequence, group, rank, name, in_split, out_split, *arguments = [*inputs[shift:], *[None] * 6][
        : max(6, len(inputs) - shift)
    ]
    is_async = arguments.pop() if arguments and isinstance(arguments[-1], bool) else None
    start, stride = (arguments[0], arguments[1]) if len(arguments) > 2 else (None, None)
    dtype = _TENSOR_TYPE.search(first) if shift else None
    group_name, description = _group(group)
    return {
        "name": name if isinstance(name, str) else None,
        "dtype": dtype[1] if dtype else None,
        "in_split": recorded_numbers(in_split),
        "out_split": recorded_numbers(out_split),
        "group_size": whole(arguments[-1]) if arguments else None,
        "group_name": group_name,
        "group_description": description,
        "group_start": whole(start),
        "group_stride": whole(stride),
        "sequence": whole(_first(sequence)),
        "rank_argument": whole(rank),
        "is_async": is_async,
    }


def _by_name(node: Node | UsualNode) -> dict[str, object]:
    """Return the arguments that `attrs` name, None for each other."""
    is_async = node.attribute("is_asynchronized_op")
    return {
        "name": _text(node.attribute("collective_name")),
        "dtype": _text(node.attribute("dtype")),
        "in_elements": whole(node.attribute("in_msg_nelems")),
        "out_elements": whole(node.attribute("out_msg_nelems")),
        "in_split": recorded_numbers(node.attribute("in_split_size")),
        "out_split": recorded_numbers(node.attribute("out_split_size")),
        "group_size": whole(node.attribute("pg_size")),
        "group_name": _text(node.attribute("pg_name")),
        "group_description": _text(node.attribute("pg_desc")),
        "group_start": whole(node.attribute("global_rank_start")),
        "group_stride": whole(node.attribute("global_rank_stride")),
        "is_async": None if is_async is None else str(is_async).lower() in {"1", "true"},
    }


def call(node: Node | UsualNode) -> dict[str, object]:
    """Return one `record_param_comms` as a row."""
    read, written = node.read(), node.written()
    inputs = listed(read.values)
    row = _by_place(inputs, listed(read.types))
    row["in_elements"], row["in_bytes"] = _moved(inputs[:1])
    row["out_elements"], row["out_bytes"] = _moved(listed(written.values))
    row |= {name: value for name, value in _by_name(node).items() if value is not None}
    return row | {"node": whole(node.id), "rf_id": node.number("rf_id")}


def operator_call(node: Node | UsualNode) -> dict[str, object] | None:
    """Return a `c10d::*` operator that communicates as a row."""
    places = operands(node.name) if node.name.startswith(C10D) else None
    if places is None:
        return None
    read = node.read()
    inputs, types = listed(read.values), listed(read.types)
    row: dict[str, object] = {"name": node.name, "node": whole(node.id), "rf_id": node.number("rf_id")}
    for side, place in (("in", places.sent), ("out", places.received)):
        if place is not None:
            row[f"{side}_elements"], row[f"{side}_bytes"] = _moved(inputs[place : place + 1])
            dtype = _TENSOR_TYPE.search(str(_at(types, place) or ""))
            row.setdefault("dtype", dtype[1] if dtype else None)
    for split, place in (("in_split", places.sent_split), ("out_split", places.received_split)):
        if place is not None:
            row[split] = recorded_numbers(_at(inputs, place))
    if places.peer is not None:
        row["rank_argument"] = whole(_at(inputs, places.peer))
    return row


def calls(rows: Sequence[dict[str, object]]) -> pl.DataFrame:
    """Return the `et_communication` rows."""
    table = TABLES["et_communication"]
    columns = {name: [row.get(name) for row in rows] for name in table.columns}
    return table.frame(
        {name: column_of(columns[name], column.type) for name, column in table.columns.items()}
    )


def groups(node: Node | UsualNode) -> list[dict[str, object]]:
    """Return the process groups that a `process_group:init` node lists, none if its text was cut."""
    return listed_groups(_at(listed(node.read().values), 0))
