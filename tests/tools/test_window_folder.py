"""`metric_cal(".../profile_traces/iteration_10/")`: what belongs to the window lies above it."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

RANK_0 = "kineto_trace_0.json.gz"


@pytest.fixture
def window(tmp_path: Path, sharded: Path) -> Path:
    """Return the folder of a window as torchtitan leaves it, with side files in the directory of the run."""
    folder = tmp_path / "profile_traces" / "iteration_10"
    folder.mkdir(parents=True)
    shutil.copy(sharded / RANK_0, folder / "rank0_trace.json.gz")
    for name in ("workload_card.yaml", "step_times_per_rank.json"):
        shutil.copy(sharded / name, tmp_path)
    (tmp_path / "run_metadata.json").write_text(json.dumps({"tokens_per_step": 1000}))
    return folder


def test_side_files_of_the_run_are_found(window: Path, sharded: Path) -> None:
    from tools.throughput import metric_cal

    ranks = json.loads((sharded / "step_times_per_rank.json").read_text())
    slowest = [max(times) for times in zip(*(_list(ranks[rank]) for rank in ranks), strict=True)]
    mean = sum(slowest) / len(slowest)

    found = metric_cal(f"{window}/")

    assert found["iteration_mean_s"] == pytest.approx(mean)
    assert found["tokens_per_s"] == pytest.approx(1000 / mean)
    assert found["windows"] == ["step_times_per_rank.json"]


def _list(times: list[float] | dict[str, float]) -> list[float]:
    return [*times.values()] if isinstance(times, dict) else times


def test_snapshots_of_the_same_window_are_found(window: Path, corpus: Path) -> None:
    from tools.memory import metric_cal

    for number in (10, 20):
        beside = window.parents[1] / "memory_snapshot" / f"iteration_{number}"
        beside.mkdir(parents=True)
        shutil.copy(corpus / "memory" / "rank0_memory_snapshot.pickle", beside)
    alone = metric_cal(corpus / "memory")
    found = metric_cal(window)
    assert found["per_device_peak_allocated_bytes"] == alone["per_device_peak_allocated_bytes"]
    assert found["per_device_allocations_count"] == alone["per_device_allocations_count"]


def test_a_folder_that_is_no_window_of_a_run_takes_nothing_from_above(window: Path, tmp_path: Path) -> None:
    from tools.throughput import metric_cal

    elsewhere = tmp_path / "others" / "iteration_10"
    shutil.copytree(window, elsewhere)
    assert "tokens_per_s" not in metric_cal(elsewhere)
