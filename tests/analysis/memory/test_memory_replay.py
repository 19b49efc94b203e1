"""Memory over time, replayed from a snapshot, against an allocator that kept count itself."""

from __future__ import annotations

import random

import pytest
from allocator import KIB, MIB, Allocator, old_layout, snapshot_of
from snapshot_tables import tables_of

SUMS = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")

_SIZES = (100, 513, 3 * KIB, 700 * KIB, MIB, MIB + 1, 3 * MIB, 9 * MIB + 5, 19 * MIB + 600 * KIB, 33 * MIB)


def _busy(seed: int, events: int = 600, **settings) -> Allocator:
    """Return an allocator after random work: several streams, late frees, emptied caches."""
    random_ = random.Random(seed)
    allocator = Allocator(**settings)
    live: list[int] = []
    pending: list[int] = []
    while len(allocator.events) < events:
        choice = random_.random()
        if choice < 0.5 or not live:
            live.append(allocator.alloc(random_.choice(_SIZES), stream=random_.choice((0, 0, 7))))
        elif choice < 0.75:
            allocator.free(live.pop(random_.randrange(len(live))))
        elif choice < 0.87:
            pending.append(live.pop(random_.randrange(len(live))))
            allocator.request_free(pending[-1])
        elif choice < 0.97 and pending:
            allocator.complete_free(pending.pop(random_.randrange(len(pending))))
        elif choice > 0.985:
            allocator.empty_cache()
    return allocator


def _states(allocator: Allocator, snapshot: dict | None = None) -> list[tuple]:
    """Return the replayed sums after each event."""
    (timeline,) = tables_of(snapshot or snapshot_of(allocator), "memory_timeline")
    rows = {row["order"]: tuple(row[name] for name in SUMS) for row in timeline.iter_rows(named=True)}
    found, state = [], rows.get(-1, (0, 0, 0, 0))
    for order in range(len(allocator.events)):
        state = rows.get(order, state)
        found.append(state)
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("settings", [{}, {"expandable": True}, {"max_split": 8 * MIB}], ids=str)
def test_every_state_is_what_the_allocator_counted(seed: int, settings: dict) -> None:
    allocator = _busy(seed, **settings)
    assert _states(allocator) == allocator.truth


@pytest.mark.parametrize("seed", range(3))
def test_the_peaks_are_those_that_the_allocator_counted(seed: int) -> None:
    allocator = _busy(seed)
    (peaks,) = tables_of(snapshot_of(allocator), "memory_peaks")
    row = peaks.row(0, named=True)
    highest = [max(column) for column in zip(*allocator.truth, strict=True)]
    assert [row[f"peak_{name}"] for name in SUMS] == highest
    assert [row[name] for name in SUMS] == list(allocator.truth[-1])
    assert allocator.truth[row["peak_order"]][0] == highest[0]
    assert (row["start_allocated_bytes"], row["contradictions"], row["inexact_bytes"]) == (0, 0, 0)


def _brute_force(snapshot: dict, device: int = 0) -> int:
    """Return the peak of the bytes asked for: walk back from the end, one event after the other."""
    blocks = [b for s in snapshot["segments"] if s["device"] == device for b in s["blocks"]]
    now = peak = sum(b["requested_size"] for b in blocks if b["state"] == "active_allocated")
    for event in reversed(snapshot["device_traces"][device]):
        now += {"alloc": -1, "free_requested": 1}.get(event["action"], 0) * event["size"]
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize("lost", [0, 100, 599])
@pytest.mark.parametrize("seed", range(3))
def test_the_peak_of_what_was_asked_for_is_that_of_a_brute_force_replay(seed: int, lost: int) -> None:
    allocator = _busy(seed)
    allocator.forget(lost)
    snapshot = snapshot_of(allocator)
    (peaks,) = tables_of(snapshot, "memory_peaks")
    assert peaks["peak_requested_bytes"].item() == _brute_force(snapshot)


@pytest.mark.parametrize("seed", range(3))
def test_a_ring_that_lost_its_head_is_replayed_from_its_end(seed: int) -> None:
    allocator = _busy(seed)
    allocator.forget(300)
    snapshot = snapshot_of(allocator)
    peaks, lives = tables_of(snapshot, "memory_peaks", "memory_lives")
    row = peaks.row(0, named=True)
    missing = max(a for a, *_ in allocator.truth) - row["peak_allocated_bytes"]
    unsure = lives.filter(~lives["is_exact"]).height
    assert 0 <= missing <= unsure * MIB
    assert row["start_allocated_bytes"] > 0
    found = [state[2:] for state in _states(allocator, snapshot)]
    assert found == [state[2:] for state in allocator.truth]


def test_what_is_only_pending_at_the_start_of_the_history_is_active_and_not_allocated() -> None:
    allocator = Allocator()
    place = allocator.alloc(4 * MIB)
    allocator.request_free(place)
    allocator.forget(len(allocator.events))
    allocator.complete_free(place)
    (timeline,) = tables_of(snapshot_of(allocator), "memory_timeline")
    assert timeline.select("order", *SUMS[:2]).rows() == [(-1, 0, 4 * MIB), (0, 0, 0)]


