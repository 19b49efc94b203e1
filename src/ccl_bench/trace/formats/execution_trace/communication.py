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
from ccl_bench.trace import process_groups
from ccl_bench.trace.process_groups import listed_groups, recorded_numbers
from ccl_bench.trace.values import item_at, json_list, text_or_none, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.trace.formats.execution_trace.nodes import Node

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


def _by_place(inputs: list[Any], types: list[Any]) -> dict[str, object]:
    """Return the arguments that are known by their place only."""
    first = str(item_at(types, 0) or "")
    shift = 1 if first.startswith(("Tensor", "GenericList", "OptionalTensor")) else 0
    sequence, group, rank, name, in_split, out_split, *arguments = [*inputs[shift:], *[None] * 6][
        : max(6, len(inputs) - shift)
    ]
    is_async = arguments.pop() if arguments and isinstance(arguments[-1], bool) else None
    start, stride = (arguments[0], arguments[1]) if len(arguments) > 2 else (None, None)
    dtype = _TENSOR_TYPE.search(first) if shift else None
    if not isinstance(group, list):  # since schema 1.0.3 name and description, before that the name
        group = [group]
    return {
        "name": name if isinstance(name, str) else None,
        "dtype": dtype[1] if dtype else None,
        "in_split": recorded_numbers(in_split),
        "out_split": recorded_numbers(out_split),
        "group_size": whole(arguments[-1]) if arguments else None,
        "group_name": text_or_none(item_at(group, 0)),
        "group_description": text_or_none(item_at(group, 1)),
        "group_start": whole(start),
        "group_stride": whole(stride),
        "sequence": whole(sequence[0] if isinstance(sequence, list) and sequence else sequence),
        "rank_argument": whole(rank),
        "is_async": is_async,
    }


def _by_name(node: Node) -> dict[str, object]:
    """Return the arguments that `attrs` name, None for each other."""
    is_async = node.attribute("is_asynchronized_op")
    return {
        "name": text_or_none(node.attribute("collective_name")),
        "dtype": text_or_none(node.attribute("dtype")),
        "in_elements": whole(node.attribute("in_msg_nelems")),
        "out_elements": whole(node.attribute("out_msg_nelems")),
        "in_split": recorded_numbers(node.attribute("in_split_size")),
        "out_split": recorded_numbers(node.attribute("out_split_size")),
        "group_size": whole(node.attribute("pg_size")),
        "group_name": text_or_none(node.attribute("pg_name")),
        "group_description": text_or_none(node.attribute("pg_desc")),
        "group_start": whole(node.attribute("global_rank_start")),
        "group_stride": whole(node.attribute("global_rank_stride")),
        "is_async": None if is_async is None else str(is_async).lower() in {"1", "true"},
    }


def call(node: Node) -> dict[str, object]:
    """Return one `record_param_comms` as a row."""
    read, written = node.read(), node.written()
    inputs = json_list(read.values)
    row = _by_place(inputs, json_list(read.types))
    row["in_elements"], row["in_bytes"] = _moved(inputs[:1])
    row["out_elements"], row["out_bytes"] = _moved(json_list(written.values))
    row |= {name: value for name, value in _by_name(node).items() if value is not None}
    return row | {"node": whole(node.id), "rf_id": node.number("rf_id")}


def operator_call(node: Node) -> dict[str, object] | None:
    """Return a `c10d::*` operator that communicates as a row."""
    places = operands(node.name) if node.name.startswith(C10D) else None
    if places is None:
        return None
    read = node.read()
    inputs, types = json_list(read.values), json_list(read.types)
    row: dict[str, object] = {"name": node.name, "node": whole(node.id), "rf_id": node.number("rf_id")}
    for side, place in (("in", places.sent), ("out", places.received)):
        if place is not None:
            row[f"{side}_elements"], row[f"{side}_bytes"] = _moved(inputs[place : place + 1])
            dtype = _TENSOR_TYPE.search(str(item_at(types, place) or ""))
            row.setdefault("dtype", dtype[1] if dtype else None)
    for split, place in (("in_split", places.sent_split), ("out_split", places.received_split)):
        if place is not None:
            row[split] = recorded_numbers(item_at(inputs, place))
    if places.peer is not None:
        row["rank_argument"] = whole(item_at(inputs, places.peer))
    return row


def groups(node: Node) -> list[dict[str, object]]:
    """Return the process groups that a `process_group:init` node lists, none if its text was cut."""
    return listed_groups(item_at(json_list(node.read().values), 0))
