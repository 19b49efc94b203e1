"""Who holds the peak and how often memory is requested, on tables made by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from ccl_bench.analysis.derived import DERIVED
from ccl_bench.analysis.memory.block_lifetimes import segments_of
from ccl_bench.analysis.memory.call_sites import memory_holders, memory_rates, memory_recomputed
from ccl_bench.schema import TABLES

SECOND_NS = 1_000_000_000


def _table(name: str, names: str, *rows: tuple[Any, ...]) -> pl.DataFrame:
    """Return a table with some columns; the others are null."""
    columns = dict(zip(names.split(), map(list, zip(*rows, strict=True)), strict=True))
    if name in TABLES:
        return TABLES[name].frame(columns)
    DERIVED.load()
    schema = DERIVED.get(name).table.empty().schema
    return pl.DataFrame(columns, schema_overrides={key: schema[key] for key in columns})


def _holders(*lives: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return the holders of the peaks of devices 0 and 1, after the events 5 and 2."""
    peaks = _table("memory_peaks", "device peak_order", (0, 5), (1, 2), (2, None))
    stacks = _table("memory_stacks", "stack frames", (1, [10]), (2, [*range(40, 71)]), (3, [11, 10]))
    places = [(number, "f", "m.py", number) for number in range(40, 71)]
    frames = _table(
        "memory_frames", "frame function file line", (10, "main", "a.py", 3), (11, None, None, None), *places
    )
    table = _table("memory_lives", "device bytes stack category born freed", *lives)
    holders = memory_holders(table, peaks, stacks, frames)
    columns = ("device", "bytes", "blocks", "stack", "category", "is_before_history", "frames")
    return holders.select(columns).rows()


def test_a_peak_is_held_by_what_was_allocated_by_then_and_not_freed() -> None:
    main = ["main (a.py:3)"]
    assert _holders(
        (0, 100, 1, "x", 5, None),  # allocated by the very event of the peak
        (0, 40, 1, "x", 0, 6),  # from the first event to the one after the peak
        (0, 70, 3, "x", -1, 5),  # freed by the event of the peak
        (0, 50, 3, "x", 6, None),  # allocated after the peak
        (0, 9, 1, "x", -1, None),
        (1, 200, 1, "x", -1, 3),
        (1, 300, 1, "x", 0, 2),
        (2, 400, 1, "x", 0, None),  # the device has no peak
    ) == [
        (0, 140, 2, 1, "x", False, main),
        (0, 9, 1, 1, "x", True, main),
        (1, 200, 1, 1, "x", True, main),
    ]


def test_holders_of_equal_bytes_are_in_order_of_stack_category_and_age() -> None:
    lives = [
        (0, 7, None, None, -1, None),
        (0, 7, None, "b", 1, None),
        (0, 7, None, "b", -1, None),
        (0, 7, None, "a", 1, None),
        (0, 7, 3, "z", 1, None),
        (0, 7, 1, "z", 1, None),
        (1, 900, 1, "a", 1, None),
        (0, 8, 3, "z", -1, None),
    ]
    assert [row[:2] + row[3:6] for row in _holders(*lives)] == [
        (0, 8, 3, "z", True),
        (0, 7, 1, "z", False),
        (0, 7, 3, "z", False),
        (0, 7, None, "a", False),
        (0, 7, None, "b", False),
        (0, 7, None, "b", True),
        (0, 7, None, None, True),
        (1, 900, 1, "a", False),
    ]


def test_a_stack_has_the_innermost_30_frames_and_marks_what_is_not_known() -> None:
    found = _holders((0, 8, 2, "z", 1, None), (0, 7, 3, "z", 1, None))
    assert found[0][-1] == [f"f (m.py:{number})" for number in range(40, 70)]
    assert found[1][-1] == ["? (?:0)", "main (a.py:3)"]


