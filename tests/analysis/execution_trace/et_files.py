"""Execution Traces made by hand, in the plain and in the chakra schemas."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from ccl_bench.trace.formats import execution_trace

if TYPE_CHECKING:
    from ccl_bench.trace.content import TraceContent

NUMBERS = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid")


def tensor(number: int, elements: int, width: int = 4, storage: int | None = None) -> list[Any]:
    return [number, number + 1 if storage is None else storage, 0, elements, width, "cuda:0"]


def plain(number: int, name: str, parent: int = 2, **fields: Any) -> dict[str, Any]:
    """Return a node as schema 1.0.1 has it; `rf_id` is its number unless given."""
    node: dict[str, Any] = {
        "name": name,
        "id": number,
        "rf_id": fields.pop("rf_id", number),
        "parent": parent,
    }
    node |= {"fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0, "op_schema": ""}
    node |= {"inputs": [], "input_shapes": [], "input_types": []}
    return node | {"outputs": [], "output_shapes": [], "output_types": []} | fields


def chakra(number: int, name: str, parent: int = 2, **fields: Any) -> dict[str, Any]:
    """Return a node as schema 1.1.1-chakra.0.0.4 has it; what is no operand becomes an attribute."""
    sides: dict[str, Any] = {
        side: {
            "values": fields.pop(f"{side}s", []),
            "shapes": [],
            "types": fields.pop(f"{side}_types", []),
            "strides": [],
        }
        for side in ("input", "output")
    }
    attributes = {"rf_id": number, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0} | fields
    listed = [{"name": key, "type": "any", "value": value} for key, value in attributes.items()]
    return {
        "id": number,
        "name": name,
        "ctrl_deps": parent,
        "inputs": sides["input"],
        "outputs": sides["output"],
        "attrs": listed,
    }


def text(nodes: list[dict[str, Any]], schema: str = "1.0.1", **head: Any) -> str:
    start = {"schema": schema, "pid": 7, "time": "2024-02-01 21:01:28", "start_ts": 1, **head}
    return json.dumps({**start, "nodes": nodes, "finish_ts": 2}, indent=1)


def all_reduce(number: int, elements: int = 1024, *, sequence: int = 1, **fields: Any) -> dict[str, Any]:
    """Return a `record_param_comms` of schema 1.0.1: 8 ranks, this one is number 3."""
    data = [[tensor(number - 1, elements, 2)]]
    return plain(
        number,
        "record_param_comms",
        inputs=[*data, sequence, 93825114103440, 3, "allreduce", [], [], 8],
        input_types=["GenericList[Tensor(c10::Half)]", *["Int"] * 3, "String", *["GenericList[]"] * 2, "Int"],
        outputs=data,
        output_types=["GenericList[Tensor(c10::Half)]"],
        **fields,
    )


def read(source: str | bytes) -> TraceContent:
    raw = source.encode() if isinstance(source, str) else source
    return execution_trace.EXECUTION_TRACE.read(io.BytesIO(raw), "torch_et_0.json")


def codes(content: TraceContent) -> list[str]:
    return [finding.code for finding in content.findings]
