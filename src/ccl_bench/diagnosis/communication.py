"""Variants of a run for replays: other communication times, and no late ranks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.analysis.communication.bandwidth import factors
from ccl_bench.base.lazy_imports import pl
from ccl_bench.diagnosis import Silent
from ccl_bench.metrics.shared.reference import References, with_reference
from ccl_bench.whatif.meetings import MESSAGES
from ccl_bench.whatif.run_graph import GAP, OWN, VALUES

if TYPE_CHECKING:
    from ccl_bench.diagnosis.gains import Gain, Gains
    from ccl_bench.whatif.event_graph import Mask, Times


def moves(gains: Gains) -> Mask:
    """Return a mask of the collectives of several ranks, on the device or in a library."""
    return gains.where(
        (pl.col("place") != "host")
        & (pl.col("kind") == "communication")
        & ~pl.col("collective").is_in([*MESSAGES, "barrier"])
    )


def without_transfer(gains: Gains, mask: Mask) -> Times:
    """Return the variant in which some calls end when their last rank arrives."""
    return with_transfer(gains, mask, np.zeros(int(mask.sum())))


def with_transfer(gains: Gains, mask: Mask, took: Times) -> Times:
    """Return the variant in which some calls take other times after their last rank arrives, ns."""
    values = gains.graph.values.copy()
    values[mask.nonzero()[0] * VALUES + OWN] = took
    return values


def of_rows(gains: Gains, rows: pl.Series) -> Mask:
    """Return the operations of some rows."""
    mask = np.zeros(len(gains.operations), dtype=np.bool_)
    mask[rows.to_numpy()] = True
    return mask


def pace(timed_calls: pl.DataFrame, groups: pl.DataFrame, references: References) -> str:
    """Return how fast collectives with `took` are relative to a measurement; empty without one.

    The words continue a sentence about them: `, at 41 % of what NCCL 2.27.3 reaches on 8 A100 SXM`. Only
    calls with the reference of most time are part of it.
    """
    spans = groups.select("group", "spans_nodes").unique("group")
    moved = timed_calls.filter(pl.col("took") > 0).join(spans, on="group", how="left", maintain_order="left")
    own_sizes = moved.with_columns(own_sizes=pl.lit(None, dtype=pl.Boolean))
    usable = moved.with_columns(bus_factor=factors(own_sizes)).drop_nulls("bus_factor")
    compared = with_reference(usable, references.tests, references.system).drop_nulls("reference_ns")
    by_reference = compared.group_by("reaches").agg(pl.col("took").sum(), pl.col("reference_ns").sum())
    if by_reference.is_empty():
        return ""
    reaches, took, reference = by_reference.sort("took", "reaches", descending=True).row(0)
    return f", at {100 * reference / took:.0f} % of what {reaches}"


def transfers(gains: Gains, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives of usable size in steps, with `took`, ns since their last rank arrived."""
    has_meeting = pl.Series(gains.graph.meets >= 0)
    columns = ("row", "trace", "rank", "step", "collective", "dimension", "size", "size_bytes")
    groups = calls.select("trace", "call", "group").unique(["trace", "call"])
    return (
        gains.operations.select(*columns, "call", took=pl.Series(gains.graph.values[OWN:-1:VALUES]))
        .filter(pl.Series(moves(gains)) & has_meeting)
        .with_columns(pl.col("collective").cast(pl.String))
        .join(groups, on=["trace", "call"], how="left", maintain_order="left")
        .drop_nulls(["size_bytes", "step", "dimension"])
    )


MOST_RANKS = 8
"""Number of ranks to replay one by one, the latest ones: each replay takes time."""

MOST_TOGETHER = 3
"""Largest number of ranks that may be late together: with more, what they have in common is the cause."""

_MORE = 1.25
"""Factor by which more ranks together must gain more than fewer ranks: any further rank gains a little."""


