"""One instruction of an XLA program, and what follows from it: its collective, its groups, its products."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

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
"""Devices that a job may have."""

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
    """Which devices the numbers in the groups of a collective are."""

    is_global: bool
    """Numbers count all devices: replicas times partitions."""
    has_channel: bool
    """Partitions take part, and not replicas of one partition alone."""


ALL_DEVICES = Scope(is_global=True, has_channel=True)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction."""

    name: str
    """Name in its program, such as `all-reduce.4`."""
    opcode: str
    operands: tuple[Shape, ...] = ()
    results: tuple[Shape, ...] = ()
    groups: tuple[tuple[int, ...], ...] | None = None
    """Members of each group; empty for one group of all; None where they are not known."""
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
    stacked = math.prod(sizes[side] for side in batch)
    shared = inner * stacked
    if not shared:
        return None
    return Product(stacked, left.elements // shared, inner, right.elements // shared, left.dtype)


def convolution(
    image: Shape, kernel: Shape, output: Shape, features: int, dilation: int = 1
) -> Product | None:
    """Return the product that a convolution computes; `features` is the dimension of the kernel's outputs.

    Every place of the kernel is counted, also where it lies over padding, but not what lies between the
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
    """Return the groups of devices of a mesh that differ in some axes only; None where these do not fit it.

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
        (place, cut, later // cut) for place, own in enumerate(cuts) for cut, later in pairwise(sorted(own))
    ]
    chosen = [
        number
        for axis in axes
        for number, (place, before, _) in enumerate(parts)
        if place == axis.place and axis.before <= before < axis.before * (axis.size or sides[place])
    ]
    count, shape = math.prod(sides), [size for _, _, size in parts]
    numbers = list(devices) or list(range(min(count, _MOST)))
    if math.prod(shape) != count or len(numbers) != count or len({*chosen}) < len(chosen):
        return None
    others = [number for number in range(len(parts)) if number not in chosen]
    laid = np.array(numbers, dtype=np.int64).reshape(shape).transpose([*others, *chosen])
    grouped = laid.reshape(-1, math.prod(shape[number] for number in chosen))
    return tuple(tuple(group) for group in grouped.tolist())


def iota_groups(
    size: tuple[int, int], dimensions: Sequence[int], permutation: Sequence[int]
) -> tuple[tuple[int, ...], ...] | None:
    """Return `size[0]` groups of `size[1]` numbers: those from 0 in an array of dimensions, transposed.

    `[4,2]<=[2,4]T(1,0)` is [[0,4],[1,5],[2,6],[3,7]]. None where the numbers do not fit together.
    """
    count = math.prod(size)
    order = list(permutation) or list(range(len(dimensions)))
    if math.prod(dimensions) != count or sorted(order) != list(range(len(dimensions))) or count > _MOST:
        return None
    numbers = np.arange(count).reshape(dimensions).transpose(order).reshape(size)
    return tuple(tuple(group) for group in numbers.tolist())
