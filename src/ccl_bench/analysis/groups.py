"""The process groups of a run, put together from what each rank knew of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.parallelism import UNKNOWN, dimension_of, spans_nodes
from ccl_bench.frames import pl

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts


@derived(
    across_ranks=True,
    group=("String", "name of the group, the same on every member"),
    members=("List(Int64)", "global ranks of the members; null where they are not known"),
    known_from=("String", "`recorded`, `pg_config`, `stride`, `world size` or `unknown`"),
    description=("String", "description as recorded"),
    size=("Int64", "members"),
    dimension=("String", "parallelism dimension: an axis, `dp`, `world` or `unknown`"),
    spans_nodes=("Boolean", "whether members are on several nodes; null where that is not known"),
    seen_by=("Int64", "ranks whose traces have calls in the group"),
    ambiguous=("Boolean", "whether more ranks use the name than the group has members"),
)
def groups(call_groups: pl.DataFrame, facts: Facts) -> pl.DataFrame:
    """One process group of the run."""
    found = call_groups.group_by("group", maintain_order=True).agg(
        pl.col("members", "known_from", "description", "size").first(),
        pl.col("rank").n_unique().cast(pl.Int64).alias("seen_by"),
    )
    rows = []
    for row in found.iter_rows(named=True):
        members, source = row["members"], row["known_from"]
        if members is None and facts.world_size and row["size"] == facts.world_size.value:
            members, source = list(range(facts.world_size.value)), "world size"
        ambiguous = members is None and row["size"] is not None and row["seen_by"] > row["size"]
        rows.append(
            row
            | {
                "members": members,
                "known_from": source,
                "dimension": UNKNOWN if ambiguous else dimension_of(row["description"], members, facts),
                "spans_nodes": spans_nodes(members, facts),
                "ambiguous": ambiguous,
            }
        )
    table = DERIVED.get("groups").table
    return table.frame({name: [row[name] for row in rows] for name in table.columns})
