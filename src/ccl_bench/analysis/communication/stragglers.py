"""Stragglers: waiting of ranks in each step, the late ranks, and ranks that only pass a delay on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.groups import stages_of
from ccl_bench.analysis.derived import derived
from ccl_bench.analysis.steps.steps import mean_step_ns, step_times
from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.analysis.facts import Facts

NOISE_FLOOR = 0.01
"""Share of the step below which no rank is called late: repeated runs of one program differ as much."""

LATE_SHARE = 0.5
"""A member is late when it waits less than this share of what the longest-waiting member does.

Then it is nearer to one that never waits, and is waited for, than to its victim.
"""

RELAY_SHARE = 0.5
"""A late member passes a delay on when it waited this share of it, most of it, in another group."""

WORK_SHARE = 0.5
"""Work beyond that of others explains a lag when it makes up this share of it: no other cause is larger."""


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Which ranks are late in a run, and which one of them makes the others wait."""

    slowest: int | None
    """None if no rank is late, or where the waits do not decide between several."""
    late: list[int]
    waits: pl.DataFrame
    """Rows of `waits` in groups that lie in one pipeline stage: only these show who is late."""
    members: pl.DataFrame
    """Their sums over all steps, as `waits_by_member` returns them."""
    lag_ns: float
    """Mean over steps of the longest minus the shortest waiting of a rank, in any group."""
    step_ns: float
    """Mean length of a step on its slowest rank."""

    @property
    def floor_ns(self) -> float:
        """The lag below which no rank is called late."""
        return NOISE_FLOOR * self.step_ns


def find_stragglers(
    waits: pl.DataFrame, steps: pl.DataFrame, breakdown: pl.DataFrame, facts: Facts
) -> Stragglers:
    """Return the late ranks of a run. `waits` are those of its `steps`, and not empty."""
    lag = _mean(lags(waits), "lag_ns")
    step_ns = mean_step_ns(step_times(in_steps_of(steps, waits)))
    floor_ns = NOISE_FLOOR * step_ns
    within_stage = within_stages(waits, facts)
    members = waits_by_member(within_stage, floor_ns)
    late_members = late_ranks(members) if lag >= floor_ns else []
    candidates = shortest_waiting(members, late_members)
    worst = rank_with_most_work(breakdown, members, candidates, late_members)
    if worst is None:
        worst = costliest_rank(within_stage, candidates)
    return Stragglers(worst, late_members, within_stage, members, lag, step_ns)


def lags(waits: pl.DataFrame) -> pl.DataFrame:
    """Return the longest minus the shortest waiting of a rank in each step, as `lag_ns`."""
    wait = pl.col("wait_ns")
    by_rank = waits_by_rank_and_step(waits)
    return by_rank.group_by("iteration", "step").agg((wait.max() - wait.min()).alias("lag_ns"))


def _mean(table: pl.DataFrame, column: str) -> float:
    return float(table.select(pl.col(column).mean()).item())


def within_stages(waits: pl.DataFrame, facts: Facts) -> pl.DataFrame:
    """Return the waits in groups that lie in one pipeline stage.

    The first stage ends a step last by design, so a rank that waits for it does not show that it is late.
    """
    staged = waits.with_columns(stages_of(waits["rank"], facts).alias("_stage"))
    one_stage = pl.col("_stage").n_unique().over("group") == 1
    return staged.filter((pl.col("dimension") != "pp").fill_null(value=True) & one_stage).drop("_stage")


def waits_by_member(waits: pl.DataFrame, floor_ns: float) -> pl.DataFrame:
    """Return one row a member of a group, over all steps.

    Columns: `group`, `dimension`, `rank`, `wait_ns`, `least_ns` and `lag_ns` a step (the shortest wait of a
    member, and what the longest is above it), `least_alone` (no other member waits as little), and in
    groups whose lag is at least `floor_ns`, `is_late` and `is_victim`.
    """
    steps = waits.group_by("group").agg(pl.struct("iteration", "step").n_unique().alias("steps"))
    sums = waits.group_by("group", "dimension", "rank").agg(pl.col("wait_ns").sum())
    wait = pl.col("wait_ns")
    shortest, longest = wait.min().over("group"), wait.max().over("group")
    members = (
        sums.join(steps, on="group")
        .with_columns(wait / pl.col("steps"))
        .with_columns(
            shortest.alias("least_ns"),
            (longest - shortest).alias("lag_ns"),
            ((wait == shortest) & ((wait == shortest).sum().over("group") == 1)).alias("least_alone"),
            (wait < LATE_SHARE * longest).alias("waits_little"),
        )
    )
    matters = (pl.col("lag_ns") > 0) & (pl.col("lag_ns") >= floor_ns)
    return members.with_columns(
        (matters & pl.col("waits_little")).alias("is_late"),
        (matters & ~pl.col("waits_little")).alias("is_victim"),
    ).drop("steps", "waits_little")


