"""The targets for speed and memory, and the measured values: CPU time and wall time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import commands
import whole_traces
from printing import MEGA, OURS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from commands import Timed
    from inputs import Input
    from measuring import Figures

_UNDISTURBED = 1.15
_GIGA = 1e9
_MIB = 1 << 20
_LARGE = 10**7
"""Size of a file, bytes, from which on its load is compared with HTA's."""


@dataclass(frozen=True, slots=True)
class Target:
    """One target."""

    what: str
    aim: str
    measured: str
    """By CPU time, or bytes."""
    is_reached: bool
    wall: str = ""
    """The same by wall time."""
    beside: str = ""
    """Figures of the same run that show what it means."""


@dataclass(frozen=True, slots=True)
class _Ratio:
    """A ratio of two contestants on one input."""

    input: str
    cpu: float
    wall: float
    beside: str


def _ratios(
    figures: Mapping[str, Mapping[str, Figures]], over: str, under: str, names: Iterable[str]
) -> Iterator[_Ratio]:
    for name in names:
        both = figures.get(name, {})
        if over in both and under in both and not (both[over].error or both[under].error):
            first, second = both[over], both[under]
            beside = f"{name}: CPU time of {over} {first.cpu_s:.3f} s, of {under} {second.cpu_s:.3f} s"
            yield _Ratio(name, first.cpu_s / second.cpu_s, first.wall_s / second.wall_s, beside)


def of_loading(figures: Mapping[str, Mapping[str, Figures]], measured: Iterable[Input]) -> Iterator[Target]:
    """Yield the targets for reading one file into tables: the worst trace, on one core."""
    files = list(measured)
    large = [one.name for one in files if one.size >= _LARGE * len(one.files)]
    rows = (
        ("load of HTA over ours, worst file of 10 MB and more", "HTA", OURS, large, 30.0),
        ("load of TraceLens over ours, worst file of 10 MB and more", "TraceLens", OURS, large, 30.0),
        ("our rate over that of bare simdjson, worst trace", "simdjson", OURS, [k.name for k in files], 0.7),
    )
    for what, over, under, names, aim in rows:
        if ratios := list(_ratios(figures, over, under, names)):
            worst = min(ratios, key=lambda ratio: ratio.cpu)
            yield _at_least(what, aim, worst.cpu, worst.wall, worst.beside)


def of_formats(figures: Mapping[str, Mapping[str, Figures]], measured: Iterable[Input]) -> Iterator[Target]:
    """Yield the targets for other formats: the rate, the time over that of a peer, and the memory."""
    by_name = {one.name: one for one in measured}
    for name, aim in RATES.items():
        if name in by_name and not (ours := figures[name][TABLES]).error:
            rate, wall = (by_name[name].size / MEGA / seconds for seconds in (ours.cpu_s, ours.wall_s))
            what = f"{name}, MB/s"
            yield Target(what, f">= {aim:g}", f"{rate:.0f}", rate >= aim, f"{wall:.0f}")
    for name, (over, under, aim) in OVER_PEER.items():
        for ratio in _ratios(figures, over, under, [name]):
            yield _at_most(f"{name}: {over} over {under}", aim, ratio.cpu, ratio.wall, ratio.beside)
    for name, aim in MEMORY.items():
        if name in by_name and not (ours := figures[name][TABLES]).error:
            share = (ours.peak_bytes - ours.idle_bytes) / by_name[name].size
            what = f"{name}: memory above that of an idle process, over the file"
            yield Target(what, f"<= {aim:g}", f"{share:.2f}", share <= aim)


TABLES = "ccl-bench, tables"
RATES = {"nsys": 150.0, "Execution Trace": 300.0}
"""Input → MB/s that are aimed at."""
OVER_PEER = {
    "nsys": ("ccl-bench, overlap", "nsys-ai, overlap", 1.0),
    "serving": (TABLES, "orjson", 1.5),
    "memory snapshot": (TABLES, "pickle.load", 2.0),
}
"""Input → ours, a peer, and the ratio of times that is aimed at."""
MEMORY = {"nsys": 0.3, "serving": 2.0}
"""Input → memory over the size of the file that is aimed at."""


def of_cores(scaling: Mapping[str, Figures], what: str, one: str, two: str, aim: float) -> Iterator[Target]:
    """Yield the gain of two cores over one, and that of two processes that share nothing.

    Only wall times can show it: the best of the rounds, because other programs only lengthen them.
    """
    if any(result.error for result in scaling.values()):
        return
    pairs = ((one, two), ("control, 1 core", "control, 2 cores"))
    ours, control = (min(scaling[a].wall) / min(scaling[b].wall) for a, b in pairs)
    share = ours / control
    beside = f"{ours:.2f} times as fast, two processes that share nothing {control:.2f} times"
    yield Target(what, f">= {aim:g}", "", share >= aim, f"{share:.2f}", beside)


def of_commands(whole: Mapping[str, Timed]) -> Iterator[Target]:
    """Yield the targets for whole processes."""
    cpu, wall = whole[commands.AGAIN].cpu_s, whole[commands.AGAIN].wall_s
    others = (commands.NOTHING, commands.SECOND, commands.FIRST)
    beside = ", ".join(f"{name} {whole[name].cpu_s:.3f} s" for name in others)
    yield Target(
        "the same metric again, 59 MB", "<= 0.6 s", f"{cpu:.2f} s", cpu <= 0.6, f"{wall:.2f} s", beside
    )


