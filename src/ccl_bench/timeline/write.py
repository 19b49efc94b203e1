"""The writer of timelines in Chrome's trace event format, with one rank at a time in memory.

Perfetto and chrome://tracing read the file.
"""

from __future__ import annotations

import io
import json
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import quote

from ccl_bench import __version__, storage
from ccl_bench.analysis.communication.calls import WAITING
from ccl_bench.analysis.communication.clocks import format_duration
from ccl_bench.base.errors import UsageError
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.timeline.load import load_common, load_ranks
from ccl_bench.timeline.slices import BUBBLE, EXPOSED, LATE, TRACKS, WAIT, assign_lanes, merge_short_slices

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccl_bench.engine import Progress
    from ccl_bench.run import Run
    from ccl_bench.timeline.load import SharedData

MOST_SLICES = 500_000
"""Default number of slices of a file: about 75 MB of JSON, which Perfetto and chrome://tracing can open."""

FEWEST_SLICES = 1_000

ALL_RANKS = "all ranks"
"""Name of the process of all ranks together; its tracks are called `/all ranks/TITLE`.

Perfetto names a track by its thread, and the group around it by what follows the last slash.
"""

PERFETTO = "https://ui.perfetto.dev/#!/?startupCommands=" + quote(
    json.dumps([{"id": "dev.perfetto.PinTracksByRegex", "args": [f"^/{ALL_RANKS}/"]}], separators=(",", ":"))
)
"""Address of Perfetto, which puts the tracks of all ranks together on top of any file that is opened there.

Perfetto sorts processes by their number of slices, and this one has the fewest.
"""

_WHOLE = 1
"""Process that all ranks share; viewers treat process 0 as idle."""
_FIRST_RANK = 2

_NAMED = 5

_EXTRA = 5
"""Number of slices per arrow or change of the counter."""


@dataclass(slots=True)
class WrittenTimeline:
    """The outcome of writing a timeline."""

    path: Path
    slices: int = 0
    """Number of slices in the file."""
    slices_of_run: int = 0
    """Number of slices before short ones were merged."""
    ranks: int = 0
    bytes: int = 0
    """Size on disk."""
    merged_below_ns: int = 0
    """Length below which slices may be merged; 0 if none is."""
    clocks: str = ""
    """How the clocks of the ranks were aligned."""
    left_out: tuple[str, ...] = ()
    """Remarks on hidden or uncounted data, in sentences."""


