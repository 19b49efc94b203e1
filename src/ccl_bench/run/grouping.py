"""Grouping of traces: which belong to one run, and within it to one recording window.

The times in the traces decide, and not only the names of their windows.

Windows that hold different ranks and overlap in time are one window. Ranks of one window that were recorded
at different times were not recorded together; where no clock can be that wrong they are of several runs.

A window may be measured alone: `RUN/profile_traces/iteration_10` is one window of the run `RUN`. Cards and
side files lie in `RUN` or in folders between, memory snapshots of the same window in
`RUN/memory_snapshot/iteration_10`.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.base.units import SECOND_NS
from ccl_bench.storage import is_remote
from ccl_bench.trace import discovery, file_names
from ccl_bench.trace.file_names import window_in_path
from ccl_bench.trace.node_ranks import names_node
from ccl_bench.trace.quality import CUT_SHORT

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from ccl_bench.run.trace_tables import TraceTables
    from ccl_bench.trace.formats import TraceFile

    FilesByRun = Mapping[str, Sequence[str]]
    """What distinguishes a run -> the files that show it."""

EARLIEST_EPOCH_NS = 10**18
"""Times before this (2001) count from the start of a machine or session, and are not comparable."""

HOST = "host_name"
"""Attribute of a trace that names the machine it was recorded on."""

MOST_APART_NS = {True: 10**9, False: 60 * 10**9}
"""How long after the end of one rank's recording that of another may begin, on one host and on several.

Clocks of several hosts may be set badly; a pause of a minute between the ranks of one recording is none."""


Span = tuple[int, int]
"""Start and end, ns."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Recording windows that belong together, by the times of their traces."""

    numbers: dict[int, int | None] = field(default_factory=dict)
    """Position of each trace whose window is another one than its name says → the number of that window."""
    findings: tuple[Finding, ...] = ()


def find_windows(traces: Sequence[TraceTables]) -> Windows:
    """Return the recording windows to join, with findings about the others."""
    windows: dict[int | None, dict[int, TraceTables]] = defaultdict(dict)
    for position, trace in enumerate(traces):
        if trace.sha256 and "kernels" in trace.trace.form.tables:
            windows[trace.trace.iteration][position] = trace
    joined = _joined(windows)
    together: dict[int | None, dict[int, TraceTables]] = defaultdict(dict)
    for number, members in windows.items():
        together[joined.get(number, number)] |= members
    changed = {position: joined[number] for number in joined for position in windows[number]}
    findings = [*_of_other_ranks(together), *_recorded_apart(together)]
    if joined:
        names = ", ".join(map(str, sorted({*joined, *joined.values()} - {None}, key=str)))
        message = f"recording windows {names} have different ranks at the same time, and are joined"
        findings.insert(0, Finding("windows-joined", "note", message, count=len(joined)))
    return Windows({p: n for p, n in changed.items() if traces[p].trace.iteration != n}, tuple(findings))


def renumber_windows(
    windows: Windows, traces: Sequence[TraceTables], tables: dict[str, pl.DataFrame]
) -> None:
    """Put traces, and the rows of tables that are from them, into the windows that they belong to."""
    numbers = windows.numbers
    if not numbers:
        return
    for position, number in numbers.items():
        traces[position].trace = replace(traces[position].trace, iteration=number)
    positions = pl.Series([*numbers], dtype=pl.Int64)
    changed = pl.DataFrame({"trace": positions, "_number": pl.Series([*numbers.values()], dtype=pl.Int64)})
    for name, table in tables.items():
        joined = table.join(changed, on="trace", how="left", maintain_order="left")
        is_changed = pl.col("trace").is_in(positions.implode())
        window = pl.when(is_changed).then("_number").otherwise("iteration").alias("iteration")
        tables[name] = joined.with_columns(window).drop("_number")


