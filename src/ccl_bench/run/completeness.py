"""Completeness of a run: missing ranks, and traces that would make a number over ranks wrong.

A trace that was cut short holds fewer calls and less work than its rank did; one without device work beside
others that have some shows no kernels. Neither compares with the others.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from ccl_bench.analysis.derived import raw_needs
from ccl_bench.analysis.intervals import CHOSEN_PROGRAM
from ccl_bench.analysis.steps.marks import CHOSEN_RANGE, FORMAT_RANGE, SOURCES
from ccl_bench.base.findings import Finding
from ccl_bench.base.text import counted
from ccl_bench.result import WHOLE_TRACE
from ccl_bench.run.grouping import listed, several_runs_finding
from ccl_bench.trace.quality import CUT_SHORT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ccl_bench.analysis.facts import Facts
    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.run.copies import Sketch
    from ccl_bench.side_files import RankStepTimes
    from ccl_bench.trace.formats import TraceFile

RANK_MAP = "ranks.json"

CODES = frozenset({"rank-unknown", "ranks-missing", "ranks-beyond-world", "trace-unrecognised"})
"""Findings that this module makes."""

_SHOWN = 12
"""Ranks that a message names."""

_NUMBER = re.compile(r"\d+")


def completeness_findings(facts: Facts, traces: list[TraceFile], others: Iterable[Path]) -> list[Finding]:
    """Return findings about the set of ranks as a whole, separately for each format.

    `others` are the files of the run that were not understood.
    """
    formats_of: dict[str, list[TraceFile]] = defaultdict(list)
    for trace in traces:
        formats_of[trace.form.name].append(trace)
    is_alone = len(formats_of) == 1
    about = [
        f for of_format in formats_of.values() for f in _about_ranks(facts, of_format, is_alone=is_alone)
    ]
    return [*about, *_no_traces(traces, others)]


def _about_ranks(facts: Facts, traces: list[TraceFile], *, is_alone: bool) -> Iterator[Finding]:
    """Yield findings about the ranks of one format's traces; they affect the tables that these fill."""
    form = traces[0].form
    for finding in (*_unknown_ranks(traces), *_ranks_against_world(facts, traces)):
        text = finding.message if is_alone else f"{form.name}: {finding.message}"
        yield replace(finding, message=text, touches=() if is_alone else tuple(sorted(form.tables)))


def _unknown_ranks(traces: list[TraceFile]) -> list[Finding]:
    unknown = [trace.relative for trace in traces if trace.rank is None and trace.form.of_rank]
    if not unknown or len(traces) == 1:
        return []
    message = f"the rank of {_listed(unknown, most=5)} is unknown; state it in {RANK_MAP}"
    return [Finding("rank-unknown", "warning", message, count=len(unknown))]


def _ranks_against_world(facts: Facts, traces: list[TraceFile]) -> list[Finding]:
    world_size = facts.world_size
    windows: dict[int | None, set[int]] = defaultdict(set)
    for trace in traces:
        if trace.rank is not None:
            windows[trace.iteration].add(trace.rank)
    if not world_size or not windows:
        return []
    findings = _missing_ranks(windows, world_size.value)
    surplus = sorted(rank for rank in set().union(*windows.values()) if rank >= world_size.value)
    if surplus:
        message = f"ranks {_listed(surplus)} do not fit world_size {world_size.value} ({world_size.source})"
        findings.append(Finding("ranks-beyond-world", "error", message, count=len(surplus)))
    return findings


def _missing_ranks(windows: Mapping[int | None, set[int]], world_size: int) -> list[Finding]:
    """Return findings about ranks without a trace, for each recording window if the windows differ."""
    if len({frozenset(present) for present in windows.values()}) == 1:
        windows = {None: next(iter(windows.values()))}
    findings = []
    for window, present in sorted(windows.items(), key=lambda item: (item[0] is not None, item[0] or 0)):
        count, missing = _absent(present, world_size)
        if count:
            where = "" if window is None else f"in window {window}, "
            message = f"{where}{count} of {world_size} ranks have no trace: {_listed(missing, count)}"
            findings.append(Finding("ranks-missing", "warning", message, count=count))
    return findings


def _absent(present: Collection[int], world_size: int) -> tuple[int, list[int]]:
    """Return the number of ranks of a job that are not `present`, and the first of them."""
    count = world_size - sum(rank < world_size for rank in present)
    return count, list(islice((rank for rank in range(world_size) if rank not in present), _SHOWN + 1))


def step_time_findings(
    facts: Facts, traces: Iterable[TraceFile], times: RankStepTimes | None
) -> list[Finding]:
    """Return a finding if a file of step times lacks ranks that the job is known to have."""
    if times is None:
        return []
    timed = times.seconds.keys()
    if facts.world_size:
        size = facts.world_size.value
        count, missing = _absent(timed, size)
    else:
        traced = {trace.rank for trace in traces if trace.rank is not None}
        missing = sorted(traced - timed)
        count, size = len(missing), len(traced | timed)
    if not count:
        return []
    message = f"{count} of {size} ranks have no step times: {_listed(missing, count)}"
    code, file = "step-times-lack-ranks", "step_times_per_rank.json"
    return [Finding(code, "warning", message, file, count=count, touches=("step_times",))]


