"""Late ranks at collectives, from Flight Recorder dumps: the table `recorded_arrivals`, and its clocks.

A call that all members wait in cannot end before the last of them has made it. So each end that a rank saw,
against the calls of the others, limits how far its clock may be ahead of theirs. Without ends (gloo sees
none) clocks of one host agree, and those of several cannot be compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.recorder.groups import find_groups
from ccl_bench.base.lazy_imports import np, pl

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts

_ALL_WAIT = "(?i)all_?reduce|all_?gather|reduce_scatter|all_?to_?all|barrier"
"""Operations that no member can leave before all are there."""


@derived(
    across_ranks=True,
    rows_of="recorded_calls",
    rank=("Int64", "rank"),
    number=("Int64", "number of the process group among those of the dumps"),
    sequence=("Int64", "number of the collective in its group"),
    operation=("String", "operation"),
    start_ns=("Int64", "when the rank called it, on the clock that all ranks share, ns"),
    end_ns=("Int64", "when the last member called it, ns"),
    lateness_ns=("Int64", "from the first member's call to this rank's, ns"),
    clock_shift_ns=("Int64", "time that is subtracted from the rank's clock, ns"),
    clock_error_ns=("Int64", "largest possible difference of the clocks, ns; null if unknown"),
)
def recorded_arrivals(
    recorded_calls: pl.DataFrame, recorded_groups: pl.DataFrame, recorder_dumps: pl.DataFrame, facts: Facts
) -> pl.DataFrame:
    """One call of a collective that every member recorded in the last window, with how late it is."""
    table = DERIVED.get("recorded_arrivals").table
    is_last = pl.col("iteration").eq_missing(pl.col("iteration").max())
    calls = recorded_calls.drop_nulls("rank").filter(is_last)
    dumped = {*recorder_dumps["rank"].drop_nulls()}
    world_size = facts.world_size.value if facts.world_size else None
    groups = find_groups(calls, recorded_groups.drop_nulls("rank"), dumped, world_size)
    sizes = {group.number: len(group.members) for group in groups.groups if len(group.members) > 1}
    meeting = ["number", "sequence"]
    collective_calls = (
        calls.filter(~pl.col("is_p2p") & pl.col("operation").str.contains(_ALL_WAIT))
        .drop_nulls("sequence")
        .join(groups.of_rank, on=["rank", "group"])
        .unique([*meeting, "rank"], keep="first", maintain_order=True)
    )
    members = pl.col("number").replace_strict(sizes, default=None, return_dtype=pl.Int64)
    whole = collective_calls.filter(pl.len().over(meeting) == members)
    if whole.is_empty():
        return table.empty()
    ranks, shifts, error = _clocks(whole)
    shift = pl.col("rank").replace_strict(ranks, shifts, return_dtype=pl.Int64)
    called = whole.with_columns(shift.alias("clock_shift_ns")).with_columns(
        (pl.col("created_ns") - pl.col("clock_shift_ns")).alias("start_ns")
    )
    return (
        called.with_columns(
            pl.col("start_ns").max().over(meeting).alias("end_ns"),
            (pl.col("start_ns") - pl.col("start_ns").min().over(meeting)).alias("lateness_ns"),
            pl.lit(error, dtype=pl.Int64).alias("clock_error_ns"),
        )
        .select(*table.columns)
        .sort("start_ns", "rank")
    )


def _clocks(calls: pl.DataFrame) -> tuple[list[int], list[int], int | None]:
    """Return ranks, the shift to subtract from the clock of each, and the largest error that remains; ns.

    Clocks stay as recorded where the ends of calls allow that, since hosts keep theirs together better than
    a watchdog that looks every tenth of a second can show; else they are in the middle of what is allowed.
    """
    ranks = sorted(calls["rank"].unique())
    place = {rank: number for number, rank in enumerate(ranks)}
    # The largest possible lead of one rank's clock over another's, by rows and columns.
    limits = np.full((len(ranks), len(ranks)), np.inf)
    np.fill_diagonal(limits, 0.0)
    base = calls["created_ns"].min()
    meetings = calls.select(
        "number", "sequence", "rank", created=pl.col("created_ns") - base, ended=pl.col("completed_ns") - base
    )
    for part in meetings.partition_by("number", "sequence"):
        where = np.array([place[rank] for rank in part["rank"]])
        created = part["created"].to_numpy().astype(np.float64)
        ended = part["ended"].cast(pl.Float64).fill_null(float("inf")).to_numpy()
        block = np.ix_(where, where)
        limits[block] = np.minimum(limits[block], ended[:, None] - created[None, :])
    np.fill_diagonal(limits, np.minimum(limits.diagonal(), 0.0))
    for middle in range(len(ranks)):  # limits between two ranks by way of a third
        limits = np.minimum(limits, limits[:, middle, None] + limits[middle])
    error = (limits + limits.T).max()
    if not np.isfinite(error) or limits.diagonal().min() < 0:
        return ranks, [0] * len(ranks), None
    middle_of = (limits[:, 0] - limits[0]) / 2  # both sides fulfil all limits, and so does their middle
    shifts = middle_of if limits.min() < 0 else np.zeros(len(ranks))
    return ranks, [round(shift) for shift in shifts], round(error)
