"""Process groups: names that are the same on every rank, members, and the parallelism dimension."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.names import GLOO, holds_for
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog.collectives import described_dimension, mesh_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccl_bench.analysis.facts import Facts

WORLD, UNKNOWN = "world", "unknown"


def mesh(facts: Facts) -> dict[str, int]:
    """Return {axis: degree} from the outermost to the innermost axis, with degree 1 where not stated.

    Empty if the stated degrees do not multiply to the number of ranks, since ranks have no
    known place then.
    """
    programs = [fact.value if fact else "" for fact in (facts.framework, facts.phase)]
    is_total = not facts.dp_replicate and not facts.dp_shard
    axes = ("dp" if axis == "dp_replicate" and is_total else axis for axis in mesh_order(*programs))
    degrees = {axis: getattr(facts, axis) for axis in axes}
    if not any(degrees.values()) or facts.world_size is None:
        return {}
    sizes = {axis: degree.value if degree else 1 for axis, degree in degrees.items()}
    return sizes if math.prod(sizes.values()) == facts.world_size.value else {}


def strides(axes: Mapping[str, int]) -> dict[str, int]:
    """Return {axis: distance between neighbouring ranks} of a mesh."""
    distances: dict[str, int] = {}
    stride = 1
    for axis in reversed(list(axes)):
        distances[axis] = stride
        stride *= axes[axis]
    return distances


def dimension_of(description: str | None, members: Sequence[int] | None, facts: Facts) -> str:
    """Return the dimension of a group: an axis, `dp`, `world`, or `unknown`.

    The description decides where it names an axis. Else the members must be a run of ranks
    along one axis of the stated mesh, or along several adjacent ones; a run over all data-parallel
    axes is `dp`, a part of the sharded axes as long as the expert-parallel degree is `ep`. All ranks
    of the job are the one axis that is longer than 1, else `world`.
    """
    stated_dimension = described_dimension(description or "")
    if stated_dimension:
        return stated_dimension
    if not members or len(members) < 2:
        return UNKNOWN
    whole_mesh = mesh(facts)
    axes = {axis: size for axis, size in whole_mesh.items() if size > 1}
    if facts.world_size and len(members) == facts.world_size.value:
        return next(iter(axes)) if len(axes) == 1 else WORLD
    ordered, distances = sorted(members), strides(whole_mesh)
    dimension = _by_ranks(ordered, axes, distances)
    # Experts are spread over neighbours on the sharded axes, of which the expert-parallel degree is a part. A
    # result names the facts that were looked at, so that the degree is looked at last.
    sharded = [axis for axis in ("dp_shard", "cp") if axis in axes]
    is_open = dimension == UNKNOWN and sharded
    if is_open and facts.ep and _spans(ordered, facts.ep.value, distances[sharded[-1]]):
        return "ep"
    return dimension


def contradicts_mesh(description: str | None, members: Sequence[int] | None, facts: Facts) -> bool:
    """Whether a group is described as of one axis, and its members lie along another in the stated mesh."""
    stated_dimension = described_dimension(description or "")
    dimension = dimension_of(None, members, facts)
    return (
        stated_dimension in _KINDS and dimension in _KINDS and _KINDS[stated_dimension] != _KINDS[dimension]
    )


_KINDS = {"tp": "tp", "pp": "pp"} | dict.fromkeys(("dp", "dp_replicate", "dp_shard", "cp"), "dp")
"""Dimensions that cannot be mistaken for each other; those of data are named in several ways."""


def _by_ranks(members: list[int], axes: Mapping[str, int], distances: Mapping[str, int]) -> str:
    """Return the dimension of the axis, or adjacent axes, along which the members lie; `unknown` for none."""
    names = list(axes)
    for first in range(len(names)):
        for last in range(first, len(names)):
            run = names[first : last + 1]
            if not _spans(members, math.prod(axes[axis] for axis in run), distances[run[-1]]):
                continue
            if len(run) == 1:
                return run[0]
            if set(run) == {"dp_shard", "cp"}:
                return "dp_shard"  # weights are sharded over both
            return "dp" if set(run) <= {"dp", "dp_replicate", "dp_shard", "cp"} else UNKNOWN
    return UNKNOWN


def _spans(members: list[int], size: int, stride: int) -> bool:
    """Whether members are `size` ranks at `stride`, starting where such a run starts in the mesh."""
    start = members[0]
    regular = members == [start + stride * position for position in range(size)]
    return regular and (start // stride) % size == 0


def stages_of(ranks: pl.Series, facts: Facts) -> pl.Series:
    """Return the pipeline stage of each rank; null if the mesh is not known or the rank is not on it."""
    axes = mesh(facts)
    if "pp" not in axes:
        return pl.Series([None] * len(ranks), dtype=pl.Int64)
    stages = ranks // strides(axes)["pp"] % axes["pp"]
    return stages.set((ranks < 0) | (ranks >= math.prod(axes.values())), None)


def spans_nodes(members: Sequence[int] | None, facts: Facts) -> bool | None:
    """Return whether a group reaches over several nodes; None if unknown."""
    if not members or facts.devices_per_node is None:
        return None
    return len({rank // facts.devices_per_node.value for rank in members}) > 1


IDENTITY = ("group_name", "group_description", "group_size", "group_start", "group_stride", "group_ranks")

THREADS = "threads"
"""How a group is known of which only threads are: not at all, and several may use them."""

_UNKNOWN = "? "
"""Start of the name of a group whose members are not known."""

_COUNTER_DIGITS = 6
"""Longest group name that is a counter: longer ones are addresses of old torch, which ranks do not share."""


def members_text(ranks: list[int]) -> str:
    """Return ranks as short text: `0..7`, `0..6/2` for every second one, else one by one."""
    ordered = sorted(ranks)
    strides = {later - earlier for earlier, later in pairwise(ordered)}
    if len(ordered) > 2 and len(strides) == 1:
        stride = strides.pop()
        return f"{ordered[0]}..{ordered[-1]}" + ("" if stride == 1 else f"/{stride}")
    return ",".join(map(str, ordered))


def members_of(row: dict[str, object], ranks_by_name: dict[str, list[int]]) -> tuple[list[int] | None, str]:
    """Return the members of a group by place, and how they are known: `recorded`, `pg_config`, `stride`.

    A list cut by the profiler (`...`) is rebuilt from the job's group table or from start, stride and
    size, never guessed. What is left is `name` where the group has a running number, else `unknown`.
    """
    ranks, size = row["group_ranks"], row["group_size"]
    if isinstance(ranks, list) and ranks:
        return list(ranks), "recorded"
    listed = ranks_by_name.get(str(row["group_name"]))
    if listed and (size is None or len(listed) == size):
        return list(listed), "pg_config"
    start, stride = row["group_start"], row["group_stride"]
    if isinstance(start, int) and isinstance(stride, int) and isinstance(size, int) and stride > 0 <= start:
        return [start + stride * position for position in range(size)], "stride"
    return None, "name" if _counter(row) else "unknown"


def group_key(row: dict[str, object], members: list[int] | None) -> str:
    """Return a name of the group, the same on every member if its members are known."""
    description = str(row["group_description"] or "")
    if members:
        return f"{description} {members_text(members)}".strip()
    size = row["group_size"] if row["group_size"] is not None else ""
    where = "threads" if row["lane"] is None else f"stream {row['lane']}"
    return f"{_UNKNOWN}{description} size {size} name {_counter(row)} {where}"


def _counter(row: dict[str, object]) -> str:
    """Return the name of a group if it is the running number that all ranks count alike."""
    name = str(row["group_name"] or "")
    return name if name.isdecimal() and len(name) <= _COUNTER_DIGITS else ""


def is_named_alike() -> pl.Expr:
    """Whether every member gives the `group` of a row this name; a stream's place differs between ranks."""
    return ~pl.col("group").str.starts_with(_UNKNOWN)


