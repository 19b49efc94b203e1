"""Fewer slices than there are: short ones that lie close together become one that counts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.base.lazy_polars import pl
from ccl_bench.timeline.tracks import DEVICE_STEP, STEP, TRACKS

if TYPE_CHECKING:
    from collections.abc import Collection

_SHORTEST_NS = 1_000
_QUARTERS = 4 * 44
"""Steps of the fourth root of 2 from 1 us after which everything on a track is one: half a year."""

_ROW = ("track", "stream", "category", "step")


@dataclass(frozen=True, slots=True)
class Merged:
    """What reduction did to the slices of a trace."""

    before: int = 0
    """Slices of the trace."""
    after: int = 0
    """Slices that are written."""
    shorter_than_ns: int = 0
    """Slices of work as short as this may be merged; 0 where none is."""


def reduced(slices: pl.DataFrame, most: int) -> tuple[pl.DataFrame, Merged]:
    """Return at most `most` slices where that is possible, and what was done for it.

    Fewer than one for each kind on a track and step there cannot be.

    Work as it was recorded is merged first, then what is derived from it; steps never are. Merging
    takes neighbours on one track, of one kind and step, that are shorter than some length and less
    than that apart. Each slice that stands for several says how many and how long they were together.
    """
    if slices.height <= most:
        return slices, Merged(slices.height, slices.height)
    activity = [key for key, track in TRACKS.items() if track.is_activity]
    every = [key for key in TRACKS if key not in {STEP, DEVICE_STEP}]
    tracks = activity if _count(slices, activity, _length_ns(_QUARTERS)) <= most else every
    low, high = 0, _QUARTERS
    while low < high:
        middle = (low + high) // 2
        fits = _count(slices, tracks, _length_ns(middle)) <= most
        low, high = (low, middle) if fits else (middle + 1, high)
    length_ns = min(_length_ns(low), _longest_ns(slices, tracks) + 1)
    found = _merged(slices, tracks, length_ns)
    return found, Merged(slices.height, found.height, length_ns)


def _longest_ns(slices: pl.DataFrame, tracks: Collection[str]) -> int:
    """Return the span of the slices of some tracks: nothing among them is longer, or further apart."""
    chosen = slices.filter(pl.col("track").is_in([*tracks]))
    return int(chosen.select(pl.col("end_ns").max() - pl.col("start_ns").min()).item() or 0)


def _length_ns(quarters: int) -> int:
    """Return the length below which slices are merged: 1 us, and more by a fourth root of 2 each time."""
    return round(_SHORTEST_NS * 2 ** (quarters / 4))


def _count(slices: pl.DataFrame, tracks: Collection[str], length_ns: int) -> int:
    return int(_runs(slices, tracks, length_ns)["run"].n_unique())


def _runs(slices: pl.DataFrame, tracks: Collection[str], length_ns: int) -> pl.DataFrame:
    """Return slices in order, each with the `run` that it is part of; most are alone in theirs."""
    ordered = slices.sort(*_ROW, "start_ns", maintain_order=True)
    short = pl.col("track").is_in([*tracks]) & (pl.col("end_ns") - pl.col("start_ns") < length_ns)
    before = pl.col("end_ns").cum_max().shift(1).over(_ROW)
    follows = short & short.shift(1).over(_ROW) & (pl.col("start_ns") - before < length_ns)
    return ordered.with_columns((~follows.fill_null(value=False)).cum_sum().alias("run"))


def _merged(slices: pl.DataFrame, tracks: Collection[str], length_ns: int) -> pl.DataFrame:
    runs = _runs(slices, tracks, length_ns)
    several = pl.len() > 1
    nouns = pl.col("track").first().replace_strict({key: track.noun for key, track in TRACKS.items()})
    together = (pl.col("end_ns") - pl.col("start_ns")).sum()
    counts = pl.format('"slices":{},"sum_ns":{}', pl.len(), together)
    return (
        runs.group_by("run", maintain_order=True)
        .agg(
            pl.col(*_ROW).first(),
            pl.when(several)
            .then(pl.format("{} {}", pl.len(), nouns))
            .otherwise(pl.col("name").first())
            .alias("name"),
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            pl.when(several).then(counts).otherwise(pl.col("args").first()).alias("args"),
            *(
                pl.when(several).then(None).otherwise(pl.col(name).first()).alias(name)
                for name in ("flow", "role")
            ),
        )
        .select(slices.columns)
    )
