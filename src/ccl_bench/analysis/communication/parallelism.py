"""Which parallelism dimension a process group serves: by its description, else by its ranks in the mesh."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ccl_bench.base.lazy_polars import pl
from ccl_bench.catalog.parallelism import described_dimension, mesh_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccl_bench.analysis.facts import Facts

WORLD, UNKNOWN = "world", "unknown"


def mesh(facts: Facts) -> dict[str, int]:
    """Return {axis: degree} from the outermost to the innermost axis, with degree 1 where not stated.

    Empty where the stated degrees do not multiply to the number of ranks, since ranks have no
    known place then.
    """
    said = [fact.value if fact else "" for fact in (facts.framework, facts.phase)]
    is_total = not facts.dp_replicate and not facts.dp_shard
    axes = ("dp" if axis == "dp_replicate" and is_total else axis for axis in mesh_order(*said))
    degrees = {axis: getattr(facts, axis) for axis in axes}
    if not any(degrees.values()) or facts.world_size is None:
        return {}
    sizes = {axis: degree.value if degree else 1 for axis, degree in degrees.items()}
    return sizes if math.prod(sizes.values()) == facts.world_size.value else {}


def strides(axes: Mapping[str, int]) -> dict[str, int]:
    """Return {axis: distance between neighbouring ranks} of a mesh."""
    found: dict[str, int] = {}
    stride = 1
    for axis in reversed(list(axes)):
        found[axis] = stride
        stride *= axes[axis]
    return found


def dimension_of(description: str | None, members: Sequence[int] | None, facts: Facts) -> str:
    """Return the dimension of a group: an axis, `dp`, `world`, or `unknown`.

    The description decides where it names an axis. Else the members must be a run of ranks
    along one axis of the stated mesh, or along several adjacent ones; a run over all data-parallel
    axes is `dp`, a part of the sharded axes as long as the expert-parallel degree is `ep`. All ranks
    of the job are the one axis that is longer than 1, else `world`.
    """
    named = described_dimension(description or "")
    if named:
        return named
    if not members or len(members) < 2:
        return UNKNOWN
    axes = {axis: size for axis, size in mesh(facts).items() if size > 1}
    if facts.world_size and len(members) == facts.world_size.value:
        return next(iter(axes)) if len(axes) == 1 else WORLD
    ordered, distances = sorted(members), strides(mesh(facts))
    found = _by_ranks(ordered, axes, distances)
    return "ep" if found == UNKNOWN and _is_expert_part(ordered, axes, distances, facts) else found


def contradicts_mesh(description: str | None, members: Sequence[int] | None, facts: Facts) -> bool:
    """Whether a group is described as of one axis, and its members lie along another in the stated mesh."""
    named = described_dimension(description or "")
    found = dimension_of(None, members, facts)
    return named in _KINDS and found in _KINDS and _KINDS[named] != _KINDS[found]


_KINDS = {"tp": "tp", "pp": "pp"} | dict.fromkeys(("dp", "dp_replicate", "dp_shard", "cp"), "dp")
"""Dimensions that cannot be mistaken for each other; those of data are named in several ways."""


def _is_expert_part(
    members: list[int], axes: Mapping[str, int], distances: Mapping[str, int], facts: Facts
) -> bool:
    """Whether members are neighbours on the sharded axes, as many as share the experts."""
    inner = [axis for axis in ("dp_shard", "cp") if axis in axes]
    if not inner or facts.ep is None or len(members) != facts.ep.value:
        return False
    return _spans(members, facts.ep.value, distances[inner[-1]])


def _by_ranks(members: list[int], axes: Mapping[str, int], distances: Mapping[str, int]) -> str:
    names = list(axes)
    for first in range(len(names)):
        for last in range(first, len(names)):
            run = names[first : last + 1]
            if _spans(members, math.prod(axes[axis] for axis in run), distances[run[-1]]):
                return _name(run)
    return UNKNOWN


def _spans(members: list[int], size: int, stride: int) -> bool:
    """Whether members are `size` ranks at `stride`, starting where such a run starts in the mesh."""
    start = members[0]
    regular = members == [start + stride * position for position in range(size)]
    return regular and (start // stride) % size == 0


def _name(run: Sequence[str]) -> str:
    if len(run) == 1:
        return run[0]
    if set(run) == {"dp_shard", "cp"}:
        return "dp_shard"
    return "dp" if set(run) <= {"dp", "dp_replicate", "dp_shard", "cp"} else UNKNOWN


def stages_of(ranks: pl.Series, facts: Facts) -> pl.Series:
    """Return the pipeline stage of each rank; null where the mesh is not known or the rank is not on it."""
    axes = mesh(facts)
    if "pp" not in axes:
        return pl.Series([None] * len(ranks), dtype=pl.Int64)
    stages = ranks // strides(axes)["pp"] % axes["pp"]
    return stages.set((ranks < 0) | (ranks >= math.prod(axes.values())), None)


def spans_nodes(members: Sequence[int] | None, facts: Facts) -> bool | None:
    """Return whether a group reaches over several nodes; None where that is not known."""
    if not members or facts.devices_per_node is None:
        return None
    return len({rank // facts.devices_per_node.value for rank in members}) > 1
