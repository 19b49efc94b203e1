"""Slices of a timeline: their tracks, their lanes, and merging of short ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True)
class Track:
    """A row of a viewer, or several if slices overlap."""

    title: str
    """Its title in the viewer; streams add their number."""
    noun: str
    """Plural name of its slices."""
    is_activity: bool = False
    """Whether it shows recorded work, which is merged first if there are too many slices."""


STEP = "step"
DEVICE_STEP = "device step"
BUBBLE = "bubble"
EXPOSED = "exposed"
WAIT = "wait"
LATE = "late"
CRITICAL = "critical path"
DIAGNOSIS = "diagnosis"
COMMUNICATION = "communication"
COMPUTE = "compute"
MEMORY = "memory"

TRACKS = {
    STEP: Track("steps", "steps"),
    DEVICE_STEP: Track("steps on the device", "steps"),
    CRITICAL: Track("critical path", "stretches"),
    DIAGNOSIS: Track("diagnoses", "diagnoses"),
    LATE: Track("makes others wait", "delays"),
    WAIT: Track("calls: waiting, then transfer", "calls"),
    EXPOSED: Track("exposed communication", "stretches"),
    BUBBLE: Track("pipeline bubble", "gaps"),
    COMMUNICATION: Track("communication", "calls", is_activity=True),
    COMPUTE: Track("compute", "kernels", is_activity=True),
    MEMORY: Track("copies", "copies", is_activity=True),
}
"""Tracks in order, by key."""

COLUMNS = {
    "track": pl.String,
    "stream": pl.Int64,
    "category": pl.String,
    "name": pl.String,
    "step": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "args": pl.String,
    "flow": pl.Int64,
    "role": pl.String,
}
"""Columns of a table of slices: `args` are JSON members without braces; `flow` joins slices of several ranks,
and `role` is `s` in the first, `f` in the last and `t` in between."""


def slices(table: pl.DataFrame, track: str, **columns: pl.Expr) -> pl.DataFrame:
    """Return a table of intervals as slices of a track; a column that is not given is null."""
    by_name = {"track": pl.lit(track), "category": pl.lit(track), **columns}
    present = set(table.columns)
    exprs = [
        (by_name[name] if name in by_name else pl.col(name) if name in present else pl.lit(None))
        .cast(kind)
        .alias(name)
        for name, kind in COLUMNS.items()
    ]
    return table.select(exprs)


_ROW = ("track", "stream")


def assign_lanes(slices: pl.DataFrame) -> pl.DataFrame:
    """Return slices in the order of a viewer, each with its `lane` within its track.

    In one lane slices are disjoint or nested: each is in the first lane into which it fits. The longer of two
    that start together comes first.
    """
    ordered = slices.sort(
        *_ROW, "start_ns", "end_ns", descending=[False, False, False, True], maintain_order=True
    )
    reach = pl.col("end_ns").cum_max().shift(1).over(_ROW)
    crowded = (pl.col("start_ns") < reach).any().over(_ROW)
    marked = ordered.with_columns(crowded.fill_null(value=False).alias("crowded"))
    lanes = [0] * marked.height
    rows = marked.with_row_index("row").filter("crowded").select(*_ROW, "row", "start_ns", "end_ns")
    for part in rows.partition_by(*_ROW, maintain_order=True):
        open_ends: list[list[int]] = []
        for row, start, end in part.select("row", "start_ns", "end_ns").iter_rows():
            for lane, waiting in enumerate(open_ends):
                while waiting and waiting[-1] <= start:
                    waiting.pop()
                if not waiting or end <= waiting[-1]:
                    waiting.append(end)
                    lanes[row] = lane
                    break
            else:
                lanes[row] = len(open_ends)
                open_ends.append([end])
    return ordered.with_columns(pl.Series("lane", lanes, dtype=pl.Int64))


_SHORTEST_NS = 1_000
_QUARTERS = 4 * 44
"""Number of factors of the fourth root of 2 from 1 us after which a track is one slice: half a year."""

_REDUCTION_ROW = ("track", "stream", "category", "step")


@dataclass(frozen=True, slots=True)
class MergedSlices:
    """The outcome of merging the slices of a trace."""

    before: int = 0
    """Slices of the trace."""
    after: int = 0
    """Number of written slices."""
    shorter_than_ns: int = 0
    """Length below which slices of work may be merged; 0 if none is."""


def merge_short_slices(slices: pl.DataFrame, most: int) -> tuple[pl.DataFrame, MergedSlices]:
    """Return at most `most` slices if possible, and the outcome of merging.

    At least one slice remains for each kind on a track and step.

    Recorded work is merged first, then derived slices; steps and diagnoses are never merged. Merging joins
    neighbours on one track, of one kind and step, that are shorter than a length and less than that length
    apart. Each merged slice states the number and total length of its parts.
    """
    if slices.height <= most:
        return slices, MergedSlices(slices.height, slices.height)
    activity = [key for key, track in TRACKS.items() if track.is_activity]
    mergeable_tracks = [key for key in TRACKS if key not in {STEP, DEVICE_STEP, DIAGNOSIS}]
    tracks = activity if _count(slices, activity, _length_ns(_QUARTERS)) <= most else mergeable_tracks
    low, high = 0, _QUARTERS
    while low < high:
        middle = (low + high) // 2
        fits = _count(slices, tracks, _length_ns(middle)) <= most
        low, high = (low, middle) if fits else (middle + 1, high)
    # No slice and no gap is longer than the span of all.
    on_tracks = slices.filter(pl.col("track").is_in(tracks))
    span_ns = on_tracks.select(pl.col("end_ns").max() - pl.col("start_ns").min()).item() or 0
    length_ns = min(_length_ns(low), int(span_ns) + 1)
    several = pl.len() > 1
    nouns = pl.col("track").first().replace_strict({key: track.noun for key, track in TRACKS.items()})
    together = (pl.col("end_ns") - pl.col("start_ns")).sum()
    counts = pl.format('"slices":{},"sum_ns":{}', pl.len(), together)
    names = pl.when(several).then(pl.format("{} {}", pl.len(), nouns)).otherwise(pl.col("name").first())
    runs = _runs(slices, tracks, length_ns).group_by("run", maintain_order=True)
    result = runs.agg(
        pl.col(*_REDUCTION_ROW).first(),
        names.alias("name"),
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.when(several).then(counts).otherwise(pl.col("args").first()).alias("args"),
        *(
            pl.when(several).then(None).otherwise(pl.col(name).first()).alias(name)
            for name in ("flow", "role")
        ),
    ).select(slices.columns)
    return result, MergedSlices(slices.height, result.height, length_ns)


def _length_ns(quarters: int) -> int:
    """Return the length below which slices are merged: 1 us, and more by a fourth root of 2 each time."""
    return round(_SHORTEST_NS * 2 ** (quarters / 4))


def _count(slices: pl.DataFrame, tracks: Collection[str], length_ns: int) -> int:
    return int(_runs(slices, tracks, length_ns)["run"].n_unique())


def _runs(slices: pl.DataFrame, tracks: Collection[str], length_ns: int) -> pl.DataFrame:
    """Return slices in order, each with the group `run` to merge; most groups have one slice."""
    ordered = slices.sort(*_REDUCTION_ROW, "start_ns", maintain_order=True)
    short = pl.col("track").is_in([*tracks]) & (pl.col("end_ns") - pl.col("start_ns") < length_ns)
    before = pl.col("end_ns").cum_max().shift(1).over(_REDUCTION_ROW)
    follows = short & short.shift(1).over(_REDUCTION_ROW) & (pl.col("start_ns") - before < length_ns)
    return ordered.with_columns((~follows.fill_null(value=False)).cum_sum().alias("run"))
