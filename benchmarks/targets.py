"""The targets for speed and memory, and what was measured of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from printing import OURS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from commands import Timed
    from measuring import Figures

_UNDISTURBED = 1.15
_GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Target:
    """One figure that is aimed at."""

    what: str
    aim: str
    measured: str
    is_reached: bool
    beside: str = ""
    """Figures of the same run that show what it means."""


def of_loading(loads: dict[str, Figures]) -> Iterator[Target]:
    """Yield what concerns the way from one file to tables, as ratios of CPU time on one core."""
    ours = loads[OURS]
    for peer, what, aim in (
        ("HTA", "load time of HTA over ours", 25.0),
        ("simdjson", "our rate over that of a bare simdjson parse", 0.3),
    ):
        theirs = loads[peer]
        if not (ours.error or theirs.error):
            ratio = theirs.cpu_s / ours.cpu_s
            beside = f"CPU time: {peer} {theirs.cpu_s:.3f} s, {OURS} {ours.cpu_s:.3f} s"
            yield Target(what, f">= {aim:g}", f"{ratio:.2f}", ratio >= aim, beside)


def of_cores(scaling: dict[str, Figures]) -> Iterator[Target]:
    """Yield what two cores bring over one, of the best wall times: other programs only lengthen them."""
    if not any(its.error for its in scaling.values()):
        ours, control = (
            min(scaling[f"{kind}1 core"].wall) / min(scaling[f"{kind}2 cores"].wall)
            for kind in ("", "control, ")
        )
        what = "8 ranks: one core's time over that of two"
        beside = f"two processes that share nothing: {control:.2f}"
        yield Target(what, ">= 1.7", f"{ours:.2f}", ours >= 1.7, beside)


def of_commands(whole: dict[str, Timed]) -> Iterator[Target]:
    """Yield what concerns whole processes, in wall time."""
    second = whole["second metric of the run"].wall_s
    beside = f"the first metric, which reads the trace: {whole['first metric of a run'].wall_s:.2f} s"
    yield Target(
        "second metric of a run, whole process", "<= 0.6 s", f"{second:.2f} s", second <= 0.6, beside
    )
    start = whole["ccl-bench --help"].wall_s
    beside = f"Python alone {whole['python -c pass'].wall_s:.2f} s"
    yield Target("start of the command", "<= 0.3 s", f"{start:.2f} s", start <= 0.3, beside)


def of_memory(sizes: dict[str, Timed], largest: str, kind: str) -> Iterator[Target]:
    """Yield the peak memory of the largest file."""
    if largest in sizes:
        timed = sizes[largest]
        peak = timed.peak_bytes
        beside = f"in {timed.wall_s:.0f} s"
        what = f"memory for {kind} of one rank of {largest}"
        yield Target(what, "<= 1.5 GB", f"{peak / _GIGA:.2f} GB", peak <= 1.5 * _GIGA, beside)


def table(targets: Iterable[Target]) -> str:
    """Return the targets as a Markdown table."""
    rows = [("what", "target", "measured", "", "for comparison"), ("---",) * 5]
    rows += [(t.what, t.aim, t.measured, "reached" if t.is_reached else "missed", t.beside) for t in targets]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def disturbance(figures: Iterable[Figures]) -> str:
    """Say so where contestants that never wait had to wait for their core; empty where they had not."""
    waited = [its.wall_s / its.cpu_s for its in figures if not its.error]
    if max(waited, default=1) < _UNDISTURBED:
        return ""
    return (
        f"Other programs kept the cores busy (up to {max(waited):.1f} s of wall time for 1 s of CPU time): "
        "wall times, and what follows from them, mean little."
    )
