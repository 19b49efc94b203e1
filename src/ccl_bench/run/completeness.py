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
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from ccl_bench.analysis.facts import Facts
    from ccl_bench.run.trace_tables import TraceTables
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
    findings: list[Finding] = []
    for name, of_format in formats_of.items():
        form = of_format[0].form
        for finding in (*_unknown_ranks(of_format), *_ranks_against_world(facts, of_format)):
            # What one format lacks affects only the tables that it fills.
            touches = () if is_alone else tuple(sorted(form.tables))
            text = finding.message if is_alone else f"{name}: {finding.message}"
            findings.append(replace(finding, message=text, touches=touches))
    # Files that look like traces but are empty or invalid.
    shapes = {_NUMBER.sub("0", trace.path.name) for trace in traces}
    named_as_traces = [path.name for path in others if _NUMBER.sub("0", path.name) in shapes]
    if named_as_traces:
        names = _listed(named_as_traces, most=5)
        message = f"these files look like traces but are empty or invalid: {names}"
        findings.append(Finding("trace-unrecognised", "error", message, count=len(named_as_traces)))
    return findings


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
    if len({frozenset(present) for present in windows.values()}) == 1:
        windows = {None: next(iter(windows.values()))}  # all lack the same: said once
    findings = []
    for window, present in sorted(windows.items(), key=lambda item: (item[0] is not None, item[0] or 0)):
        count, missing = _absent(present, world_size.value)
        if count:
            where = "" if window is None else f"in window {window}, "
            message = f"{where}{count} of {world_size.value} ranks have no trace: {_listed(missing, count)}"
            findings.append(Finding("ranks-missing", "warning", message, count=count))
    surplus = sorted(rank for rank in set().union(*windows.values()) if rank >= world_size.value)
    if surplus:
        message = f"ranks {_listed(surplus)} do not fit world_size {world_size.value} ({world_size.source})"
        findings.append(Finding("ranks-beyond-world", "error", message, count=len(surplus)))
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


def _listed(items: Sequence[object], count: int | None = None, *, most: int = _SHOWN) -> str:
    """Return the first items of a list; `count` is how many there are where the list itself was cut."""
    text = ", ".join(map(str, items[:most]))
    return f"{text}, ..." if (count or len(items)) > most else text


UNREAD = frozenset({"trace-unreadable", "worker-died"})
"""Findings of traces of which nothing is known."""


STEP_SOURCES = (CHOSEN_RANGE, CHOSEN_PROGRAM, FORMAT_RANGE, *SOURCES, WHOLE_TRACE)
"""How steps are found, the best first."""


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
    # The rank of each trace's source of steps; another format's own counts as the best.
    sources = {
        position: STEP_SOURCES.index(trace.steps_from) if trace.steps_from in STEP_SOURCES else 0
        for position, trace in read.items()
        if trace.steps_from
    }
    best = min(sources.values(), default=0)
    other_steps = [position for position, source in sources.items() if source > best]
    rest = {position: trace for position, trace in read.items() if position not in other_steps}
    some_on_device = any(trace.on_device for trace in rest.values())
    without_device = [p for p, trace in rest.items() if some_on_device and trace.on_device is False]
    cut, whole = _cut_short({p: trace for p, trace in rest.items() if p not in without_device})
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
    left_out = []
    for code, positions, why, more in reasons:
        for position in positions if more or contents else ():
            file, rank = read[position].trace.relative, read[position].rank
            message, touches = f"{file} is left out: {why}", (*more, *contents)
            left_out.append(Finding(code, "warning", message, file, rank, touches=touches))
    if whole and contents:
        left_out.append(_cut_steps(whole, contents))
    doubts = _device_unrecorded(rest.values()) or _without_communication(rest.values())
    doubts += _without_ranges([trace for place, trace in rest.items() if place not in without_device])
    findings = (*_of_several_runs(read.values()), *left_out, *doubts)
    return Exclusions(frozenset(other_steps), frozenset([*without_device, *cut]), whole, findings)


def _of_several_runs(traces: Collection[TraceTables]) -> list[Finding]:
    """Return a finding if ranks used different versions of NCCL, or devices that have nothing in common.

    NCCL refuses to connect ranks of different versions. Ranks on different devices can be of one run, if
    every one of them says of how many ranks. What they ran on concerns every number of the run then.
    """
    by_version: dict[str, list[str]] = defaultdict(list)
    by_devices: dict[frozenset[str], list[TraceTables]] = defaultdict(list)
    for trace in traces:
        if version := trace.attributes.get("nccl_version"):
            by_version[f"one with NCCL {version}"].append(trace.trace.relative)
        if trace.devices:
            by_devices[trace.devices].append(trace)
    if len(by_version) > 1:
        return [several_runs_finding(by_version)]
    if len(by_devices) < 2 or frozenset.intersection(*by_devices):
        return []
    files = {
        f"one on {', '.join(sorted(names))}": [trace.trace.relative for trace in alike]
        for names, alike in by_devices.items()
    }
    if not all(trace.world_size for alike in by_devices.values() for trace in alike):
        return [several_runs_finding(files)]
    message = f"the ranks ran on different devices: {listed(files)}"
    return [Finding("devices-differ", "warning", message, count=len(by_devices))]


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
