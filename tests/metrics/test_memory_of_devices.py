"""Peaks and fragmentation of devices, of counters and layouts that can be followed by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics.memory_fragmentation import memory_fragmentation
from ccl_bench.metrics.peak_memory_allocated import peak_memory_allocated
from ccl_bench.side_files import DeviceMemory, MemoryStats

NONE = pl.DataFrame()
HOLDERS = {
    "trace": pl.Int64, "device": pl.Int64, "bytes": pl.Int64, "blocks": pl.Int64, "category": pl.String,
    "is_before_history": pl.Boolean, "frames": pl.List(pl.String),
}  # fmt: skip
PEAKS = {
    "trace": pl.Int64, "rank": pl.Int64, "device": pl.Int64, "peak_order": pl.Int64,
    "peak_allocated_bytes": pl.Int64,
}  # fmt: skip
LAYOUTS = {"rank": pl.Int64, "iteration": pl.Int64, "device": pl.Int64, "moment": pl.String}


def stats(*devices: dict[str, Any]) -> MemoryStats:
    """Return counters of devices, each of the rank of its place if it names none."""
    return MemoryStats(tuple(DeviceMemory(**{"rank": rank} | each) for rank, each in enumerate(devices)))


def peak(counted: MemoryStats) -> Any:
    peaks, holders = pl.DataFrame(schema=PEAKS), pl.DataFrame(schema=HOLDERS)
    return peak_memory_allocated(counted, peaks, NONE, NONE, holders)


def fragmented(counted: MemoryStats, layouts: pl.DataFrame | None = None) -> Any:
    shown = pl.DataFrame(schema=LAYOUTS) if layouts is None else layouts
    return memory_fragmentation(counted, pl.DataFrame(schema=PEAKS), shown, NONE)


def test_the_peak_is_of_the_highest_device_and_its_imbalance_that_over_the_mean() -> None:
    found = peak(
        stats(
            {"peak_allocated_bytes": 2_000_000_000, "ooms": 3},
            {"peak_allocated_bytes": 9_000_000_000},
            {"peak_allocated_bytes": 0, "rank": 5},
            {"rank": 6},
        )
    )
    assert (found.value, found.details["highest_device"]) == (pytest.approx(9), "1")
    assert found.details["imbalance_ratio"] == pytest.approx(9 * 3 / 11)
    expected = {"0": 2_000_000_000, "1": 9_000_000_000, "5": 0}
    assert found.details["per_device_peak_allocated_bytes"] == expected
    assert found.details["per_device_ooms"] == {"0": 3}
    assert "per_device_frees" not in found.details
    assert found.ranks == [0, 1, 5, 6]


def test_devices_that_never_allocated_are_balanced() -> None:
    found = peak(stats(*[{"peak_allocated_bytes": 0}] * 3))
    assert (found.value, found.details["imbalance_ratio"]) == (0, 1)
    with pytest.raises(NotMeasurable, match="no peak"):
        peak(stats({"allocated_bytes": 7}))


def test_fragmentation_is_of_the_worst_device_by_peaks_if_any_are_known() -> None:
    found = fragmented(
        stats(
            {"peak_allocated_bytes": 60, "peak_reserved_bytes": 80, "peak_active_bytes": 64},
            {"peak_allocated_bytes": 30, "peak_reserved_bytes": 120, "peak_inactive_split_bytes": 12},
            {"peak_allocated_bytes": 45, "peak_reserved_bytes": 90},
            {"peak_allocated_bytes": 5, "peak_reserved_bytes": 0},
            {"allocated_bytes": 1, "reserved_bytes": 1000},
        )
    )
    assert (found.value, found.details["highest_device"]) == (pytest.approx(0.75), "1")
    assert found.details["per_device_ratio"] == pytest.approx({"0": 0.25, "1": 0.75, "2": 0.5})
    assert found.details["per_device_reserved_bytes"] == {"0": 80, "1": 120, "2": 90, "3": 0}
    assert found.details["per_device_efficiency_ratio"] == pytest.approx({"0": 0.8})
    assert found.details["per_device_inactive_split_ratio"] == pytest.approx({"1": 0.1})
    assert found.details["basis"] == "peaks"
    assert not {"per_device_scattered_ratio", "snapshots"} & found.details.keys()


def test_without_peaks_fragmentation_is_that_of_the_state_with_its_free_blocks() -> None:
    found = fragmented(
        stats(
            {"allocated_bytes": 30, "reserved_bytes": 40, "free_bytes": 10, "largest_free_bytes": 7},
            {"allocated_bytes": 0, "reserved_bytes": 40, "free_bytes": 40, "largest_free_bytes": 0},
            {"allocated_bytes": 9, "reserved_bytes": 10, "free_bytes": 0, "largest_free_bytes": 0},
            {"allocated_bytes": 9, "reserved_bytes": 10, "free_bytes": 1},
        )
    )
    assert found.details["basis"] == "state when written"
    assert (found.value, found.details["highest_device"]) == (1, "1")
    assert found.details["per_device_scattered_ratio"] == pytest.approx({"0": 0.3, "1": 1})
    with pytest.raises(NotMeasurable, match="lack reserved"):
        fragmented(stats({"peak_active_bytes": 7}))


def test_the_measures_of_snapshots_leave_out_what_is_unknown() -> None:
    row = {"rank": 0, "iteration": None, "device": 1, "moment": "peak", "unused_ratio": 0.25}
    second = row | {"moment": "snapshot", "unused_ratio": None, "split_ratio": 0.0, "bytes": 9}
    layouts = pl.DataFrame([row, second], schema_overrides=LAYOUTS | {"split_ratio": pl.Float64})
    found = fragmented(stats({"allocated_bytes": 3, "reserved_bytes": 4}), layouts)
    assert found.details["snapshots"] == [
        {"rank": 0, "device": 1, "moment": "peak", "unused_ratio": 0.25},
        {"rank": 0, "device": 1, "moment": "snapshot", "split_ratio": 0.0},
    ]


def test_the_holders_are_of_the_highest_peak_of_the_highest_rank() -> None:
    peaks = [(0, 0, 0, 1, 5), (1, 1, 0, 1, 6), (1, 1, 1, 1, 9), (1, 1, 2, None, 99), (2, 2, 0, 1, 7)]
    held = [
        (trace, device, size, size + 1, "", size % 2 == 0, [str(frame) for frame in range(size)])
        for trace, device, first in ((0, 0, 200), (1, 0, 100), (1, 1, 1), (2, 0, 300))
        for size in range(first, first + 12)
    ]
    rates = {"allocations_per_s": 2.0, "frees_per_s": None, "allocated_bytes_per_s": 8.0}
    extra = {"start_allocated_bytes": 4, "peak_requested_bytes": 3, "events": 2, "contradictions": 0}
    extra |= {"inexact_bytes": None, "iteration": None, "ooms": 0, "peak_active_bytes": 0}
    extra |= {"peak_reserved_bytes": 0}
    table = pl.DataFrame(peaks, schema=PEAKS, orient="row").with_columns(
        pl.lit(value, dtype=pl.Int64).alias(name) for name, value in extra.items()
    )
    rated = table.select("trace", "rank", "device").with_columns(
        pl.lit(value, dtype=pl.Float64).alias(name) for name, value in rates.items()
    )
    counts = rated.with_columns(allocations=pl.lit(1), frees=pl.lit(2))
    sums = (
        "allocated_bytes", "active_bytes", "reserved_bytes", "inactive_split_bytes", "free_bytes",
        "largest_free_bytes",
    )  # fmt: skip
    layouts = pl.DataFrame(schema=LAYOUTS | dict.fromkeys(sums, pl.Int64))
    holders = pl.DataFrame(held, schema=HOLDERS, orient="row")
    found = peak_memory_allocated(None, table, layouts, counts, holders)
    assert found.details["highest_device"].startswith("1")
    listed = found.details["holders"]
    assert [each["bytes"] for each in listed] == [12, 11, 10, 9, 8, 7, 6, 5, 4, 3]
    assert listed[0] == {
        "bytes": 12,
        "blocks_count": 13,
        "is_before_history": True,
        "frames": ["0", "1", "2", "3", "4"],
    }
    first = found.details["snapshots"][0]
    assert first == {"rank": 0, "device": 0, "start_allocated_bytes": 4, "peak_requested_bytes": 3} | {
        "events": 2,
        "contradictions": 0,
        "allocations_per_s": 2.0,
        "allocated_bytes_per_s": 8.0,
    }
