"""A process that works on several devices: each number is that of a device, never that of all together."""

import random
from collections import defaultdict
from pathlib import Path

import polars as pl
import pytest
from local_plain import length, union
from local_traces import Event, copy, kernel, launch, result, results, step, table, write

import ccl_bench
from ccl_bench.analysis.device.completeness import device_used

STEP = 1000
STEPS = 3


def test_two_devices_at_49_percent_are_not_one_at_98(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100),
        launch(1, 1, 2), kernel("gemm", 1, 2, 51, device=0, **{"blocks per SM": 1.0}),
        launch(2, 2, 3), kernel("gemm", 2, 51, 100, device=1, **{"blocks per SM": 0.5}),
    ]  # fmt: skip
    run = write(tmp_path, events, world_size=1)
    found = results(run, "gpu_busy", "gpu_idle", "total_kernel_time", "sm")
    assert found["gpu_busy"].value == pytest.approx(49)
    assert found["gpu_idle"].value == pytest.approx(51)
    assert found["total_kernel_time"].value == pytest.approx(49e-6)
    assert found["sm"].value == pytest.approx((49 * 1 + 49 * 0.5) / 2)
    assert found["sm"].details["per_device_pct"] == pytest.approx({"0": 49, "1": 24.5})
    assert found["gpu_busy"].details["per_device_pct"] == pytest.approx({"0": 49, "1": 49})
    (finding,) = found["gpu_busy"].findings
    assert (finding.code, finding.severity, finding.count) == ("several-devices", "note", 2)
    assert "devices 0, 1" in finding.message


@pytest.mark.parametrize(
    ("devices", "used"),
    [([3, 1, 3, None, 1], [1]), ([1, 3, 3], [3]), ([None, None, 2], [2]), ([None], [None]), ([], [])],
)
def test_a_trace_is_of_the_device_with_most_kernels_else_the_first(
    devices: list[int | None], used: list[int | None]
) -> None:
    kernels = pl.DataFrame({"device": devices}, schema={"device": pl.Int64})
    assert device_used(kernels)["device"].to_list() == used


def test_a_table_of_the_rank_has_the_rows_of_both_devices(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100),
        launch(1, 1, 2), kernel("gemm", 1, 2, 51, device=0),
        launch(2, 2, 3), kernel("gemm", 2, 51, 100, device=1),
    ]  # fmt: skip
    run = ccl_bench.open(write(tmp_path, events, world_size=1))
    for name in ("kernels", "breakdown"):
        assert run.table(name, ranks=[0]).height == run.table(name).height == 2


def made(seed: int) -> list[Event]:
    """Return steps with kernels and copies on two devices, two streams each, all of a step inside it."""
    dice, events, number = random.Random(seed), [], 0
    for index in range(STEPS):
        begin = index * STEP
        events.append(step(index + 1, begin, begin + STEP))
        for device in (0, 1):
            for stream in (7, 8):
                at = begin + 10 + dice.randrange(40)
                while at < begin + STEP - 120:
                    number += 1
                    until = at + dice.randrange(5, 60 if device else 20)
                    events.append(launch(number, begin + 1 + number / 100, begin + 1.005 + number / 100))
                    name = "ncclDevKernel_AllReduce" if stream == 8 else "gemm"
                    if dice.random() < 0.2:
                        moved = copy("DtoD", 1000, number, at, until, stream)
                        moved["args"]["device"] = device
                        events.append(moved)
                    else:
                        blocks = {"blocks per SM": 0.5 if stream == 8 else 0.25}
                        events.append(kernel(name, number, at, until, stream, device, **blocks))
                    at = until + dice.randrange(1, 50)
    return events


def spans(events: list[Event], device: int, *words: str) -> list[tuple[float, float]]:
    """Return the intervals of a device's work whose names begin with one of some words."""
    return [
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if e["cat"] in {"kernel", "gpu_memcpy"}
        and e["args"]["device"] == device
        and e["name"].startswith(words)
    ]


