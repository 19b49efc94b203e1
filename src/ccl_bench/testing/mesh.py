"""Who communicates with whom: the process groups of a plan's mesh, named as PyTorch names them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

from ccl_bench.testing.plan import AXES

if TYPE_CHECKING:
    from ccl_bench.testing.plan import Plan

WORLD = "world"

DIMENSIONS = (WORLD, "pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")
"""Dimensions of parallelism, in the order in which their groups are made."""


@dataclass(frozen=True, slots=True)
class Group:
    """One process group."""

    name: str
    """Running number, as in `Process Group Name`."""
    description: str
    """`default_pg`, `mesh_tp`, ..., as in `Process Group Description`."""
    dimension: str
    """One of DIMENSIONS."""
    ranks: tuple[int, ...]
    """Global ranks, in order."""

    @property
    def stride(self) -> int:
        """Distance between neighbouring ranks; -1 where it varies."""
        distances = {after - before for before, after in zip(self.ranks, self.ranks[1:], strict=False)}
        return distances.pop() if len(distances) == 1 else (-1 if distances else 1)

    @property
    def start(self) -> int:
        """First rank; -1 where the distance between ranks varies."""
        return -1 if self.stride == -1 else self.ranks[0]

    @property
    def communicator(self) -> int:
        """A number like NCCL's hash of the communicator."""
        return 10_159_970_886_764_002_935 + 65_537 * int(self.name)


@dataclass(frozen=True)
class Mesh:
    """Ranks laid out row-major over AXES, and the groups along each dimension."""

    plan: Plan

    def stage(self, rank: int) -> int:
        """Return the pipeline stage of a rank."""
        return rank // self._ranks_in_stage

    @cached_property
    def _ranks_in_stage(self) -> int:
        return self.plan.world_size // self.plan.pp

    @cached_property
    def groups(self) -> list[Group]:
        """All groups with more than one member, and the default group."""
        groups: list[Group] = []
        for dimension in DIMENSIONS:
            for ranks in self._along(dimension):
                if len(ranks) > 1 or dimension == WORLD:
                    groups.append(Group(str(len(groups)), self._description(dimension), dimension, ranks))
        return groups

    def _description(self, dimension: str) -> str:
        if dimension == WORLD:
            return "default_pg"
        return "mesh_dp_shard_cp" if dimension == "dp_shard" and self.plan.cp > 1 else f"mesh_{dimension}"

    def _along(self, dimension: str) -> list[tuple[int, ...]]:
        """Return the sets of ranks that differ in one dimension alone."""
        if dimension == WORLD:
            return [tuple(range(self.plan.world_size))]
        if dimension == "ep":
            return [part for ranks in self._varying(("dp_shard", "cp")) for part in self._cut(ranks)]
        return self._varying(("dp_shard", "cp") if dimension == "dp_shard" else (dimension,))

    def _cut(self, ranks: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [ranks[at : at + self.plan.ep] for at in range(0, len(ranks), self.plan.ep)]

    def _varying(self, axes: tuple[str, ...]) -> list[tuple[int, ...]]:
        """Return the sets of ranks that differ in their places on `axes` alone."""
        strides, stride = {}, 1
        for axis in reversed(AXES):
            strides[axis] = stride
            stride *= getattr(self.plan, axis)

        def offsets(some_axes: list[str]) -> list[int]:
            places = [[at * strides[axis] for at in range(getattr(self.plan, axis))] for axis in some_axes]
            return [sum(place) for place in product(*places)]

        fixed = offsets([axis for axis in AXES if axis not in axes])
        free = offsets([axis for axis in AXES if axis in axes])
        return [tuple(start + step for step in free) for start in fixed]

    @cached_property
    def _by_member(self) -> dict[tuple[str, int], Group]:
        return {(group.dimension, rank): group for group in self.groups for rank in group.ranks}

    def group(self, rank: int, dimension: str) -> Group:
        """Return the group of a rank along a dimension; it must have more than one member."""
        return self._by_member[dimension, rank]

    def groups_of(self, rank: int) -> list[Group]:
        """Return the groups that a rank is a member of."""
        keys = ((dimension, rank) for dimension in DIMENSIONS)
        return [self._by_member[key] for key in keys if key in self._by_member]

    def neighbour(self, rank: int, stages: int) -> int:
        """Return the rank at the same place `stages` further down the pipeline."""
        return rank + stages * self._ranks_in_stage