def late_ranks(members: pl.DataFrame) -> list[int]:
    """Return the ranks that are late in a group and did not wait as long in another, sorted.

    `members` is what `waits_by_member` returns. Where every late rank waited as long elsewhere, all of them.
    """
    late = members.filter("is_late").drop_nulls("rank").group_by("rank").agg(pl.col("lag_ns").max())
    waited = members.filter("is_victim").group_by("rank").agg(pl.col("wait_ns").max().alias("waited_ns"))
    both = late.join(waited, on="rank", how="left").sort("rank")
    first = both.filter(pl.col("waited_ns").fill_null(0) < RELAY_SHARE * pl.col("lag_ns"))
    return (first if first.height else both)["rank"].to_list()


def peers_of(members: pl.DataFrame, rank: int, late: Iterable[int]) -> list[int]:
    """Return the ranks that share with `rank` a group in which it is late, without those that are `late`."""
    shared = members.filter((pl.col("rank") == rank) & pl.col("is_late"))["group"]
    others = members.filter(pl.col("group").is_in(shared.implode()) & ~pl.col("rank").is_in([*late]))
    return others["rank"].unique().sort().to_list()


def shortest_waiting(members: pl.DataFrame, late: list[int]) -> list[int]:
    """Return those of the `late` ranks that no member of a group waits less than, sorted."""
    late_members = members.filter(pl.col("is_late") & pl.col("rank").is_in(late))
    return late_members.filter(pl.col("wait_ns") == pl.col("least_ns"))["rank"].unique().sort().to_list()


def rank_with_most_work(
    breakdown: pl.DataFrame, members: pl.DataFrame, candidates: list[int], late: list[int]
) -> int | None:
    """Return the candidate whose own work exceeds that of its peers, all but the `late`, by most, or None.

    Stages of a pipeline hand a delay on by messages, which show no waiting; who is late for lack of
    input has no more to do than its peers. None if no excess explains the lag, or two are alike.
    """
    work = (pl.col("compute_ns") + pl.col("exposed_memory_ns")).mean()
    means = dict(breakdown.group_by("rank").agg(work.alias("work_ns")).iter_rows())
    excess = []
    for rank in candidates:
        others = [means[peer] for peer in peers_of(members, rank, late) if peer in means]
        if others and rank in means:
            excess.append((means[rank] - sum(others) / len(others), rank))
    lag = lag_of(members, candidates)
    excess.sort(reverse=True)
    if not excess or excess[0][0] < WORK_SHARE * lag:
        return None
    return None if len(excess) > 1 and excess[0][0] == excess[1][0] else excess[0][1]


def lag_of(members: pl.DataFrame, ranks: Iterable[int]) -> float:
    """Return the largest lag of a group in which one of the `ranks` is late, ns a step."""
    lag = members.filter(pl.col("rank").is_in([*ranks]) & pl.col("is_late"))["lag_ns"].max()
    return lag if isinstance(lag, float) else 0.0


def costliest_rank(waits: pl.DataFrame, candidates: list[int]) -> int | None:
    """Return the candidate that caused most waiting, or None if two caused the same."""
    costs = waits.filter(pl.col("rank").is_in(candidates)).group_by("rank").agg(pl.col("caused_ns").sum())
    ranked = costs.sort("caused_ns", descending=True)
    if ranked.is_empty() or (ranked.height > 1 and ranked["caused_ns"][0] == ranked["caused_ns"][1]):
        return None
    return int(ranked["rank"][0])


