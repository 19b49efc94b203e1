"""`memory_stats.json` and `memory_snapshot.json` in the layouts that are in use, whole and damaged."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ccl_bench.base.errors import InputError
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run
from ccl_bench.side_files import MemoryStats, read_memory_stats, side_file
from ccl_bench.side_files.kinds import MEMORY_STATS

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.card import Reading

FLAT = {
    "allocated_bytes.all.peak": 60,
    "allocated_bytes.all.current": 10,
    "active_bytes.all.peak": 64,
    "reserved_bytes.all.peak": 80,
    "inactive_split_bytes.all.peak": 8,
    "allocated_bytes.small_pool.peak": 5,
    "allocation.all.allocated": 9,
    "allocation.all.freed": 7,
    "num_alloc_retries": 1,
    "num_ooms": 2,
}
NESTED = {
    "allocated_bytes": {"all": {"peak": 60, "current": 10}, "small_pool": {"peak": 5}},
    "active_bytes": {"all": {"peak": 64}},
    "reserved_bytes": {"all": {"peak": 80}},
    "inactive_split_bytes": {"all": {"peak": 8}},
    "allocation": {"all": {"allocated": 9, "freed": 7}},
    "num_alloc_retries": 1,
    "num_ooms": 2,
}
SEGMENTS = [
    {
        "device": 0,
        "total_size": 100,
        "allocated_size": 50,
        "active_size": 60,
        "blocks": [{"size": 60, "state": "active_allocated"}, {"size": 40, "state": "inactive"}],
    },
    {
        "device": 0,
        "total_size": 100,
        "allocated_size": 0,
        "active_size": 0,
        "blocks": [{"size": 100, "state": "inactive"}],
    },
]


_WHAT = ("current", "peak", "allocated", "freed")


def _read(folder: Path, data: Any, name: str = "memory_stats.json") -> Reading[MemoryStats]:
    path = folder / name
    path.write_text(json.dumps(data))
    return read_memory_stats(path)


def _peaks(reading: Reading[MemoryStats]) -> list[tuple[int | None, int | None, int | None]]:
    return [(each.rank, each.device, each.peak_allocated_bytes) for each in reading.value.devices]


@pytest.mark.parametrize("data", [FLAT, NESTED], ids=["flat", "nested"])
def test_the_counters_of_torch_are_read(data: Any, tmp_path: Path) -> None:
    reading = _read(tmp_path, data)
    (device,) = reading.value.devices
    assert reading.issues == []
    assert (device.peak_allocated_bytes, device.peak_active_bytes, device.peak_reserved_bytes) == (60, 64, 80)
    assert (device.peak_inactive_split_bytes, device.allocated_bytes) == (8, 10)
    assert (device.allocations, device.frees, device.alloc_retries, device.ooms) == (9, 7, 1, 2)


@pytest.mark.parametrize(
    ("data", "owners"),
    [
        (FLAT, [(None, None)]),
        ({"0": FLAT, "1": NESTED}, [(0, None), (1, None)]),
        ({"rank1": FLAT, "rank0": FLAT}, [(0, None), (1, None)]),
        ([FLAT, FLAT], [(0, None), (1, None)]),
        ([{"rank": 3, **FLAT}, {"rank": 1, **FLAT}], [(1, None), (3, None)]),
        ({"ranks": [FLAT, FLAT]}, [(0, None), (1, None)]),
        ({"0": {"cuda:0": FLAT, "cuda:1": FLAT}}, [(0, 0), (0, 1)]),
        ({"devices": {"cuda:1": FLAT}}, [(None, 1)]),
        ([{"rank": 2, "device": 5, **FLAT}], [(2, 5)]),
    ],
)
def test_each_layout_shows_whose_the_counters_are(data: Any, owners: list[Any], tmp_path: Path) -> None:
    assert _peaks(_read(tmp_path, data)) == [(*owner, 60) for owner in owners]


@pytest.mark.parametrize(
    ("name", "value", "peak"),
    [
        ("peak_allocated_bytes", 5, 5),
        ("max_memory_allocated", 7, 7),
        ("peak_allocated_gib", 1.5, 3 << 29),
        ("max_allocated(GiB)", 2, 2 << 30),
        ("peak_allocated_mb", 2.5, 2_500_000),
        ("peak_allocated_gb", 1.25, 1_250_000_000),
        ("peak_memory_allocated_gb", 2, 2_000_000_000),
        ("peak_alloc_bytes", 5, 5),
        ("max_alloc_mem_mib", 3, 3 << 20),
        ("gpu_peak_alloc_bytes", 5, 5),
        ("max_active(%)", 45, None),
        ("memory/max_active(%)", 45, None),
        ("allocated_bytes.all.freed", 45, None),
        ("peak_bytes", 45, None),
    ],
)
def test_a_unit_in_the_name_counts(name: str, value: float, peak: int | None, tmp_path: Path) -> None:
    assert [found for *_, found in _peaks(_read(tmp_path, {name: value}))] == ([peak] if peak else [])


def test_peaks_of_each_rank_as_the_first_tools_wrote_them_are_read(tmp_path: Path) -> None:
    rows = {str(rank): {"peak_alloc_bytes": 60 + rank, "peak_reserved_bytes": 80} for rank in (0, 1)}
    for name in ("memory_stats.json", "memory_snapshot.json"):
        reading = _read(tmp_path, rows, name)
        assert reading.issues == []
        assert _peaks(reading) == [(0, None, 60), (1, None, 61)]
        assert {device.peak_reserved_bytes for device in reading.value.devices} == {80}


@pytest.mark.parametrize(
    ("data", "path", "fix"),
    [
        ({"0": {"peak_aloc_bytes": 1}}, "0.peak_aloc_bytes", "peak_allocated_bytes"),
        ({"0": {**FLAT, "max_reservd": 1}}, "0.max_reservd", "reserved_bytes"),
        ([{"rank": 0, **NESTED, "zzz": 1}], "[0].zzz", "known: peak_allocated_bytes, "),
    ],
)
def test_an_unknown_key_is_reported_with_the_nearest_known_one(
    data: Any, path: str, fix: str, tmp_path: Path
) -> None:
    (issue,) = [i for i in _read(tmp_path, data).issues if "not a key" in i.message]
    assert (issue.path, fix in issue.fix) == (path, True)


def test_an_unknown_key_of_many_ranks_is_reported_once(tmp_path: Path) -> None:
    (issue,) = _read(tmp_path, {str(rank): {**FLAT, "zzz": 1} for rank in range(64)}).issues
    assert (issue.path, "at 63 more places" in issue.message) == ("0.zzz", True)


def test_no_other_counter_of_torch_is_called_unknown(tmp_path: Path) -> None:
    kinds = ("allocation", "segment", "active", "inactive_split", "requested_bytes", "reserved_bytes")
    names = [f"{kind}.{pool}_pool.{what}" for kind in kinds for pool in ("small", "large") for what in _WHAT]
    names += ["num_device_alloc", "num_device_free", "num_sync_all_streams", "num_oom_rejections"]
    names += [
        "max_split_size",
        "oversize_allocations.current",
        "reserved_bytes_by_private_pools.0_1.all.peak",
    ]
    assert _read(tmp_path, {**FLAT, **dict.fromkeys(names, 1)}).issues == []


def test_gigabytes_are_decimal_and_the_reader_says_so(tmp_path: Path) -> None:
    (issue,) = _read(tmp_path, {"peak_allocated_gb": 1}).issues
    assert "10^9" in issue.message


def test_of_records_of_steps_the_highest_peak_counts(tmp_path: Path) -> None:
    steps = [{"step": step, "max_allocated_gib": gib} for step, gib in ((1, 1), (2, 3), (3, 2))]
    assert _peaks(_read(tmp_path, steps)) == [(None, None, 3 << 30)]


@pytest.mark.parametrize("data", [SEGMENTS, {"segments": SEGMENTS, "device_traces": []}, {"0": SEGMENTS}])
def test_segments_show_the_state_and_no_peak(data: Any, tmp_path: Path) -> None:
    (device,) = _read(tmp_path, data, "memory_snapshot.json").value.devices
    assert (device.reserved_bytes, device.allocated_bytes, device.active_bytes) == (200, 50, 60)
    assert (device.free_bytes, device.largest_free_bytes, device.inactive_split_bytes) == (140, 100, 40)
    assert device.peak_allocated_bytes is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"hello": 1}, "holds no counters of a device"),
        ([1, 2], "holds no counters of a device"),
        ([], "holds no counters of a device"),
        ({"allocated_bytes.all.peak": "x"}, "is not a number"),
        ({"allocated_bytes.all.peak": -5}, "is not a number of bytes"),
        ({"peak_allocated": 61.2}, "is not a number of bytes"),
        ({"peak_allocated_gib": 9, "peak_reserved_gib": 8}, "are allocated of"),
        ({"allocated_bytes.all.peak": True}, "is not a number"),
    ],
)
def test_what_cannot_be_used_is_left_out_and_reported(data: Any, message: str, tmp_path: Path) -> None:
    reading = _read(tmp_path, data)
    assert any(message in issue.message for issue in reading.errors)
    assert [peak for *_, peak in _peaks(reading) if peak is not None] == []


def test_text_that_is_no_json_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "memory_stats.json").write_text("{")
    with pytest.raises(InputError):
        read_memory_stats(tmp_path / "memory_stats.json")


def test_the_file_is_recognised_by_name_and_shape(tmp_path: Path) -> None:
    _read(tmp_path, FLAT)
    assert side_file(tmp_path / "memory_stats.json") is MEMORY_STATS
    (tmp_path / "memory_snapshot.json").write_text('{"hello": 1}')
    assert side_file(tmp_path / "memory_snapshot.json") is None


def _measured(folder: Path) -> dict[str, Any]:
    names = ["peak_memory_allocated", "memory_fragmentation"]
    return {result.metric: result for result in evaluate(open_run(folder), names)}


def test_the_metrics_are_those_of_the_worst_device(tmp_path: Path) -> None:
    low = FLAT | {"allocated_bytes.all.peak": 40}
    _read(tmp_path, {"0": FLAT, "1": low})
    found = _measured(tmp_path)
    peak, unused = found["peak_memory_allocated"], found["memory_fragmentation"]
    assert (peak.value, peak.details["highest_device"], peak.ranks) == (60 / 1e9, "0", [0, 1])
    assert (unused.value, unused.details["highest_device"]) == ((80 - 40) / 80, "1")
    assert unused.details["per_device_efficiency_ratio"] == {"0": 64 / 80, "1": 64 / 80}
    assert unused.details["per_device_inactive_split_ratio"] == {"0": 8 / 80, "1": 8 / 80}
    assert list(peak.provenance.files) == ["memory_stats.json"]


def test_of_a_snapshot_the_free_blocks_show_how_scattered_they_are(tmp_path: Path) -> None:
    _read(tmp_path, SEGMENTS, "memory_snapshot.json")
    found = _measured(tmp_path)
    assert found["peak_memory_allocated"].status == "not_measurable"
    assert "peak" in found["peak_memory_allocated"].reason
    assert found["memory_fragmentation"].value == (200 - 50) / 200
    assert found["memory_fragmentation"].details["basis"] == "state when written"
    assert found["memory_fragmentation"].details["per_device_scattered_ratio"] == {
        "device 0": pytest.approx(1 - 100 / 140)
    }


def test_counters_come_before_a_snapshot_beside_them(tmp_path: Path) -> None:
    _read(tmp_path, SEGMENTS, "memory_snapshot.json")
    _read(tmp_path, FLAT)
    assert _measured(tmp_path)["peak_memory_allocated"].value == 60 / 1e9


def test_a_file_without_counters_gives_way_to_the_snapshot(tmp_path: Path) -> None:
    _read(tmp_path, {"hello": 1})
    _read(tmp_path, SEGMENTS, "memory_snapshot.json")
    assert _measured(tmp_path)["memory_fragmentation"].value == 0.75
