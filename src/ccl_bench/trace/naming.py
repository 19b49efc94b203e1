"""What the names of all files of a run say together: which numbers are ranks, and which windows there are."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from operator import mul
from typing import TYPE_CHECKING

from ccl_bench.base.findings import Finding
from ccl_bench.trace import identity

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from ccl_bench.trace.format import TraceFile
    from ccl_bench.trace.identity import Place, Written

_NUMBER = re.compile(r"\d+")

_SHOWN = 3
"""Files that a message names."""

LARGEST_JOB = 1 << 14
"""Numbers of traces from here on are no ranks of a job of unknown size."""


def settled(traces: Sequence[TraceFile]) -> tuple[list[TraceFile], list[Finding]]:
    """Return the traces with the ranks and windows that their names can mean, and what they cannot."""
    placed = _each(traces, lambda t: t.form.name, _placed)
    ranked, findings = _with_plausible_ranks(placed)
    return _each(ranked, lambda t: t.form.name, _in_windows), findings


def _each(
    traces: Iterable[TraceFile],
    key: Callable[[TraceFile], Hashable],
    change: Callable[[list[TraceFile]], list[TraceFile]],
) -> list[TraceFile]:
    """Return the traces with a change made to those of each key; their order may be another."""
    groups: dict[Hashable, list[TraceFile]] = defaultdict(list)
    for trace in traces:
        groups[key(trace)].append(trace)
    return [changed for group in groups.values() for changed in change(group)]


def _without_rank(trace: TraceFile) -> TraceFile:
    return replace(trace, rank=None, rank_source="unknown")


def _placed(traces: list[TraceFile]) -> list[TraceFile]:
    """Return traces of one format with the ranks of those that name a place in the mesh of a serving engine.

    vLLM numbers ranks by data-parallel replica, pipeline stage and tensor-parallel rank; SGLang by the last
    two, since attention is split over data within a tensor-parallel group. The sizes of the mesh are known
    where every place of it has a trace.
    """
    silent = [trace for trace in traces if trace.rank_source in {"name", "unknown"} and trace.form.of_rank]
    places = {t.relative: place for t in silent if (place := identity.place_in_name(t.relative))}
    ranks = _ranks_of({*places.values()})
    return [_at(t, places[t.relative], ranks) if t.relative in places else t for t in traces]


def _at(trace: TraceFile, place: Place, ranks: Mapping[Place, int]) -> TraceFile:
    """Return a trace with the rank of its place; vLLM's own number is that within the replica."""
    if place in ranks:
        return replace(trace, rank=ranks[place], rank_source="name")
    return trace if place.dp == 0 and identity.says_rank(trace.relative) else _without_rank(trace)


def _ranks_of(places: set[Place]) -> dict[Place, int]:
    """Return the rank at each place, as far as it can be known."""
    axes = {place: (place.pp, place.tp) if place.engine == "sglang" else place[1:] for place in places}
    distinct = {*axes.values()}
    if len({place.engine for place in places}) != 1 or len(distinct) < len(places):
        return {}
    sizes = [1 + max(column) for column in zip(*distinct, strict=True)]
    if max(sizes[:-1]) > 1 and len(distinct) < math.prod(sizes):
        return {}
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    return {place: sum(map(mul, at, strides)) for place, at in axes.items()}


def _with_plausible_ranks(traces: list[TraceFile]) -> tuple[list[TraceFile], list[Finding]]:
    """Return the traces without ranks that their names cannot mean, and what is wrong with those.

    A number without the word beside it is a rank where it, and all in names of the same make, are below
    the number of ranks or, where that is not known, of traces; others count processes, ports or attempts.
    The number of a trace (`kineto_trace_3.json`) may be that of a rank whose peers' traces are not here.
    """
    world_size = max((t.world_size for t in traces if t.world_size is not None), default=0)
    known = {t.rank for t in traces if t.rank_source in {"file", "map"}}
    doubtful: dict[tuple[str, str], list[TraceFile]] = defaultdict(list)
    for trace in traces:
        if trace.rank_source == "name" and not identity.says_rank(trace.relative):
            doubtful[trace.form.name, _NUMBER.sub("0", trace.path.name)].append(trace)
    implausible: list[TraceFile] = []
    for (form, _), alike in doubtful.items():
        present = sum(t.form.name == form for t in traces)
        numbered = all(identity.numbers_trace(t.relative) for t in alike)
        limit = world_size or max(present, LARGEST_JOB if numbered else 0)
        if any((t.rank or 0) >= limit and t.rank not in known for t in alike):
            implausible += alike
    if not implausible:
        return traces, []
    gone = {t.relative for t in implausible}
    kept = [_without_rank(t) if t.relative in gone else t for t in traces]
    return kept, [_implausible(implausible)]


def _implausible(traces: Sequence[TraceFile]) -> Finding:
    files = ", ".join(t.relative for t in traces[:_SHOWN]) + (", ..." if len(traces) > _SHOWN else "")
    message = f"the numbers in {files} are no ranks: they are not below the number of ranks or traces"
    return Finding("rank-implausible", "warning", message, traces[0].relative, count=len(traces))


def _in_windows(traces: list[TraceFile]) -> list[TraceFile]:
    """Return traces of one format, those whose names carry a time with the number of their window.

    Each rank writes its file at a time of its own, so the times alone make no windows: a window ends where
    a rank writes again, or where the pause is longer than half of the shortest one between files of a rank.
    """
    timed = [(w, t) for t in traces if t.iteration is None and (w := identity.written(t.relative))]
    timed.sort(key=lambda each: (each[0].time_ns, each[0].stage, each[1].relative))
    pause = _shortest_pause(timed) / 2
    numbers: dict[str, int] = {}
    seen: set[Hashable] = set()
    last: Written | None = None
    number = 1
    for name, trace in timed:
        if last and (_whose(name, trace) in seen or 0 < pause < name.time_ns - last.time_ns):
            number, seen = number + 1, set()
        numbers[trace.relative] = number
        seen.add(_whose(name, trace))
        last = name
    if number == 1:
        return traces
    return [replace(t, iteration=numbers.get(t.relative, t.iteration)) for t in traces]


def _whose(name: Written, trace: TraceFile) -> Hashable:
    """Return who wrote a trace: its rank, else the worker that its name states."""
    return trace.rank if trace.rank is not None else (str(trace.path.parent), name.worker)


def _shortest_pause(timed: Sequence[tuple[Written, TraceFile]]) -> int:
    """Return the shortest time between two files of one rank, ns; 0 where no rank wrote two."""
    times: dict[Hashable, list[int]] = defaultdict(list)
    for name, trace in timed:
        times[_whose(name, trace)].append(name.time_ns)
    pauses = (later - earlier for each in times.values() for earlier, later in pairwise(each))
    return min((pause for pause in pauses if pause > 0), default=0)
