"""Process groups: a name for each that is the same on every rank, and who its members are."""

from __future__ import annotations

from itertools import pairwise

from ccl_bench.analysis.communication.naming import GLOO
from ccl_bench.base.lazy_polars import pl

IDENTITY = ("group_name", "group_description", "group_size", "group_start", "group_stride", "group_ranks")

THREADS = "threads"
"""How a group is known of which only threads are: not at all, and several may use them."""

_UNKNOWN = "? "
"""Start of the name of a group whose members are not known."""

_COUNTER_DIGITS = 6
"""Longest group name that is a counter; longer ones are addresses and differ from rank to rank."""


def members_text(ranks: list[int]) -> str:
    """Return ranks as short text: `0..7`, `0..6/2` for every second one, else one by one."""
    ordered = sorted(ranks)
    strides = {later - earlier for earlier, later in pairwise(ordered)}
    if len(ordered) > 2 and len(strides) == 1:
        stride = strides.pop()
        return f"{ordered[0]}..{ordered[-1]}" + ("" if stride == 1 else f"/{stride}")
    return ",".join(map(str, ordered))


def members_of(row: dict[str, object], known: dict[str, list[int]]) -> tuple[list[int] | None, str]:
    """Return the members of a group by place, and how they are known: `recorded`, `pg_config`, `stride`.

    A list cut by the profiler (`...`) is rebuilt from the job's group table or from start, stride and
    size, never guessed. What is left is `name` where the group has a running number, else `unknown`.
    """
    ranks, size = row["group_ranks"], row["group_size"]
    if isinstance(ranks, list) and ranks:
        return list(ranks), "recorded"
    listed = known.get(str(row["group_name"]))
    if listed and (size is None or len(listed) == size):
        return list(listed), "pg_config"
    start, stride = row["group_start"], row["group_stride"]
    if isinstance(start, int) and isinstance(stride, int) and isinstance(size, int) and stride > 0 <= start:
        return [start + stride * position for position in range(size)], "stride"
    return None, "name" if _counter(row) else "unknown"


def group_key(row: dict[str, object], members: list[int] | None) -> str:
    """Return a name of the group that every member gives it, where its members are known."""
    description = str(row["group_description"] or "")
    if members:
        return f"{description} {members_text(members)}".strip()
    size = row["group_size"] if row["group_size"] is not None else ""
    where = "threads" if row["lane"] is None else f"stream {row['lane']}"
    return f"{_UNKNOWN}{description} size {size} name {_counter(row)} {where}"


def _counter(row: dict[str, object]) -> str:
    """Return the name of a group where it is the running number that all ranks count alike."""
    name = str(row["group_name"] or "")
    return name if name.isdecimal() and len(name) <= _COUNTER_DIGITS else ""


def is_named_alike() -> pl.Expr:
    """Whether every member gives the `group` of a row this name; a stream's place differs between ranks."""
    return ~pl.col("group").str.starts_with(_UNKNOWN)


def _with_lanes(calls: pl.DataFrame) -> pl.DataFrame:
    """Return calls with the number of their stream as `lane`, null for one of several threads of gloo."""
    lanes = calls["stream"].unique(maintain_order=True)
    is_gloo = calls["name"].cast(pl.String).str.starts_with(GLOO)
    lane = calls["stream"].replace_strict(lanes, list(range(len(lanes))), default=0, return_dtype=pl.Int64)
    if calls["stream"].filter(is_gloo).n_unique() > 1:
        return calls.with_columns(pl.when(~is_gloo).then(lane).alias("lane"))
    return calls.with_columns(lane.alias("lane"))


def _only_group(row: dict[str, object], listed: list[dict[str, object]]) -> dict[str, object] | None:
    """Return the only listed group that a call can be in which tells at most the size of its group."""
    if any(row[name] is not None for name in IDENTITY if name != "group_size"):
        return None
    size = row["group_size"]
    fitting = [group for group in listed if size is None or group["ranks"] is None or _size(group) == size]
    return fitting[0] if len(fitting) == 1 and fitting[0]["ranks"] is not None else None


def _size(group: dict[str, object]) -> int:
    ranks = group["ranks"]
    return len(ranks) if isinstance(ranks, list) else 0


def with_groups(calls: pl.DataFrame, process_groups: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return calls with a `group` column, and one row for each group: its members and description.

    A call that names no group is in the only one of a job that has but one. Other groups of unknown members
    are told apart by the order in which their streams were first used. Threads of gloo tell nothing, since
    each call is done by whichever thread of its group is free.
    """
    numbered = _with_lanes(calls)
    listed = list(process_groups.iter_rows(named=True))
    known = {row["name"]: row["ranks"] for row in listed if row["ranks"] is not None}
    distinct = numbered.select(*IDENTITY, "lane").unique(maintain_order=True)
    rows = []
    for row in distinct.iter_rows(named=True):
        if only := _only_group(row, listed):
            row |= {"group_name": only["name"], "group_description": only["description"]}
        members, source = members_of(row, known)
        source = THREADS if members is None and row["lane"] is None else source
        rows.append((group_key(row, members), members, source, row["group_description"]))
    keys = distinct.with_columns(
        pl.Series("group", [row[0] for row in rows], dtype=pl.String),
        pl.Series("members", [row[1] for row in rows], dtype=pl.List(pl.Int64)),
        pl.Series("known_from", [row[2] for row in rows], dtype=pl.String),
        pl.Series("description", [row[3] for row in rows], dtype=pl.String),
    )
    joined = numbered.join(
        keys.select(*IDENTITY, "lane", "group"),
        on=[*IDENTITY, "lane"],
        nulls_equal=True,
        how="left",
        maintain_order="left",
    )
    groups = keys.select(
        "group",
        "members",
        "known_from",
        "description",
        pl.coalesce("group_size", pl.col("members").list.len().cast(pl.Int64)).alias("size"),
    )
    return joined.drop("lane"), groups.unique("group", keep="first", maintain_order=True)