@dataclass(frozen=True)
class SlowRanks:
    """Slow ranks that lengthen the step."""

    ranks: tuple[int, ...]
    gain: Gain
    variant: Times
    ratio: float
    """Recorded over typical time of their operations."""


def lateness(gains: Gains) -> dict[int, float]:
    """Return the total lateness of each rank over the median of its peers, ns; the latest first."""
    arrivals = pl.DataFrame(
        {"rank": gains.operations["rank"], "at": gains.operations["start_ns"], "meeting": gains.graph.meets}
    ).filter(pl.col("meeting") >= 0)
    typical = pl.col("at").quantile(0.5, "lower").over("meeting")
    late = arrivals.with_columns(late=(pl.col("at") - typical).clip(lower_bound=0))
    sums = late.group_by("rank").agg(pl.col("late").sum()).sort("late", "rank", descending=[True, False])
    return {rank: float(ns) for rank, ns in sums.drop_nulls("rank").iter_rows()}


def slow_ranks(gains: Gains, which: Mask, base: Times) -> SlowRanks | None:
    """Return the ranks whose operations of a kind take longer than on other ranks, and make others wait.

    The gain is that beyond the variant `base`. A gain that all ranks share is noise. Whole pipeline stages
    are excluded: they have their own rule.
    """
    late = [rank for rank, ns in lateness(gains).items() if ns > 0][:MOST_RANKS]
    rank_count = gains.operations["rank"].n_unique()
    if rank_count < 2 or not late:
        raise Silent("no rank waits for another")
    # Fewer than half of the ranks: of more, the others would be the exception.
    most = min(MOST_TOGETHER, (rank_count - 1) // 2, len(late))
    sets = [(rank,) for rank in late] + [tuple(late[:count]) for count in range(2, most + 1)]
    whole_stages = [set(ranks) for ranks in stages(gains).values()]
    if len(whole_stages) > 1:
        sets = [ranks for ranks in sets if not any(stage <= set(ranks) for stage in whole_stages)]
    masks = [which & gains.where(pl.col("rank").is_in(ranks)) for ranks in sets]
    recorded = gains.graph.values
    changed = base < recorded

    def variant_of(mask: Mask) -> Times:
        ideal = gains.replays.without(mask)
        return np.minimum(base, ideal, out=ideal, where=changed)

    of_base, *of_sets = gains.of_each(chain([base], map(variant_of, masks)))
    by_set = [gain.beyond(of_base.by_step) for gain in of_sets]
    alone = {ranks[0]: gain.by_step for ranks, gain in zip(sets, by_set, strict=True) if len(ranks) == 1}
    best: SlowRanks | None = None
    for ranks, mask, gain in zip(sets, masks, by_set, strict=True):
        # What as many other ranks would gain is noise.
        others = [by_step for rank, by_step in alone.items() if rank not in ranks]
        anyway = np.maximum(0.0, len(ranks) * np.median(others, axis=0)) if others else 0 * gain.by_step
        is_more = best is None or gain.mean_s > best.gain.mean_s
        if best is not None and len(ranks) > len(best.ranks):
            beyond_best = gain.beyond(best.gain.by_step)
            is_more = beyond_best.is_sure and gain.mean_s > _MORE * best.gain.mean_s
        if gain.beyond(anyway).is_sure and is_more:
            variant = variant_of(mask)
            took, usual = (
                float(np.maximum(values[:-1].reshape(-1, VALUES)[mask][:, [GAP, OWN]], 0).sum())
                for values in (recorded, variant)
            )
            best = SlowRanks(ranks, gain, variant, took / usual if usual > 0 else float("inf"))
    return best


def stages(gains: Gains) -> dict[int, list[int]]:
    """Return the ranks of each pipeline stage, in order."""
    placed = gains.operations.select("stage", "rank").unique().drop_nulls().sort("stage", "rank")
    ranks_of: dict[int, list[int]] = {}
    for stage, rank in placed.iter_rows():
        ranks_of.setdefault(stage, []).append(rank)
    return ranks_of
