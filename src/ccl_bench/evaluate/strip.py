"""Collect the strip of a step: from its pieces on one clock to as many as a page can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.communication.common_clock import Clocks, clocks_of
from ccl_bench.analysis.communication.waits import waits_by_rank_and_step
from ccl_bench.analysis.strip import fewer
from ccl_bench.base.lazy_polars import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics.shared.rows import label, step_labels
from ccl_bench.result.strip import KINDS, Lane, Strip, StripName, StripRank

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccl_bench.analysis.facts import Facts

STRIP_TABLES = ("strip_pieces", "clock_offsets", "contents", "steps", "breakdown", "waits")

_MOST_PIECES = 100_000
_LEAST_OF_RANK = 150
_DIGITS = 7
"""Digits of the length of a strip: finer than any screen, and short to write."""

_FEW_RANKS = 16
"""Ranks that are in the order of their numbers."""

_PARTS = ("compute", "fused", "exposed_communication", "exposed_memory", "idle")


def strip(tables: Mapping[str, pl.DataFrame], facts: Facts) -> Strip | None:
    """Return the strip of the middle step that most traces have; None without one."""
    pieces = tables["strip_pieces"]
    if pieces.is_empty():
        return None
    place = ("iteration", "step")
    common = (
        pieces.group_by(place)
        .agg(pl.col("trace").n_unique())
        .sort("trace", *place, descending=[True, False, False])
    )
    chosen = common.head(1)
    clocks = clocks_of(tables["contents"], tables["clock_offsets"])
    own = _of_step(pieces, chosen)
    windows = _windows(_of_step(tables["steps"], chosen), own, clocks)
    zero, end = int(windows["start_ns"].min()), int(windows["end_ns"].max())  # type: ignore[arg-type]
    unit = 10 ** max(len(str(end - zero)) - _DIGITS, 0)
    most = max(_MOST_PIECES // windows.height, _LEAST_OF_RANK)
    kept = pl.concat(
        [fewer(each, end - zero, most) for each in own.partition_by("trace", maintain_order=True)]
    )
    names = kept.select("name", "size_bytes").unique(maintain_order=True).with_row_index("number")
    lanes = _lanes(
        kept.join(names, on=["name", "size_bytes"], nulls_equal=True, maintain_order="left"), zero, unit
    )
    known = _late(_of_step(tables["waits"], chosen))
    parts = {row["trace"]: row for row in _of_step(tables["breakdown"], chosen).iter_rows(named=True)}
    on_node = facts.devices_per_node.value if facts.devices_per_node else None
    ranks = [
        _rank(
            row,
            zero,
            unit,
            lanes.get(row["trace"], []),
            parts[row["trace"]],
            known.get(row["trace"]),
            on_node,
        )
        for row in windows.iter_rows(named=True)
        if row["trace"] in parts
    ]
    return Strip(
        step_labels(common.head(1))[0],
        unit,
        -(-(end - zero) // unit),
        clocks.statement,
        [StripName(text or "unknown", size) for _, text, size in names.iter_rows()],
        in_order(ranks),
        int(own["count"].sum()),
        kept.height,
        tables["steps"]["trace"].n_unique() - len(ranks),
    )


def _of_step(table: pl.DataFrame, chosen: pl.DataFrame) -> pl.DataFrame:
    return table.join(
        chosen.select("iteration", "step"),
        on=["iteration", "step"],
        how="semi",
        nulls_equal=True,
        maintain_order="left",
    )


def _windows(steps: pl.DataFrame, pieces: pl.DataFrame, clocks: Clocks) -> pl.DataFrame:
    """Return the device window of each trace with pieces, on the clock of all ranks, by rank."""
    own = steps.select("trace", "rank", start_ns="device_start_ns", end_ns="device_end_ns")
    present = own.join(pieces.select("trace").unique(), on="trace", how="semi", maintain_order="left")
    return clocks.applied(present).sort("rank", "trace", nulls_last=True)


def _late(waits: pl.DataFrame) -> dict[int, tuple[float, float]]:
    """Return how long each trace waited in the step, and how much less than the one that waited most."""
    sums = waits_by_rank_and_step(waits).select("trace", "wait_ns")
    most = sums["wait_ns"].max() or 0
    return {trace: (wait / SECOND_NS, (most - wait) / SECOND_NS) for trace, wait in sums.iter_rows()}


def _rank(
    window: dict[str, Any],
    zero: int,
    unit: int,
    lanes: list[Lane],
    parts: dict[str, Any],
    late: tuple[float, float] | None,
    on_node: int | None,
) -> StripRank:
    waited, late_s = late or (None, None)
    rank = window["rank"]
    return StripRank(
        label(rank),
        (window["start_ns"] - zero) // unit,
        (window["end_ns"] - window["start_ns"]) // unit,
        lanes,
        {part: parts[f"{part}_ns"] / SECOND_NS for part in _PARTS},
        None if rank is None or on_node is None else rank // on_node,
        waited,
        late_s,
    )


def in_order(ranks: list[StripRank]) -> list[StripRank]:
    """Return ranks by number; many by lateness, with those of a node together."""
    if len(ranks) <= _FEW_RANKS:
        return ranks
    latest: dict[int | None, float] = {}
    for rank in ranks:
        latest[rank.node] = max(latest.get(rank.node, 0.0), rank.late_s or 0.0)
    return sorted(ranks, key=lambda rank: (-latest[rank.node], rank.node or 0, -(rank.late_s or 0.0)))


def _lanes(pieces: pl.DataFrame, zero: int, unit: int) -> dict[int, list[Lane]]:
    """Return the lanes of each trace, those with most work first."""
    row = ("trace", "lane")
    start, end = ((pl.col(side) - zero) // unit for side in ("start_ns", "end_ns"))
    letters = {name: letter for letter, name in KINDS.items()}
    delta = (start - start.shift(1, fill_value=0)).over(row)
    several = pl.when(pl.col("count") > 1).then(pl.format(",{},{}", "count", pl.col("busy_ns") // unit))
    awaits = pl.when(pl.col("awaits").is_not_null()).then(pl.format(",@{}", "awaits"))
    kind = pl.col("kind").replace_strict(letters, return_dtype=pl.String)
    text = pl.concat_str(
        pl.format("{},{},{}{}", delta, end - start, kind, "number"),
        several.fill_null(""),
        awaits.fill_null(""),
    )
    ordered = pieces.sort(*row, "start_ns", maintain_order=True).with_columns(text=text)
    joined = ordered.group_by(row, maintain_order=True).agg(
        pl.col("text").str.join(" "), pl.col("busy_ns").sum(), pl.col("on_device").first()
    )
    found: dict[int, list[Lane]] = {}
    for trace, lane, pieces_text, _, on_device in joined.sort(
        "trace", "busy_ns", "lane", descending=[False, True, False]
    ).iter_rows():
        name = "unknown" if lane is None else f"{'stream' if on_device else 'thread'} {lane}"
        found.setdefault(trace, []).append(Lane(name, pieces_text))
    return found
