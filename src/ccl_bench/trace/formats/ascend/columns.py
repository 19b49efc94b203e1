"""Ascend events to the rows of tables."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ccl_bench.base.lazy_polars import pl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccl_bench.trace.formats.ascend.events import Event

    Placed = tuple[Event, int | None]

_COMPUTES = re.compile(
    r"AI_?C(?:ORE|PU)|AI_VECTOR_CORE|MIX_AI[CV]|^AI[CV]$|FFTS|DSA|DVPP|^KERNEL_AI", re.IGNORECASE
)
_COPIES = re.compile(r"SDMA|PCIE_DMA|MEMCPY|ASYNC_COPY", re.IGNORECASE)
_WAITS = re.compile(
    r"EVENT|NOTIFY|WAIT|RECORD|PLACE_?HOLDER|WRITE_VALUE|LABEL|STREAM|MODEL|PROFILER|BARRIER|MAINTENANCE|CALLBACK",
    re.IGNORECASE,
)
"""What the `Task Type` of the device's scheduler means; a task without one is judged by its name."""

_OPERATOR = re.compile(r"::|Backward\w*$")


class Tasks(NamedTuple):
    """Tasks of the device by what they are; waiting is none of them."""

    kernels: list[Placed]
    copies: list[Placed]


def sorted_tasks(
    members: Mapping[object, Sequence[Event]], device_of: Mapping[object, int], *, without_calls: bool
) -> tuple[Tasks, Counter[str]]:
    """Return the device's tasks, and how many there are of each type that nothing is known of.

    A collective stands among the tasks too; `without_calls` it does not count here.
    """
    tasks, unknown = Tasks([], []), Counter[str]()
    for pid, events in members.items():
        for event in events:
            if without_calls and event.name.startswith("hcom_"):
                continue
            kind = (event.args.task_type if event.args else None) or ""
            if kind and _COMPUTES.search(kind):
                tasks.kernels.append((event, device_of[pid]))
            elif _COPIES.search(kind or event.name):
                tasks.copies.append((event, device_of[pid]))
            elif not _WAITS.search(kind or event.name):
                unknown.update([kind] if kind else [])
                tasks.kernels.extend([] if kind else [(event, device_of[pid])])
    return tasks, unknown


def is_range(name: str) -> bool:
    """Whether an event of the host is a range that somebody marked: its name alone tells."""
    return not _OPERATOR.search(name)


def kernels(placed: Sequence[Placed]) -> pl.DataFrame:
    """Return the `kernels` rows of tasks."""
    return _times([event for event, _ in placed]).with_columns(_on_device(placed))


def copies(placed: Sequence[Placed]) -> pl.DataFrame:
    """Return the `memcpy` rows of tasks; the trace does not say from where to where, nor how much."""
    rows = _times([event for event, _ in placed]).drop("name")
    return rows.with_columns(kind=pl.lit("other")).with_columns(_on_device(placed))


def _on_device(placed: Sequence[Placed]) -> list[pl.Series]:
    args = [event.args for event, _ in placed]
    streams = [a.stream if a and a.stream is not None else a and a.stream_old for a in args]
    return [
        pl.Series("device", [device for _, device in placed], dtype=pl.Int64),
        _whole("stream", [e.tid if s is None else s for s, (e, _) in zip(streams, placed, strict=True)]),
        _whole("correlation", [a and a.connection for a in args]),
    ]


def on_host(events: Sequence[Event]) -> pl.DataFrame:
    """Return what operators, ranges and calls of the host have in common."""
    return _times(events).with_columns(
        _whole("process", [event.pid for event in events]), _whole("thread", [event.tid for event in events])
    )


def launches(events: Sequence[Event]) -> pl.DataFrame:
    """Return the `launches` rows of calls of the runtime."""
    ids = [event.args and event.args.connection for event in events]
    return on_host(events).with_columns(_whole("correlation", ids))


def _times(events: Sequence[Event]) -> pl.DataFrame:
    start = _nanoseconds([event.ts for event in events])
    return pl.DataFrame(
        {
            "start_ns": start,
            "end_ns": start + _nanoseconds([event.dur for event in events]),
            "name": pl.Series([event.name for event in events], dtype=pl.Categorical),
        }
    )


def _nanoseconds(microseconds: Sequence[object]) -> pl.Series:
    """Return times as nanoseconds; text keeps the digits that a double has not."""
    texts = [f"{time:.3f}" if isinstance(time, float) else str(time) for time in microseconds]
    whole, _, rest = (pl.col("text").str.extract(r"^(-?\d+)(\.(\d+))?$", group) for group in (1, 2, 3))
    parts = rest.fill_null("0").str.pad_end(3, "0").str.head(3)
    found = whole.cast(pl.Int64, strict=False) * 1000 + parts.cast(pl.Int64)
    return pl.DataFrame({"text": pl.Series(texts, dtype=pl.String)}).select(found.alias("ns")).to_series()


def _whole(name: str, values: Sequence[object]) -> pl.Series:
    """Return whole numbers; whatever is none is null."""
    texts = pl.Series(name, [None if value is None else str(value) for value in values], dtype=pl.String)
    return texts.cast(pl.Int64, strict=False)
