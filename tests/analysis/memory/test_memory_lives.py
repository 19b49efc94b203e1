"""Lives of blocks replayed from single events, their sizes, and what they leave free, by hand."""

from __future__ import annotations

import polars as pl
import pytest

from ccl_bench.analysis.derived import DERIVED
from ccl_bench.analysis.memory.allocator import Range, Rounding
from ccl_bench.analysis.memory.block_lifetimes import AllocatorEvent, Life, fill_sizes, replay_history

DERIVED.load()
MIB = 1 << 20
ALLOC, ASKED, DONE = "alloc", "free_requested", "free_completed"


def in_use(*, is_pending: bool = False) -> Life:
    """Return a block of 64 bytes at address 0 that is in use at the snapshot."""
    return Life(0, 64, 512, is_pending=is_pending)


@pytest.mark.parametrize(
    ("actions", "at_end", "lives", "contradictions"),
    [
        ([ALLOC, ASKED, DONE], [], [(0, 1, 2)], 0),
        ([ASKED, DONE], [], [(-1, 0, 1)], 0),
        ([DONE], [], [(-1, -1, 0)], 0),
        ([ALLOC], [in_use()], [(0, None, None)], 0),
        ([], [in_use()], [(-1, None, None)], 0),
        ([ALLOC, ASKED], [in_use(is_pending=True)], [(0, 1, None)], 0),
        ([], [in_use(is_pending=True)], [(-1, -1, None)], 0),
        ([ALLOC, ASKED, DONE, ALLOC], [in_use()], [(3, None, None), (0, 1, 2)], 0),
        # what no history of the allocator has
        ([ASKED], [], [(-1, 0, 0)], 1),
        ([ALLOC], [], [], 1),
        ([ALLOC, DONE], [], [(0, 1, 1)], 1),
        ([ALLOC], [in_use(is_pending=True)], [(0, 0, None)], 1),
        ([ASKED, DONE], [in_use()], [(1, None, None), (-1, 0, 1)], 1),
    ],
)
def test_lives_are_replayed_backwards(
    actions: list[str], at_end: list[Life], lives: list[tuple[int | None, ...]], contradictions: int
) -> None:
    fresh = [Life(each.address, each.requested, each.size, is_pending=each.is_pending) for each in at_end]
    found = replay_history([AllocatorEvent(action, 0, 64) for action in actions], fresh)
    assert [(life.born, life.freed, life.died) for life in found.lives] == lives
    assert found.contradictions == contradictions


def test_the_allocation_states_size_stack_and_category_of_a_block() -> None:
    known = Life(0, 1, 512, stack=4, category="weights")
    replay_history([AllocatorEvent(ALLOC, 0, 64)], [known])
    assert (known.requested, known.stack, known.category) == (64, 4, "weights")
    replay_history([AllocatorEvent(ALLOC, 0, 64, stack=0, category="other")], [known])
    assert (known.stack, known.category) == (0, "other")


WHOLE: list[Range] = [(0, 20 * MIB, False)]


def sized(asked: float, following: float | None, segments: list[Range], *, born: int) -> tuple[float, bool]:
    """Return the size of a block at address 0 in MiB, with another block from `following` MiB on."""
    events = [AllocatorEvent(ALLOC, 0, 0)] * (born + 1)
    life = Life(0, int(asked * MIB), born=born)
    others = [] if following is None else [Life(int(following * MIB), 2 * MIB, 2 * MIB)]
    fill_sizes([life, *others], events, segments, Rounding())
    assert life.size is not None
    return life.size / MIB, life.is_exact


@pytest.mark.parametrize(
    ("asked", "following", "segments", "size"),
    [
        (2, None, WHOLE, 2), (19, None, WHOLE, 20), (18.5, None, WHOLE, 18.5), (3, 3.5, WHOLE, 3.5),
        (3, 4, WHOLE, 4), (3, 4.5, WHOLE, 3), (0.5, None, WHOLE, 0.5), (1, 1.25, WHOLE, 1),
        (19, None, [(0, 20 * MIB, True)], 19), (19, None, [], 19),
    ],
)  # fmt: skip
def test_a_block_of_the_history_is_what_the_allocator_makes_of_the_free_one(
    asked: float, following: float | None, segments: list[Range], size: float
) -> None:
    assert sized(asked, following, segments, born=0) == (size, True)


