"""Read a compiled XLA program as the profiler keeps it: its instructions, and the devices that it runs on.

Source of the numbers of fields: `hlo.proto` and `xla_data.proto` of https://github.com/openxla/xla.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ccl_bench.catalog.dtypes import xla_type
from ccl_bench.trace.hlo.instruction import (
    DONE,
    Axis,
    HloInstruction,
    Product,
    Scope,
    Shape,
    convolution,
    dot,
    iota_groups,
    mesh_groups,
)
from ccl_bench.trace.protobuf import DamagedMessageError, Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class _Module:
    PROGRAM, NAME, ENTRY, COMPUTATIONS, DEVICES = 1, 1, 2, 3, 15


class _Computation:
    NAME, INSTRUCTIONS, ID, ROOT = 1, 2, 5, 6


class _Instruction:
    NAME, OPCODE, SHAPE, CHANNEL, DOT, ID, OPERANDS, CALLED = 1, 2, 3, 26, 30, 35, 36, 38
    CONVOLUTION, TARGET, BACKEND, HOST, GROUPS, PAIRS, GLOBAL, DEVICES = 16, 28, 43, 47, 49, 52, 71, 87
    IOTA, MESH, WINDOW = 92, 93, 15


class _WindowSide:
    STRIDE, DILATION, IMAGE_DILATION = 2, 5, 6


class _Shape:
    TYPE, DIMENSIONS, PARTS = 2, 3, 4


_KERNEL_OUTPUTS = 4
"""Number of the field that holds which dimension of a convolution's kernel are its outputs."""

_GEMM = "__cublas$"
"""How targets begin of products that XLA leaves to cuBLAS and hipBLASLt."""

_CONVOLUTION = "__cudnn$conv"
"""How targets begin of convolutions that XLA leaves to cuDNN and MIOpen."""

_FARTHEST = 1 << 20
"""Places between the elements of an image that no dilation has."""

_DEEPEST = 50
"""Levels of computations that call each other, and of tuples, that are looked at."""


@dataclass(frozen=True, slots=True)
class HloProgram:
    """A compiled program."""

    name: str
    instructions: Mapping[str, HloInstruction]
    """Name → instruction, over all computations."""
    devices: tuple[tuple[int, ...], ...]
    """Global ids of the devices: for each partition those of its replicas; empty if not stated."""
    entry: frozenset[str] = frozenset()
    """Names of the instructions that a run of the program executes once."""

    def number_of(self, instruction: HloInstruction, device: int) -> int | None:
        """Return the number of a device in the pairs of a permute; None if unknown."""
        place = self._place(device)
        return None if place is None else self._numbering(instruction, *place)[0]

    def members(self, instruction: HloInstruction, device: int) -> tuple[int, ...] | None:
        """Return the global ids of the devices that a device communicates with in a collective, itself too.

        None if the groups or the place of the device are not known. Ids are in the order of the group.
        Source: `GetParticipatingDevicesGroups` of XLA's `collective_ops_utils.h`.
        """
        place = self._place(device)
        if place is None or instruction.groups is None:
            return None
        replica, partition = place
        is_of_partitions = instruction.kind in ("all-to-all", "collective-permute")
        if instruction.scope.has_channel and not self._is_flat(instruction) and not is_of_partitions:
            # groups of replicas, each with all of its partitions
            where = [
                [(row, column) for column in range(len(self.devices))] for row in range(len(self.devices[0]))
            ]
            own_number = replica
        else:
            own_number, places = self._numbering(instruction, replica, partition)
            where = [[each] for each in places]
        group = _group(instruction, own_number, len(where))
        if group is None or not all(0 <= number < len(where) for number in group):
            return None
        return tuple(self.devices[column][row] for number in group for row, column in where[number])

    def _is_flat(self, instruction: HloInstruction) -> bool:
        """Whether replicas and partitions are numbered together."""
        return instruction.scope.is_global or 1 in (len(self.devices[0]), len(self.devices))

    def _numbering(
        self, instruction: HloInstruction, replica: int, partition: int
    ) -> tuple[int, list[tuple[int, int]]]:
        """Return the number of a device in a collective, and replica and partition of each number."""
        replicas, partitions = len(self.devices[0]), len(self.devices)
        if self._is_flat(instruction):
            all_places = [divmod(number, partitions) for number in range(replicas * partitions)]
            return replica * partitions + partition, all_places
        if instruction.scope.has_channel:
            return partition, [(replica, number) for number in range(partitions)]
        return replica, [(number, partition) for number in range(replicas)]

    def _place(self, device: int) -> tuple[int, int] | None:
        """Return replica and partition of a device."""
        for partition, replicas in enumerate(self.devices):
            if device in replicas:
                return replicas.index(device), partition
        return None


