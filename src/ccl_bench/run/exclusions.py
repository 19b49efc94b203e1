"""Which traces of a run compare with the others, and which would make a number over ranks wrong.

A trace that was cut short holds fewer calls and less work than its rank did; one without device work beside
others with it was recorded differently; a step means something else where it was found in another way. Each
is left out, by name, as long as better ones are left.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ccl_bench.analysis.derived import raw_needs
from ccl_bench.analysis.steps.choice import CHOSEN_RANGE
from ccl_bench.analysis.steps.marks import SOURCES
from ccl_bench.base.findings import Finding
from ccl_bench.result import WHOLE_TRACE
from ccl_bench.run.one_run import listed, several_runs_finding
from ccl_bench.run.trace_tables import CUT_SHORT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ccl_bench.run.trace_tables import TraceTables

FORMAT_RANGE = "range of the format"
"""Source of steps that are ranges of the name that the format of a trace gives them."""

STEP_SOURCES = (CHOSEN_RANGE, FORMAT_RANGE, *SOURCES, WHOLE_TRACE)
"""How steps are found, the best first."""

_NCCL = "nccl_version"
"""Attribute of a trace."""


@dataclass(frozen=True, slots=True)
class Exclusions:
    """Traces, by position, that tables of steps must do without, and why."""

    other_steps: frozenset[int] = frozenset()
    """Those whose steps were found in a lesser way than others: they are other steps."""
    incomplete: frozenset[int] = frozenset()
    """Those that lack work: their steps are steps, with too little in them."""
    whole_steps: dict[int, frozenset[int]] = field(default_factory=dict)
    """Of those of which only some steps are whole, these."""
    findings: tuple[Finding, ...] = ()


def find_exclusions(traces: Sequence[TraceTables], contents: Collection[str]) -> Exclusions:
    """Return which traces are not comparable with the others; `contents` are tables of what steps hold."""
    read = {position: trace for position, trace in enumerate(traces) if trace.sha256}
    other_steps = _with_other_steps(read)
    rest = _without(read, other_steps)
    lacking = _without_device(rest)
    cut, whole = _cut_short(_without(rest, lacking))
    reasons = (
        ("steps-unmarked", other_steps, "its steps are not marked as those of other ranks are", ("steps",)),
        ("no-device-work", lacking, "it holds no work of a device, and those of other ranks do", ()),
        ("trace-left-out", cut, "it is cut short, so that what its steps hold would come out too low", ()),
    )
    left_out = tuple(
        _finding(code, read[position], why, (*more, *contents))
        for code, positions, why, more in reasons
        for position in positions
        if more or contents
    )
    if whole and contents:
        left_out += (_cut_steps(whole, contents),)
    doubts = _device_unrecorded(rest.values()) or _without_communication(rest.values())
    found = (*(_by_library(read.values()) or _by_device(read.values())), *left_out, *doubts)
    return Exclusions(frozenset(other_steps), frozenset([*lacking, *cut]), whole, found)


def _by_device(traces: Iterable[TraceTables]) -> list[Finding]:
    """Return a finding where traces saw devices that have nothing in common.

    They can be of one run all the same, if every one of them says of how many ranks. What they ran on
    concerns every number of the run then.
    """
    seen: dict[frozenset[str], list[TraceTables]] = defaultdict(list)
    for trace in traces:
        if trace.devices:
            seen[trace.devices].append(trace)
    if len(seen) < 2 or frozenset.intersection(*seen):
        return []
    said = {f"one on {', '.join(sorted(n))}": [t.trace.relative for t in found] for n, found in seen.items()}
    if not all(trace.world_size for found in seen.values() for trace in found):
        return [several_runs_finding(said)]
    message = f"the ranks ran on different devices: {listed(said)}"
    return [Finding("devices-differ", "warning", message, count=len(seen))]


def _by_library(traces: Iterable[TraceTables]) -> list[Finding]:
    """Return a finding where ranks used different versions of NCCL, which refuses to connect them."""
    seen: dict[str, list[str]] = defaultdict(list)
    for trace in traces:
        if version := trace.attributes.get(_NCCL):
            seen[f"one with NCCL {version}"].append(trace.trace.relative)
    return [several_runs_finding(seen)] if len(seen) > 1 else []


def _device_unrecorded(traces: Collection[TraceTables]) -> list[Finding]:
    """Return a finding where no trace holds a kernel, and something shows that there was a device."""
    signs = {trace.trace.relative: trace.sign_of_device for trace in traces if trace.sign_of_device}
    if not signs or any(trace.on_device and not trace.sign_of_device for trace in traces):
        return []
    file, sign = next(iter(signs.items()))
    message = f"{file} holds no kernel but {sign}: work of the CPU does not stand in for that of a device"
    only_copies = all(trace.on_device for trace in traces if trace.sign_of_device)
    touches = ("kernels",) if only_copies else ("kernels", "memcpy")
    return [Finding("device-work-missing", "error", message, count=len(signs), touches=touches)]


def _without_communication(traces: Collection[TraceTables]) -> list[Finding]:
    """Return a finding where several ranks of one job communicate, and none of their calls is recognised."""
    expected = [trace for trace in traces if trace.communicates is not None]
    several = len({trace.rank for trace in traces}) > 1 or any((t.world_size or 1) > 1 for t in traces)
    if not expected or not several or any(trace.communicates for trace in traces):
        return []
    backends = sorted({trace.attributes.get("backend", "") for trace in expected} - {""})
    over = f" over {', '.join(backends)}" if backends else ""
    message = (
        f"a run of several ranks{over} in which no communication is recognised: what its kernels or ranges "
        "of communication are called is not known, and their time counts as compute"
    )
    touches = ("kernels", "cpu_ops", "annotations")
    return [Finding("communication-unrecognised", "error", message, count=len(expected), touches=touches)]


def _without(traces: dict[int, TraceTables], positions: Iterable[int]) -> dict[int, TraceTables]:
    return {position: trace for position, trace in traces.items() if position not in positions}


def _finding(code: str, trace: TraceTables, why: str, touches: tuple[str, ...]) -> Finding:
    file = trace.trace.relative
    return Finding(code, "warning", f"{file} is left out: {why}", file, trace.rank, touches=touches)


def _with_other_steps(traces: dict[int, TraceTables]) -> list[int]:
    places = {position: place for position, trace in traces.items() if (place := _place(trace)) is not None}
    best = min(places.values(), default=0)
    return [position for position, place in places.items() if place > best]


def _place(trace: TraceTables) -> int | None:
    """Return how good the way is in which the trace's steps were found; 0 is the best."""
    if not trace.steps_from:
        return None
    return STEP_SOURCES.index(trace.steps_from) if trace.steps_from in STEP_SOURCES else 0


