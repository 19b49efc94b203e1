"""Order of a device's work: a stream runs one piece after another, each after its launch.

Work that breaks this order has a damaged time: a counter that overflowed (TraceLens#669), a lost end, another
unit. In no recording that we have does a piece end before an earlier one of its stream, begin before its
launch, or end after a wait for the device returned. Kernels of one graph may run beside each other, also
where the recorder gives them one stream, and a kernel may begin before the one before it ends (programmatic
dependent launch). Few damaged records are left out; with many the trace is refused.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.base.units import MILLISECOND_NS, ROUNDING_NS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FEW, FEW_SHARE = 3, 0.01
"""Pieces of work, as a count and as a share of all, up to which single records are damaged."""

OVERLAP_SHARE = 0.01
"""Share of a device's work that may run beside its own stream without a warning: results have three digits,
of which the last is then in doubt."""

SHORTEST_NS = 100
"""Length of a kernel that no device reaches: the shortest in our recordings takes 639 ns."""

SHORT, SHORT_SHARE = 20, 0.2
"""Kernels that are shorter, as a count and as a share, from which on times are in another unit.

Of the kernels of our recordings, 22 to 97 % would be if their times were divided by a thousand.
"""

ROUNDED_NS = 3_000
"""Length from which a kernel cannot have been rounded to 0 where times are whole microseconds."""

IDLE_NS = 100_000
"""Time without work after which a device was waiting for its host: gaps between queued work are shorter."""

FEWEST_WAITS = 10
"""Times that a device waited for its host from which on the shortest delay shows the clocks."""

LATE_NS = MILLISECOND_NS
"""Delay between launch and work that no device has each time: the shortest in a recording is 5 to 27 us."""

_OF_WORK = ("start_ns", "end_ns", "device", "stream", "correlation")

COLUMNS = {
    "kernels": (*_OF_WORK, "name"),
    "memcpy": _OF_WORK,
    "launches": ("start_ns", "end_ns", "name", "correlation"),
}
"""The tables that show the order, each with the columns that do."""

_WAITS = r"^(?:cuda|hip)DeviceSynchronize|^(?:cu|hip)CtxSynchronize"
"""Names of calls that return when all work of the device is done."""

_WORK = ("kernels", "memcpy")
_UNIT_FIX = "check the unit of its times, or record the trace again"


def drop_disordered(
    tables: Mapping[str, pl.DataFrame], file: str
) -> tuple[dict[str, pl.DataFrame], list[Finding]]:
    """Return the tables without damaged records of a device, and findings on its times.

    Raises InputError if too many are damaged.
    """
    possible, findings = in_order(tables["kernels"], tables["memcpy"], tables["launches"], file)
    return dict(tables) | {name: tables[name].filter(mask) for name, mask in possible.items()}, findings


def in_order(
    kernels: pl.DataFrame, memcpy: pl.DataFrame, launches: pl.DataFrame, file: str
) -> tuple[dict[str, pl.Series], list[Finding]]:
    """Return which rows of `kernels` and `memcpy` are possible, where any is not, and findings on all times.

    The tables need no columns but `COLUMNS`. Raises InputError if too many are impossible.
    """
    work = pl.concat([kernels.select(_OF_WORK), memcpy.select(_OF_WORK)])
    if work.is_empty():
        return {}, []
    lengths = kernels["end_ns"] - kernels["start_ns"]
    short = int(((lengths > 0) & (lengths < SHORTEST_NS)).sum())
    if short >= max(SHORT, SHORT_SHARE * lengths.len()):
        message = (
            f"{short:,} of {lengths.len():,} kernels last less than {SHORTEST_NS} ns, which no device does: "
            "times are in another unit than its format states"
        )
        raise InputError(message, where=file, fix=_UNIT_FIX)
    calls = launches.select("correlation", launch_ns="start_ns", launch_end_ns="end_ns")
    calls = calls.filter(pl.col("correlation") > 0).unique("correlation", keep="first", maintain_order=True)
    launched = work.join(calls, on="correlation", how="left", maintain_order="left")
    is_damaged = _beside_their_stream(work) | _after_waits(launched, launches)
    findings: list[Finding] = []
    if count := int(is_damaged.sum()):
        if count > max(FEW, FEW_SHARE * work.height):
            message = (
                f"{count:,} of {work.height:,} kernels and copies end after later ones of their stream, or "
                "after a wait for the device: their durations cannot be right"
            )
            raise InputError(message, where=file, fix=_UNIT_FIX)
        subject = counted(count, "kernel or copy ends", "kernels and copies end")
        message = f"{subject} after later work of the same stream, or after a wait for the device: left out"
        findings.append(Finding("impossible-time", "warning", message, file, count=count, touches=_WORK))
        launched = launched.filter(~is_damaged)
    findings += [
        *_overlapping(launched, file),
        *_before_launches(launched, file),
        *_long_after_launches(launched, file),
        *_without_length(kernels, memcpy, file),
    ]
    if not count:
        return {}, findings
    split = kernels.height
    return {"kernels": ~is_damaged.head(split), "memcpy": ~is_damaged.slice(split)}, findings


_STREAM = ("device", "stream")


def _beside_their_stream(work: pl.DataFrame) -> pl.Series:
    """Mark the work that must be left out, as little as possible, for each stream to end in order."""
    none = pl.Series([False]).new_from_index(0, work.height)
    rows = work.with_row_index("row").drop_nulls("stream").sort("start_ns", "end_ns")
    if not rows.select(_reach() - pl.col("end_ns") > ROUNDING_NS).to_series().any():
        return none
    units = _units(rows)
    suspects = units.filter((_reach() - pl.col("end_ns") > ROUNDING_NS).any().over(*_STREAM))
    limits = [
        limit for _, stream in suspects.group_by(*_STREAM, maintain_order=True) for limit in _limits(stream)
    ]
    damaged = pl.DataFrame(limits, {"unit": pl.Int64, "limit_ns": pl.Int64}, orient="row")
    culprits = rows.with_columns(_unit()).join(damaged, on="unit", maintain_order="left")
    beyond = (pl.col("end_ns") > pl.col("limit_ns") + ROUNDING_NS) | pl.col("limit_ns").is_null()
    return none.scatter(culprits.filter(beyond)["row"], True)


def _reach() -> pl.Expr:
    """Return until when the earlier work of a stream goes on; rows are in order of start."""
    return pl.col("end_ns").cum_max().shift(1).over(*_STREAM)


def _unit() -> pl.Expr:
    """Return the first row of the same stream and launch; a graph launches several pieces at once."""
    is_numbered = pl.col("correlation") > 0
    first = pl.col("row").first().over(*_STREAM, "correlation")
    return pl.when(is_numbered).then(first).otherwise("row").cast(pl.Int64).alias("unit")


def _units(rows: pl.DataFrame) -> pl.DataFrame:
    """Return what one launch started on a stream, as one piece, in order of start."""
    numbered = rows.with_columns(_unit())
    spans = (pl.col("start_ns").min(), pl.col("end_ns").max())
    return numbered.group_by("unit", *_STREAM, maintain_order=True).agg(spans).sort("start_ns", "end_ns")


def _limits(stream: pl.DataFrame) -> list[tuple[int, int | None]]:
    """Return the damaged units of a stream, each with its latest possible end; None if no end is possible."""
    ends = stream["end_ns"].to_list()
    kept = _longest_in_order(ends)
    far = max(ends) + 1
    earlier = [end if keep else 0 for end, keep in zip(ends, kept, strict=True)]
    later = [end if keep else far for end, keep in zip(ends, kept, strict=True)]
    least = accumulate(earlier, max)
    latest = [*accumulate(reversed(later), min)][::-1]
    return [
        (unit, limit if end > limit + ROUNDING_NS else None)
        for unit, end, keep, before, limit in zip(stream["unit"], ends, kept, least, latest, strict=True)
        if not keep and (end > limit + ROUNDING_NS or end < before - ROUNDING_NS)
    ]


def _longest_in_order(ends: Sequence[int]) -> list[bool]:
    """Mark the most of `ends` that do not decrease, by patience sorting; of two that do, the smaller."""
    tails: list[int] = []
    places: list[int] = []
    before: list[int] = []
    for place, end in enumerate(ends):
        pile = bisect_right(tails, end)
        before.append(places[pile - 1] if pile else -1)
        if pile == len(tails):
            tails.append(end)
            places.append(place)
        else:
            tails[pile], places[pile] = end, place
    kept = [False] * len(ends)
    place = places[-1] if places else -1
    while place >= 0:
        kept[place] = True
        place = before[place]
    return kept


def _after_waits(launched: pl.DataFrame, launches: pl.DataFrame) -> pl.Series:
    """Mark the work that ends after a wait for the device that began when it had been launched.

    A wait is for one device, so that those of a process with several say nothing.
    """
    none = pl.Series([False]).new_from_index(0, launched.height)
    waits = launches.filter(pl.col("name").cast(pl.String).str.contains(_WAITS))
    if waits.is_empty() or launched["device"].n_unique() > 1:
        return none
    waits = waits.select("start_ns", over_ns="end_ns").sort("start_ns")
    over = waits["over_ns"].reverse().cum_min().reverse()
    following = waits["start_ns"].search_sorted(launched["launch_end_ns"], side="left")
    over_ns = over.extend_constant(None, 1).gather(following)
    return (launched["end_ns"] > over_ns + ROUNDING_NS).fill_null(value=False)


def _before_launches(launched: pl.DataFrame, file: str) -> list[Finding]:
    early = (launched["launch_ns"] - launched["start_ns"]).drop_nulls()
    early = early.filter(early > ROUNDING_NS)
    if early.is_empty():
        return []
    most_ns = int(early.max())  # type: ignore[arg-type]  # of numbers it is one
    subject = counted(early.len(), "kernel or copy begins", "kernels and copies begin")
    message = (
        f"{subject} before its launch, by up to {most_ns / MILLISECOND_NS:.4g} ms: the clocks of host and "
        "device differ, or times are damaged"
    )
    return [Finding("work-before-launch", "error", message, file, count=early.len(), touches=_WORK)]


def _long_after_launches(launched: pl.DataFrame, file: str) -> list[Finding]:
    """Report a device that was idle, and began no work within a millisecond of its launch.

    Queued work begins when the work before it ends, however long ago it was launched. After a pause of the
    device, it begins within microseconds: a delay each time is one of the clocks.
    """
    ended_ns = pl.col("end_ns").cum_max().shift(1).over("device")
    is_first = (pl.col("correlation") <= 0) | (
        pl.col("start_ns") == pl.col("start_ns").min().over("correlation")
    )
    waited = launched.sort("start_ns").filter(pl.col("start_ns") - ended_ns > IDLE_NS, is_first)
    delays = waited.select(pl.col("start_ns") - pl.col("launch_ns")).to_series().drop_nulls()
    if delays.len() < FEWEST_WAITS or (least_ns := int(delays.min())) <= LATE_NS:  # type: ignore[arg-type]
        return []
    message = (
        f"after each of {delays.len():,} pauses, the device begins work at least "
        f"{least_ns / MILLISECOND_NS:.4g} ms after its launch: its clock is ahead of that of the host, or it "
        "waited for something that is not recorded"
    )
    return [Finding("device-clock-ahead", "warning", message, file, count=delays.len(), touches=_WORK)]


def _overlapping(work: pl.DataFrame, file: str) -> list[Finding]:
    """Report work that begins before the work of earlier launches on its stream ends."""
    rows = work.with_row_index("row").drop_nulls("stream").sort("start_ns", "end_ns")
    overlap = pl.min_horizontal(_reach().fill_null(0), "end_ns") - pl.col("start_ns")
    if not (rows.select(overlap > ROUNDING_NS).to_series()).any():
        return []
    units = _units(rows).select(overlap=overlap.clip(0), length=pl.col("end_ns") - pl.col("start_ns"))
    if not (count := int((units["overlap"] > ROUNDING_NS).sum())):
        return []
    beside_ns, length_ns = int(units["overlap"].sum()), int(units["length"].sum())
    severity = "warning" if beside_ns > OVERLAP_SHARE * length_ns else "note"
    message = (
        f"{counted(count, 'kernel or copy begins', 'kernels and copies begin')} before earlier work of the "
        f"same stream ends, {100 * beside_ns / length_ns:.2g} % of its time: by programmatic dependent "
        "launch, or durations are too long; sums of times count this part twice"
    )
    return [Finding("streams-overlap", severity, message, file, count=count, touches=_WORK)]


def _without_length(kernels: pl.DataFrame, memcpy: pl.DataFrame, file: str) -> list[Finding]:
    """Report kernels and copies that are shorter than any device runs one, and not because of rounding."""
    length = pl.col("end_ns") - pl.col("start_ns")
    is_empty = kernels.select(length == 0).to_series()
    is_lost = is_empty
    if is_empty.any() and not (kernels["start_ns"] % 1_000 != 0).any():
        shortest = kernels.select(pl.when(length > 0).then(length).min().over("name")).to_series()
        is_lost = is_empty & (shortest >= ROUNDED_NS).fill_null(value=bool(is_empty.all()))
    is_short = (length > 0) & (length < SHORTEST_NS)
    short = sum(int(table.select(is_short).to_series().sum()) for table in (kernels, memcpy))
    if 2 * short > kernels.height + memcpy.height:
        short = 0  # a few that are all so short may be of any unit
    if not (count := int(is_lost.sum()) + short):
        return []
    subject = counted(count, "kernel or copy is", "kernels and copies are")
    message = f"{subject} shorter than any device runs one: times of kernels and copies are too low"
    return [Finding("lengths-lost", "warning", message, file, count=count, touches=_WORK)]