@pytest.mark.parametrize(
    ("asked", "following", "segments", "size", "is_exact"),
    [
        (2, 2.5, WHOLE, 2.5, True), (2, 3, WHOLE, 3, True), (2, 3.5, WHOLE, 2, False), (2, 2, WHOLE, 2, True),
        (0.5, 2, WHOLE, 0.5, True), (2, 3.5, [(0, 20 * MIB, True)], 2, True), (2, 3.5, [], 2, True),
        (19.5, None, WHOLE, 20, True), (18, None, WHOLE, 18, False),
    ],
)  # fmt: skip
def test_a_block_from_before_the_history_has_a_gap_that_is_too_small_for_another(
    asked: float, following: float | None, segments: list[Range], size: float, is_exact: bool
) -> None:
    assert sized(asked, following, segments, born=-1) == (size, is_exact)


def table(columns: dict[str, list[object]]) -> pl.DataFrame:
    """Return rows of device 0."""
    count = len(next(iter(columns.values())))
    texts = {"action": pl.String, "category": pl.String, "is_expandable": pl.Boolean}
    types = {name: texts.get(name, pl.Int64()) for name in columns}
    return pl.DataFrame({"device": [0] * count, **columns}, schema_overrides=types)


def test_what_is_free_at_the_snapshot_and_at_the_peak() -> None:
    # Segments of 100, 50 and, expandable, 100 bytes; the second was allocated after the peak.
    segments = table(
        {"address": [0, 200, 300], "bytes": [100, 50, 100], "is_expandable": [False, False, True]}
    )
    # In the first: one block all the time, one from 6 on whose freeing was asked for, one until 6.
    lives = table(
        {
            "address": [10, 50, 70, 300], "bytes": [20, 10, 20, 40], "born": [-1, 6, 2, 5],
            "freed": [None, 8, 5, None], "died": [None, None, 6, None],
        }
    )  # fmt: skip
    events = table(
        {"order": [6], "action": ["segment_alloc"], "address": [200], "bytes": [50], "stack": [None],
         "category": [None]}
    )  # fmt: skip
    peaks = table({"peak_order": [5]})
    found = DERIVED.get("memory_layouts").compute(segments, lives, events, peaks)
    names = ("reserved", "allocated", "active", "free", "largest_free", "inactive_split")
    measures = ("unused", "inactive_split", "scattered", "efficiency")
    shown = found.select(
        "moment", *(f"{name}_bytes" for name in names), *(f"{name}_ratio" for name in measures)
    )
    # free: 10 + 20 + 40 beside blocks, 50 in the empty segment, and 60 in the expandable one
    assert shown.row(0) == (
        "snapshot", 250, 60, 70, 180, 60, 70,
        pytest.approx(190 / 250), pytest.approx(70 / 250), pytest.approx(1 - 60 / 180),
        pytest.approx(70 / 250),
    )  # fmt: skip
    # free: 10 + 40 + 10, and 60
    assert shown.row(1) == (
        "peak", 200, 60, 80, 120, 60, 60,
        pytest.approx(140 / 200), pytest.approx(60 / 200), pytest.approx(1 - 60 / 120),
        pytest.approx(80 / 200),
    )  # fmt: skip


def test_nothing_reserved_has_no_ratios_and_nothing_free_is_not_scattered() -> None:
    segments = table({"address": [0], "bytes": [100], "is_expandable": [False]})
    lives = table({"address": [0], "bytes": [100], "born": [-1], "freed": [None], "died": [None]})
    no_events = table({name: [] for name in ("order", "action", "address", "bytes", "stack", "category")})
    no_peak = table({"peak_order": [None]})
    compute = DERIVED.get("memory_layouts").compute
    full = compute(segments, lives, no_events, no_peak).row(0, named=True)
    assert (full["unused_ratio"], full["scattered_ratio"], full["efficiency_ratio"]) == (0, None, 1)
    empty = compute(segments.clear(), lives.clear(), no_events, no_peak).row(0, named=True)
    assert [empty[name] for name in ("unused_ratio", "inactive_split_ratio", "efficiency_ratio")] == [
        None
    ] * 3
