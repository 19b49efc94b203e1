"""Memory snapshots in a run: beside other traces, of several ranks, with findings, through the commands."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest
from allocator import MIB, Allocator, snapshot_of, write
from commands import invoke
from test_memory_replay import _busy

from ccl_bench import metrics
from ccl_bench.diagnosis.diagnose import diagnose
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.evaluate.inspect import inspect
from ccl_bench.evaluate.load import load_tables
from ccl_bench.run import open_run
from ccl_bench.testing import Plan, plans, write_run

if TYPE_CHECKING:
    from pathlib import Path

MEMORY = ("peak_memory_allocated", "memory_fragmentation")


def _measured(folder: Path, *names: str, **more) -> list:
    return evaluate(open_run(folder, **more), names, use_cache=False, jobs=1)


def _codes(result) -> set[str]:
    return {finding.code for finding in result.findings}


def _step(*sizes: int, late: bool = False) -> Allocator:
    """Return the history of a device: blocks of these sizes at once, then all of them freed."""
    allocator = Allocator()
    kept = allocator.alloc(20 * MIB) if late else None
    if kept:
        allocator.forget(len(allocator.events))
    for place in [allocator.alloc(size) for size in sizes]:
        allocator.free(place)
    return allocator


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Return the run of two ranks, without snapshots."""
    write_run(plans.two_ranks(), tmp_path / "run")
    return tmp_path / "run"


def test_a_snapshot_of_an_unknown_rank_changes_no_number_of_the_traces_beside_it(sharded: Path) -> None:
    others = [name for name in metrics.load().names() if name not in MEMORY]
    alone = {result.metric: asdict(result) for result in _measured(sharded, *others)}
    write(sharded / "memory_snapshot.pickle", snapshot_of(_busy(1)))
    beside = {result.metric: asdict(result) for result in _measured(sharded, *others)}
    assert beside == alone
    assert sum(result["status"] == "ok" for result in alone.values()) > 20


def test_the_same_holds_for_everything_that_a_command_prints_beside_one_of_a_rank(sharded: Path) -> None:
    def printed() -> dict[str, dict]:
        found = json.loads(
            invoke(["ccl-metrics", "--trace", str(sharded), "--all", "--format", "json"]).stdout
        )
        return {result["metric"]: result for result in found if result["metric"] not in MEMORY}

    alone = printed()
    write(sharded / "rank0_memory_snapshot.pickle", snapshot_of(_busy(1)))
    assert printed() == alone