def _with_lanes(calls: pl.DataFrame) -> pl.DataFrame:
    """Return calls with the number of their stream as `lane`, null for one of several threads of gloo."""
    streams = calls["stream"]
    lanes = streams.unique(maintain_order=True)
    numbered = calls.with_columns(
        lane=streams.replace_strict(lanes, list(range(len(lanes))), default=0, return_dtype=pl.Int64)
    )
    if len(lanes) == 1:
        return numbered
    is_gloo = holds_for(calls["name"], lambda name: name.startswith(GLOO))
    if streams.filter(is_gloo).n_unique() <= 1:
        return numbered
    return numbered.with_columns(pl.when(~is_gloo).then("lane"))


def _only_group(row: dict[str, object], listed: list[dict[str, object]]) -> dict[str, object] | None:
    """Return the only listed group that a call can be in which states at most the size of its group."""
    if any(row[name] is not None for name in IDENTITY if name != "group_size"):
        return None
    size = row["group_size"]

    def fits(group: dict[str, object]) -> bool:
        ranks = cast("list[int] | None", group["ranks"])
        return size is None or ranks is None or len(ranks) == size

    fitting = [group for group in listed if fits(group)]
    return fitting[0] if len(fitting) == 1 and fitting[0]["ranks"] is not None else None


