"""Grouping of traces: which belong to one run, and within it to one recording window.

The times in the traces decide, and not only the names of their windows.

Windows that hold different ranks and overlap in time are one window. Ranks of one window that were recorded
at different times were not recorded together; where no clock can be that wrong they are of several runs.

A window may be measured alone: `RUN/profile_traces/iteration_10` is one window of the run `RUN`. Cards and
side files lie in `RUN` or in folders between, memory snapshots of the same window in
`RUN/memory_snapshot/iteration_10`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import combinations, pairwise
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

    from ccl_bench.run.completeness import TraceTables
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
    findings = [*_joined_finding(joined), *_of_other_ranks(together), *_recorded_apart(together)]
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
    joined: dict[int | None, int | None] = {}
    earlier_windows: list[tuple[int | None, set[Hashable], Span]] = []
    spans = {number: span for number, traces in windows.items() if (span := _span(traces.values()))}
    for number, span in sorted(spans.items(), key=lambda item: item[1]):
        ranks = _ranks(windows[number])
        for place, (first, others, during) in enumerate(earlier_windows):
            if ranks.isdisjoint(others) and _overlap_well(span, during):
                joined[number] = first
                earlier_windows[place] = (
                    first,
                    ranks | others,
                    (min(span[0], during[0]), max(span[1], during[1])),
                )
                break
        else:
            earlier_windows.append((number, ranks, span))
    return joined


def _span(traces: Iterable[TraceTables]) -> Span | None:
    """Return the time that traces cover together; None if times of one of them compare with no other's."""
    spans = [trace.span_ns for trace in traces]
    epoch_spans = [span for span in spans if span and span[0] >= EARLIEST_EPOCH_NS]
    if not epoch_spans or len(epoch_spans) < len(spans):
        return None
    return min(start for start, _ in epoch_spans), max(end for _, end in epoch_spans)


def _ranks(traces: Mapping[int, TraceTables]) -> set[Hashable]:
    """Return the ranks of traces; one of unknown rank stands for itself."""
    return {("trace", position) if t.rank is None else t.rank for position, t in traces.items()}


def _overlap_well(one: Span, other: Span) -> bool:
    """Whether the shorter of two spans lies at least half in the other."""
    shorter = min(one[1] - one[0], other[1] - other[0])
    return 2 * (min(one[1], other[1]) - max(one[0], other[0])) >= shorter


def _joined_finding(joined: Mapping[int | None, int | None]) -> list[Finding]:
    if not joined:
        return []
    names = ", ".join(map(str, sorted({*joined, *joined.values()} - {None}, key=str)))
    message = f"recording windows {names} have different ranks at the same time, and are joined"
    return [Finding("windows-joined", "note", message, count=len(joined))]


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
        timed = [t for t in traces.values() if not any(f.code in CUT_SHORT for f in t.findings)]
        pieces = _overlapping_groups([t for t in timed if t.span_ns and t.span_ns[0] >= EARLIEST_EPOCH_NS])
        for before, after in pairwise(pieces):
            pause = _first(after) - _last(before)
            files_by_time = {
                _recorded(piece): sorted(t.trace.relative for t in piece) for piece in (before, after)
            }
            if pause > MOST_APART_NS[_on_one_host([*before, *after])]:
                return [several_runs_finding(files_by_time)]
            message = (
                f"ranks of one recording window were recorded one after the other: {listed(files_by_time)}"
            )
            return [Finding("recordings-apart", "warning", message, count=len(pieces))]
    return []


def _overlapping_groups(traces: Iterable[TraceTables]) -> list[list[TraceTables]]:
    """Return the traces in order of time, in lists of those that overlap."""
    pieces: list[list[TraceTables]] = []
    for trace in sorted(traces, key=lambda t: t.span_ns or (0, 0)):
        if pieces and trace.span_ns and trace.span_ns[0] < _last(pieces[-1]):
            pieces[-1].append(trace)
        else:
            pieces.append([trace])
    return pieces


def _recorded(piece: Iterable[TraceTables]) -> str:
    start = datetime.fromtimestamp(_first(piece) / SECOND_NS, UTC)
    return f"one recorded from {start:%Y-%m-%d %H:%M:%S}.{start.microsecond // 1000:03d}"


def _first(piece: Iterable[TraceTables]) -> int:
    return min(trace.span_ns[0] for trace in piece if trace.span_ns)


def _last(piece: Iterable[TraceTables]) -> int:
    return max(trace.span_ns[1] for trace in piece if trace.span_ns)


def _on_one_host(traces: Iterable[TraceTables]) -> bool:
    hosts = {trace.attributes.get(HOST) for trace in traces}
    return len(hosts) == 1 and None not in hosts


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
    run = trace_folder.parent
    between = [folder for folder in window.parents if folder.is_relative_to(run)]
    files = [path for folder in reversed(between) for path in _files(folder)]
    has_own = any("memory_segments" in trace.form.tables for trace in traces)
    inside = Path(_SNAPSHOTS) / window.relative_to(trace_folder)
    return Above(files, [] if has_own else _snapshots(run, inside))


def _trace_folder(root: Path) -> Path | None:
    window = root.absolute()
    if is_remote(root) or not root.is_dir() or window_in_path(window.name) is None:
        return None
    return next((folder for folder in window.parents if folder.name in _TRACES), None)


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name[0] != "." and path.is_file())
    except OSError:
        return []


def _snapshots(run: Path, inside: Path) -> list[TraceFile]:
    """Return the snapshots in a folder of the run, as traces of the window that is measured."""
    folder = run / inside
    if not folder.is_dir():
        return []
    return [
        replace(trace, relative=f"{inside.as_posix()}/{trace.relative}", iteration=None)
        for trace in discovery.discover_traces(folder).traces
        if "memory_segments" in trace.form.tables
    ]


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
    strays_by_folder = Counter(map(_folder, strays))
    for trace in agreeing:
        strays_by_folder.pop(_folder(trace), None)
    if len(agreeing) < MOST * (len(agreeing) + len(strays)) or max(strays_by_folder.values(), default=0) > 1:
        files_by_size = {
            f"one of {size} ranks": [t.relative for t in of_size] for size, of_size in sorted(sizes.items())
        }
        return [*traces], [several_runs_finding(files_by_size)]
    run_traces = [trace for trace in traces if trace.world_size in {None, size}]
    return run_traces, [_stray(trace, size, len(agreeing)) for trace in strays]


def _stray(trace: TraceFile, size: int, count: int) -> Finding:
    others = counted(count, "other trace states", "other traces state")
    statement = f"it states that the job had {counted(trace.world_size or 0, 'rank')}, but {others} {size}"
    message = f"{trace.relative} is left out: {statement}"
    return Finding("trace-of-other-run", "error", message, trace.relative, trace.rank)


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
    holders = {(t.rank, _folder(t)): t for t in traces if "kernels" in t.form.tables}
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
        places = sorted(run_folders) if are_in_different_folders else list(files)
        more = ", ..." if len(places) > _SHOWN else ""
        parts.append(f"{name} ({', '.join(place or '.' for place in places[:_SHOWN])}{more})")
    return ", ".join(parts)


def _folder(trace: TraceFile) -> str:
    return _folder_of(trace.relative)


def _folder_of(relative: str) -> str:
    """Return the folder of a file below the run without numbers of windows; empty for the run itself."""
    parent = str(PurePosixPath(relative).parent)
    return "" if parent == "." else _WINDOW.sub(r"\1*", parent)