def _group(instruction: HloInstruction, number: int, count: int) -> tuple[int, ...] | None:
    """Return the numbers of the group that a number is in; of a permute all that its pairs lead to."""
    if instruction.pairs:
        connected, reached = {number}, {number}
        while reached:
            near = (pair for pair in instruction.pairs if connected.intersection(pair))
            reached = {end for pair in near for end in pair} - connected
            connected |= reached
        return tuple(sorted(connected))
    if not instruction.groups:
        return tuple(range(count))
    return next((group for group in instruction.groups if number in group), None)


def read_program(data: bytes) -> HloProgram:
    """Return the program in a serialised `HloProto`; DamagedMessageError if it is none."""
    module = Message(data).message(_Module.PROGRAM)
    computations = [_Parts(computation) for computation in module.messages(_Module.COMPUTATIONS)]
    by_id = {computation.id: computation for computation in computations}
    instructions = {
        name: _instruction(message, computation, by_id)
        for computation in computations
        for name, message in computation.by_name.items()
    }
    assignment = module.message(_Module.DEVICES)
    devices = tuple(tuple(partition.numbers(1)) for partition in assignment.messages(3))
    if len({len(replicas) for replicas in devices}) > 1:
        raise DamagedMessageError("the partitions of a program have different numbers of replicas")
    name = module.text(_Module.ENTRY)
    entry_names = next((frozenset(part.by_name) for part in computations if part.name == name), frozenset())
    return HloProgram(module.text(_Module.NAME), instructions, devices, entry_names)


def _instruction(message: Message, parent: _Parts, computations: Mapping[int, _Parts]) -> HloInstruction:
    opcode = message.text(_Instruction.OPCODE)
    operands = _operands(message, parent)
    inner = message
    if opcode == "async-start":  # what it runs is the only instruction of a computation of its own
        called = (computations.get(number) for number in message.numbers(_Instruction.CALLED))
        inner = next((part.root for part in called if part and part.root), message)
    return HloInstruction(
        name=message.text(_Instruction.NAME),
        opcode=opcode.replace("async", inner.text(_Instruction.OPCODE)) if inner is not message else opcode,
        operands=tuple(shape for operand in operands for shape in _shapes(operand)),
        results=tuple(_shapes(inner)),
        groups=_groups(inner),
        pairs=tuple((pair.number(1), pair.number(2)) for pair in inner.messages(_Instruction.PAIRS)),
        scope=Scope(bool(inner.number(_Instruction.GLOBAL)), inner.number(_Instruction.CHANNEL) > 0),
        products=tuple(_products(message, parent, computations)),
        starts=operands[0].text(_Instruction.NAME) if opcode.endswith(DONE) and operands else "",
        is_host_transfer=bool(inner.number(_Instruction.HOST)),
    )


class _Parts:
    """A computation: its instructions by id and name."""

    def __init__(self, message: Message) -> None:
        instructions = message.messages(_Computation.INSTRUCTIONS)
        self.id = message.number(_Computation.ID)
        self.name = message.text(_Computation.NAME)
        self.by_id = {instruction.number(_Instruction.ID): instruction for instruction in instructions}
        self.by_name = {instruction.text(_Instruction.NAME): instruction for instruction in instructions}
        self.root = self.by_id.get(message.number(_Computation.ROOT))


def _operands(message: Message, parent: _Parts) -> list[Message]:
    messages = (parent.by_id.get(number) for number in message.numbers(_Instruction.OPERANDS))
    return [operand for operand in messages if operand is not None]


def _shapes(message: Message) -> Iterator[Shape]:
    """Yield the arrays of the shape of an instruction, those of a tuple each."""
    yield from _arrays(message.message(_Instruction.SHAPE), _DEEPEST)


def _arrays(shape: Message, levels: int) -> Iterator[Shape]:
    parts = shape.messages(_Shape.PARTS)
    if levels and parts:
        for part in parts:
            yield from _arrays(part, levels - 1)
    elif dtype := xla_type(shape.number(_Shape.TYPE)):
        yield Shape(dtype, tuple(shape.numbers(_Shape.DIMENSIONS)))