def with_groups(calls: pl.DataFrame, process_groups: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return calls with a `group` column, and one row for each group: its members and description.

    A call that names no group is in the only one of a job that has but one. Other groups of unknown members
    are distinguished by the order in which their streams were first used. Threads of gloo show nothing, since
    each call is done by whichever thread of its group is free.
    """
    numbered = _with_lanes(calls)
    recorded = [name for name in IDENTITY if numbered[name].null_count() < numbered.height]
    key = [*recorded, "lane"]
    distinct = numbered[[*IDENTITY, "lane"]].unique(key, keep="first", maintain_order=True)
    listed = list(process_groups.iter_rows(named=True))
    ranks_by_name = {row["name"]: row["ranks"] for row in listed if row["ranks"] is not None}
    names, members, sources, descriptions = [], [], [], []
    for row in distinct.iter_rows(named=True):
        if only := _only_group(row, listed):
            row |= {"group_name": only["name"], "group_description": only["description"]}
        ranks, source = members_of(row, ranks_by_name)
        names.append(group_key(row, ranks))
        members.append(ranks)
        sources.append(THREADS if ranks is None and row["lane"] is None else source)
        descriptions.append(row["group_description"])
    keys = distinct.with_columns(
        pl.Series("group", names, dtype=pl.String),
        pl.Series("members", members, dtype=pl.List(pl.Int64)),
        pl.Series("known_from", sources, dtype=pl.String),
        pl.Series("description", descriptions, dtype=pl.String),
    )
    group = numbered[key].join(
        keys[[*key, "group"]], on=key, nulls_equal=True, how="left", maintain_order="left"
    )["group"]
    size = pl.coalesce("group_size", pl.col("members").list.len().cast(pl.Int64)).alias("size")
    groups = keys.select("group", "members", "known_from", "description", size)
    return calls.with_columns(group), groups.unique("group", keep="first", maintain_order=True)


GROUP_COLUMNS: dict[str, Any] = {
    "group": ("String", "name of the group, the same on every member"),
    "members": ("List(Int64)", "global ranks of the members; null if unknown"),
    "known_from": (
        "String",
        "`recorded`, `pg_config`, `stride`, `world size`, `name`, `threads` or `unknown`",
    ),
    "description": ("String", "description as recorded"),
    "size": ("Int64", "members"),
    "dimension": ("String", "parallelism dimension: an axis, `dp`, `world` or `unknown`"),
    "spans_nodes": ("Boolean", "whether members are on several nodes; null if unknown"),
    "seen_by": ("Int64", "ranks whose traces have calls in the group"),
    "ambiguous": ("Boolean", "whether several groups may have this name, so that its calls are not matched"),
    "contradicts_mesh": ("Boolean", "whether its description names another axis than that of its members"),
}


@derived(across_ranks=True, **GROUP_COLUMNS)
def groups(call_groups: pl.DataFrame, facts: Facts) -> pl.DataFrame:
    """One process group of the run."""
    return described_groups(call_groups, facts)


def described_groups(call_groups: pl.DataFrame, facts: Facts) -> pl.DataFrame:
    """Return one row a group, with `GROUP_COLUMNS`, of the groups that each trace communicated in."""
    unknown_rank = -1 - pl.col("trace")
    used = call_groups.group_by("group", maintain_order=True).agg(
        pl.col("members", "known_from", "description", "size").first(),
        pl.coalesce("rank", unknown_rank).n_unique().cast(pl.Int64).alias("seen_by"),
    )
    rows = []
    for row in used.iter_rows(named=True):
        if row["members"] is None and facts.world_size and row["size"] == facts.world_size.value:
            row |= {"members": list(range(facts.world_size.value)), "known_from": "world size"}
        ambiguous = row["members"] is None and _may_be_several(row, facts)
        rows.append(
            row
            | {
                "dimension": UNKNOWN
                if ambiguous
                else dimension_of(row["description"], row["members"], facts),
                "spans_nodes": spans_nodes(row["members"], facts),
                "ambiguous": ambiguous,
                "contradicts_mesh": contradicts_mesh(row["description"], row["members"], facts),
            }
        )
    table = DERIVED.get("groups").table
    return table.frame({name: [row[name] for row in rows] for name in GROUP_COLUMNS})


def _may_be_several(row: dict[str, Any], facts: Facts) -> bool:
    """Whether ranks that give a group of unknown members this name may mean different groups.

    They may where more ranks use it than it has members, where it is smaller than the job and has no
    number of its own, and, if no size is recorded either, where the job has groups along several axes.
    """
    size = row["size"]
    if row["known_from"] == THREADS:
        return True
    if size is None:
        return sum(degree > 1 for degree in mesh(facts).values()) > 1
    is_part = facts.world_size is not None and size < facts.world_size.value
    return bool(row["seen_by"] > size or (is_part and row["known_from"] != "name"))
