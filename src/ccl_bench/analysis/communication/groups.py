"""The process groups of a run, put together from what each rank knew of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.communication.members import THREADS
from ccl_bench.analysis.communication.parallelism import (
    UNKNOWN,
    contradicts_mesh,
    dimension_of,
    mesh,
    spans_nodes,
)
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.base.lazy_polars import pl

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts


@derived(
    across_ranks=True,
    group=("String", "name of the group, the same on every member"),
    members=("List(Int64)", "global ranks of the members; null where they are not known"),
    known_from=("String", "`recorded`, `pg_config`, `stride`, `world size`, `name`, `threads` or `unknown`"),
    description=("String", "description as recorded"),
    size=("Int64", "members"),
    dimension=("String", "parallelism dimension: an axis, `dp`, `world` or `unknown`"),
    spans_nodes=("Boolean", "whether members are on several nodes; null where that is not known"),
    seen_by=("Int64", "ranks whose traces have calls in the group"),
    ambiguous=("Boolean", "whether several groups may go by the name, so that its calls are not matched"),
    contradicts_mesh=("Boolean", "whether its description names another axis than its members lie along"),
)
def groups(call_groups: pl.DataFrame, facts: Facts) -> pl.DataFrame:
    """One process group of the run."""
    unknown_rank = -1 - pl.col("trace")
    found = call_groups.group_by("group", maintain_order=True).agg(
        pl.col("members", "known_from", "description", "size").first(),
        pl.coalesce("rank", unknown_rank).n_unique().cast(pl.Int64).alias("seen_by"),
    )
    rows = []
    for row in found.iter_rows(named=True):
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
    return table.frame({name: [row[name] for row in rows] for name in table.columns})


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