def write_timeline(
    run: Run,
    target: Path,
    *,
    most_slices: int = MOST_SLICES,
    jobs: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> WrittenTimeline:
    """Write the timeline of a run to `target`, compressed if its name ends in `.gz`.

    If steps of the run were chosen, only those are shown. Raises UsageError for fewer slices than
    `FEWEST_SLICES`, and what `load_common` raises.
    """
    if most_slices < FEWEST_SLICES:
        raise UsageError(
            f"{most_slices} slices are too few for a timeline", fix=f"allow {FEWEST_SLICES} or more"
        )
    common = load_common(run, jobs=jobs, use_cache=use_cache, progress=progress)
    whole, merged = merge_short_slices(common.whole, most_slices // 10)
    timeline = WrittenTimeline(
        target,
        merged.after,
        merged.before,
        merged_below_ns=merged.shorter_than_ns,
        clocks=common.clocks.statement,
    )
    most = max(1, (most_slices - merged.after) // len(common.traces))
    has_extras = common.members.height * _EXTRA <= most_slices
    with storage.write_atomically(target) as temporary:
        with _opened(temporary, is_compressed=target.suffix == ".gz") as stream:
            stream.write('{"displayTimeUnit":"ns","traceEvents":[\n')
            together = with_threads(assign_lanes(_from_zero(common, whole)))
            counter = counter_lines(_WHOLE, _from_zero(common, common.waiting)) if has_extras else ()
            lines = lines_of(_WHOLE, ALL_RANKS, common.clocks.statement, together)
            stream.write("\n,".join((*lines, *counter)))
            for rank in load_ranks(run, common, most, jobs=jobs, use_cache=use_cache, progress=progress):
                process = _FIRST_RANK + rank.place
                label = "" if rank.trace in common.counted else "not in the numbers"
                slices = with_threads(_from_zero(common, rank.slices))
                arrows = flow_lines(process, slices) if has_extras else ()
                stream.write("\n,")
                stream.write("\n,".join((*lines_of(process, rank.name, label, slices), *arrows)))
                timeline.ranks += 1
                timeline.slices += rank.merged.after
                timeline.slices_of_run += rank.merged.before
                timeline.merged_below_ns = max(timeline.merged_below_ns, rank.merged.shorter_than_ns)
            timeline.left_out = tuple(_left_out(run, common, timeline, most_slices, has_extras))
            about = {
                "made_by": f"ccl-bench {__version__}",
                "run": run.path.name,
                "clocks": timeline.clocks,
                "slices": timeline.slices,
                "slices_before_merging": timeline.slices_of_run,
                "left_out": list(timeline.left_out),
            }
            stream.write(f'\n],"otherData":{json.dumps(about)}}}\n')
        temporary.chmod(0o644)
        timeline.bytes = temporary.stat().st_size
    return timeline


def queries() -> str:
    """Return the SQL queries that Perfetto answers about a timeline."""
    return resources.files(__package__).joinpath("queries.sql").read_text(encoding="utf-8")


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


def _from_zero(common: SharedData, table: pl.DataFrame) -> pl.DataFrame:
    return table.with_columns(pl.col(r"^(start|end|at)_ns$") - common.zero_ns)


def _left_out(
    run: Run, common: SharedData, timeline: WrittenTimeline, most: int, has_extras: bool
) -> Iterator[str]:
    """Yield remarks on hidden or uncounted data."""
    if timeline.merged_below_ns:
        yield (
            f"{timeline.slices_of_run:,} slices are merged into {timeline.slices:,}: neighbours that are "
            f"shorter and closer than {format_duration(timeline.merged_below_ns)}"
        )
    if timeline.slices > most:
        yield f"more than {most:,} slices remain: one for each kind on a track in a step"
    if not has_extras:
        yield "arrows between the ranks of a collective, and the counter of ranks that wait, are left out"
    if common.no_critical:
        yield f"there is no critical path: {common.no_critical}"
    if common.chosen_steps is not None:
        yield f"the file shows only step {', '.join(map(str, sorted(common.chosen_steps)))}"
    uncounted = [
        run.traces[position].relative for position in common.traces if position not in common.counted
    ]
    if uncounted:
        yield f"no number uses {counted(len(uncounted), 'trace')} of these: {', '.join(uncounted[:_NAMED])}"


_COLOURS = {
    key: f',"cname":"{colour}"'
    for key, colour in {
        WAIT: "bad",
        f"{EXPOSED} {WAITING}": "bad",
        LATE: "terrible",
        BUBBLE: "grey",
    }.items()
}
"""Colours of chrome://tracing for wasted time; Perfetto chooses its own."""

_LANES = 1_000
"""Numbers of threads that each row of a rank has for its lanes."""


def metadata(process: int, kind: str, thread: int | None = None, **args: Any) -> str:
    """Return a line that names or orders a process or a thread."""
    event: dict[str, Any] = {"ph": "M", "pid": process, "name": kind, "args": args}
    return json.dumps(event if thread is None else {**event, "tid": thread})


def lines_of(process: int, name: str, label: str, slices: pl.DataFrame) -> Iterator[str]:
    """Yield the lines that name and order a process and its threads, then those of the slices."""
    yield metadata(process, "process_name", name=name)
    yield metadata(process, "process_sort_index", sort_index=process)
    if label:
        yield metadata(process, "process_labels", labels=label)
    threads = slices.select("thread", "track", "stream", "lane").unique("thread").sort("thread")
    for thread, track, stream, lane in threads.iter_rows():
        title = TRACKS[track].title
        number = "" if stream is None or not TRACKS[track].is_activity else f", stream {stream}"
        lane_suffix = f" ({lane + 1})" if lane else ""
        whole = f"/{name}/" if process == _WHOLE else ""
        yield metadata(process, "thread_name", thread, name=f"{whole}{title}{number}{lane_suffix}")
        yield metadata(process, "thread_sort_index", thread, sort_index=thread)
    yield from slice_lines(process, slices)


def with_threads(slices: pl.DataFrame) -> pl.DataFrame:
    """Return slices in lanes with the number of their `thread`: tracks in order, then streams, then lanes."""
    place = {key: number for number, key in enumerate(TRACKS)}
    order = pl.col("track").replace_strict(place, return_dtype=pl.Int64)
    row = pl.struct(order.alias("order"), pl.col("stream").fill_null(-1)).rank("dense")
    return slices.with_columns((row.cast(pl.Int64) * _LANES + pl.col("lane")).alias("thread"))


def slice_lines(process: int, slices: pl.DataFrame) -> pl.Series:
    """Return one line for each slice; times are on the common clock, ns."""
    step = pl.when(pl.col("step").is_not_null()).then(pl.format('"step":{}', "step"))
    args = pl.concat_str(step, "args", separator=",", ignore_nulls=True)
    line = pl.format(
        '{{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"cat":{},"name":{}{},"args":{{{}}}}}',
        pl.lit(process),
        "thread",
        _microseconds(pl.col("start_ns")),
        _microseconds(pl.col("end_ns") - pl.col("start_ns")),
        _quoted(slices["category"]),
        _quoted(slices["name"]),
        pl.col("category").replace_strict(_COLOURS, default="", return_dtype=pl.String),
        args,
    )
    return slices.select(line.alias("line"))["line"]


def flow_lines(process: int, slices: pl.DataFrame) -> pl.Series:
    """Return the lines that join slices of several ranks: of a collective, and of the critical path."""
    flowing = slices.drop_nulls("flow")
    line = pl.format(
        '{{"ph":"{}","pid":{},"tid":{},"ts":{},"id":{},"cat":{},"name":{},"bp":"e"}}',
        "role",
        pl.lit(process),
        "thread",
        _microseconds(pl.col("start_ns")),
        "flow",
        *[_quoted(flowing["track"].replace({WAIT: "collective"}))] * 2,
    )
    return flowing.select(line.alias("line"))["line"]


def counter_lines(process: int, levels: pl.DataFrame) -> pl.Series:
    """Return the lines of the counter of ranks that wait, from `at_ns` and `waiting`."""
    line = pl.format(
        '{{"ph":"C","pid":{},"ts":{},"name":"ranks that wait in a collective","args":{{"ranks":{}}}}}',
        pl.lit(process),
        _microseconds(pl.col("at_ns")),
        "waiting",
    )
    return levels.select(line.alias("line"))["line"]


def _microseconds(time_ns: pl.Expr) -> pl.Expr:
    fraction = (time_ns % 1_000).cast(pl.String).str.zfill(3)
    return pl.format("{}.{}", time_ns // 1_000, fraction)


def _quoted(texts: pl.Series) -> pl.Series:
    """Return texts as JSON strings in ASCII; each distinct one is quoted once."""
    distinct = texts.unique().to_list()
    literals = [json.dumps(text if text is not None else "") for text in distinct]
    return texts.replace_strict(distinct, literals, return_dtype=pl.String)
