"""What the allocator did, one event after the other, as far back as its history goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_polars import pl
from ccl_bench.schema import TABLES
from ccl_bench.trace.formats.memory_snapshot.values import amount, column, mappings, text, time_ns, whole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.trace.formats.memory_snapshot.stacks import Stacks

ACTIONS = frozenset(
    {
        "alloc",
        "free_requested",
        "free_completed",
        "segment_alloc",
        "segment_free",
        "segment_map",
        "segment_unmap",
        "snapshot",
        "oom",
    }
)

_UNPLACED = frozenset({"snapshot", "oom"})
"""Actions that concern no address."""

Row = dict[str, object]


def events_table(histories: Iterable[object], stacks: Stacks) -> tuple[pl.DataFrame, int, list[str]]:
    """Return the events of all devices, how many are damaged, and actions that are not known.

    The history of a device stands at the place of its number.
    """
    parts: list[pl.DataFrame] = []
    damaged, unknown = 0, set[str]()
    for device, history in enumerate(histories):
        rows = mappings(history)
        damaged += len(history) - len(rows) if isinstance(history, list | tuple) else 0
        named = [row for row in rows if text(row.get("action"))]
        known = [row for row in named if row["action"] in ACTIONS]
        whole_rows = [row for row in known if _is_whole(row)]
        unknown |= {text(row["action"]) or "" for row in named if row["action"] not in ACTIONS}
        damaged += len(rows) - len(named) + len(known) - len(whole_rows)
        if whole_rows:
            parts.append(_events(device, whole_rows, stacks))
    return TABLES["memory_events"].together(parts), damaged, sorted(unknown)


def _is_whole(row: Row) -> bool:
    placed = row["action"] in _UNPLACED or amount(row.get("addr")) is not None
    return placed and amount(row.get("size")) is not None


def _events(device: int, rows: list[Row], stacks: Stacks) -> pl.DataFrame:
    is_oom = [row["action"] == "oom" for row in rows]
    free = [
        amount(row.get("device_free", row.get("addr"))) if oom else None
        for row, oom in zip(rows, is_oom, strict=True)
    ]
    return TABLES["memory_events"].frame(
        {
            "device": [device] * len(rows),
            "order": range(len(rows)),
            "time_ns": column(rows, "time_us", time_ns, pl.Int64),
            "action": [row["action"] for row in rows],
            "address": column(rows, "addr", amount, pl.Int64),
            "bytes": column(rows, "size", amount, pl.Int64),
            "stream": column(rows, "stream", whole, pl.Int64),
            "device_free_bytes": free,
            "category": column(rows, "category", text, pl.String),
            "metadata": column(rows, "user_metadata", text, pl.String),
            "compile_context": column(rows, "compile_context", text, pl.String),
            "stack": pl.Series([stacks.number(row.get("frames")) for row in rows], dtype=pl.Int64),
        }
    )
