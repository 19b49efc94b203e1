"""Slices as lines of Chrome's trace event format, which Perfetto and chrome://tracing read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.communication.call_parts import WAITING
from ccl_bench.base.lazy_imports import pl
from ccl_bench.timeline.slices import BUBBLE, EXPOSED, LATE, TRACKS, WAIT

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def metadata(process: int, what: str, thread: int | None = None, **args: Any) -> str:
    """Return a line that names or orders a process or a thread."""
    found: dict[str, Any] = {"ph": "M", "pid": process, "name": what, "args": args}
    return json.dumps(found if thread is None else {**found, "tid": thread}, ensure_ascii=False)


def process_lines(process: int, name: str, label: str = "") -> Iterator[str]:
    """Yield the lines that name a process and put it in its place."""
    yield metadata(process, "process_name", name=name)
    yield metadata(process, "process_sort_index", sort_index=process)
    if label:
        yield metadata(process, "process_labels", labels=label)


def with_threads(slices: pl.DataFrame) -> pl.DataFrame:
    """Return slices in lanes with the number of their `thread`: tracks in order, then streams, then lanes."""
    place = {key: number for number, key in enumerate(TRACKS)}
    order = pl.col("track").replace_strict(place, return_dtype=pl.Int64)
    row = pl.struct(order.alias("order"), pl.col("stream").fill_null(-1)).rank("dense")
    return slices.with_columns((row.cast(pl.Int64) * _LANES + pl.col("lane")).alias("thread"))


def thread_lines(process: int, slices: pl.DataFrame) -> Iterator[str]:
    """Yield the lines that name and order the threads of a process."""
    threads = slices.select("thread", "track", "stream", "lane").unique("thread").sort("thread")
    for thread, track, stream, lane in threads.iter_rows():
        title = TRACKS[track].title
        number = "" if stream is None or not TRACKS[track].is_activity else f", stream {stream}"
        beside = f" ({lane + 1})" if lane else ""
        yield metadata(process, "thread_name", thread, name=f"{title}{number}{beside}")
        yield metadata(process, "thread_sort_index", thread, sort_index=thread)


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
    """Return texts as JSON strings; each distinct one is quoted once."""
    distinct = texts.unique().to_list()
    quoted = [json.dumps(text if text is not None else "", ensure_ascii=False) for text in distinct]
    return texts.replace_strict(distinct, quoted, return_dtype=pl.String)