def _joined(windows: Mapping[int | None, Mapping[int, TraceTables]]) -> dict[int | None, int | None]:
    """Return the earlier window for each window to join: one with other ranks at the same time."""
    spans: dict[int | None, Span] = {}
    for number, traces in windows.items():
        of_traces = [trace.span_ns or (0, 0) for trace in traces.values()]
        if all(start >= EARLIEST_EPOCH_NS for start, _ in of_traces):  # else times compare with no other's
            spans[number] = min(start for start, _ in of_traces), max(end for _, end in of_traces)
    joined: dict[int | None, int | None] = {}
    earlier_windows: list[tuple[int | None, set[Hashable], Span]] = []
    for number, (start, end) in sorted(spans.items(), key=lambda item: item[1]):
        # A trace of unknown rank stands for itself.
        members = windows[number].items()
        ranks: set[Hashable] = {("trace", position) if t.rank is None else t.rank for position, t in members}
        for index, (first, others, (from_ns, until_ns)) in enumerate(earlier_windows):
            shorter = min(end - start, until_ns - from_ns)
            common = min(end, until_ns) - max(start, from_ns)
            if ranks.isdisjoint(others) and 2 * common >= shorter:
                joined[number] = first
                span = (min(start, from_ns), max(end, until_ns))
                earlier_windows[index] = (first, ranks | others, span)
                break
        else:
            earlier_windows.append((number, ranks, (start, end)))
    return joined


def _of_other_ranks(windows: Mapping[int | None, Mapping[int, TraceTables]]) -> list[Finding]:
    """Return a finding if no rank compares with another: windows hold one rank each, or others each."""
    ranks = [{t.rank for t in traces.values() if t.rank is not None} for traces in windows.values()]
    together = set().union(*ranks)
    are_disjoint = sum(map(len, ranks)) == len(together)
    if len(ranks) < 2 or len(together) < 2 or not (are_disjoint or all(len(each) < 2 for each in ranks)):
        return []
    message = (
        f"each of {len(ranks)} recording windows has different ranks, or a single one, of {len(together)}: "
        "ranks of different windows are not compared"
    )
    return [Finding("windows-of-other-ranks", "warning", message, count=len(ranks))]


def _recorded_apart(windows: Mapping[int | None, Mapping[int, TraceTables]]) -> list[Finding]:
    """Return a finding if ranks of one window were recorded at different times."""
    for traces in windows.values():
        timed = [
            (trace.span_ns, trace)
            for trace in traces.values()
            if trace.span_ns
            and trace.span_ns[0] >= EARLIEST_EPOCH_NS
            and not any(f.code in CUT_SHORT for f in trace.findings)
        ]
        pieces: list[list[TraceTables]] = []  # in order of time, those together that overlap
        spans: list[Span] = []
        for span, trace in sorted(timed, key=lambda item: item[0]):
            if spans and span[0] < spans[-1][1]:
                pieces[-1].append(trace)
                spans[-1] = spans[-1][0], max(spans[-1][1], span[1])
            else:
                pieces.append([trace])
                spans.append(span)
        if len(pieces) < 2:
            continue
        files_by_time = {}
        for piece, (start_ns, _) in zip(pieces[:2], spans, strict=False):
            start = datetime.fromtimestamp(start_ns / SECOND_NS, UTC)
            mark = f"one recorded from {start:%Y-%m-%d %H:%M:%S}.{start.microsecond // 1000:03d}"
            files_by_time[mark] = sorted(trace.trace.relative for trace in piece)
        hosts = {trace.attributes.get(HOST) for trace in (*pieces[0], *pieces[1])}
        on_one_host = len(hosts) == 1 and None not in hosts
        if spans[1][0] - spans[0][1] > MOST_APART_NS[on_one_host]:
            return [several_runs_finding(files_by_time)]
        message = f"ranks of one recording window were recorded one after the other: {listed(files_by_time)}"
        return [Finding("recordings-apart", "warning", message, count=len(pieces))]
    return []


_TRACES = {"profile_trace", "profile_traces"}
_SNAPSHOTS = "memory_snapshot"


@dataclass(frozen=True, slots=True)
class Above:
    """What lies above a window."""

    files: list[Path] = field(default_factory=list)
    """Cards, side files and whatever else lies in the folders above, the top first."""
    snapshots: list[TraceFile] = field(default_factory=list)


