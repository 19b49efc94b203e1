"""The strip of a step: its pieces on one clock, merged to fit a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.clocks import clocks_of
from ccl_bench.analysis.communication.stragglers import waits_by_rank_and_step
from ccl_bench.analysis.strip import fewer
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics.shared.per_step import label, step_labels
from ccl_bench.result.drill_down import KINDS, Lane, Strip, StripName, StripRank

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccl_bench.analysis.facts import Facts

_BY_STEP = ("strip_pieces", "steps", "breakdown", "waits")
STRIP_TABLES = (*_BY_STEP, "clock_offsets", "contents")

_MOST_PIECES = 60_000
_LEAST_OF_RANK = 150
_DIGITS, _FEWER_DIGITS = 7, 6
"""Digits of the length of a strip, finer than any screen; and for merging short pieces."""

_FEW_RANKS = 16
"""Largest number of ranks in order of their numbers."""

_PARTS = ("compute", "fused", "exposed_communication", "exposed_memory", "idle")


@dataclass(frozen=True, slots=True)
class Ruler:
    """The start of a strip, and the unit of its times."""

    zero_ns: int
    end_ns: int
    digits: int
    """Digits of its length."""

    @property
    def unit_ns(self) -> int:
        """Unit, ns."""
        return int(10 ** max(len(str(self.end_ns - self.zero_ns)) - self.digits, 0))

    def length(self, ns: int) -> int:
        """Return a length in units."""
        return ns // self.unit_ns


def strip(tables: Mapping[str, pl.DataFrame], facts: Facts) -> Strip | None:
    """Return the strip of the middle step that most traces have; None without one."""
    pieces = tables["strip_pieces"]
    place = ("iteration", "step")
    common = pieces.group_by(place).agg(pl.col("trace").n_unique())
    common = common.sort("trace", *place, descending=[True, False, False])
    first = common.head(1).select(place)
    of_step = {
        name: table.join(first, on=place, how="semi", nulls_equal=True, maintain_order="left")
        for name, table in tables.items()
        if name in _BY_STEP
    }
    clocks = clocks_of(tables["contents"], tables["clock_offsets"])
    present = of_step["strip_pieces"].select("trace").unique()
    bounds = of_step["steps"].select("trace", "rank", start_ns="device_start_ns", end_ns="device_end_ns")
    bounds = clocks.applied(bounds.join(present, on="trace", how="semi", maintain_order="left"))
    parts = of_step["breakdown"].select("trace", *(pl.col(f"{part}_ns").alias(part) for part in _PARTS))
    windows = bounds.join(parts, on="trace", maintain_order="left").sort("rank", "trace", nulls_last=True)
    if windows.is_empty():
        return None
    zero_ns, end_ns = int(windows["start_ns"].min()), int(windows["end_ns"].max())  # type: ignore[arg-type]
    span_ns, most = end_ns - zero_ns, max(_MOST_PIECES // windows.height, _LEAST_OF_RANK)
    by_trace = of_step["strip_pieces"].partition_by("trace", maintain_order=True)
    fewer_pieces = pl.concat([fewer(each, span_ns, most) for each in by_trace])
    is_whole = fewer_pieces.height == of_step["strip_pieces"].height
    ruler = Ruler(zero_ns, end_ns, _DIGITS if is_whole else _FEWER_DIGITS)
    called = ["name", "size_bytes"]
    names = fewer_pieces.select(called).unique(maintain_order=True).with_row_index("number")
    numbered = fewer_pieces.join(names, on=called, nulls_equal=True, maintain_order="left")
    return Strip(
        step_labels(common)[0],
        ruler.unit_ns,
        ruler.length(span_ns),
        clocks.statement,
        [StripName(text or "unknown", size) for _, text, size in names.iter_rows()],
        in_order(_ranks(windows, _lanes(numbered, ruler), of_step["waits"], facts, ruler)),
        int(of_step["strip_pieces"]["count"].sum()),
        fewer_pieces.height,
        tables["steps"]["trace"].n_unique() - windows.height,
    )


def _ranks(
    windows: pl.DataFrame, lanes: Mapping[int, list[Lane]], waits: pl.DataFrame, facts: Facts, ruler: Ruler
) -> list[StripRank]:
    waited = dict(waits_by_rank_and_step(waits).select("trace", "wait_ns").iter_rows())
    most = max(waited.values(), default=0)
    on_node = facts.devices_per_node.value if facts.devices_per_node else None
    ranks = []
    for row in windows.iter_rows(named=True):
        rank_wait, rank = waited.get(row["trace"]), row["rank"]
        ranks.append(
            StripRank(
                label(rank),
                ruler.length(row["start_ns"] - ruler.zero_ns),
                ruler.length(row["end_ns"] - row["start_ns"]),
                lanes.get(row["trace"], []),
                {part: row[part] / SECOND_NS for part in _PARTS},
                None if rank is None or on_node is None else rank // on_node,
                None if rank_wait is None else rank_wait / SECOND_NS,
                None if rank_wait is None else (most - rank_wait) / SECOND_NS,
            )
        )
    return ranks


def in_order(ranks: list[StripRank]) -> list[StripRank]:
    """Return ranks by number; many by lateness, with those of a node together."""
    if len(ranks) <= _FEW_RANKS:
        return ranks
    latest: dict[int | None, float] = {}
    for rank in ranks:
        latest[rank.node] = max(latest.get(rank.node, 0.0), rank.late_s or 0.0)
    return sorted(ranks, key=lambda rank: (-latest[rank.node], rank.node or 0, -(rank.late_s or 0.0)))


def _lanes(pieces: pl.DataFrame, ruler: Ruler) -> dict[int, list[Lane]]:
    """Return the lanes of each trace, those with most work first."""
    row = ("trace", "lane", "on_device")
    start, end = ((pl.col(side) - ruler.zero_ns) // ruler.unit_ns for side in ("start_ns", "end_ns"))
    letters = {name: letter for letter, name in KINDS.items()}
    delta = (start - start.shift(1, fill_value=0)).over(row)
    busy = pl.col("busy_ns") // ruler.unit_ns
    several = pl.when(pl.col("count") > 1).then(pl.format(",{},{}", "count", busy))
    awaits = pl.when(pl.col("awaits").is_not_null()).then(pl.format(",@{}", "awaits"))
    kind = pl.col("kind").replace_strict(letters, return_dtype=pl.String)
    text = pl.concat_str(
        pl.format("{},{},{}{}", delta, end - start, kind, "number"),
        several.fill_null(""),
        awaits.fill_null(""),
    )
    ordered = pieces.sort(*row, "start_ns", maintain_order=True).with_columns(text=text)
    joined = ordered.group_by(row, maintain_order=True).agg(
        pl.col("text").str.join(" "), pl.col("busy_ns").sum()
    )
    lanes: dict[int, list[Lane]] = {}
    for trace, lane, on_device, drawn, _ in joined.sort(
        "busy_ns", descending=True, maintain_order=True
    ).iter_rows():
        name = "unknown" if lane is None else f"{'stream' if on_device else 'thread'} {lane}"
        lanes.setdefault(trace, []).append(Lane(name, drawn))
    return lanes
