"""Copies of traces: the same bytes under several names count once."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING

from ccl_bench import storage
from ccl_bench.base.findings import Finding
from ccl_bench.trace import identity

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from ccl_bench.trace.format import TraceFile

_BEGINNING = 64 << 10
"""Bytes, decompressed, in which traces of different ranks are different already."""


def each_once(traces: Iterable[TraceFile]) -> tuple[list[TraceFile], list[Finding]]:
    """Return the traces without byte-for-byte copies, and a finding for each that has taken another's place.

    Of copies the one in a numbered window is kept, and rather one with the name of its rank. Only files
    of one size that begin alike are read whole.
    """
    kept: list[TraceFile] = []
    lost: list[Finding] = []
    for alike in _alike(traces):
        best, *others = sorted(
            alike, key=lambda t: (t.iteration is None, _other_rank(t) is not None, t.relative)
        )
        kept.append(best)
        lost += [_overwritten(copy, best) for copy in others if _other_rank(copy) is not None]
    return sorted(kept, key=lambda t: t.relative), lost


def _alike(traces: Iterable[TraceFile]) -> Iterator[list[TraceFile]]:
    """Yield the traces in lists of those that are the same bytes."""
    for of_size in _grouped(traces, lambda trace: (trace.size, trace.part)):
        for beginning in _grouped(of_size, _beginning) if len(of_size) > 1 else [of_size]:
            yield from _grouped(beginning, _content) if len(beginning) > 1 else [beginning]


def _grouped(traces: Iterable[TraceFile], key: Callable[[TraceFile], Hashable]) -> list[list[TraceFile]]:
    groups: dict[Hashable, list[TraceFile]] = defaultdict(list)
    for trace in traces:
        groups[key(trace)].append(trace)
    return list(groups.values())


def _beginning(trace: TraceFile) -> bytes:
    return hashlib.sha256(storage.read_head(trace.path, _BEGINNING)).digest()


def _content(trace: TraceFile) -> str:
    return storage.sha256(trace.path)


def _other_rank(trace: TraceFile) -> int | None:
    """Return the rank that a trace's name tells, where its content is another's."""
    named = identity.rank_in_name(trace.relative) if trace.form.of_rank and not trace.part else None
    if named is None or trace.rank in {None, named}:
        return None
    return named if identity.says_rank(trace.relative) or named < (trace.world_size or 0) else None


def _overwritten(copy: TraceFile, original: TraceFile) -> Finding:
    named = _other_rank(copy)
    message = f"{copy.relative} is a copy of {original.relative}, and the trace of rank {named} is lost"
    return Finding("trace-overwritten", "error", message, copy.relative, rank=named)