def test_rates_are_of_each_kind_of_event_over_its_device_s_time() -> None:
    size = {"alloc": 16, "free_completed": 5, "free_requested": 900, "oom": 7_000, "snapshot": 1}
    kinds = [
        *(["alloc"] * 6 + ["free_completed"] * 4 + ["free_requested"] * 7 + ["oom"] * 3),
        *(["segment_alloc"] * 2 + ["segment_map"] * 3 + ["segment_free"] * 5 + ["segment_unmap"] * 3),
    ]
    rows = [(0, 9 * SECOND_NS + number, kind, size.get(kind, 100)) for number, kind in enumerate(kinds)]
    rows.append((0, 13 * SECOND_NS, "snapshot", 1))
    rows += [(1, 50, "alloc", 3), (1, 51, "alloc", 4), (2, 60, "alloc", 5), (3, None, "free_completed", 6)]
    rates = memory_rates(_table("memory_events", "device time_ns action bytes", *rows[::-1]))
    assert rates[:, :9].rows() == [
        (0, 4 * SECOND_NS, 6, 4, 96, 20, 5, 8, 3),
        (1, 1, 2, 0, 7, 0, 0, 0, 0),
        (2, 0, 1, 0, 5, 0, 0, 0, 0),
        (3, None, 0, 1, 0, 6, 0, 0, 0),
    ]
    # 6 x 16 bytes allocated and 4 x 5 freed in 13 - 9 seconds; 7 bytes in a nanosecond
    assert rates[0, 9:].row(0) == (1.5, 1.0, 24.0)
    assert rates[1, 9:].row(0) == pytest.approx((2e9, 0.0, 7e9))
    assert rates[2:, 9:].rows() == [(None, None, None)] * 2


def test_a_segment_is_expandable_only_where_that_is_stated() -> None:
    rows = [(0, 64, 32, True), (0, 128, 16, None), (1, 9, 9, True), (0, 512, 8, False), (0, None, 8, True)]
    segments = segments_of(_table("memory_segments", "device address bytes is_expandable", *rows), 0)
    assert segments == [(64, 96, True), (128, 144, False), (512, 520, False)]


CHECKPOINT = "/site-packages/torch/utils/checkpoint.py"
AUTOGRAD = "/site-packages/torch/autograd/__init__.py"

FRAMES = [
    (0, "linear", "/site-packages/torch/nn/functional.py", 1),
    (1, "checkpoint", CHECKPOINT, 500),
    (2, "recompute_fn", CHECKPOINT, 1500),
    (3, "backward", CHECKPOINT, 300),
    (4, "backward", AUTOGRAD, 340),
    (5, "apply", "/site-packages/torch/autograd/function.py", 307),
    (6, "forward", CHECKPOINT, 260),
    (7, "backward", "model.py", 30),
    (8, "forward", "model.py", 20),
]
"""Frames as torch 2.13 has them on the stacks of both kinds of checkpoints."""

FORWARD, AGAIN, REENTRANT, REENTRANT_FORWARD, INSIDE, OTHER, NONE = 1, 2, 3, 4, 5, 6, None
STACKS = [
    (FORWARD, [0, 1]),
    (AGAIN, [0, 8, 2, 4]),
    (REENTRANT, [0, 8, 5, 3, 5, 4]),
    (REENTRANT_FORWARD, [0, 6, 5]),
    (INSIDE, [7, 5, 4, 3, 5, 4]),
    (OTHER, [0, 8]),
]


@pytest.mark.parametrize(
    ("forward", "again"), [(FORWARD, AGAIN), (REENTRANT_FORWARD, REENTRANT)], ids=["plain", "reentrant"]
)
def test_what_recomputation_leaves_allocated_is_what_it_saves(forward: int, again: int) -> None:
    """Two blocks are recomputed in the first backward pass, one in the second; work space is freed in it."""
    born = [
        *((0, forward, 1), (1, OTHER, 2)),
        *((2, again, 10), (3, again, 20), (5, again, 40), (7, INSIDE, 80), (8, NONE, 160)),
        *((9, again, 320), (10, OTHER, 640)),
        *((11, forward, 1280), (12, again, 2560)),
    ]
    freed = {3: 4, 5: 20, 9: 20, 2: 6}
    events = [(0, order, "alloc", stack) for order, stack, _ in born]
    events += [(0, order, "free_requested", None) for order in freed.values()]
    lives = [(0, order, freed.get(order), size, stack) for order, stack, size in born]
    found = memory_recomputed(
        _table("memory_lives", "device born freed bytes stack", *lives),
        _table("memory_events", "device order action stack", *events),
        _table("memory_stacks", "stack frames", *STACKS),
        _table("memory_frames", "frame function file line", *FRAMES),
    )
    assert found.rows() == [(0, 2, 10 + 40 + 320), (0, 1, 2560)]


def test_a_program_without_checkpoints_recomputes_nothing() -> None:
    found = memory_recomputed(
        _table("memory_lives", "device born freed bytes stack", (0, 0, None, 8, OTHER)),
        _table("memory_events", "device order action stack", (0, 0, "alloc", OTHER)),
        _table("memory_stacks", "stack frames", *STACKS),
        _table("memory_frames", "frame function file line", *FRAMES),
    )
    assert found.is_empty()