def _no_traces(traces: list[TraceFile], others: Iterable[Path]) -> list[Finding]:
    """Return the finding for files that look like traces but are empty or invalid."""
    kinds = {_NUMBER.sub("0", trace.path.name) for trace in traces}
    named_as_traces = [path.name for path in others if _NUMBER.sub("0", path.name) in kinds]
    if not named_as_traces:
        return []
    message = f"these files look like traces but are empty or invalid: {_listed(named_as_traces, most=5)}"
    return [Finding("trace-unrecognised", "error", message, count=len(named_as_traces))]


def _listed(items: Sequence[object], count: int | None = None, *, most: int = _SHOWN) -> str:
    """Return the first items of a list; `count` is how many there are where the list itself was cut."""
    text = ", ".join(map(str, items[:most]))
    return f"{text}, ..." if (count or len(items)) > most else text


UNREAD = frozenset({"trace-unreadable", "worker-died"})
"""Findings of traces of which nothing is known."""


@dataclass(slots=True)
class TraceTables:
    """The outcome of one trace."""

    trace: TraceFile
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    sha256: str = ""
    rank: int | None = None
    """Rank as the whole file says, else as its name or a map says."""
    world_size: int | None = None
    attributes: dict[str, str] = field(default_factory=dict)
    on_device: bool | None = None
    """Whether the trace holds work of a device; None if nothing that is wanted depends on it."""
    sign_of_device: str = ""
    """What shows that a trace without kernels is of a device all the same; empty if nothing does."""
    communicates: bool | None = None
    """Whether communication is recognised in it; None if it does not say that there should be any."""
    steps_from: str = ""
    """How its steps were found; empty if nothing wanted has any."""
    filled: frozenset[str] = frozenset()
    """Tables in which the trace has rows, among those behind the wanted tables."""
    devices: frozenset[str] = frozenset()
    """Names of the devices that the recording process saw."""
    span_ns: tuple[int, int] | None = None
    """Start and end of what was recorded, on the clock of its host; None if nothing wanted has times."""
    sketch: Sketch | None = None
    """Sample of what was recorded when; None if nothing wanted has it."""
    whole_steps: frozenset[int] | None = None
    """Steps that are whole in a file that was cut short; None if it was not."""
    further: list[dict[str, pl.DataFrame]] = field(default_factory=list)
    """What `tables` hold of the first device, for each further one that the process worked on."""
    recorded_steps: tuple[int, ...] = ()
    """Numbers of its steps before some were chosen; empty if none were."""
    range_names: tuple[str, ...] = ()
    """Names of its ranges, the most frequent first, where none is what the chosen marker names.

    If a program was chosen that it does not hold, the names of its programs.
    """


STEP_SOURCES = (CHOSEN_RANGE, CHOSEN_PROGRAM, FORMAT_RANGE, *SOURCES, WHOLE_TRACE)
"""How steps are found, the best first."""

_NCCL = "nccl_version"
"""Attribute of a trace."""


@dataclass(frozen=True, slots=True)
class Exclusions:
    """Traces, by position, that tables of steps must do without, and why."""

    other_steps: frozenset[int] = frozenset()
    """Those whose steps come from a lesser source than those of others: they are other steps."""
    incomplete: frozenset[int] = frozenset()
    """Those that lack work: their steps are steps, with too little in them."""
    whole_steps: dict[int, frozenset[int]] = field(default_factory=dict)
    """Of those of which only some steps are whole, these."""
    findings: tuple[Finding, ...] = ()


