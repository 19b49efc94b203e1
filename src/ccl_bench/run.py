"""A run: a directory with a card and traces, and what both say about it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from ccl_bench import remote, storage
from ccl_bench.analysis.facts import Facts
from ccl_bench.errors import InputError, UsageError
from ccl_bench.findings import Finding
from ccl_bench.stated import Stated, facts_from, stated_in
from ccl_bench.trace import discovery

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from ccl_bench.trace.discovery import TraceFile

PROFILE_MODES = ("auto", "torch", "nsys")

RANK_MAP = "ranks.json"


@dataclass(slots=True)
class Run:
    """What was found at one place, before any trace is parsed."""

    path: Path
    traces: list[TraceFile] = field(default_factory=list)
    """Traces of the chosen profile mode, in order of path."""
    others: list[Path] = field(default_factory=list)
    """Files that are neither traces nor understood."""
    facts: Facts = field(default_factory=Facts)
    stated: Stated = field(default_factory=Stated)
    """Card, metadata, configuration and side files as read."""
    findings: list[Finding] = field(default_factory=list)
    """Everything that is wrong with the set of traces."""

    @property
    def ranks(self) -> list[int]:
        """Ranks whose traces are present, sorted; unknown ones left out."""
        return sorted({trace.rank for trace in self.traces if trace.rank is not None})


def open_run(place: str | Path, *, card: str | Path | None = None, profile_mode: str = "auto") -> Run:
    """Return the run at `place`: a directory, a single trace file, or the URL of either.

    `card` names a workload card elsewhere. Raises InputError where there is nothing to read and
    UsageError for an unknown profile mode.
    """
    if profile_mode not in PROFILE_MODES:
        raise UsageError(f"unknown profile mode {profile_mode!r}", fix=f"one of: {', '.join(PROFILE_MODES)}")
    root = storage.location(place)
    with remote.reachable(root):
        found = discovery.found_in(root, _rank_map(root))
        stated = stated_in(found.others, storage.location(card) if card else None)
    traces = [t for t in found.traces if profile_mode in {"auto", t.form.profile}]
    facts = facts_from(stated, traces)
    run = Run(root, traces, _not_understood(found.others, stated, root), facts, stated)
    run.findings = [*found.findings, *stated.findings, *_completeness(run)]
    return run


def _not_understood(paths: Iterable[Path], stated: Stated, root: Path) -> list[Path]:
    return [path for path in paths if path not in stated.files and path != root / RANK_MAP]


def _rank_map(root: Path) -> dict[str, int]:
    """Return {file: rank} from `ranks.json`, for traces that do not say whose they are."""
    path = root / RANK_MAP
    if not root.is_dir() or not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(
            f"is no map of files to ranks: {error}",
            where=str(path),
            fix='write it as {"host1_trace.json": 0, "host2_trace.json": 1}',
        ) from error


def _completeness(run: Run) -> list[Finding]:
    """Return what is wrong with the set of ranks as a whole."""
    return [*_unknown_ranks(run), *_ranks_against_world(run)]


def _unknown_ranks(run: Run) -> list[Finding]:
    unknown = [trace.relative for trace in run.traces if trace.rank is None]
    if not unknown or len(run.traces) == 1:
        return []
    names = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
    message = f"no rank is known for {names}; give them in {RANK_MAP}"
    return [Finding("rank-unknown", "warning", message, count=len(unknown))]


def _ranks_against_world(run: Run) -> list[Finding]:
    world_size = run.facts.world_size
    if not world_size or not run.ranks:
        return []
    windows: dict[int | None, set[int]] = defaultdict(set)
    for trace in run.traces:
        if trace.rank is not None:
            windows[trace.iteration].add(trace.rank)
    findings = _missing_ranks(windows, world_size.value)
    surplus = [rank for rank in run.ranks if rank >= world_size.value]
    if surplus:
        message = f"ranks {_listed(surplus)} do not fit world_size {world_size.value} ({world_size.source})"
        findings.append(Finding("ranks-beyond-world", "error", message, count=len(surplus)))
    return findings


def _missing_ranks(windows: Mapping[int | None, set[int]], world_size: int) -> list[Finding]:
    """Return which ranks have no trace, apart for each recording window where the windows differ."""
    if len({frozenset(present) for present in windows.values()}) == 1:
        windows = {None: next(iter(windows.values()))}
    findings = []
    for window, present in sorted(windows.items(), key=lambda item: (item[0] is not None, item[0] or 0)):
        count = world_size - sum(rank < world_size for rank in present)
        if count:
            missing = list(islice((rank for rank in range(world_size) if rank not in present), _SHOWN + 1))
            where = "" if window is None else f"in window {window}, "
            message = f"{where}{count} of {world_size} ranks have no trace: {_listed(missing, count)}"
            findings.append(Finding("ranks-missing", "warning", message, count=count))
    return findings


_SHOWN = 12
"""Ranks that a message names."""


def _listed(ranks: list[int], count: int | None = None) -> str:
    """Return the first ranks of a list; `count` is how many there are where the list itself was cut."""
    shown = ", ".join(map(str, ranks[:_SHOWN]))
    return f"{shown}, ..." if (count or len(ranks)) > _SHOWN else shown
