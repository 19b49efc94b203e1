"""The rule `slow_group`: process groups whose link is slower than that of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import numbers
from ccl_bench.diagnosis import Silent, diagnosis
from ccl_bench.diagnosis.communication import of_rows, pace, transfers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.metrics.shared.reference import References
    from ccl_bench.result.diagnosis import Opportunity

_SLOWER = 1.2
"""Time over that of other groups from which a group is slow: equal links differ by less."""


@diagnosis(kind="ranks")
def slow_group(
    gains: Gains, calls: pl.DataFrame, groups: pl.DataFrame, references: References
) -> Iterator[Opportunity]:
    """The same collectives take longer in one process group than in the others of its dimension.

    How it is seen:
    Calls of the same collective, size and number of ranks are compared between groups of a
    dimension, from the arrival of their last rank. The run is replayed with the times of the other groups. If
    the catalog or nccl-tests has a measurement of them, the sentence reports their speed relative to it.

    Why it costs:
    A slow link or network adapter delays its group, and through the other dimensions all
    ranks.

    What to do:
    Find the link: nvidia-smi nvlink -e, nvidia-smi topo -m, ibstat and perfquery for errors and reduced
    rates, NCCL_DEBUG=INFO for the rings and adapters that NCCL chose, nccl-tests on the nodes of this group
    alone. Groups that cross nodes belong to the dimension with the least traffic: keep tp inside a node.

    When it is no problem:
    If groups differ by design, for example some inside a node and others across
    nodes.

    Reference:
    nccl-tests, PERFORMANCE.md: bus bandwidth
    """
    timed_calls = transfers(gains, calls).drop_nulls("group")
    kind = ["dimension", "collective", "size_bytes", "size"]
    typical = timed_calls.group_by(*kind, "group").agg(pl.col("took").median(), pl.len())
    several = typical.filter(pl.len().over(kind) > 1)
    if several.is_empty():
        raise Silent("no two groups run the same collective with a known size")
    others = (pl.col("took").sum().over(kind) - pl.col("took")) / (pl.len().over(kind) - 1)
    compared = several.with_columns(others=others)
    sums = compared.group_by("dimension", "group").agg(
        (pl.col("took") * pl.col("len")).sum(), (pl.col("others") * pl.col("len")).sum()
    )
    slow = sums.with_columns(times=pl.col("took") / pl.col("others")).filter(pl.col("times") > _SLOWER)
    for dimension, group, _, _, times in slow.sort("group").iter_rows():
        of_group = timed_calls.filter(pl.col("group") == group)
        ranks = sorted(of_group["rank"].unique().to_list())
        yield from gains.sure(
            gains.replays.without(of_rows(gains, of_group["row"])),
            title=f"Collectives of {dimension} among ranks {numbers(ranks)} take {times:.1f} times as "
            f"long as in other groups{pace(of_group, groups, references)}",
            remedy="look for a slow link or adapter between these ranks",
            change="they take the same time as in other groups",
            ranks=ranks,
        )
