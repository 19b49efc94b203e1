"""Whether the traces of a run are of one run at all.

Traces of one run agree on the number of ranks. Where nearly all do, one that does not has a damaged
header or was put there by mistake, and is left out. Several that have a folder of their own are another
run, and it is unknown which one is meant: no number over all of them has a meaning. The same holds for
folders that hold the same ranks, and for devices that differ where nothing else ties the traces together.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import combinations
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ccl_bench.base.findings import Finding
from ccl_bench.base.text import counted
from ccl_bench.trace import file_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ccl_bench.trace.format import TraceFile

    Said = Mapping[str, Sequence[str]]
    """What makes a run -> the files that say so."""

SEVERAL = "several-runs"
"""Code of the finding after which no number is right."""

MOST = 0.75
"""Share of the traces that must agree for the others to be in the wrong."""

_SHOWN = 3

_WINDOW = re.compile(r"\b((?:iteration|iter|step)[-_])\d+", re.IGNORECASE)


def keep_one_run(
    traces: Sequence[TraceFile], findings: Iterable[Finding]
) -> tuple[list[TraceFile], list[Finding]]:
    """Return the traces that belong to the run, and what there is to say of the others.

    `findings` are those of finding the traces, such as ranks that are there twice.
    """
    kept, size_findings = _by_world_size(traces)
    if any(f.code == SEVERAL for f in size_findings):
        return kept, size_findings
    claimed_twice = [f for f in findings if f.code == "rank-duplicate"]
    looks = (_by_folder(kept, claimed_twice), _by_claims(kept, claimed_twice), _by_process(kept))
    return kept, [*size_findings, *next((several for several in looks if several), [])]


def _by_world_size(traces: Sequence[TraceFile]) -> tuple[list[TraceFile], list[Finding]]:
    sizes: dict[int, list[TraceFile]] = defaultdict(list)
    for trace in traces:
        if trace.world_size is not None:
            sizes[trace.world_size].append(trace)
    if len(sizes) < 2:
        return [*traces], []
    size, agreeing = max(sizes.items(), key=lambda item: len(item[1]))
    strays = [trace for trace in traces if trace.world_size not in {None, size}]
    apart = Counter(map(_folder, strays))
    for trace in agreeing:
        apart.pop(_folder(trace), None)
    if len(agreeing) < MOST * (len(agreeing) + len(strays)) or max(apart.values(), default=0) > 1:
        said = {f"one of {size} ranks": [t.relative for t in alike] for size, alike in sorted(sizes.items())}
        return [*traces], [several_runs_finding(said)]
    kept = [trace for trace in traces if trace.world_size in {None, size}]
    return kept, [_stray(trace, size, len(agreeing)) for trace in strays]


def _stray(trace: TraceFile, size: int, count: int) -> Finding:
    others = counted(count, "other trace says", "other traces say")
    said = f"it says that the job had {counted(trace.world_size or 0, 'rank')}, where {others} {size}"
    message = f"{trace.relative} is left out: {said}"
    return Finding("trace-of-other-run", "error", message, trace.relative, trace.rank)


def _by_folder(traces: Iterable[TraceFile], claimed_twice: Iterable[Finding]) -> list[Finding]:
    """Return a finding where two folders hold the same ranks: most of them, or all of the smaller one.

    A single trace in a folder of its own is no run beside a larger one. Folders of recording windows
    are one. Traces that were left out because others claim their ranks count.
    """
    claims = [(trace.relative, trace.rank, trace.form.tables) for trace in traces]
    claims += [(f.file, f.rank, frozenset(f.touches)) for f in claimed_twice]
    folders: dict[int, set[str]] = defaultdict(set)
    for file, rank, tables in claims:
        if rank is not None and "kernels" in tables:
            folders[rank].add(_folder_of(file))
    held = Counter(folder for holders in folders.values() for folder in holders)
    shared = Counter(pair for holders in folders.values() for pair in combinations(sorted(holders), 2))
    for pair, count in shared.items():
        fewer, more = sorted(held[folder] for folder in pair)
        if 2 * count > more or fewer == count > 1:
            both = " and ".join(folder or "." for folder in pair)
            ranks = f"{count} ranks" if count > 1 else "rank"
            return [_error(f"{both} hold the traces of the same {ranks}", len(pair))]
    return []


def _by_claims(traces: Iterable[TraceFile], claimed_twice: Iterable[Finding]) -> list[Finding]:
    """Return a finding where most ranks have two traces in one folder, not one trace packed too."""
    holders = {(t.rank, _folder(t)): t for t in traces if "kernels" in t.form.tables}
    ranks = {rank for rank, _ in holders if rank is not None}
    twice = {
        finding.rank
        for finding in claimed_twice
        if (holder := holders.get((finding.rank, _folder_of(finding.file))))
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
    """Return a finding where two processes wrote traces of one rank: the job was started twice.

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


def several_runs_finding(said: Said) -> Finding:
    """Return the finding for traces of several runs: what makes each, with the files that say so."""
    return _error(listed(said), len(said))


def _error(what: str, count: int) -> Finding:
    return Finding(SEVERAL, "error", f"the traces are of several runs: {what}", count=count)


def listed(said: Said) -> str:
    """Return each with its folders, or its first files where they lie in one folder."""
    folders = [{*map(_folder_of, files)} for files in said.values()]
    apart = not set.intersection(*folders)
    parts = []
    for (name, files), own in zip(said.items(), folders, strict=True):
        places = sorted(own) if apart else list(files)
        more = ", ..." if len(places) > _SHOWN else ""
        parts.append(f"{name} ({', '.join(place or '.' for place in places[:_SHOWN])}{more})")
    return ", ".join(parts)


def _folder(trace: TraceFile) -> str:
    return _folder_of(trace.relative)


def _folder_of(relative: str) -> str:
    """Return the folder of a file below the run without numbers of windows; empty for the run itself."""
    parent = str(PurePosixPath(relative).parent)
    return "" if parent == "." else _WINDOW.sub(r"\1*", parent)