def _groups(message: Message) -> tuple[tuple[int, ...], ...] | None:
    """Return the groups of a collective: from the list of devices, else as older compilers wrote them."""
    if _Instruction.MESH in message:  # along axes of a mesh, whose devices are listed, an iota, or in order
        mesh_message = message.message(_Instruction.MESH)
        mesh = mesh_message.message(1)
        sides = [axis.number(2) for axis in mesh.messages(1)]
        devices = tuple(mesh.numbers(2))
        if 3 in mesh:
            iota = mesh.message(3)
            layout = iota_groups((1, math.prod(sides)), iota.numbers(1), iota.numbers(2))
            if layout is None:
                return None
            (devices,) = layout
        axes = [
            Axis(axis.number(1), axis.message(2).number(1) or 1, axis.message(2).number(2))
            for axis in mesh_message.messages(2)
        ]
        return mesh_groups(sides, devices, axes)
    device_list = message.message(_Instruction.DEVICES)
    group_messages = device_list.messages(1) or message.messages(_Instruction.GROUPS)
    if group_messages:
        return tuple(tuple(group.numbers(1)) for group in group_messages)
    if _Instruction.IOTA in message or 2 in device_list:
        iota = message.message(_Instruction.IOTA) if _Instruction.IOTA in message else device_list.message(2)
        return iota_groups((iota.number(1), iota.number(2)), iota.numbers(3), iota.numbers(4))
    return None if device_list.holds_others(1, 2) else ()


def _products(
    message: Message, parent: _Parts, computations: Mapping[int, _Parts], levels: int = _DEEPEST
) -> Iterator[Product]:
    """Yield the matrix products of an instruction, for a fusion those of its instructions."""
    opcode = message.text(_Instruction.OPCODE)
    if opcode == "fusion" and levels:
        called = (computations.get(number) for number in message.numbers(_Instruction.CALLED))
        for computation in filter(None, called):
            for part in computation.by_id.values():
                yield from _products(part, computation, computations, levels - 1)
        return
    operands = [next(_shapes(part), None) for part in _operands(message, parent)[:2]]
    left, right = operands if len(operands) == 2 else (None, None)
    if left is None or right is None:
        return
    target = message.text(_Instruction.TARGET)
    product = None
    if opcode == "dot":
        sides = message.message(_Instruction.DOT)
        product = dot(left, right, (sides.numbers(1), sides.numbers(2)), sides.numbers(3))
    elif target.startswith(_GEMM):
        product = _gemm(message, left, right)
    elif (opcode == "convolution" or target.startswith(_CONVOLUTION)) and (
        result := next(_shapes(message), None)
    ):
        features = message.message(_Instruction.CONVOLUTION).number(_KERNEL_OUTPUTS)
        dilation = _dilation(message) if opcode == "convolution" else 1
        # image, kernel and output; the two of a backward pass have the same cost
        if target.endswith("BackwardInput"):
            left, result = result, left
        elif target.endswith("BackwardFilter"):
            right, result = result, right
        product = convolution(left, right, result, features, dilation)
    if product:
        yield product


def _dilation(message: Message) -> int:
    """Return the number of places in the dilated image of a convolution for each element.

    Where the kernel steps over the places between elements, or over the elements, that is not known: 1.
    """
    total = 1
    for side in message.message(_Instruction.WINDOW).messages(1):
        stride, distance, dilation = (
            side.number(key) for key in (_WindowSide.STRIDE, _WindowSide.DILATION, _WindowSide.IMAGE_DILATION)
        )
        if 1 < dilation < _FARTHEST and math.gcd(stride, distance, dilation) == 1:
            total *= dilation
    return total


def _gemm(message: Message, left: Shape, right: Shape) -> Product | None:
    """Return the product of a call of cuBLAS, whose dimensions its configuration holds as JSON."""
    try:
        config: Any = json.loads(message.bytes(_Instruction.BACKEND))
        sides = config["gemm_backend_config"]["dot_dimension_numbers"]
        contracting = [
            [int(side) for side in sides.get(f"{factor}_contracting_dimensions", ())]
            for factor in ("lhs", "rhs")
        ]
        batch = [int(side) for side in sides.get("lhs_batch_dimensions", ())]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return dot(left, right, (contracting[0], contracting[1]), batch)