def _without_device(traces: dict[int, TraceTables]) -> list[int]:
    if not any(trace.on_device for trace in traces.values()):
        return []
    return [position for position, trace in traces.items() if trace.on_device is False]


def _cut_short(traces: dict[int, TraceTables]) -> tuple[list[int], dict[int, frozenset[int]]]:
    """Return the traces that are cut short; where all are, none, but the whole steps of each."""
    with_steps = [position for position, trace in traces.items() if trace.steps_from]
    cut = [p for p, trace in traces.items() if any(f.code in CUT_SHORT for f in trace.findings)]
    if not cut or not {*with_steps} <= {*cut}:
        return cut, {}
    return [], {position: traces[position].whole_steps or frozenset() for position in with_steps}


def _cut_steps(whole: dict[int, frozenset[int]], contents: Collection[str]) -> Finding:
    """Return the finding for a run of which every trace is cut short."""
    count = sum(map(len, whole.values()))
    if not count:
        message = "every trace is cut short, and no step is known to be whole"
        return Finding(
            "no-whole-step", "error", message, count=len(whole), touches=tuple(raw_needs(contents))
        )
    message = (
        f"every trace is cut short; numbers of steps are of the {count} steps that are known to be whole"
    )
    return Finding("steps-cut-short", "warning", message, count=len(whole), touches=("steps", *contents))
