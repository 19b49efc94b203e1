"""One instruction of an XLA program, from a program or from text: its collective, groups and products.

A TPU names an event by the text of its instruction, such as

`%all-reduce = f32[8]{0} all-reduce(f32[8]{0} %x), channel_id=1, replica_groups=[4,2]<=[2,4]T(1,0)`

A profile may hold no programs; then the text is all there is. It says which groups communicate and how much,
not which devices run the program.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_COLLECTIVES = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_allv",
    "collective-permute": "send_recv",
    "collective-broadcast": "broadcast",
    "send": "send",
    "recv": "recv",
}
"""Opcode → collective."""

START, DONE = "-start", "-done"
"""How opcodes end of the two halves of an asynchronous instruction."""

_MOST = 1 << 20
"""Devices that a job may have: more groups than these are not made of a few bytes of text."""

CONTAINERS = frozenset({"while", "conditional", "call"})
"""Opcodes whose event lies around those of the instructions that they run."""


class Shape(NamedTuple):
    """An array."""

    dtype: str
    """Element type as XLA spells it, such as `bf16`."""
    dimensions: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.dimensions)


class Product(NamedTuple):
    """A stack of matrix products: `batch` times `rows` × `inner` by `inner` × `columns`."""

    batch: int
    rows: int
    inner: int
    columns: int
    dtype: str


class Scope(NamedTuple):
    """Meaning of the numbers in the groups of a collective."""

    is_global: bool
    """Numbers count all devices: replicas times partitions."""
    has_channel: bool
    """Partitions take part, and not replicas of one partition alone."""


ALL_DEVICES = Scope(is_global=True, has_channel=True)


@dataclass(frozen=True, slots=True)
class HloInstruction:
    """One instruction."""

    name: str
    """Name in its program, such as `all-reduce.4`."""
    opcode: str
    operands: tuple[Shape, ...] = ()
    results: tuple[Shape, ...] = ()
    groups: tuple[tuple[int, ...], ...] | None = None
    """Members of each group; empty for one group of all; None if unknown."""
    pairs: tuple[tuple[int, int], ...] = ()
    """Source and target of each message of a collective permute."""
    scope: Scope = ALL_DEVICES
    products: tuple[Product, ...] = ()
    starts: str = ""
    """For the second half of an asynchronous instruction: the name of the first."""
    is_host_transfer: bool = False
    """Whether data go to or come from the host."""

    @property
    def kind(self) -> str:
        """The opcode without `-start` and `-done`."""
        return self.opcode.removesuffix(START).removesuffix(DONE)

    @property
    def collective(self) -> str | None:
        """The canonical collective, or None for one that does not communicate between devices."""
        return None if self.is_host_transfer else _COLLECTIVES.get(self.kind)

    @property
    def is_start(self) -> bool:
        """Whether this is the first half of an asynchronous instruction."""
        return self.opcode.endswith(START)

    @property
    def is_done(self) -> bool:
        """Whether this is the second half of an asynchronous instruction."""
        return self.opcode.endswith(DONE)


def dot(
    left: Shape, right: Shape, contracting: tuple[Sequence[int], Sequence[int]], batch: Sequence[int]
) -> Product | None:
    """Return the product of two arrays; `contracting` are dimensions of both, `batch` those of the first."""
    sizes = left.dimensions
    if not all(0 <= side < len(sizes) for side in (*contracting[0], *batch)):
        return None
    inner = math.prod(sizes[side] for side in contracting[0])
    batch_size = math.prod(sizes[side] for side in batch)
    shared_size = inner * batch_size
    if not shared_size:
        return None
    return Product(batch_size, left.elements // shared_size, inner, right.elements // shared_size, left.dtype)


def convolution(
    image: Shape, kernel: Shape, output: Shape, features: int, dilation: int = 1
) -> Product | None:
    """Return the product that a convolution computes; `features` is the dimension of the kernel's outputs.

    Every place of the kernel is counted, also if it lies over padding, but not what lies between the
    elements of a dilated image: of `dilation` places one is over an element.
    """
    if not 0 <= features < len(kernel.dimensions) or not kernel.dimensions[features]:
        return None
    columns = kernel.dimensions[features]
    inner = round(kernel.elements / columns / dilation)
    return Product(1, output.elements // columns, max(1, inner), columns, image.dtype)


class Axis(NamedTuple):
    """An axis of a mesh, or a part of one."""

    place: int
    """Which side of the mesh it is."""
    before: int = 1
    """Product of the parts of the side before it."""
    size: int = 0
    """Its size where it is a part; 0 for the whole side."""


def mesh_groups(
    sides: Sequence[int], devices: Sequence[int], axes: Sequence[Axis]
) -> tuple[tuple[int, ...], ...] | None:
    """Return the groups of devices of a mesh that differ in some axes only; None if these do not fit it.

    `devices` fill the mesh row by row; where there are none, the numbers from 0.
    """
    if min(sides, default=0) < 1:
        return None
    cuts = [{1, side} for side in sides]
    for axis in axes:
        if not (0 <= axis.place < len(sides) and axis.before > 0):
            return None
        cuts[axis.place] |= {axis.before, axis.before * axis.size} if axis.size else set()
    parts = [
        (place, cut, later // cut)
        for place, side_cuts in enumerate(cuts)
        for cut, later in pairwise(sorted(side_cuts))
    ]
    varying = [
        number
        for axis in axes
        for number, (place, before, _) in enumerate(parts)
        if place == axis.place and axis.before <= before < axis.before * (axis.size or sides[place])
    ]
    count, shape = math.prod(sides), [size for _, _, size in parts]
    numbers = list(devices) or list(range(min(count, _MOST)))
    if math.prod(shape) != count or len(numbers) != count or len({*varying}) < len(varying):
        return None
    fixed = [number for number in range(len(parts)) if number not in varying]
    layout = np.array(numbers, dtype=np.int64).reshape(shape).transpose([*fixed, *varying])
    groups = layout.reshape(-1, math.prod(shape[number] for number in varying))
    return tuple(tuple(group) for group in groups.tolist())


def iota_groups(
    size: tuple[int, int], dimensions: Sequence[int], permutation: Sequence[int]
) -> tuple[tuple[int, ...], ...] | None:
    """Return `size[0]` groups of `size[1]` numbers: those from 0 in an array of dimensions, transposed.

    `[4,2]<=[2,4]T(1,0)` is [[0,4],[1,5],[2,6],[3,7]]. None if the numbers do not fit together.
    """
    count = math.prod(size)
    order = list(permutation) or list(range(len(dimensions)))
    if math.prod(dimensions) != count or sorted(order) != list(range(len(dimensions))) or count > _MOST:
        return None
    numbers = np.arange(count).reshape(dimensions).transpose(order).reshape(size)
    return tuple(tuple(group) for group in numbers.tolist())


_BEGINNING = re.compile(r"\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = ")
_OPCODE = re.compile(r"\s*(?P<opcode>[a-z][\w\-]*)\(")
_ARRAY = re.compile(r"(?<![\w%.])([a-z][a-z0-9]*)\[([\d,<= ]*)\]")
_NAMED = re.compile(r"%([\w.\-]+)")
_LISTED_GROUPS = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_IOTA_GROUPS = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH_GROUPS = re.compile(
    r"replica_groups=mesh\[(?P<sides>[^\[\]]*)\]"
    r"(?:, device_ids=\((?:\[(?P<shape>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?|(?P<listed>[\d,]+))\))?"
    r" \{(?P<axes>[^}]*)\}"
)
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_BRACED = re.compile(r"\{([\d,]*)\}")
_CHANNEL = re.compile(r"channel_id=([1-9]\d*)")

_DIMENSIONS = tuple(
    re.compile(rf"{side}_dims=\{{([\d,]*)\}}") for side in ("lhs_contracting", "rhs_contracting", "lhs_batch")
)


def read_instruction(text: str) -> HloInstruction | None:
    """Return the instruction in a text, or None if it is none."""
    begin = _BEGINNING.match(text)
    if not begin:
        return None
    shape_end = _end_of(text, begin.end(), " ")
    call = _OPCODE.match(text, shape_end)
    if not call:
        return None
    inside_end = _end_of(text, call.end(), ")")
    operand_text, attributes = text[call.end() : inside_end], text[inside_end:]
    operands, operand_names = tuple(_shapes(operand_text)), _NAMED.findall(operand_text)
    product = None
    if call["opcode"] == "dot" and len(operands) > 1:
        contracting_left, contracting_right, batch = (
            _numbers(match[1]) if (match := pattern.search(attributes)) else () for pattern in _DIMENSIONS
        )
        product = dot(operands[0], operands[1], (contracting_left, contracting_right), batch)
    return HloInstruction(
        name=begin["name"],
        opcode=call["opcode"],
        operands=operands,
        results=tuple(_shapes(text[begin.end() : shape_end])),
        groups=_groups(attributes),
        pairs=tuple((pair[0], pair[1]) for pair in _lists(_PAIRS, attributes)),
        scope=Scope("use_global_device_ids=true" in attributes, _CHANNEL.search(attributes) is not None),
        products=(product,) if product else (),
        starts=operand_names[0] if call["opcode"].endswith(DONE) and operand_names else "",
        is_host_transfer="is_host_transfer=true" in attributes,
    )


def _end_of(text: str, start: int, closing: str) -> int:
    """Return the position of the first `closing` in no bracket opened after `start`; else the end."""
    depth = 0
    for place in range(start, len(text)):
        letter = text[place]
        if not depth and letter == closing:
            return place
        depth += (letter in "([{") - (letter in ")]}")
    return len(text)


def _shapes(text: str) -> Iterator[Shape]:
    for dtype, sides in _ARRAY.findall(text):
        yield Shape(dtype, tuple(int(side) for side in re.findall(r"\d+", sides)))


def _groups(text: str) -> tuple[tuple[int, ...], ...] | None:
    """Return the groups of a collective: as an iota, along axes of a mesh, or listed; None if unknown.

    An iota is `[4,2]<=[2,4]T(1,0)`, a mesh `mesh['a'=2,'b'=4], device_ids=([2,4]T(1,0)) {'b','a':(1)2}`.
    """
    if iota := _IOTA_GROUPS.search(text):
        return iota_groups((int(iota[1]), int(iota[2])), _numbers(iota[3]), _numbers(iota[4] or ""))
    if mesh := _MESH_GROUPS.search(text):
        sides = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", mesh["sides"])}
        devices = _numbers(mesh["listed"] or "")
        if mesh["shape"]:
            count = math.prod(sides.values())
            layout = iota_groups((1, count), _numbers(mesh["shape"]), _numbers(mesh["order"] or ""))
            if layout is None:
                return None
            (devices,) = layout
        places = {name: place for place, name in enumerate(sides)}
        axes = [
            Axis(places.get(name, -1), int(before or 1), int(size or 0))
            for name, before, size in re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", mesh["axes"])
        ]
        return mesh_groups([*sides.values()], devices, axes)
    if _LISTED_GROUPS.search(text):
        return tuple(group for group in _lists(_LISTED_GROUPS, text) if group)
    return None if "replica_groups=" in text else ()


def _lists(pattern: re.Pattern[str], text: str) -> list[tuple[int, ...]]:
    match = pattern.search(text)
    return [_numbers(inner) for inner in _BRACED.findall(match[1])] if match else []


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)
