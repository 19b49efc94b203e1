"""Measure how the cost of matching calls across ranks, and of dependent tables, grows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl
from printing import aligned

from ccl_bench.analysis.derived import DERIVED, computation_order
from ccl_bench.analysis.facts import Facts
from ccl_bench.engine.read_trace import empty_table

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZES = ((64, 2_000), (256, 2_000), (1_024, 2_000), (1_024, 8_000))
"""Ranks in one group, and collectives that all of them take part in."""

TABLES = ("matched", "waits", "clock_offsets", "arrivals")
_STEPS = 4
_EVERY_NS = 1_000_000
_TRANSFER_NS = 150_000


@dataclass(frozen=True, slots=True)
class Timed:
    """The cost of the tables."""

    ranks: int
    collectives: int
    seconds: dict[str, float]
    """Table -> time to compute it from those before, s."""

    @property
    def ns_per_call(self) -> float:
        """Time of all tables for each call of each rank, ns."""
        return sum(self.seconds.values()) / (self.ranks * self.collectives) * 1e9


def calls_of(ranks: int, collectives: int) -> pl.DataFrame:
    """Return the calls of one group of all ranks, each rank up to 1 us later than the one before."""
    number, rank = pl.col("number"), pl.col("rank")
    late = (rank * 7_919 + number * 104_729) % 1_000_003 // 1_000
    whole = (
        pl.DataFrame({"rank": range(ranks)})
        .join(pl.DataFrame({"number": range(collectives)}), how="cross")
        .with_columns(
            rank.alias("trace"),
            number.alias("call"),
            number.alias("order"),
            number.alias("sequence"),
            (number * _STEPS // collectives).alias("step"),
            (number * _EVERY_NS + late).alias("start_ns"),
            (number * _EVERY_NS + 1_000 + _TRANSFER_NS).alias("end_ns"),
            pl.lit("all_gather").alias("collective"),
            pl.lit(f"fsdp 0..{ranks - 1}").alias("group"),
            pl.lit(8_388_608).alias("size_bytes"),
            pl.lit(value=False).alias("own_sizes"),
            pl.lit(value=False).alias("uneven"),
        )
    )
    schema = empty_table("calls").schema
    return whole.select(
        (pl.col(name) if name in whole.columns else pl.lit(None)).cast(kind).alias(name)
        for name, kind in schema.items()
    )


def groups_of(ranks: int) -> pl.DataFrame:
    """Return the entry of that group in each trace."""
    members = list(range(ranks))
    text = {"group": f"fsdp 0..{ranks - 1}", "known_from": "recorded", "description": "fsdp"}
    rows = [
        {**text, "members": members, "size": ranks, "trace": rank, "rank": rank, "iteration": None}
        for rank in range(ranks)
    ]
    return pl.DataFrame(rows, schema=empty_table("call_groups").schema)


def timed(sizes: Sequence[tuple[int, int]] = SIZES) -> list[Timed]:
    """Return the cost of the tables for each size."""
    DERIVED.load()
    _once(8, 100)
    return [_once(ranks, collectives) for ranks, collectives in sizes]


def _once(ranks: int, collectives: int) -> Timed:
    inputs: dict[str, object] = {"facts": Facts()}
    inputs |= {"calls": calls_of(ranks, collectives), "call_groups": groups_of(ranks)}
    seconds = {}
    for name in computation_order(TABLES):
        table = DERIVED.get(name)
        if table.across_ranks:
            arguments = [inputs[need] if need in inputs else empty_table(need) for need in table.needs]
            began = time.perf_counter()
            inputs[name] = table.compute(*arguments)
            seconds[name] = time.perf_counter() - began
    _check(inputs["matched"], ranks, collectives)
    return Timed(ranks, collectives, seconds)


def _check(matched: object, ranks: int, collectives: int) -> None:
    """Raise ValueError if a call did not find all its peers."""
    if not isinstance(matched, pl.DataFrame) or matched.height != ranks * collectives:
        raise ValueError("calls were lost")
    if matched["present"].unique().to_list() != [ranks]:
        raise ValueError("calls did not find all their peers")


def table(timings: Sequence[Timed]) -> str:
    """Return the times as text."""
    names = list(timings[0].seconds)
    head = ("ranks", "collectives", "calls", *(f"{name} s" for name in names), "ns a call", "x first")
    rows = [
        (
            f"{one.ranks:,}",
            f"{one.collectives:,}",
            f"{one.ranks * one.collectives:,}",
            *(f"{one.seconds[name]:.2f}" for name in names),
            f"{one.ns_per_call:.0f}",
            f"{one.ns_per_call / timings[0].ns_per_call:.2f}",
        )
        for one in timings
    ]
    return f"\ncalls of one group matched across all ranks\n{aligned([head, *rows])}"