def find_exclusions(traces: Sequence[TraceTables], contents: Collection[str]) -> Exclusions:
    """Return the traces that are not comparable with the others; `contents` are tables of what steps hold."""
    read = {position: trace for position, trace in enumerate(traces) if trace.sha256}
    other_steps = _with_other_steps(read)
    rest = _without_positions(read, other_steps)
    without_device = _without_device(rest)
    cut, whole = _cut_short(_without_positions(rest, without_device))
    reasons = (
        (
            "steps-unmarked",
            other_steps,
            "its steps are not marked in the way that those of other ranks are",
            ("steps",),
        ),
        (
            "no-device-work",
            without_device,
            "it contains no device work, but the traces of other ranks do",
            ("steps",),
        ),
        ("trace-left-out", cut, "it is truncated, so the numbers of its steps would be too low", ()),
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
    doubts += _without_ranges(_without_positions(rest, without_device).values())
    findings = (*(_by_library(read.values()) or _by_device(read.values())), *left_out, *doubts)
    return Exclusions(frozenset(other_steps), frozenset([*without_device, *cut]), whole, findings)


def _by_device(traces: Iterable[TraceTables]) -> list[Finding]:
    """Return a finding if traces saw devices that have nothing in common.

    They can be of one run all the same, if every one of them says of how many ranks. What they ran on
    concerns every number of the run then.
    """
    seen: dict[frozenset[str], list[TraceTables]] = defaultdict(list)
    for trace in traces:
        if trace.devices:
            seen[trace.devices].append(trace)
    if len(seen) < 2 or frozenset.intersection(*seen):
        return []
    files_by_device = {
        f"one on {', '.join(sorted(n))}": [t.trace.relative for t in alike] for n, alike in seen.items()
    }
    if not all(trace.world_size for alike in seen.values() for trace in alike):
        return [several_runs_finding(files_by_device)]
    message = f"the ranks ran on different devices: {listed(files_by_device)}"
    return [Finding("devices-differ", "warning", message, count=len(seen))]


def _by_library(traces: Iterable[TraceTables]) -> list[Finding]:
    """Return a finding if ranks used different versions of NCCL, which refuses to connect them."""
    seen: dict[str, list[str]] = defaultdict(list)
    for trace in traces:
        if version := trace.attributes.get(_NCCL):
            seen[f"one with NCCL {version}"].append(trace.trace.relative)
    return [several_runs_finding(seen)] if len(seen) > 1 else []


def _device_unrecorded(traces: Collection[TraceTables]) -> list[Finding]:
    """Return a finding if no trace holds a kernel, and something shows that there was a device."""
    signs = {trace.trace.relative: trace.sign_of_device for trace in traces if trace.sign_of_device}
    if not signs or any(trace.on_device and not trace.sign_of_device for trace in traces):
        return []
    file, sign = next(iter(signs.items()))
    message = f"{file} contains no kernel but {sign}: CPU work does not stand in for device work"
    only_copies = all(trace.on_device for trace in traces if trace.sign_of_device)
    touches = ("kernels",) if only_copies else ("kernels", "memcpy")
    return [Finding("device-work-missing", "error", message, count=len(signs), touches=touches)]


def _without_ranges(traces: Collection[TraceTables]) -> list[Finding]:
    """Return a finding if some traces hold no named range, although others of their format do."""
    with_ranges = {trace.trace.form.name for trace in traces if "annotations" in trace.filled}
    lacking = [
        trace.trace.relative
        for trace in traces
        if trace.trace.form.name in with_ranges and trace.filled and "annotations" not in trace.filled
    ]
    if not lacking:
        return []
    message = f"the traces of other ranks hold named ranges, and these hold none: {_listed(lacking, most=5)}"
    return [Finding("ranges-missing", "warning", message, count=len(lacking), touches=("annotations",))]


def _without_communication(traces: Collection[TraceTables]) -> list[Finding]:
    """Return a finding if several ranks of one job communicate, and none of their calls is recognised."""
    expected = [trace for trace in traces if trace.communicates is not None]
    several = len({trace.rank for trace in traces}) > 1 or any((t.world_size or 1) > 1 for t in traces)
    if not expected or not several or any(trace.communicates for trace in traces):
        return []
    backends = sorted({trace.attributes.get("backend", "") for trace in expected} - {""})
    over = f" over {', '.join(backends)}" if backends else ""
    message = (
        f"the run has several ranks{over}, but no communication is recognised: the names of its "
        "communication kernels or ranges are unknown, and their time counts as compute"
    )
    touches = ("kernels", "cpu_ops", "annotations")
    return [Finding("communication-unrecognised", "error", message, count=len(expected), touches=touches)]


def _without_positions(traces: dict[int, TraceTables], positions: Iterable[int]) -> dict[int, TraceTables]:
    return {position: trace for position, trace in traces.items() if position not in positions}


def _finding(code: str, trace: TraceTables, why: str, touches: tuple[str, ...]) -> Finding:
    file = trace.trace.relative
    return Finding(code, "warning", f"{file} is left out: {why}", file, trace.rank, touches=touches)


def _with_other_steps(traces: dict[int, TraceTables]) -> list[int]:
    places = {position: place for position, trace in traces.items() if (place := _place(trace)) is not None}
    best = min(places.values(), default=0)
    return [position for position, place in places.items() if place > best]


def _place(trace: TraceTables) -> int | None:
    """Return the rank of the trace's source of steps among `STEP_SOURCES`; 0 is the best."""
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
        message = "every trace is truncated, and no step is known to be complete"
        return Finding(
            "no-whole-step", "error", message, count=len(whole), touches=tuple(raw_needs(contents))
        )
    message = f"every trace is truncated; numbers use only the {counted(count, 'complete step')}"
    return Finding("steps-cut-short", "warning", message, count=len(whole), touches=("steps", *contents))