def test_traces_beside_it_change_no_number_of_a_snapshot(sharded: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    for folder in (alone, sharded):
        write(folder / "rank0_memory_snapshot.pickle", snapshot_of(_busy(1)))
        write(folder / "rank1_memory_snapshot.pickle", snapshot_of(_busy(2)))
    values = [[(r.value, r.details) for r in _measured(folder, *MEMORY)] for folder in (alone, sharded)]
    assert values[0] == values[1]


def test_a_damaged_snapshot_is_reported_of_and_touches_memory_alone(sharded: Path) -> None:
    code = pickle.dumps(snapshot_of(_busy(1)))
    (sharded / "rank0_memory_snapshot.pickle").write_bytes(code[: len(code) // 2])
    peak, busy = _measured(sharded, "peak_memory_allocated", "gpu_busy")
    assert (busy.status, busy.findings) == ("ok", [])
    assert (peak.status, peak.reason) == ("not_measurable", "no trace of the run could be read")
    assert "the file is truncated" in peak.fix
    assert "trace-unreadable" in _codes(peak)


def test_a_damaged_trace_touches_no_number_of_a_snapshot(sharded: Path) -> None:
    write(sharded / "rank0_memory_snapshot.pickle", snapshot_of(_step(30 * MIB)))
    write(sharded / "rank1_memory_snapshot.pickle", snapshot_of(_step(20 * MIB)))
    for path in sharded.glob("*trace.json"):
        path.write_bytes(path.read_bytes()[:2000])
    (peak,) = _measured(sharded, "peak_memory_allocated")
    assert (peak.value, _codes(peak)) == (30 * MIB / 1e9, set())


def test_a_snapshot_is_not_read_for_what_it_has_no_say_in(sharded: Path) -> None:
    write(sharded / "rank0_memory_snapshot.pickle", snapshot_of(_busy(1)))
    evidence = load_tables(open_run(sharded), ("kernels", "steps"), use_cache=False, jobs=1)
    read = {reduced.trace.form.name: bool(reduced.sha256) for reduced in evidence.traces}
    assert read == {"kineto": True, "memory_snapshot": False}
    (peak,) = _measured(sharded, "peak_memory_allocated")
    assert [trace.format for trace in peak.provenance.traces] == ["memory_snapshot"]


@pytest.mark.parametrize("mode", ["auto", "torch", "nsys"])
def test_snapshots_belong_to_every_profile_mode(tmp_path: Path, mode: str) -> None:
    write(tmp_path / "rank0_memory_snapshot.pickle", snapshot_of(_step(30 * MIB)))
    (peak,) = _measured(tmp_path, "peak_memory_allocated", profile_mode=mode)
    assert peak.value == 30 * MIB / 1e9


def test_the_highest_rank_counts_and_imbalance_is_highest_over_mean(tmp_path: Path) -> None:
    for rank, size in enumerate((20, 30, 40)):
        write(tmp_path / f"rank{rank}_memory_snapshot.pickle", snapshot_of(_step(size * MIB)))
    (peak,) = _measured(tmp_path, "peak_memory_allocated")
    assert (peak.value, peak.ranks) == (40 * MIB / 1e9, [0, 1, 2])
    assert peak.details["highest_device"] == "2"
    assert peak.details["imbalance_ratio"] == 40 / 30
    assert peak.details["holders"][0]["bytes"] == 40 * MIB


def test_of_several_windows_the_highest_peak_and_the_last_state_count(tmp_path: Path) -> None:
    kept = _step(30 * MIB)
    kept.alloc(10 * MIB)
    for window, allocator in ((10, _step(90 * MIB)), (20, kept)):
        write(tmp_path / f"iteration_{window}" / "rank0_memory_snapshot.pickle", snapshot_of(allocator))
    peak, fragmentation = _measured(tmp_path, *MEMORY)
    assert peak.value == 90 * MIB / 1e9
    assert fragmentation.details["per_device_reserved_bytes"] == {"0": 90 * MIB}
    assert len(fragmentation.details["snapshots"]) == 4
    assert [holder["bytes"] for holder in peak.details["holders"]] == [90 * MIB]


def test_counters_come_before_a_snapshot_of_the_same_rank(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path / f"rank{rank}_memory_snapshot.pickle", snapshot_of(_step((20 + rank) * 10 * MIB)))
    stats = {"allocated_bytes.all.peak": 10**9, "reserved_bytes.all.peak": 2 * 10**9}
    (tmp_path / "memory_stats.json").write_text(json.dumps({"0": stats}))
    (peak,) = _measured(tmp_path, "peak_memory_allocated")
    assert peak.details["per_device_peak_allocated_bytes"] == {"0": 10**9, "1": 210 * MIB}
    assert peak.details["per_device_peak_active_bytes"] == {"0": 200 * MIB, "1": 210 * MIB}


def test_a_second_snapshot_of_a_rank_is_left_out_and_touches_memory_alone(sharded: Path) -> None:
    write(sharded / "rank0_memory_snapshot.pickle", snapshot_of(_step(30 * MIB)))
    write(sharded / "rank1_memory_snapshot.pickle", snapshot_of(_step(20 * MIB)))
    write(sharded / "again" / "rank0_memory_snapshot.pickle", snapshot_of(_step(50 * MIB)))
    peak, busy = _measured(sharded, "peak_memory_allocated", "gpu_busy")
    assert (_codes(peak), _codes(busy)) == ({"rank-duplicate"}, set())


def test_devices_of_one_rank_are_distinguished(tmp_path: Path) -> None:
    snapshot = snapshot_of(Allocator(), _step(20 * MIB), _step(50 * MIB), Allocator())
    write(tmp_path / "rank0_memory_snapshot.pickle", snapshot)
    (peak,) = _measured(tmp_path, "peak_memory_allocated")
    peaks = {"0, device 1": 20 * MIB, "0, device 2": 50 * MIB}
    assert peak.details["per_device_peak_allocated_bytes"] == peaks


def test_a_history_that_begins_late_is_a_finding(tmp_path: Path) -> None:
    write(tmp_path / "memory_snapshot.pickle", snapshot_of(_step(30 * MIB, late=True)))
    (peak,) = _measured(tmp_path, "peak_memory_allocated")
    assert (peak.value, _codes(peak)) == (50 * MIB / 1e9, {"memory-history-late"})


def test_without_a_history_there_is_no_peak_and_fragmentation_is_that_of_the_end(tmp_path: Path) -> None:
    allocator = _busy(1)
    write(tmp_path / "memory_snapshot.pickle", snapshot_of(allocator) | {"device_traces": []})
    peak, fragmentation = _measured(tmp_path, *MEMORY)
    assert (peak.status, _codes(peak)) == ("not_measurable", {"memory-history-missing"})
    allocated, _, _, reserved = allocator.truth[-1]
    assert fragmentation.value == pytest.approx((reserved - allocated) / reserved)
    assert fragmentation.details["basis"] == "state when written"


def test_running_out_of_memory_is_a_finding(tmp_path: Path) -> None:
    allocator = _step(30 * MIB)
    allocator.oom(1 << 40, free=100)
    write(tmp_path / "memory_snapshot.pickle", snapshot_of(allocator))
    (peak,) = _measured(tmp_path, "peak_memory_allocated")
    assert _codes(peak) == {"memory-ran-out"}
    assert peak.details["per_device_ooms"] == {"unknown": 1}


def test_events_that_contradict_the_end_are_a_finding(tmp_path: Path) -> None:
    allocator = _step(30 * MIB)
    snapshot = snapshot_of(allocator)
    del snapshot["device_traces"][0][1]
    snapshot["device_traces"][0].append(allocator.events[1] | {"addr": 1})
    write(tmp_path / "memory_snapshot.pickle", snapshot)
    (peak,) = _measured(tmp_path, "peak_memory_allocated")
    assert "memory-history-contradicts" in _codes(peak)


def test_ranks_without_a_snapshot_touch_memory_alone(sharded: Path) -> None:
    write(sharded / "rank1_memory_snapshot.pickle", snapshot_of(_step(30 * MIB)))
    peak, busy = _measured(sharded, "peak_memory_allocated", "gpu_busy")
    assert (_codes(peak), _codes(busy)) == ({"ranks-missing"}, set())


def test_an_inspection_lists_snapshots_as_readable(tmp_path: Path) -> None:
    write(tmp_path / "rank0_memory_snapshot.pickle", snapshot_of(_busy(1)))
    found = inspect(open_run(tmp_path), use_cache=False, jobs=1)
    assert [(t.format, t.rank, t.is_readable) for t in found.traces] == [("memory_snapshot", 0, True)]
    (tmp_path / "rank0_memory_snapshot.pickle").write_bytes(b"\x80\x04}\x8c\x08segmentscos\nsystem\n.")
    found = inspect(open_run(tmp_path), use_cache=False, jobs=1)
    assert [t.is_readable for t in found.traces] == [False]
    assert any("GLOBAL at byte 13 imports or calls code" in issue.message for issue in found.issues)


def test_kept_tables_give_the_same_answer(tmp_path: Path) -> None:
    write(tmp_path / "rank0_memory_snapshot.pickle", snapshot_of(_busy(1)))
    first, second = (evaluate(open_run(tmp_path), MEMORY, jobs=1) for _ in range(2))
    assert [asdict(result) for result in first] == [asdict(result) for result in second]


def test_the_real_snapshot_is_measured_by_the_command(corpus: Path, tmp_path: Path) -> None:
    shutil.copy(corpus / "memory" / "rank0_memory_snapshot.pickle", tmp_path)
    done = invoke(["ccl-metrics", "--trace", str(tmp_path), "--metric", "peak_memory_allocated"])
    assert (done.returncode, done.stdout) == (0, "13.927832064\n")


def test_the_diagnosis_of_recomputation_states_the_memory_that_it_saves(tmp_path: Path) -> None:
    """Three tensors of 400 MiB are recomputed, and one is freed before its recomputation ends."""
    write_run(Plan(recomputed_layers=2), tmp_path)
    file = "/site-packages/torch/utils/checkpoint.py"
    stack = [{"name": "recompute_fn", "filename": file, "line": 1500}]
    allocator = Allocator()
    allocator.alloc(400 * MIB, frames=stack)
    allocator.free(allocator.alloc(400 * MIB, frames=stack))
    allocator.alloc(400 * MIB, frames=stack)
    allocator.alloc(400 * MIB, frames=[])
    write(tmp_path / "rank0_memory_snapshot.pickle", snapshot_of(allocator))
    (found,) = diagnose(open_run(tmp_path), jobs=1, use_cache=False).diagnoses
    assert found.name == "recomputation"
    assert found.remedy.endswith(f"it saves {800 * MIB / 1e9:.3g} GB of memory on a device")
