"""The tracks of a rank: what each shows, in which order, and what its slices are called together."""

from __future__ import annotations

from dataclasses import dataclass

from ccl_bench.base.lazy_polars import pl


@dataclass(frozen=True, slots=True)
class Track:
    """A row of a viewer, or several where slices overlap."""

    title: str
    """What the viewer shows; streams add their number."""
    noun: str
    """What many slices of it are called."""
    is_activity: bool = False
    """Whether it shows work as it was recorded, which is the first to be merged where there is too much."""


STEP = "step"
DEVICE_STEP = "device step"
BUBBLE = "bubble"
EXPOSED = "exposed"
WAIT = "wait"
LATE = "late"
COMMUNICATION = "communication"
COMPUTE = "compute"
MEMORY = "memory"

TRACKS = {
    STEP: Track("steps", "steps"),
    DEVICE_STEP: Track("steps on the device", "steps"),
    LATE: Track("keeps others waiting", "delays"),
    WAIT: Track("collectives: waiting, then moving data", "collectives"),
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
    given = {"track": pl.lit(track), "category": pl.lit(track), **columns}
    present = set(table.columns)
    found = [
        (given[name] if name in given else pl.col(name) if name in present else pl.lit(None))
        .cast(kind)
        .alias(name)
        for name, kind in COLUMNS.items()
    ]
    return table.select(found)
