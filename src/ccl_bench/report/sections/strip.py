"""The strip: activity of all ranks in one step, on one clock."""

from __future__ import annotations

from dataclasses import asdict
from math import inf
from typing import TYPE_CHECKING

from ccl_bench.base.text import counted
from ccl_bench.base.units import SECOND_NS
from ccl_bench.report.context import absent, cell, table
from ccl_bench.report.formatting import duration, size
from ccl_bench.report.page_model import PageSection, PageStrip

if TYPE_CHECKING:
    from ccl_bench.report.context import Context
    from ccl_bench.report.page_model import PageTable
    from ccl_bench.result.drill_down import Strip

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
    length = duration(timeline.length * timeline.unit_ns / SECOND_NS)
    summary = f"Step {timeline.step} takes {length} from the first rank's start to the last rank's end."
    late = [(rank.late_s, rank.rank) for rank in timeline.ranks if rank.late_s]
    if late:
        late_s, latest = max(late, key=lambda each: each[0])
        summary += (
            f" Rank {latest} waits least for others, {duration(late_s)} less than the one that waits most."
        )
    notes = []
    if timeline.drawn < timeline.pieces:
        notes.append(f"Short neighbours are drawn as one: {timeline.drawn:,} pieces for {timeline.pieces:,}.")
    if timeline.others:
        notes.append(f"{counted(timeline.others, 'trace')} without this step.")
    notes.append(f"{timeline.clocks[0].upper()}{timeline.clocks[1:]}.")
    drawn = PageStrip(
        f"Step {timeline.step} of {'all ranks' if several else f'rank {timeline.ranks[0].rank}'}",
        summary,
        _data(timeline),
        _table(timeline),
        " ".join(notes),
    )
    about = (
        "Activity of every rank in the middle one of the recorded steps. A row has the colour "
        "of compute while anything computes, else that of communication, else that of copies, as "
        "in the step breakdown. Open a rank to see its streams or threads."
    )
    return PageSection(KEY, TITLE, about, strip=drawn)


def _data(timeline: Strip) -> dict[str, object]:
    """Return what the script of the page draws."""
    by_number = sorted(timeline.ranks, key=lambda rank: int(rank.rank) if rank.rank.isdigit() else inf)
    return {
        "unit_ns": timeline.unit_ns,
        "length": timeline.length,
        "names": [
            name.text if name.size_bytes is None else f"{name.text}, {size(name.size_bytes)}"
            for name in timeline.names
        ],
        "by_lateness": [rank.rank for rank in timeline.ranks] != [rank.rank for rank in by_number],
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


def _table(timeline: Strip) -> PageTable:
    has_fused = any(rank.parts_s["fused"] for rank in timeline.ranks)
    titles = {part: title for part, title in _PARTS.items() if part != "fused" or has_fused}
    rows = [
        (
            rank.rank,
            "-" if rank.node is None else str(rank.node),
            *(cell(rank.parts_s[part], duration) for part in titles),
            cell(sum(rank.parts_s.values()), duration),
            cell(rank.waited_s, duration),
            cell(rank.late_s, duration),
        )
        for rank in timeline.ranks
    ]
    head = ("rank", "node", *titles.values(), "step", "waited", "waited less than the most")
    return table(head, rows, left=(0, 1))