def late_steps(waits: pl.DataFrame, rank: int, floor_ns: float) -> pl.DataFrame:
    """Return the steps of `rank`, each with `is_late`: in a group whose lag reached `floor_ns`."""
    group = ["iteration", "step", "group"]
    wait = pl.col("wait_ns")
    shortest, longest = wait.min().over(group), wait.max().over(group)
    is_late = (wait == shortest) & (wait < LATE_SHARE * longest) & (longest - shortest >= floor_ns)
    rank_waits = waits.with_columns(is_late.alias("is_late")).filter(pl.col("rank") == rank)
    return rank_waits.group_by("iteration", "step").agg(pl.col("is_late").any())


def persistence(waits: pl.DataFrame, rank: int, floor_ns: float) -> float:
    """Return the share of its steps in which `rank` was late in a group whose lag reached `floor_ns`."""
    return _mean(late_steps(waits, rank, floor_ns), "is_late")


LACKING_SHARE = 0.01
"""Where no step is whole, a trace may lack this share of its collectives and still count.

A recorder loses single calls; a trace that was cut off lacks all that came later.
"""


@derived(
    across_ranks=True,
    iteration=("Int64", "recording window"),
    step=("Int64", "step"),
    group=("String", "process group"),
    dimension=("String", "parallelism dimension of the group"),
    trace=("Int64", "trace"),
    rank=("Int64", "rank"),
    collectives=("Int64", "collectives whose wait is known"),
    wait_ns=("Int64", "time waited for other members, ns"),
    arrived_last=("Int64", "collectives that this rank reached last"),
    caused_ns=("Int64", "sum over those of the longest wait of another member, ns"),
    complete=("Boolean", "whether all members of this group, and of others of the rank, were recorded"),
)
def waits(matched: pl.DataFrame) -> pl.DataFrame:
    """One rank in one group in one step.

    The rank that waits least is late, the one that waits most is its victim. A tie has no last rank.
    Only steps count in which no trace lacks a collective that others of its group have: a rank whose
    recording broke off would seem to wait less than the others. Where no step is whole, the traces
    that lack more than a few collectives are left out, as if their files were missing.
    """
    return (
        attributable_waits(matched)
        .group_by("iteration", "step", "group", "dimension", "trace", "rank", maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("collectives"),
            pl.col("wait_ns").sum(),
            pl.col("last").sum().cast(pl.Int64).alias("arrived_last"),
            pl.col("longest_ns").filter("last").sum().alias("caused_ns"),
            (pl.col("complete") & (pl.col("present") >= pl.col("size")).fill_null(value=False)).all(),
        )
        .sort("iteration", "step", "group", "rank", "trace")
    )


def attributable_waits(matched: pl.DataFrame) -> pl.DataFrame:
    """Return the members of collectives whose waits count, with who was `last` and the `longest_ns` wait.

    They are those in whole steps; without any, those of traces that lack next to nothing in the step.
    """
    key = ["iteration", "group", "number"]
    members = matched.drop_nulls(["wait_ns", "step"])
    whole = members.filter(pl.col("gaps") == 0)
    if whole.is_empty() and members.height:
        calls_of_trace = pl.len().over("iteration", "step", "trace")
        present = pl.len().over(key).cast(pl.Int64).alias("present")
        others = members.filter(pl.col("lacks") <= LACKING_SHARE * calls_of_trace).with_columns(present)
        # Of the traces that lack next to nothing those collectives count that all of them have.
        most_present = pl.col("present").max().over("iteration", "group", "step")
        whole = others.filter((pl.col("present") > 1) & (pl.col("present") == most_present)).with_columns(
            pl.col("wait_ns") - pl.col("wait_ns").min().over(key)
        )
    is_last = pl.col("wait_ns") == 0
    return whole.with_columns(
        (is_last & (is_last.sum().over(key) == 1)).alias("last"),
        pl.col("wait_ns").max().over(key).alias("longest_ns"),
    )


def in_steps_of(table: pl.DataFrame, of: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `table` whose step has rows in `of`."""
    step = ["iteration", "step"]
    return table.join(of[step], on=step, how="semi", nulls_equal=True, maintain_order="left")


def waits_by_rank_and_step(waits: pl.DataFrame) -> pl.DataFrame:
    """Return the waits of each rank in each step over all its groups.

    Ranks that are not known count by trace.
    """
    return (
        waits.group_by("iteration", "step", "trace", "rank")
        .agg(pl.col("collectives", "wait_ns", "arrived_last", "caused_ns").sum())
        .sort("iteration", "step", "rank", "trace")
    )
