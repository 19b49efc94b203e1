"""The details that a comparison rests on: the number of each step, and parts that add up."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import polars as pl
import pytest
from compared_runs import side

from ccl_bench.comparison.run_results import samples_of
from ccl_bench.metrics.shared.per_step import MOST_STEPS, by_step, seconds_by_step, shares_by_step
from ccl_bench.testing import Expected, Message, Plan, Straggler, write_run

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result import Result

PLAN = Plan(
    dp_shard=2, pp=2, steps=5, layers=2, microbatches=3, jitter_ns=25_000,
    gradient_norm=Message(1, 15_000, "Float"), stragglers=(Straggler(rank=3, layer_ns=40_000, steps=(2, 4)),),
)  # fmt: skip

MEANS = [
    "iteration_wall_clock_time", "exposed_communication_time", "total_communication_time",
    "total_kernel_time", "forward_time", "backward_time", "optimizer_time", "straggler_lag_16", "straggler",
    "bubble_size_pipeline", "launch_overhead", "coll_call_num",
]  # fmt: skip
"""Metrics that are the mean of their steps exactly; rates and shares are so nearly."""

NEARLY = ["gpu_busy", "gpu_idle", "communication_fraction", "comm_comp_overlap", "comm_comp_overlap_16",
          "throughput_tokens_sec", "mfu", "sm", "load_imbalance_ratio", "memory_transfer_overhead",
          "fsdp_overhead"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the run of the plan lies."""
    return tmp_path_factory.mktemp("details") / "run"


@pytest.fixture(scope="module")
def planned(folder: Path) -> Expected:
    """Write the run, and return what is expected of it."""
    return write_run(PLAN, folder)


@pytest.fixture(scope="module")
def results(planned: Expected, folder: Path) -> dict[str, Result]:
    """Return every result of the run."""
    return side(folder).results


@pytest.mark.parametrize("metric", MEANS)
def test_the_mean_of_the_steps_is_the_value(metric: str, results: dict[str, Result]) -> None:
    samples = samples_of(results[metric])
    assert len(samples) == PLAN.steps
    assert fmean(samples) == pytest.approx(results[metric].value)


@pytest.mark.parametrize("metric", NEARLY)
def test_the_mean_of_shares_and_rates_is_nearly_the_value(metric: str, results: dict[str, Result]) -> None:
    samples = samples_of(results[metric])
    assert len(samples) == PLAN.steps
    assert fmean(samples) == pytest.approx(results[metric].value, rel=0.02)


def test_parts_of_a_step_add_up_to_it(results: dict[str, Result]) -> None:
    details = results["gpu_busy"].details
    for listed in (details["per_rank_parts_s_per_step"], details["per_step_parts_s"]):
        for parts in listed.values():
            whole = parts["window"]
            assert sum(parts.values()) - whole == pytest.approx(whole, abs=1e-12)
    assert list(details["per_rank_parts_s_per_step"]) == [str(rank) for rank in range(4)]
    assert list(details["per_step_parts_s"]) == ["1", "2", "3", "4", "5"]


def test_parts_of_a_step_are_those_of_the_plan(planned: Expected, results: dict[str, Result]) -> None:
    found = results["gpu_busy"].details["per_step_parts_s"]
    for step in PLAN.step_numbers:
        parts = [planned.parts(rank, step) for rank in PLAN.present_ranks]
        for name in ("compute", "exposed_communication", "exposed_memory", "idle", "window"):
            mean = fmean(getattr(part, f"{name}_ns") for part in parts)
            assert found[str(step)][name] == pytest.approx(mean / 1e9)


def test_exposed_communication_divides_without_rest(results: dict[str, Result]) -> None:
    whole = results["exposed_communication_time"]
    assert sum(whole.details["per_collective_s"].values()) == pytest.approx(whole.value, abs=1e-12)
    rows = results["traffic_distribution"].details["per_dimension"].values()
    assert sum(row["exposed_s_per_gpu_and_step"] for row in rows) == pytest.approx(whole.value, abs=1e-12)


def test_the_wait_of_each_rank_in_each_step_is_listed(results: dict[str, Result]) -> None:
    details = results["straggler_lag_16"].details
    listed = details["per_rank_per_step_wait_s"]
    assert list(listed) == [str(rank) for rank in range(4)]
    for rank, by_number in listed.items():
        assert list(by_number) == ["1", "2", "3", "4", "5"]
        assert fmean(by_number.values()) == pytest.approx(details["wait_s_per_step"][rank])


def rows(**columns: list[float]) -> pl.DataFrame:
    """Return rows of steps 1, 2, 3, ... of one trace, or with columns of their own."""
    count = len(next(iter(columns.values())))
    given = {"trace": [0] * count, "iteration": [None] * count, "step": list(range(1, count + 1))}
    return pl.DataFrame(given | columns, schema_overrides={"iteration": pl.Int64})


def test_a_step_without_rows_counts_as_0() -> None:
    steps = rows(start_ns=[0, 10, 20])
    busy = pl.DataFrame({"trace": [0, 0], "iteration": [None, None], "step": [1, 1], "ns": [5, 6]},
                        schema_overrides={"iteration": pl.Int64})  # fmt: skip
    assert seconds_by_step(busy, steps, "ns") == pytest.approx({"1": 11e-9, "2": 0.0, "3": 0.0})


def test_a_step_is_the_mean_over_its_ranks() -> None:
    # 10 of 100 on one rank, 30 of 100 on the other; the third has no window.
    table = rows(trace=[0, 1, 2], step=[1, 1, 1], part=[10, 30, 0], whole=[100, 100, 0])
    assert shares_by_step(table, "part", "whole") == {"1": 20.0}


def test_many_steps_are_thinned() -> None:
    count = 2 * MOST_STEPS + 1
    listed = by_step(rows(value=[float(n) for n in range(count)]), "value")
    assert len(listed) <= MOST_STEPS
    assert list(listed.items())[:2] == [("1", 0.0), ("4", 3.0)]