def above(root: Path, traces: Sequence[TraceFile]) -> Above:
    """Return the files of the window in `root` that lie above it; none if it is no window of a run.

    `traces` are those in it: snapshots are not looked for where some are there.
    """
    window, trace_folder = root.absolute(), _trace_folder(root)
    if trace_folder is None:
        return Above()
    files: list[Path] = []
    for folder in reversed([each for each in window.parents if each.is_relative_to(trace_folder.parent)]):
        with contextlib.suppress(OSError):
            files += sorted(p for p in folder.iterdir() if p.name[0] != "." and p.is_file())
    inside = Path(_SNAPSHOTS) / window.relative_to(trace_folder)
    snapshots = trace_folder.parent / inside
    has_own = any("memory_segments" in trace.form.tables for trace in traces)
    if has_own or not snapshots.is_dir():
        return Above(files)
    return Above(
        files,
        [
            replace(trace, relative=f"{inside.as_posix()}/{trace.relative}", iteration=None)
            for trace in discovery.discover_traces(snapshots).traces
            if "memory_segments" in trace.form.tables
        ],
    )


def _trace_folder(root: Path) -> Path | None:
    window = root.absolute()
    if is_remote(root) or not root.is_dir() or window_in_path(window.name) is None:
        return None
    return next((folder for folder in window.parents if folder.name in _TRACES), None)


SEVERAL = "several-runs"
"""Code of the finding after which no number is correct."""

MOST = 0.75
"""Share of the traces that must agree before the others are left out."""

_SHOWN = 3

_WINDOW = re.compile(r"\b((?:iteration|iter|step)[-_])\d+", re.IGNORECASE)


def keep_one_run(
    traces: Sequence[TraceFile], findings: Iterable[Finding]
) -> tuple[list[TraceFile], list[Finding]]:
    """Return the traces that belong to the run, with findings about the others.

    `findings` are those of finding the traces, such as ranks that are there twice.
    """
    run_traces, size_findings = _by_world_size(traces)
    if any(f.code == SEVERAL for f in size_findings):
        return run_traces, size_findings
    claimed_twice = [f for f in findings if f.code == "rank-duplicate"]
    looks = (
        _by_folder(run_traces, claimed_twice),
        _by_claims(run_traces, claimed_twice),
        _by_process(run_traces),
    )
    return run_traces, [*size_findings, *next((several for several in looks if several), [])]


def _by_world_size(traces: Sequence[TraceFile]) -> tuple[list[TraceFile], list[Finding]]:
    sizes: dict[int, list[TraceFile]] = defaultdict(list)
    for trace in traces:
        if trace.world_size is not None:
            sizes[trace.world_size].append(trace)
    if len(sizes) < 2:
        return [*traces], []
    size, agreeing = max(sizes.items(), key=lambda item: len(item[1]))
    strays = [trace for trace in traces if trace.world_size not in {None, size}]
    strays_by_folder = Counter(_folder_of(trace.relative) for trace in strays)
    for trace in agreeing:
        strays_by_folder.pop(_folder_of(trace.relative), None)
    if len(agreeing) < MOST * (len(agreeing) + len(strays)) or max(strays_by_folder.values(), default=0) > 1:
        files_by_size = {
            f"one of {size} ranks": [t.relative for t in of_size] for size, of_size in sorted(sizes.items())
        }
        return [*traces], [several_runs_finding(files_by_size)]
    others = counted(len(agreeing), "other trace states", "other traces state")
    findings = []
    for trace in strays:
        size_of_trace = counted(trace.world_size or 0, "rank")
        statement = f"it states that the job had {size_of_trace}, but {others} {size}"
        message = f"{trace.relative} is left out: {statement}"
        findings.append(Finding("trace-of-other-run", "error", message, trace.relative, trace.rank))
    return [trace for trace in traces if trace.world_size in {None, size}], findings


