"""Communication calls and their arguments, as each generation of PyTorch recorded them.

- Kernels carry the arguments since torch 2.2, copied from the operator `record_param_comms`.
- `record_param_comms` carries them by name since torch 2.1; before that only as the
  positional `Concrete Inputs` and `Input Dims` of `ParamCommsUtils.hpp`:
  tensors, sequence, group, rank, collective, in split, out split, [start, stride,] size[, async].
- The ranges `nccl:*` and `gloo:*` give size and element type; for gloo they are the call itself.
- The operators `c10d::*` give the true name, the sizes, the splits of an all-to-all and the peer.
- Operators of symmetric memory and of inference engines give the size, whose kernels carry no arguments.

The other rank of a message is a place in the process group wherever PyTorch passes it on (`Rank` of a send or
receive, the operands of `c10d::send`, `nccl:send 0->1`); only `Src Rank` and `Dst Rank` are global ranks.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog.collectives import OperandPositions, custom_operators, operands
from ccl_bench.schema import TABLES
from ccl_bench.trace.formats.kineto.events import CATEGORIES, COMPLETE, NO_ARGS
from ccl_bench.trace.formats.kineto.tables import nanoseconds
from ccl_bench.trace.process_groups import recorded_numbers
from ccl_bench.trace.values import column_of, integers, item_at, json_list, text_or_none, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from msgspec import Raw

    from ccl_bench.trace.formats.kineto.events import Args, Event

OPERATOR = "record_param_comms"
GLOO = "gloo:"
NCCL = "nccl:"
C10D = "c10d::"

CUSTOM = custom_operators()

CALL_NAMES = (OPERATOR, GLOO, NCCL, C10D, *CUSTOM)
"""How the names of CPU events begin that describe a communication call."""

CALL_KINDS = {"kernel": "collective", "cpu_op": "name", "annotation": "name", "unsorted": "name"}
"""What describes communication calls, and by what: the argument `Collective name` or the event's name."""

_NUMBERS = ("thread", "correlation", "external_id")
_FROM_EVENT = {"start_ns", "end_ns", *_NUMBERS}

_NO_TYPE = ("", "TensorList", "GenericList")
"""Texts in the place of an element type, for inputs that are not a single tensor."""

_ARROW = re.compile(r"^nccl:(?:send \d{1,9}->|recv \d{1,9}<-)(\d{1,9})")
"""The name of a range of a message, with the place of the other rank in the group."""

_SHORT_BYTES = 4096
"""Texts up to this long are remembered: calls repeat the shapes and types of their tensors."""

_short_list = lru_cache(maxsize=256)(json_list)


def _decoded(raw: Raw) -> list[Any]:
    text = bytes(raw)
    return _short_list(text) if len(text) <= _SHORT_BYTES else json_list(text)


def _elements(dims: object) -> int | None:
    """Return the elements in a tensor of shape `dims`, or in a list of such tensors."""
    if not isinstance(dims, list):
        return None
    if all(isinstance(side, int) for side in dims):
        return whole(math.prod(dims))
    parts = [_elements(part) for part in dims]
    sizes = [part for part in parts if part is not None]
    return whole(sum(sizes)) if sizes else None


def _sizes(text: bytes) -> list[int | None]:
    return [_elements(shape) if shape else None for shape in json_list(text)]


_short_sizes = lru_cache(maxsize=256)(_sizes)


def _tensor_elements(dims: Raw, index: int | None) -> int | None:
    """Return the elements of one of the tensors whose shapes are `dims`."""
    text = bytes(dims)
    elements: int | None = item_at(_short_sizes(text) if len(text) <= _SHORT_BYTES else _sizes(text), index)
    return elements


def _rows_of_parts(dims: Raw, index: int | None) -> list[int] | None:
    """Return the rows of each tensor in a list of tensors; their elements where rows differ in width."""
    parts = item_at(_decoded(dims), index)
    if not isinstance(parts, list) or not all(isinstance(part, list) and part for part in parts):
        return None
    widths = {_elements(part[1:]) for part in parts}
    return recorded_numbers([part[0] if len(widths) == 1 else _elements(part) for part in parts])


_numbers_in = lru_cache(maxsize=64)(recorded_numbers)  # calls on one group repeat its list of ranks


def _numbers_of(value: object) -> list[int] | None:
    return _numbers_in(value) if isinstance(value, str) else recorded_numbers(value)


def _element_type(kind: object) -> str | None:
    """Return a recorded `Input type` if it names the type of a tensor's elements."""
    return kind if isinstance(kind, str) and kind not in _NO_TYPE else None


def _named_arguments(_: Event, arg: Args) -> dict[str, object]:
    """Return the arguments that PyTorch records by name."""
    peer = arg.target_rank if arg.collective == "send" else arg.source_rank
    return {
        "name": arg.collective,
        "dtype": arg.dtype,
        "in_elements": whole(arg.in_elements),
        "out_elements": whole(arg.out_elements),
        "in_split": _numbers_of(arg.in_split),
        "out_split": _numbers_of(arg.out_split),
        "group_size": whole(arg.group_size),
        "group_name": text_or_none(arg.group_name),
        "group_description": text_or_none(arg.group_description),
        "group_ranks": _numbers_of(arg.group_ranks),
        "group_start": whole(arg.group_start),
        "group_stride": whole(arg.group_stride),
        "sequence": whole(arg.sequence),
        "communicator": text_or_none(arg.communicator),
        "peer": whole(peer),
        "peer_position": whole(arg.rank) if arg.collective in {"send", "recv"} else None,
        "is_async": None if arg.is_async is None else str(arg.is_async).lower() in {"1", "true"},
    }


