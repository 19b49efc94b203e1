"""One clock for all ranks: the offset of each trace, and how far it can be believed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"))


def format_duration(length_ns: int) -> str:
    """Return a length of time in three digits with a fitting unit."""
    for scale, unit in _UNITS:
        if abs(length_ns) >= scale:
            return f"{length_ns / scale:.3g} {unit}"
    return f"{length_ns} ns"


Kind = Literal["single", "aligned", "as recorded", "separate"]


@dataclass(frozen=True, slots=True)
class Clocks:
    """How the times of several traces are put beside each other."""

    kind: Kind
    statement: str
    """What a reader must know of it."""
    offsets_ns: Mapping[int, int] = field(default_factory=dict)
    """Trace → what is taken off its times, ns."""
    residuals_ns: Mapping[int, int] = field(default_factory=dict)
    """Trace → median distance of its ends of collectives from the others', ns; empty unless aligned."""

    def applied(self, table: pl.DataFrame) -> pl.DataFrame:
        """Return a table with `trace` and its times in columns `*_ns` on the common clock."""
        offset = pl.col("trace").replace_strict(dict(self.offsets_ns), default=0, return_dtype=pl.Int64)
        return table.with_columns(pl.col(r"^.*_ns$") - offset)


def clocks_of(contents: pl.DataFrame, clock_offsets: pl.DataFrame) -> Clocks:
    """Return the one clock of the traces in `contents`.

    Clocks are aligned where collectives join all ranks of a recording window. Where they do not, times
    stay as recorded if the traces overlap in time, and else every trace begins at 0.
    """
    spans = contents.select("trace", "rank", "iteration", "start_ns", "end_ns").drop_nulls("start_ns")
    if spans["trace"].n_unique() < 2:
        return Clocks("single", "one trace has one clock")
    known = spans.join(clock_offsets, on=["iteration", "rank"], how="left", nulls_equal=True)
    offsets = dict(known.select("trace", pl.col("offset_ns").fill_null(0)).iter_rows())
    joined = known.group_by("iteration").agg(
        pl.col("island").n_unique() == 1, pl.col("island").is_not_null().all().alias("all")
    )
    if joined["island"].all() and joined["all"].all():
        return _aligned(known, offsets)
    if _overlap(spans):
        return Clocks("as recorded", _NOT_ALIGNED + "they are as recorded, and may differ", offsets)
    starts = dict(spans.select("trace", "start_ns").iter_rows())
    return Clocks("separate", _NOT_ALIGNED + "the traces do not overlap in time, so each begins at 0", starts)


_NOT_ALIGNED = "clocks are not aligned, since no collectives join all ranks: "


def _aligned(known: pl.DataFrame, offsets: Mapping[int, int]) -> Clocks:
    residuals = dict(known.select("trace", "residual_ns").iter_rows())
    worst, largest = max(residuals.values()), max(map(abs, offsets.values()))
    statement = (
        f"clocks are aligned by the ends of collectives: up to {format_duration(largest)} taken off, after "
        f"which the ends agree within {format_duration(worst)} (median of the worst rank)"
    )
    return Clocks("aligned", statement, offsets, residuals)


def _overlap(spans: pl.DataFrame) -> bool:
    """Whether at some moment of each recording window every trace of it was recording."""
    windows = spans.group_by("iteration").agg(pl.col("start_ns").max(), pl.col("end_ns").min())
    return bool((windows["start_ns"] < windows["end_ns"]).all())