def _by_folder(traces: Iterable[TraceFile], claimed_twice: Iterable[Finding]) -> list[Finding]:
    """Return a finding if two folders hold the same ranks: most of them, or all of the smaller one.

    A single trace in a folder of its own is no run beside a larger one. Folders of recording windows
    are one. Traces that were left out because others claim their ranks count.
    """
    claims = [(trace.relative, trace.rank, trace.form.tables) for trace in traces]
    claims += [(f.file, f.rank, frozenset(f.touches)) for f in claimed_twice]
    folders: dict[int, set[str]] = defaultdict(set)
    for file, rank, tables in claims:
        if rank is not None and "kernels" in tables:
            folders[rank].add(_folder_of(file))
    ranks_in_folder = Counter(folder for holders in folders.values() for folder in holders)
    shared = Counter(pair for holders in folders.values() for pair in combinations(sorted(holders), 2))
    for pair, count in shared.items():
        fewer, more = sorted(ranks_in_folder[folder] for folder in pair)
        if 2 * count > more or fewer == count > 1:
            both = " and ".join(folder or "." for folder in pair)
            ranks = f"{count} ranks" if count > 1 else "rank"
            message = f"{both} hold the traces of the same {ranks}"
            if all(map(names_node, pair)):
                local = "files are named by local rank, or hold several jobs"
                return [Finding(SEVERAL, "error", f"{message}: {local}", count=len(pair))]
            return [_error(message, len(pair))]
    return []


def _by_claims(traces: Iterable[TraceFile], claimed_twice: Iterable[Finding]) -> list[Finding]:
    """Return a finding if most ranks have two traces in one folder, not one trace packed too."""
    holders = {(t.rank, _folder_of(t.relative)): t for t in traces if "kernels" in t.form.tables}
    ranks = {rank for rank, _ in holders if rank is not None}
    twice = {
        finding.rank
        for finding in claimed_twice
        if "kernels" in finding.touches
        and (holder := holders.get((finding.rank, _folder_of(finding.file))))
        and finding.file.removesuffix(".gz") != holder.relative.removesuffix(".gz")
    }
    if 2 * len(twice) <= len(ranks):
        return []
    what = (
        "rank has two traces"
        if len(ranks) == 1
        else f"{len(twice)} of {len(ranks)} ranks have two traces each"
    )
    return [_error(f"{what} of one recording window", 2)]


def _by_process(traces: Iterable[TraceFile]) -> list[Finding]:
    """Return a finding if two processes wrote traces of one rank: the job was started twice.

    torch names a file `host_pid` and the time unless it is given another name, and one process writes all
    windows of a rank.
    """
    writers: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    for trace in traces:
        name = file_names.writer_in_name(trace.relative)
        if name and name.is_process and trace.rank is not None:
            writers[trace.form.name, trace.rank].setdefault(name.worker, trace.relative)
    for (_, rank), files in sorted(writers.items()):
        if len(files) > 1:
            processes = " and ".join(sorted(files))
            return [_error(f"rank {rank} was recorded by the processes {processes}", len(files))]
    return []


def several_runs_finding(runs: FilesByRun) -> Finding:
    """Return the finding for traces of several runs: the mark of each, with the files that show it."""
    return _error(listed(runs), len(runs))


def _error(what: str, count: int) -> Finding:
    return Finding(SEVERAL, "error", f"the traces are of several runs: {what}", count=count)


def listed(files_by_run: FilesByRun) -> str:
    """Return each run with its folders, or with its first files if all lie in one folder."""
    folders = [{*map(_folder_of, files)} for files in files_by_run.values()]
    are_in_different_folders = not set.intersection(*folders)
    parts = []
    for (name, files), run_folders in zip(files_by_run.items(), folders, strict=True):
        marks = sorted(run_folders) if are_in_different_folders else list(files)
        more = ", ..." if len(marks) > _SHOWN else ""
        parts.append(f"{name} ({', '.join(mark or '.' for mark in marks[:_SHOWN])}{more})")
    return ", ".join(parts)


def _folder_of(relative: str) -> str:
    """Return the folder of a file below the run without numbers of windows; empty for the run itself."""
    parent = str(PurePosixPath(relative).parent)
    return "" if parent == "." else _WINDOW.sub(r"\1*", parent)
