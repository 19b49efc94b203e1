"""Which traces of a run can stand side by side, and which would make a number over ranks wrong.

A trace that was cut short holds fewer calls and less work than its rank did; one without
device work beside others with it was recorded differently; a step means something else where it
was found in another way. Each is left out, by name, as long as better ones are left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ccl_bench.engine.reduction import Reduced

STEP_SOURCES = ("ProfilerStep", "numbered range", "optimizer range", "communication pattern", "whole trace")
"""How steps are found, the best first."""

CUT_SHORT = frozenset({"file-truncated", "file-broken-off"})
"""Findings after which nobody knows how much of a trace is missing."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Traces, by position, that tables of steps must do without, and why."""

    other_steps: frozenset[int] = frozenset()
    """Those whose steps were found in a lesser way than others: they are other steps."""
    incomplete: frozenset[int] = frozenset()
    """Those that lack work: their steps are steps, with too little in them."""
    findings: tuple[Finding, ...] = ()


def left_out(traces: Sequence[Reduced], contents: Collection[str]) -> LeftOut:
    """Return which traces are not comparable with the others; `contents` are tables of what steps hold."""
    read = {position: trace for position, trace in enumerate(traces) if trace.sha256}
    other_steps = _with_other_steps(read)
    rest = _without(read, other_steps)
    lacking = _without_device(rest)
    cut = _cut_short(_without(rest, lacking))
    reasons = (
        ("steps-unmarked", other_steps, "its steps are not marked as those of other ranks are", ("steps",)),
        ("no-device-work", lacking, "it holds no work of a device, and those of other ranks do", ()),
        ("trace-left-out", cut, "it is cut short, so that what its steps hold would come out too low", ()),
    )
    findings = tuple(
        _finding(code, read[position], why, (*more, *contents))
        for code, positions, why, more in reasons
        for position in positions
        if more or contents
    )
    return LeftOut(frozenset(other_steps), frozenset([*lacking, *cut]), findings)


def _without(traces: dict[int, Reduced], positions: Iterable[int]) -> dict[int, Reduced]:
    return {position: trace for position, trace in traces.items() if position not in positions}


def _finding(code: str, trace: Reduced, why: str, touches: tuple[str, ...]) -> Finding:
    file = trace.trace.relative
    return Finding(code, "warning", f"{file} is left out: {why}", file, trace.rank, touches=touches)


def _with_other_steps(traces: dict[int, Reduced]) -> list[int]:
    places = {position: place for position, trace in traces.items() if (place := _place(trace)) is not None}
    best = min(places.values(), default=0)
    return [position for position, place in places.items() if place > best]


def _place(trace: Reduced) -> int | None:
    """Return how good the way is in which the trace's steps were found; 0 is the best."""
    steps = trace.tables.get("steps")
    if steps is None or steps.is_empty():
        return None
    source = steps["source"][0]
    return STEP_SOURCES.index(source) if source in STEP_SOURCES else 0


def _without_device(traces: dict[int, Reduced]) -> list[int]:
    if not any(trace.on_device for trace in traces.values()):
        return []
    return [position for position, trace in traces.items() if trace.on_device is False]


def _cut_short(traces: dict[int, Reduced]) -> list[int]:
    cut = [p for p, trace in traces.items() if any(f.code in CUT_SHORT for f in trace.findings)]
    return cut if len(cut) < len(traces) else []
