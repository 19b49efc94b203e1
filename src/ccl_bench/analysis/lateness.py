"""Who is late in which process group, and who only passes the delay of another group on."""

from __future__ import annotations

from ccl_bench.analysis.waits import by_rank_and_step
from ccl_bench.frames import pl

LATE_SHARE = 0.5
"""A member is late when it waits less than this share of what the longest-waiting member does."""

WORTH_NAMING = 0.5
"""Groups whose lag is below this share of the largest group's do not name anybody."""


def in_groups(waits: pl.DataFrame) -> pl.DataFrame:
    """Return one row a member of a group, over all steps.

    Columns: `group`, `dimension`, `rank`, `wait_ns` and `lag_ns` a step (longest minus shortest wait of a
    member), `least_alone` (no other member waits as little), `is_late` and `is_victim`, in groups
    whose lag is among the large ones.
    """
    steps = waits.group_by("group").agg(pl.struct("iteration", "step").n_unique().alias("steps"))
    sums = waits.group_by("group", "dimension", "rank").agg(pl.col("wait_ns").sum())
    wait, least, most = pl.col("wait_ns"), pl.col("wait_ns").min(), pl.col("wait_ns").max()
    found = (
        sums.join(steps, on="group")
        .with_columns(wait / pl.col("steps"))
        .with_columns(
            (most - least).over("group").alias("lag_ns"),
            ((wait == least.over("group")) & ((wait == least).sum().over("group") == 1)).alias("least_alone"),
            (wait < LATE_SHARE * most.over("group")).alias("waits_little"),
        )
    )
    matters = (pl.col("lag_ns") > 0) & (pl.col("lag_ns") >= WORTH_NAMING * pl.col("lag_ns").max())
    return found.with_columns(
        (matters & pl.col("waits_little")).alias("is_late"),
        (matters & ~pl.col("waits_little")).alias("is_victim"),
    ).drop("steps", "waits_little")


def late_ranks(members: pl.DataFrame) -> list[int]:
    """Return the ranks that are late in a group of `in_groups` without being a victim in another, sorted.

    Where every late rank is some group's victim, all of them.
    """
    late = members.filter("is_late").drop_nulls("rank")["rank"].unique().sort()
    victims = members.filter("is_victim")["rank"].unique()
    first = late.filter(~late.is_in(victims.implode()))
    return (first if first.len() else late).to_list()


def most_costly(waits: pl.DataFrame, late: list[int]) -> int | None:
    """Return the one of the `late` ranks that caused most waiting, or None where two caused the same."""
    costs = waits.filter(pl.col("rank").is_in(late)).group_by("rank").agg(pl.col("caused_ns").sum())
    ranked = costs.sort("caused_ns", descending=True)
    if ranked.is_empty() or (ranked.height > 1 and ranked["caused_ns"][0] == ranked["caused_ns"][1]):
        return None
    return int(ranked["rank"][0])


def persistence(waits: pl.DataFrame, rank: int) -> float:
    """Return the share of steps in which `rank` caused most waiting of all ranks."""
    steps = by_rank_and_step(waits).with_columns(
        pl.col("caused_ns").max().over("iteration", "step").alias("most")
    )
    caused = steps.filter(
        (pl.col("rank") == rank) & (pl.col("caused_ns") == pl.col("most")) & (pl.col("most") > 0)
    )
    return caused.height / steps.select("iteration", "step").unique().height
