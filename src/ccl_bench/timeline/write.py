"""A timeline as a file, written in pieces, so that memory holds one rank at a time."""

from __future__ import annotations

import io
import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from ccl_bench import __version__, storage
from ccl_bench.analysis.communication.common_clock import format_duration
from ccl_bench.base.counting import counted
from ccl_bench.base.errors import UsageError
from ccl_bench.base.lazy_imports import pl
from ccl_bench.timeline.load import load_common, load_ranks
from ccl_bench.timeline.slices import assign_lanes
from ccl_bench.timeline.trace_events import (
    counter_lines,
    flow_lines,
    process_lines,
    slice_lines,
    thread_lines,
    with_threads,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccl_bench.engine import Progress
    from ccl_bench.run import Run
    from ccl_bench.timeline.load import Common, RankSlices

MOST_SLICES = 500_000
"""Slices of a file unless chosen otherwise: about 75 MB of JSON, which Perfetto and chrome://tracing open."""

FEWEST_SLICES = 1_000

_WHOLE = 1
"""Process that all ranks share; a process 0 means idling to viewers."""
_FIRST_RANK = 2

_NAMED = 5

_EXTRA = 5
"""One slice in so many may have an arrow or a change of the counter beside it."""


@dataclass(slots=True)
class Written:
    """What a timeline file came to."""

    path: Path
    slices: int = 0
    """Slices in the file."""
    slices_of_run: int = 0
    """Slices that there were before short ones were merged."""
    ranks: int = 0
    bytes: int = 0
    """Size on disk."""
    merged_below_ns: int = 0
    """Slices as short as this may be merged; 0 where none is."""
    clocks: str = ""
    """How the clocks of the ranks were put together."""
    left_out: tuple[str, ...] = ()
    """Everything that is not shown or not counted, in sentences."""


def write_timeline(
    run: Run,
    target: Path,
    *,
    most_slices: int = MOST_SLICES,
    jobs: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> Written:
    """Write the timeline of a run to `target`, compressed where its name ends in `.gz`.

    Where steps of the run were chosen, nothing but those is shown.
    """
    if most_slices < FEWEST_SLICES:
        raise UsageError(f"{most_slices} slices show nothing", fix=f"allow {FEWEST_SLICES} or more")
    found = load_common(run, jobs=jobs, use_cache=use_cache, progress=progress)
    written = Written(target, found.whole.height, found.whole.height, clocks=found.clocks.statement)
    most = max(1, most_slices // len(found.traces))
    has_extras = found.members.height * _EXTRA <= most_slices
    with storage.write_atomically(target) as temporary:
        with _opened(temporary, is_compressed=target.suffix == ".gz") as stream:
            stream.write('{"displayTimeUnit":"ns","traceEvents":[\n')
            stream.write("\n,".join(_whole_lines(found, has_extras)))
            for rank in load_ranks(run, found, most, jobs=jobs, use_cache=use_cache, progress=progress):
                stream.write("\n,")
                stream.write("\n,".join(_rank_lines(found, rank, has_extras)))
                _count(written, rank)
            written.left_out = tuple(_left_out(run, found, written, most_slices, has_extras))
            stream.write(f'\n],"otherData":{json.dumps(_about(run, written))}}}\n')
        temporary.chmod(0o644)
        written.bytes = temporary.stat().st_size
    return written


@contextmanager
def _opened(path: Path, *, is_compressed: bool) -> Iterator[TextIO]:
    if not is_compressed:
        with path.open("w", encoding="utf-8") as stream:
            yield stream
        return
    from isal import igzip

    compressing: Any = igzip.IGzipFile
    with compressing(path, "wb") as raw, io.TextIOWrapper(raw, encoding="utf-8") as stream:
        yield stream


def _whole_lines(found: Common, has_extras: bool) -> Iterator[str]:
    """Yield the lines of what concerns all ranks together."""
    yield from process_lines(_WHOLE, "all ranks", found.clocks.statement)
    slices = with_threads(assign_lanes(_from_zero(found, found.whole)))
    yield from thread_lines(_WHOLE, slices)
    yield from slice_lines(_WHOLE, slices)
    if has_extras:
        yield from counter_lines(_WHOLE, _from_zero(found, found.waiting))


def _rank_lines(found: Common, rank: RankSlices, has_extras: bool) -> Iterator[str]:
    """Yield the lines of one rank."""
    process = _FIRST_RANK + rank.place
    yield from process_lines(process, rank.name, "" if rank.trace in found.counted else "not in the numbers")
    slices = with_threads(_from_zero(found, rank.slices))
    yield from thread_lines(process, slices)
    yield from slice_lines(process, slices)
    if has_extras:
        yield from flow_lines(process, slices)


def _from_zero(found: Common, table: pl.DataFrame) -> pl.DataFrame:
    return table.with_columns(pl.col(r"^(start|end|at)_ns$") - found.zero_ns)


def _count(written: Written, rank: RankSlices) -> None:
    written.ranks += 1
    written.slices += rank.merged.after
    written.slices_of_run += rank.merged.before
    written.merged_below_ns = max(written.merged_below_ns, rank.merged.shorter_than_ns)


def _left_out(run: Run, found: Common, written: Written, most: int, has_extras: bool) -> Iterator[str]:
    """Yield everything that a reader would otherwise miss without knowing."""
    if written.merged_below_ns:
        yield (
            f"{written.slices_of_run:,} slices are merged into {written.slices:,}: neighbours that are "
            f"shorter and closer than {format_duration(written.merged_below_ns)}"
        )
    if written.slices > most:
        yield f"more than {most:,} slices are left: one for each kind on a track in a step"
    if not has_extras:
        yield "arrows between the ranks of a collective, and the counter of ranks that wait, are left out"
    if found.no_critical:
        yield f"there is no critical path: {found.no_critical}"
    if found.chosen is not None:
        yield f"nothing is shown but step {', '.join(map(str, sorted(found.chosen)))}"
    uncounted = [run.traces[position].relative for position in found.traces if position not in found.counted]
    if uncounted:
        yield f"no number uses {counted(len(uncounted), 'trace')} of these: {', '.join(uncounted[:_NAMED])}"


def _about(run: Run, written: Written) -> dict[str, Any]:
    """Return what the file says of itself."""
    return {
        "made_by": f"ccl-bench {__version__}",
        "run": run.path.name,
        "clocks": written.clocks,
        "slices": written.slices,
        "slices_before_merging": written.slices_of_run,
        "left_out": list(written.left_out),
    }
