"""Flight Recorder dumps: who is in each process group."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

DEFAULT = "default_pg"
"""Description of the group of all ranks."""
_SAYING_NOTHING = ("", "undefined")
"""Descriptions of groups that have none."""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group; one name may be that of several with other members, as `split_group` makes them."""

    number: int
    """Its number among the groups of the dumps."""
    name: str
    description: str
    members: tuple[int, ...]
    """Global ranks in order."""
    possible: tuple[int, ...] = ()
    """Ranks that may be members too where no dump lists them and these are only who used it."""


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a run, and which of them a rank means by a name."""

    groups: list[ProcessGroup]
    of_rank: pl.DataFrame
    """One row for each rank and name: `rank`, `group`, `number`."""


def find_groups(
    calls: pl.DataFrame, listed: pl.DataFrame, dumped: Collection[int], world_size: int | None
) -> Groups:
    """Return the groups of `recorded_calls` and `recorded_groups`, with their members.

    A rank's own list counts first, then another rank's list that has it as a member. Where none lists a
    group, as with gloo, the default group has all ranks and another has the ranks that used it; others may be
    members too, except those with a group of their own of the same description.
    """
    listed_members = {
        (rank, name): tuple(ranks)
        for rank, name, ranks in listed.select("rank", "group", "ranks").iter_rows()
    }
    by_name: dict[str, set[tuple[int, ...]]] = {}
    for (_, name), members in listed_members.items():
        by_name.setdefault(name, set()).add(members)
    used_groups = calls.select("rank", "group", "description").unique().sort("rank", "group")
    everyone = _job_ranks(calls, dumped, listed_members.values(), world_size)
    users: dict[str, set[int]] = {}
    described: dict[str, set[int]] = {}
    for rank, name, description in used_groups.iter_rows():
        users.setdefault(name, set()).add(rank)
        described.setdefault(description, set()).add(rank)

    def members_of(rank: int, name: str, description: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if (rank, name) in listed_members:
            return listed_members[rank, name], ()
        if matches := sorted(members for members in by_name.get(name, ()) if rank in members):
            return matches[0], ()
        if description == DEFAULT:
            return everyone, ()
        elsewhere = described[description] if description not in _SAYING_NOTHING else users[name]
        return tuple(sorted(users[name])), tuple(rank for rank in everyone if rank not in elsewhere)

    numbers: dict[tuple[str, tuple[int, ...]], ProcessGroup] = {}
    rows = []
    descriptions = listed.select("rank", "group", "description")
    for rank, name, description in (
        pl.concat([used_groups, descriptions]).unique(maintain_order=True).iter_rows()
    ):
        members, possible = members_of(rank, name, description)
        group = ProcessGroup(len(numbers), name, description, members, possible)
        same_group = numbers.setdefault((name, members), group)
        rows.append((rank, name, same_group.number))
    schema = {"rank": pl.Int64, "group": pl.String, "number": pl.Int64}
    of_rank = pl.DataFrame(rows, schema=schema, orient="row").unique(["rank", "group"], maintain_order=True)
    return Groups([*numbers.values()], of_rank)


def _job_ranks(
    calls: pl.DataFrame,
    dumped: Collection[int],
    listed: Iterable[tuple[int, ...]],
    world_size: int | None,
) -> tuple[int, ...]:
    """Return all ranks of the job: as many as are stated, are in a list, or an all-gather has room for."""
    ranks = {*dumped, *(rank for members in listed for rank in members)}
    gathers = calls.filter(
        (pl.col("description") == DEFAULT) & pl.col("operation").str.contains("all_?gather")
    ).select("in_shapes", "out_shapes")
    sizes = [world_size or 0, max(ranks, default=-1) + 1]
    for inputs, outputs in gathers.unique().iter_rows():
        one, all_of = elements(inputs), elements(outputs)
        sizes += [all_of // one] if one and all_of % one == 0 else []
    return tuple(range(max(sizes)))


def elements(shapes: Iterable[Iterable[int]]) -> int:
    """Return the elements of tensors with these shapes."""
    return sum(math.prod(shape) for shape in shapes)
