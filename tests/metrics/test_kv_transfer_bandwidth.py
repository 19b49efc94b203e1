"""Bandwidth of KV transfers: copies in ranges that name one, divided by direction, else a reason."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result import Result

HTOD, PTOP = "Memcpy HtoD (Pinned -> Device)", "Memcpy PtoP (Device -> Device)"


def _measured(folder: Path, ranges: list[tuple[str, int, int]], work: list[tuple]) -> Result:
    """Measure a trace of ranges (name, start, end) and work (launch, start, end, name, bytes), us."""
    cpu = {"ph": "X", "pid": 1, "tid": 1}
    events = [
        cpu | {"cat": "user_annotation", "name": name, "ts": start, "dur": end - start}
        for name, start, end in ranges
    ]
    for number, (at, start, end, name, size) in enumerate(work, start=1):
        args = {"correlation": number, "device": 0, "stream": 7 + number}
        events.append(
            cpu | {"cat": "cuda_runtime", "name": "cudaMemcpyAsync", "ts": at, "dur": 1, "args": args}
        )
        kind = "kernel" if size is None else "gpu_memcpy"
        moved = args if size is None else args | {"bytes": size}
        place = {"ph": "X", "pid": 0, "tid": 7 + number, "ts": start, "dur": end - start}
        events.append(place | {"cat": kind, "name": name, "args": moved})
    (folder / "kineto_trace_0.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return evaluate(open_run(folder), ["kv_transfer_bandwidth"])[0]


LOAD, SAVE = "LMCacheConnectorV1Impl.start_load_kv", "LMCacheEngine.store"


def test_bytes_of_copies_in_ranges_over_the_time_with_one(tmp_path: Path) -> None:
    work = [
        (1, 10, 110, HTOD, 1_000_000),
        (2, 60, 160, HTOD, 2_000_000),
        (21, 200, 300, PTOP, 3_000_000),
        (22, 400, 450, "multi_layer_kv_transfer", None),
        (50, 500, 900, HTOD, 9_000_000),  # launched in no range
    ]
    result = _measured(tmp_path, [(LOAD, 0, 10), ("kv_transfer to decode", 20, 30)], work)
    # The first two copies overlap: 150 us for 3 MB, and the third takes 100 us for 3 MB.
    assert result.value == pytest.approx(6e6 / 250e-6 / 1e9)
    details = result.details
    assert details["per_direction_gb_per_s"] == pytest.approx({"HtoD": 20.0, "PtoP": 30.0})
    assert details["per_range_bytes"] == {LOAD: 3_000_000, "kv_transfer to decode": 3_000_000}
    assert details["kernels_without_size_s"] == pytest.approx(50e-6)


def test_ranges_without_copies_of_known_size_are_refused(tmp_path: Path) -> None:
    kernel = [(1, 10, 20, "multi_layer_kv_transfer", None)]
    result = _measured(tmp_path, [(SAVE, 0, 5), ("outer.wait_for_save", 8, 9)], kernel)
    assert result.value is None
    assert f"({SAVE}, outer.wait_for_save) launched 1 kernel without a size" in result.reason
    assert "network cards" in result.fix


@pytest.mark.parametrize("name", ["prestart_load_kv", "Engine.restore", "akv_transfer", "save_kv_layer_2"])
def test_copies_under_other_names_are_no_kv_transfers(tmp_path: Path, name: str) -> None:
    result = _measured(tmp_path, [(name, 0, 10)], [(1, 10, 110, HTOD, 1_000_000)])
    assert result.value is None
    assert result.reason == "no range in the traces names a transfer of KV cache"