def of_whole_traces(compared: Mapping[str, Mapping[str, Timed]]) -> Iterator[Target]:
    """Yield the CPU time of another program over ours, for one cold trace: the worst one."""
    for over, under, aim in (
        (whole_traces.HTA, whole_traces.METRICS, 8.0),
        (whole_traces.TRACELENS, whole_traces.REPORT, 5.0),
    ):
        both = {
            name: (each[over], each[under]) for name, each in compared.items() if {over, under} <= {*each}
        }
        if both:
            worst = min(both, key=lambda name: both[name][0].cpu_s / both[name][1].cpu_s)
            theirs, ours = both[worst]
            beside = f"{worst}: CPU time {theirs.cpu_s:.2f} s and {ours.cpu_s:.2f} s"
            ratios = theirs.cpu_s / ours.cpu_s, theirs.wall_s / ours.wall_s
            yield _at_least(f"{over}, over {under}, one cold trace", aim, *ratios, beside)


def of_ranks(costs: Mapping[int, Mapping[str, Timed]]) -> Iterator[Target]:
    """Yield the cost of one more rank of 10 MB, and of a report beyond every metric."""
    fewer, more = min(costs), max(costs)
    for what, name, aim in (
        ("every metric, nothing kept, each rank of 10 MB", commands.COLD, 45.0),
        ("every metric, tables kept, each rank", commands.WARM, 3.0),
    ):
        few, many = costs[fewer][name], costs[more][name]
        cpu, wall = (
            (after - before) / (more - fewer) * 1e3
            for before, after in ((few.cpu_s, many.cpu_s), (few.wall_s, many.wall_s))
        )
        beside = f"{fewer} ranks {few.cpu_s:.2f} s, {more} ranks {many.cpu_s:.2f} s"
        yield Target(what, f"<= {aim:g} ms", f"{cpu:.1f} ms", cpu <= aim, f"{wall:.1f} ms", beside)
    report, every = costs[fewer][commands.REPORT], costs[fewer][commands.WARM]
    cpu, wall = report.cpu_s - every.cpu_s, report.wall_s - every.wall_s
    beside = f"{fewer} ranks: the report {report.cpu_s:.2f} s, every metric {every.cpu_s:.2f} s"
    yield Target(
        "HTML report over every metric", "<= 0.15 s", f"{cpu:+.2f} s", cpu <= 0.15, f"{wall:+.2f} s", beside
    )


def of_pipes(costs: Mapping[str, Timed]) -> Iterator[Target]:
    """Yield the memory of a command whose output goes into a pipe: the worst run."""
    worst = max(costs.values(), key=lambda timed: timed.peak_bytes)
    peak = worst.peak_bytes / _MIB
    yield Target(
        "`inspect` into a pipe, worst run", "<= 110 MiB", f"{peak:.0f} MiB", peak <= 110, "", worst.name
    )


def of_digest(sizes: Mapping[str, Timed], digest: Figures, largest: str) -> Iterator[Target]:
    """Yield one metric of a large file over the SHA-256 that its result states."""
    if largest in sizes and not digest.error:
        ours = sizes[largest]
        beside = f"{ours.cpu_s:.2f} s, SHA-256 alone {digest.cpu_s:.2f} s"
        ratios = ours.cpu_s / digest.cpu_s, ours.wall_s / digest.wall_s
        yield _at_most(f"one metric of {largest}, cold, over its SHA-256", 2.0, *ratios, beside)


def of_board(cpu_ms: Mapping[str, float]) -> Iterator[Target]:
    """Yield the cost of a growing leaderboard: the worst of the pages, and of the publications."""
    for kind, is_one, aim in (
        ("a page of the leaderboard", lambda what: "page" in what or "newest" in what, 30.0),
        ("a page of the leaderboard, narrowed", lambda what: "narrowed" in what, 30.0),
        ("a publication", lambda what: "publish" in what, 20.0),
    ):
        worst = max(filter(is_one, cpu_ms), key=cpu_ms.__getitem__)
        measured = cpu_ms[worst]
        yield Target(kind, f"<= {aim:g} ms", f"{measured:.1f} ms", measured <= aim, "", worst)


def of_memory(sizes: Mapping[str, Timed], largest: str, kind: str) -> Iterator[Target]:
    """Yield the peak memory of the largest file."""
    if largest in sizes:
        timed = sizes[largest]
        peak, beside = timed.peak_bytes / _GIGA, f"in {timed.wall_s:.0f} s"
        what = f"memory for {kind} of one rank of {largest}"
        yield Target(what, "<= 1.5 GB", f"{peak:.2f} GB", peak <= 1.5, "", beside)


def _at_least(what: str, aim: float, cpu: float, wall: float, beside: str) -> Target:
    return Target(what, f">= {aim:g}", f"{cpu:.2f}", cpu >= aim, f"{wall:.2f}", beside)


def _at_most(what: str, aim: float, cpu: float, wall: float, beside: str) -> Target:
    return Target(what, f"<= {aim:g}", f"{cpu:.2f}", cpu <= aim, f"{wall:.2f}", beside)


def table(targets: Iterable[Target]) -> str:
    """Return the targets as a Markdown table."""
    rows = [("what", "target", "CPU", "wall", "", "for comparison"), ("---",) * 6]
    rows += [
        (t.what, t.aim, t.measured, t.wall, "reached" if t.is_reached else "missed", t.beside)
        for t in targets
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def disturbance(figures: Iterable[Figures]) -> str:
    """Return a remark if contestants that never wait had to wait for their core; else an empty text."""
    waited = [result.wall_s / result.cpu_s for result in figures if not result.error]
    if max(waited, default=1) < _UNDISTURBED:
        return ""
    return (
        f"Other programs kept the cores busy (up to {max(waited):.1f} s of wall time for 1 s of CPU time): "
        "wall times, and what follows from them, mean little."
    )