def _positional_arguments(_: Event, arg: Args) -> dict[str, object]:
    """Return the arguments of a `record_param_comms` from before they had names."""
    inputs = _decoded(arg.concrete_inputs)
    kind = item_at(_decoded(arg.input_type), 0)
    if kind == "Scalar":  # bookkeeping such as waiting: no tensors come first, and nothing moves
        return {}
    size = item_at(inputs, -2 if item_at(inputs, -1) in ("True", "False") else -1)
    return {
        "dtype": _element_type(kind),
        "in_elements": _tensor_elements(arg.input_dims, 0),
        "group_size": whole(size),
        "group_name": text_or_none(item_at(inputs, 2)),
        "sequence": whole(item_at(inputs, 1)),
        "in_split": _numbers_of(item_at(inputs, 5)),
        "out_split": _numbers_of(item_at(inputs, 6)),
        "peer_position": whole(item_at(inputs, 3)),
    }


def _operator_arguments(event: Event, arg: Args) -> dict[str, object]:
    """Return the arguments of a `c10d::*` operator."""
    place = operands(event.name) or OperandPositions()
    types, inputs = _decoded(arg.input_type), _decoded(arg.concrete_inputs)
    kind = item_at(types, place.sent if place.sent is not None else place.received)
    if place.in_parts:
        splits = [_rows_of_parts(arg.input_dims, side) for side in (place.sent, place.received)]
    else:
        splits = [_numbers_of(item_at(inputs, side)) for side in (place.sent_split, place.received_split)]
    return {
        "name": event.name,
        "dtype": _element_type(kind),
        "in_elements": _tensor_elements(arg.input_dims, place.sent),
        "out_elements": _tensor_elements(arg.input_dims, place.received),
        "in_split": splits[0],
        "out_split": splits[1],
        "group_size": len(splits[0]) if splits[0] else None,
        "peer_position": whole(item_at(inputs, place.peer)),
    }


def _custom_arguments(event: Event, arg: Args) -> dict[str, object]:
    """Return the size that the inputs of an operator of symmetric memory or of an inference engine state."""
    sizes = _sizes(bytes(arg.input_dims))
    first = next((place for place, size in enumerate(sizes) if size is not None), None)
    place = operands(event.name) or OperandPositions(sent=first)
    return {
        "name": event.name,
        "dtype": _element_type(item_at(_decoded(arg.input_type), place.sent)),
        "in_elements": item_at(sizes, place.sent),
        "out_elements": item_at(sizes, place.received),
    }


def _range_arguments(event: Event, arg: Args) -> dict[str, object]:
    """Return the arguments of a call in its `gloo:*` or `nccl:*` range; gloo lists every tensor it sends."""
    types = _decoded(arg.input_type)
    arrow = _ARROW.match(event.name)
    sizes = _decoded(arg.input_dims) if event.name.startswith(GLOO) else None
    elements = _elements(sizes) if sizes else _tensor_elements(arg.input_dims, 0)
    side = "out_elements" if event.name.startswith(f"{GLOO}recv") else "in_elements"
    return {
        "name": event.name,
        "dtype": _element_type(item_at(types, 0)),
        side: elements,
        "peer_position": whole(arrow[1]) if arrow else None,
    }


def is_call(event: Event) -> bool:
    """Whether an event describes a communication call."""
    kind = CATEGORIES.get(event.cat or "")
    if event.ph != COMPLETE or kind not in CALL_KINDS:
        return False
    if CALL_KINDS[kind] == "name":
        return event.name.startswith(CALL_NAMES)
    return event.args is not None and bool(event.args.collective)


def call(event: Event) -> dict[str, object]:
    """Return one communication call as a row."""
    arg = event.args or NO_ARGS
    arguments: Callable[[Event, Args], dict[str, object]] | None = None
    if CATEGORIES.get(event.cat or "") == "kernel":
        source = "kernel"
    elif event.name == OPERATOR:
        source, arguments = "host", _positional_arguments
    elif event.name.startswith((GLOO, NCCL)):
        source, arguments = event.name[:4], _range_arguments
    elif event.name.startswith(CUSTOM):
        source, arguments = "custom", _custom_arguments
    else:
        source, arguments = "op", _operator_arguments
    if arg.collective is not None:
        arguments = _named_arguments
    row: dict[str, object] = {
        "ts": event.ts,
        "dur": event.dur,
        "source": source,
        "name": event.name,
        "thread": arg.stream if source == "kernel" else event.tid,
        "correlation": arg.correlation,
        "external_id": arg.external_id,
    }
    return row | arguments(event, arg) if arguments else row


def collectives(calls: Sequence[dict[str, object]]) -> pl.DataFrame:
    """Return the `collectives` rows of calls, with times for `tables.absolute`."""
    rows = {
        name: column_of([call.get(name) for call in calls], column.type)
        for name, column in TABLES["collectives"].columns.items()
        if name not in _FROM_EVENT
    }
    rows |= {name: integers([call[name] for call in calls]) for name in _NUMBERS}
    rows |= {name: nanoseconds([call[name] for call in calls]) for name in ("ts", "dur")}
    return pl.DataFrame([column.alias(name) for name, column in rows.items()])