@pytest.mark.parametrize("seed", range(2))
def test_each_number_is_the_mean_of_what_each_device_has_alone(tmp_path: Path, seed: int) -> None:
    events, window = made(seed), STEPS * STEP
    run = write(tmp_path, events, world_size=1)
    busy, kernels, hidden = [], [], []
    for device in (0, 1):
        compute, calls = spans(events, device, "gemm"), spans(events, device, "nccl")
        everything = spans(events, device, "gemm", "nccl", "Memcpy")
        busy.append(100 * length(union(everything)) / window)
        kernels.append(sum(end - start for start, end in compute + calls) / STEPS / 1e6)
        both = length(union(compute)) + length(union(calls)) - length(union(compute + calls))
        hidden.append((both, length(union(calls))))
    found = results(run, "gpu_busy", "gpu_idle", "total_kernel_time", "sm")
    assert found["gpu_busy"].value == pytest.approx(sum(busy) / 2)
    assert found["gpu_idle"].value == pytest.approx(100 - sum(busy) / 2)
    assert found["total_kernel_time"].value == pytest.approx(sum(kernels) / 2)
    parts = table(run, "breakdown")
    assert parts.height == 2 * STEPS
    assert parts["overlap_ns"].sum() == pytest.approx(1000 * sum(both for both, _ in hidden))
    total = (
        parts["compute_ns"]
        + parts["exposed_communication_ns"]
        + parts["exposed_memory_ns"]
        + parts["idle_ns"]
    )
    assert total.to_list() == parts["window_ns"].to_list()
    assert found["sm"].value <= 100


@pytest.mark.parametrize("seed", range(2))
def test_two_devices_together_are_the_mean_of_traces_of_one_each(tmp_path: Path, seed: int) -> None:
    """Both devices have windows of one length, so that the mean weighs them alike."""
    events = made(seed)
    ids: dict[int, set[int]] = defaultdict(set)
    for each in events:
        if "device" in each["args"]:
            ids[each["args"]["device"]].add(each["args"]["correlation"])
    alone = [
        [e for e in events if "correlation" not in e["args"] or e["args"]["correlation"] in ids[device]]
        for device in (0, 1)
    ]
    runs = [write(tmp_path / str(device), one, world_size=1) for device, one in enumerate(alone)]
    both = write(tmp_path / "both", events, world_size=1)
    metrics = (
        "sm",
        "idle_breakdown",
        "average_memory_bandwidth",
        "memory_transfer_overhead",
        "dominant_kernel_concentration",
    )
    first, second, found = (results(run, *metrics) for run in (*runs, both))
    for metric in metrics:
        assert found[metric].value == pytest.approx((first[metric].value + second[metric].value) / 2)


def test_a_device_that_was_only_touched_is_left_out_and_named(tmp_path: Path) -> None:
    events = [
        step(1, 0, 1000),
        launch(1, 1, 2), kernel("gemm", 1, 10, 510, device=3),
        launch(2, 2, 3), kernel("fill", 2, 600, 601, device=0),
    ]  # fmt: skip
    found = result(write(tmp_path, events, world_size=1), "gpu_busy")
    assert found.value == pytest.approx(50)
    assert [(each.code, each.severity) for each in found.findings] == [("device-touched", "note")]
    assert found.ranks == [0]
    assert "per_device_pct" not in found.details


def test_copies_on_another_device_make_no_second_one(tmp_path: Path) -> None:
    moved = copy("PtoP", 8, 2, 60, 70)
    moved["args"]["device"] = 1
    events = [step(1, 0, 100), launch(1, 1, 2), kernel("gemm", 1, 10, 50), launch(2, 2, 3), moved]
    found = result(write(tmp_path, events, world_size=1), "gpu_busy")
    assert (found.value, found.findings) == (pytest.approx(50), [])