def test_what_is_pending_at_the_snapshot_is_active_and_not_allocated() -> None:
    allocator = Allocator()
    allocator.request_free(allocator.alloc(4 * MIB))
    (peaks,) = tables_of(snapshot_of(allocator), "memory_peaks")
    row = peaks.row(0, named=True)
    assert (row["allocated_bytes"], row["active_bytes"], row["contradictions"]) == (0, 4 * MIB, 0)


def test_a_large_block_takes_what_is_too_little_to_split_off() -> None:
    allocator = Allocator()
    allocator.free(allocator.alloc(20 * MIB - 300 * KIB))
    (lives,) = tables_of(snapshot_of(allocator), "memory_lives")
    assert lives.select("requested_bytes", "bytes").rows() == [(20 * MIB - 300 * KIB, 20 * MIB)]


def test_sizes_are_rounded_up_as_the_settings_say() -> None:
    snapshot = {
        "segments": [],
        "device_traces": [
            [
                {"action": action, "addr": 1 << 30, "size": 1200 * MIB + 1, "stream": 0}
                for action in ("alloc", "free_requested", "free_completed")
            ]
        ],
        "allocator_settings": {"roundup_power2_divisions": {"512": 0, "1024": 4}},
    }
    (lives,) = tables_of(snapshot, "memory_lives")
    assert lives["bytes"].to_list() == [1280 * MIB]


def test_an_old_layout_gives_the_same_sums_without_times() -> None:
    allocator = _busy(3)
    new, old = (
        tables_of(s, "memory_timeline")[0]
        for s in (snapshot_of(allocator), old_layout(snapshot_of(allocator)))
    )
    assert old.drop("time_ns").equals(new.drop("time_ns"))
    assert old["time_ns"].null_count() == old.height
    (rates,) = tables_of(old_layout(snapshot_of(allocator)), "memory_rates")
    assert rates["allocations_per_s"].to_list() == [None]
    assert rates["allocations"].item() == sum(e["action"] == "alloc" for e in allocator.events)


def test_devices_are_replayed_apart() -> None:
    one, other = _busy(1), _busy(2)
    timelines = tables_of(snapshot_of(one, other), "memory_timeline")[0].partition_by("device")
    alone = [tables_of(snapshot_of(allocator), "memory_timeline")[0] for allocator in (one, other)]
    assert [t.drop("device").equals(a.drop("device")) for t, a in zip(timelines, alone, strict=True)] == [
        True
    ] * 2


def test_without_a_history_there_is_a_state_and_no_peak() -> None:
    allocator = _busy(1)
    snapshot = snapshot_of(allocator)
    snapshot["device_traces"] = []
    peaks, layouts = tables_of(snapshot, "memory_peaks", "memory_layouts")
    row = peaks.row(0, named=True)
    assert (row["peak_allocated_bytes"], row["peak_order"], row["events"]) == (None, None, 0)
    assert [row[name] for name in SUMS] == list(allocator.truth[-1])
    assert layouts["moment"].to_list() == ["snapshot"]


def test_events_that_fit_nothing_are_counted() -> None:
    allocator = Allocator()
    allocator.free(allocator.alloc(5 * MIB))
    del allocator.events[2]
    (peaks,) = tables_of(snapshot_of(allocator), "memory_peaks")
    assert peaks["contradictions"].item() == 1
    assert peaks["peak_allocated_bytes"].item() == 5 * MIB


@pytest.mark.parametrize(
    ("lost", "count"),
    [
        ((), 0),
        ((2,), 1),  # a block is given back without a request
        ((3,), 1),  # a block is requested back, and allocated again while it is in use
        ((4,), 1),  # a block is given back twice
        ((5, 6), 1),  # a block is allocated, and is not there at the end
        ((2, 3), 1),  # a block is allocated twice
        ((3, 4), 2),  # a block is requested back twice: the first neither gives it back nor is it allocated
    ],
)  # fmt: skip
def test_each_event_that_fits_nothing_is_counted_once(lost: tuple[int, ...], count: int) -> None:
    allocator = Allocator()
    for _ in range(2):
        allocator.free(allocator.alloc(5 * MIB))
    actions = ["segment_alloc", *["alloc", "free_requested", "free_completed"] * 2]
    assert [event["action"] for event in allocator.events] == actions
    for place in sorted(lost, reverse=True):
        del allocator.events[place]
    (peaks,) = tables_of(snapshot_of(allocator), "memory_peaks")
    assert peaks["contradictions"].item() == count


@pytest.mark.parametrize(
    ("asked", "size", "is_sure"),
    [
        (100 * KIB, 100 * KIB, True),  # small blocks are always split
        (20 * MIB - 300 * KIB, 20 * MIB, True),  # the 300 KiB behind it are too little to split off
        (4 * MIB, 4 * MIB, False),  # of its segment of 20 MiB, 16 MiB behind it may be free, or not
    ],
)  # fmt: skip
def test_the_size_of_a_block_from_before_the_history_is_sure_where_nothing_large_follows(
    asked: int, size: int, is_sure: bool
) -> None:
    allocator = Allocator()
    place = allocator.alloc(asked)
    allocator.forget(len(allocator.events))
    allocator.free(place)
    (lives,) = tables_of(snapshot_of(allocator), "memory_lives")
    assert lives.select("bytes", "is_exact").rows() == [(size, is_sure)]
