"""The strip: activity of all ranks in one step, on one clock."""

from __future__ import annotations

from dataclasses import asdict
from math import inf
from typing import TYPE_CHECKING

from ccl_bench.base.text import counted
from ccl_bench.base.units import SECOND_NS
from ccl_bench.report.context import absent, table
from ccl_bench.report.formatting import duration, size
from ccl_bench.report.page_model import PageSection, PageStrip, Quantity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.report.context import Context
    from ccl_bench.report.page_model import Cell, PageTable
    from ccl_bench.result.drill_down import Strip, StripName, StripRank

KEY, TITLE = "strip", "One step, rank by rank"

_PARTS = {
    "compute": "compute",
    "fused": "fused",
    "exposed_communication": "exposed communication",
    "exposed_memory": "exposed memory",
    "idle": "idle",
}


def strip(context: Context) -> PageSection:
    """Return the section."""
    timeline = context.series.strip
    if timeline is None:
        return absent(KEY, TITLE, context.why("gpu_busy"))
    several = len(timeline.ranks) > 1
    title = f"Step {timeline.step} of {'all ranks' if several else f'rank {timeline.ranks[0].rank}'}"
    drawn = PageStrip(
        title, _summary(timeline), _data(timeline), _table(timeline), " ".join(_notes(timeline))
    )
    about = (
        "Activity of every rank in the middle one of the recorded steps. A row has the colour "
        "of compute while anything computes, else that of communication, else that of copies, as "
        "in the step breakdown. Open a rank to see its streams or threads."
    )
    return PageSection(KEY, TITLE, about, strip=drawn)


def _summary(timeline: Strip) -> str:
    length = duration(timeline.length * timeline.unit_ns / SECOND_NS)
    took = f"Step {timeline.step} takes {length} from the first rank's start to the last rank's end."
    late = [(rank.late_s, rank.rank) for rank in timeline.ranks if rank.late_s]
    if not late:
        return took
    late_s, latest = max(late, key=lambda each: each[0])
    least = f"Rank {latest} waits least for others, {duration(late_s)} less than the one"
    return f"{took} {least} that waits most."


def _notes(timeline: Strip) -> Iterator[str]:
    if timeline.drawn < timeline.pieces:
        yield f"Short neighbours are drawn as one: {timeline.drawn:,} pieces for {timeline.pieces:,}."
    if timeline.others:
        yield f"{counted(timeline.others, 'trace')} without this step."
    yield f"{timeline.clocks[0].upper()}{timeline.clocks[1:]}."


def _data(timeline: Strip) -> dict[str, object]:
    return {
        "unit_ns": timeline.unit_ns,
        "length": timeline.length,
        "names": list(map(_name, timeline.names)),
        "by_lateness": [rank.rank for rank in timeline.ranks] != [rank.rank for rank in _by_number(timeline)],
        "ranks": [
            {
                "rank": rank.rank,
                "node": rank.node,
                "start": rank.start,
                "length": rank.length,
                "late": duration(rank.late_s) if rank.late_s else "",
                "lanes": list(map(asdict, rank.lanes)),
            }
            for rank in timeline.ranks
        ],
    }


def _by_number(timeline: Strip) -> list[StripRank]:
    return sorted(timeline.ranks, key=lambda rank: int(rank.rank) if rank.rank.isdigit() else inf)


def _name(name: StripName) -> str:
    return name.text if name.size_bytes is None else f"{name.text}, {size(name.size_bytes)}"


def _table(timeline: Strip) -> PageTable:
    has_fused = any(rank.parts_s["fused"] for rank in timeline.ranks)
    titles = {part: title for part, title in _PARTS.items() if part != "fused" or has_fused}
    rows = [
        (
            rank.rank,
            "-" if rank.node is None else str(rank.node),
            *(_time(rank.parts_s[part]) for part in titles),
            _time(sum(rank.parts_s.values())),
            _time(rank.waited_s),
            _time(rank.late_s),
        )
        for rank in timeline.ranks
    ]
    head = ("rank", "node", *titles.values(), "step", "waited", "waited less than the most")
    return table(head, rows, left=(0, 1))


def _time(seconds: float | None) -> Cell:
    return "-" if seconds is None else Quantity(seconds, duration(seconds))
