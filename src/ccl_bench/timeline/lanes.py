"""Slices that overlap without one lying in the other, laid side by side: a viewer would drop them."""

from __future__ import annotations

from ccl_bench.base.lazy_polars import pl

_ROW = ("track", "stream")


def in_lanes(slices: pl.DataFrame) -> pl.DataFrame:
    """Return slices in the order in which a viewer takes them, each with its `lane` within its track.

    In one lane two slices are apart, or one lies in the other. The longer of two that start together
    comes first.
    """
    ordered = slices.sort(
        *_ROW, "start_ns", "end_ns", descending=[False, False, False, True], maintain_order=True
    )
    reach = pl.col("end_ns").cum_max().shift(1).over(_ROW)
    crowded = (pl.col("start_ns") < reach).any().over(_ROW)
    marked = ordered.with_columns(crowded.fill_null(value=False).alias("crowded"))
    lanes = pl.zeros(marked.height, dtype=pl.Int64, eager=True).to_list()
    rows = marked.with_row_index("row").filter("crowded")
    for part in rows.partition_by(*_ROW, maintain_order=True):
        for row, lane in zip(part["row"], _lanes(part["start_ns"], part["end_ns"]), strict=True):
            lanes[row] = lane
    return ordered.with_columns(pl.Series("lane", lanes, dtype=pl.Int64))


def _lanes(starts: pl.Series, ends: pl.Series) -> list[int]:
    """Return the first lane in which each slice of one track fits; they come in order of start."""
    open_ends: list[list[int]] = []
    found = []
    for start, end in zip(starts, ends, strict=True):
        for lane, waiting in enumerate(open_ends):  # noqa: B007
            while waiting and waiting[-1] <= start:
                waiting.pop()
            if not waiting or end <= waiting[-1]:
                break
        else:
            lane, waiting = len(open_ends), []
            open_ends.append(waiting)
        waiting.append(end)
        found.append(lane)
    return found
