"""Whether a run has a trace of every rank, and whose trace each is."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from ccl_bench.base.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ccl_bench.analysis.facts import Facts
    from ccl_bench.trace.format import TraceFile

RANK_MAP = "ranks.json"

CODES = frozenset({"rank-unknown", "ranks-missing", "ranks-beyond-world", "trace-unrecognised"})
"""Findings that this module makes."""

_SHOWN = 12
"""Ranks that a message names."""

_NUMBER = re.compile(r"\d+")


def completeness_findings(facts: Facts, traces: list[TraceFile], others: Iterable[Path]) -> list[Finding]:
    """Return what is wrong with the set of ranks as a whole, apart for each format.

    `others` are the files of the run that were not understood.
    """
    formats_of: dict[str, list[TraceFile]] = defaultdict(list)
    for trace in traces:
        formats_of[trace.form.name].append(trace)
    is_alone = len(formats_of) == 1
    about = [f for found in formats_of.values() for f in _about_ranks(facts, found, is_alone=is_alone)]
    return [*about, *_no_traces(traces, others)]


def _about_ranks(facts: Facts, traces: list[TraceFile], *, is_alone: bool) -> Iterator[Finding]:
    """Yield what is wrong with the ranks of one format's traces; it concerns the tables that these fill."""
    form = traces[0].form
    for finding in (*_unknown_ranks(traces), *_ranks_against_world(facts, traces)):
        named = finding.message if is_alone else f"{form.name}: {finding.message}"
        yield replace(finding, message=named, touches=() if is_alone else tuple(sorted(form.tables)))


def _unknown_ranks(traces: list[TraceFile]) -> list[Finding]:
    unknown = [trace.relative for trace in traces if trace.rank is None and trace.form.of_rank]
    if not unknown or len(traces) == 1:
        return []
    message = f"no rank is known for {_listed(unknown, most=5)}; give them in {RANK_MAP}"
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


def _no_traces(traces: list[TraceFile], others: Iterable[Path]) -> list[Finding]:
    """Return the finding for files that are named like the traces, but for numbers, and are no traces."""
    kinds = {_NUMBER.sub("0", trace.path.name) for trace in traces}
    alike = [path.name for path in others if _NUMBER.sub("0", path.name) in kinds]
    if not alike:
        return []
    message = f"these files look like traces but are empty or invalid: {_listed(alike, most=5)}"
    return [Finding("trace-unrecognised", "error", message, count=len(alike))]


def _listed(items: Sequence[object], count: int | None = None, *, most: int = _SHOWN) -> str:
    """Return the first items of a list; `count` is how many there are where the list itself was cut."""
    shown = ", ".join(map(str, items[:most]))
    return f"{shown}, ..." if (count or len(items)) > most else shown
