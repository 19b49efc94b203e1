"""Copies: traces that hold the recording of another trace, whatever their bytes.

A file that was written anew, with another process or rank in it, holds the same times. Clocks and durations
scatter on every machine: no two ranks have the same starts and durations, however alike their work is.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING

from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.run.trace_tables import Sketch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.run.trace_tables import TraceTables

CODE = "trace-overwritten"

SAMPLED = 256
"""Pairs of start and duration that are kept of a trace."""

_CANDIDATES = 4 * SAMPLED
"""Rows from which they are chosen, about: rows may be repeated."""

_LARGEST = (1 << 64) - 1

LEAST_COMMON = 32
"""Sampled pairs that two traces have in common at least, if one is a copy of the other.

Two ranks on one host share one in some hundred by chance, if times are recorded in whole microseconds.
"""

LEAST_DURATIONS = 32
"""Different durations of a recording. Generated work has few, and its ranks may truly be alike."""

LEAST_SHARE = 0.5
"""Share of the pairs of the smaller trace that the larger one has too: a copy may lack events."""


_OF_STARTS, _OF_DURATIONS = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
"""Odd numbers of 64 bits, as multiplicative hashes use them."""


def sketch(rows: pl.DataFrame) -> Sketch:
    """Return the sample of a table with `start_ns` and `end_ns`."""
    if rows.is_empty():
        return Sketch(0, b"", b"")
    start, end = (pl.col(name).cast(pl.UInt64, wrap_numerical=True) for name in ("start_ns", "end_ns"))
    # Arithmetic of whole numbers wraps around, as a hash is meant to.
    hashed_start = start * pl.lit(_OF_STARTS, pl.UInt64)
    hashes = hashed_start + (end - start) * pl.lit(_OF_DURATIONS, pl.UInt64)
    from_first = hashes - start.min() * pl.lit(_OF_STARTS, pl.UInt64)
    hashed = rows.select(duration=end - start, by_clock=hashes, by_first=from_first)
    return Sketch(rows.height, _sample(hashed, "by_clock"), _sample(hashed, "by_first"))


def _sample(hashed: pl.DataFrame, kind: str) -> bytes:
    """Return the smallest hashes; none if the rows have too few different durations."""
    if hashed.height > _CANDIDATES:
        hashed = hashed.filter(pl.col(kind) < _CANDIDATES * (_LARGEST // hashed.height))
    if hashed["duration"].n_unique() < LEAST_DURATIONS:
        return b""
    return array("Q", hashed[kind].unique().sort().head(SAMPLED)).tobytes()


def find_copies(traces: Sequence[TraceTables]) -> dict[int, int]:
    """Return {position of a copy: position of the trace of which it holds the recording}.

    Of traces that hold one recording, that with the most rows is no copy. Parts of one file, and files of
    different formats, are no copies of each other.
    """
    sketches = {position: trace.sketch for position, trace in enumerate(traces) if trace.sketch}
    if len(sketches) < 2:
        return {}

    def precedence(position: int) -> tuple[int, bool, str]:
        trace = traces[position].trace
        return -sketches[position].rows, trace.iteration is None, trace.relative

    read = sorted(sketches, key=precedence)
    copies: dict[int, int] = {}
    for kind in ("by_clock", "by_first"):
        samples = {position: array("Q", getattr(sketches[position], kind)) for position in read}
        for original, copy in _with_common(samples):
            one, other = traces[original].trace, traces[copy].trace
            is_other_file = one.form.name == other.form.name and one.path != other.path
            if is_other_file and _is_copy(samples[original], samples[copy]):
                copies.setdefault(copy, original)
    return copies


def _with_common(samples: dict[int, array[int]]) -> list[tuple[int, int]]:
    """Return pairs of traces with many hashes in common: each trace with the first that has them."""
    first: dict[int, int] = {}
    shared = Counter(
        (original, position)
        for position, hashes in samples.items()
        for each in hashes
        if (original := first.setdefault(each, position)) != position
    )
    return [pair for pair, count in shared.items() if count >= LEAST_COMMON]


def _is_copy(one: array[int], other: array[int]) -> bool:
    """Whether the smaller of two traces has most of its rows in common with the other.

    Up to the smaller of the largest hashes both samples hold every hash of their traces.
    """
    until = min(one[-1], other[-1])
    both = [{each for each in hashes if each <= until} for hashes in (one, other)]
    common = len(both[0] & both[1])
    return common >= LEAST_COMMON and common >= LEAST_SHARE * min(map(len, both))


def copy_findings(copy: TraceTables, original: TraceTables) -> list[Finding]:
    """Return the finding about a copy in the place of another recording; none about one of the same."""
    if copy.rank is None or (copy.rank, copy.trace.iteration) == (original.rank, original.trace.iteration):
        return []
    name = copy.trace.relative
    message = (
        f"{name} holds the recording of {original.trace.relative}: the trace of rank {copy.rank} is lost"
    )
    return [Finding(CODE, "error", message, name, rank=copy.rank)]
