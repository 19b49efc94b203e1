"""What is free and in how many pieces, who holds the peak, where memory ran out."""

from __future__ import annotations

import pytest
from allocator import KIB, MIB, Allocator, Segment, snapshot_of
from snapshot_tables import tables_of
from test_memory_replay import _busy


def _counted(segments: list[Segment]) -> dict[str, int]:
    """Return what is free in an allocator's segments, block by block."""
    free = [(s, b.size) for s in segments for b in s.blocks if b.state == "inactive"]
    return {
        "reserved_bytes": sum(s.size for s in segments),
        "allocated_bytes": sum(s.summed("active_allocated") for s in segments),
        "active_bytes": sum(s.summed("active_allocated", "active_pending_free") for s in segments),
        "free_bytes": sum(size for _, size in free),
        "largest_free_bytes": max((size for _, size in free), default=0),
        "inactive_split_bytes": sum(size for s, size in free if len(s.blocks) > 1 and not s.expandable),
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("expandable", [False, True])
def test_the_free_pieces_at_the_snapshot_are_those_of_its_blocks(seed: int, expandable: bool) -> None:
    allocator = _busy(seed, expandable=expandable)
    (layouts,) = tables_of(snapshot_of(allocator), "memory_layouts")
    row = layouts.row(0, named=True)
    counted = _counted(allocator.segments)
    assert row["moment"] == "snapshot"
    assert {name: row[name] for name in counted} == counted


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("expandable", [False, True])
def test_the_free_pieces_at_the_peak_are_those_of_the_allocator_at_that_event(
    seed: int, expandable: bool
) -> None:
    allocator = _busy(seed, expandable=expandable)
    layouts, peaks = tables_of(snapshot_of(allocator), "memory_layouts", "memory_peaks")
    order = peaks["peak_order"].item()
    then = _busy(seed, events=order + 1, expandable=expandable)
    assert then.events == allocator.events[: len(then.events)]
    counted = _counted(then.segments)
    row = layouts.row(1, named=True)
    assert row["moment"] == "peak"
    assert {name: row[name] for name in counted} == counted


def test_the_ratios_can_be_recognised_by_heart() -> None:
    allocator = Allocator()
    places = [allocator.alloc(5 * MIB) for _ in range(4)]  # one segment of 20 MiB
    allocator.free(places[0])
    allocator.free(places[2])
    (layouts,) = tables_of(snapshot_of(allocator), "memory_layouts")
    row = layouts.row(0, named=True)
    assert row["unused_ratio"] == (20 - 10) / 20
    assert row["inactive_split_ratio"] == 10 / 20
    assert row["scattered_ratio"] == 1 - 5 / 10
    assert row["efficiency_ratio"] == 10 / 20


def test_nothing_reserved_has_no_ratios() -> None:
    snapshot = {
        "segments": [],
        "device_traces": [[{"action": "oom", "size": 5, "device_free": 1, "stream": 0}]],
    }
    (layouts,) = tables_of(snapshot, "memory_layouts")
    ratios = layouts.select("unused_ratio", "inactive_split_ratio", "scattered_ratio", "efficiency_ratio")
    assert all(value is None for row in ratios.rows() for value in row)


def _frame(name: str, line: int) -> dict:
    return {"name": name, "filename": "model.py", "line": line}


def test_the_holders_of_the_peak_come_with_their_stacks_the_largest_first() -> None:
    allocator = Allocator()
    allocator.alloc(2 * MIB)
    allocator.forget(len(allocator.events))
    attention, loss = [_frame("attention", 5), _frame("main", 1)], [_frame("loss", 9), _frame("main", 2)]
    gone = allocator.alloc(30 * MIB, frames=loss)
    allocator.free(gone)
    blocks = [allocator.alloc(20 * MIB, frames=attention) for _ in range(2)]
    allocator.alloc(1 * KIB, frames=loss)
    for block in blocks:
        allocator.free(block)
    (holders,) = tables_of(snapshot_of(allocator), "memory_holders")
    assert holders.select("bytes", "blocks", "is_before_history", "frames").rows() == [
        (40 * MIB, 2, False, ["attention (model.py:5)", "main (model.py:1)"]),
        (2 * MIB, 1, True, None),
        (1 * KIB, 1, False, ["loss (model.py:9)", "main (model.py:2)"]),
    ]


def test_the_holders_together_are_the_peak() -> None:
    allocator = _busy(4)
    holders, peaks = tables_of(snapshot_of(allocator), "memory_holders", "memory_peaks")
    assert holders["bytes"].sum() == peaks["peak_allocated_bytes"].item()


def test_categories_together_are_what_is_allocated() -> None:
    allocator = Allocator()
    weight = allocator.alloc(8 * MIB, category="parameter")
    for _ in range(3):
        allocator.free(allocator.alloc(4 * MIB, category="activation"))
    allocator.alloc(1 * MIB)
    allocator.free(weight)
    (categories,) = tables_of(snapshot_of(allocator), "memory_categories")
    assert categories["category"].unique().sort().to_list() == ["activation", "parameter", "unknown"]
    last = {row["category"]: row["allocated_bytes"] for row in categories.sort("order").iter_rows(named=True)}
    assert last == {"activation": 0, "parameter": 0, "unknown": 1 * MIB}
    most = categories.group_by("category").max().sort("category")["allocated_bytes"].to_list()
    assert most == [4 * MIB, 8 * MIB, 1 * MIB]


def test_where_memory_ran_out_stands_with_what_was_in_use() -> None:
    allocator = Allocator()
    allocator.alloc(12 * MIB)
    allocator.alloc(2 * MIB)
    allocator.oom(70_000 * MIB, free=9 * MIB)
    allocator.alloc(1 * MIB)
    ooms, peaks = tables_of(snapshot_of(allocator), "memory_ooms", "memory_peaks")
    row = ooms.row(0, named=True)
    assert (row["requested_bytes"], row["device_free_bytes"]) == (70_000 * MIB, 9 * MIB)
    assert (row["allocated_bytes"], row["reserved_bytes"], row["order"]) == (14 * MIB, 32 * MIB, 4)
    assert peaks["ooms"].item() == 1


def test_rates_are_counts_over_the_time_of_the_history() -> None:
    allocator = Allocator()
    for _ in range(10):
        allocator.free(allocator.alloc(1000))
    (rates,) = tables_of(snapshot_of(allocator), "memory_rates")
    row = rates.row(0, named=True)
    assert row["span_ns"] == 30 * 10_000  # 31 events, 10 us apart
    assert (row["allocations"], row["frees"], row["segment_allocations"]) == (10, 10, 1)
    assert row["allocations_per_s"] == pytest.approx(10 / 300e-6)
    assert row["allocated_bytes_per_s"] == pytest.approx(10_000 / 300e-6)


def test_the_map_shows_every_segment_with_its_largest_hole() -> None:
    allocator = _busy(2)
    (table,) = tables_of(snapshot_of(allocator), "memory_map")
    assert table["address"].to_list() == sorted(segment.address for segment in allocator.segments)
    assert (table["bytes"].sum(), table["free_bytes"].sum()) == (
        sum(segment.size for segment in allocator.segments),
        _counted(allocator.segments)["free_bytes"],
    )
