"""Rates from what XLA's compiler counts of the programs that ran, on tables small enough for the head."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from ccl_bench.analysis.facts import Fact, Facts
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics.shared.programs import dram_utilization_of_programs, mfu_of_programs

NUMBERS = {"trace": pl.Int64, "rank": pl.Int64, "iteration": pl.Int64, "step": pl.Int64}


def row(rank: int, step: int, window_ns: int = 1_000_000, **counts: Any) -> dict[str, Any]:
    """Return the work of one step: by default 4 instructions, all counted, modelled and sized."""
    known = {"trace": rank, "rank": rank, "iteration": None, "step": step, "window_ns": window_ns}
    known |= {"instructions": 4, "counted": 4, "modelled": 4, "sized": 4}
    return known | {"flops": 4e6, "model_flops": 3e6, "memory_bytes": 2e6} | counts


# rank 0: 1 ms and 3 ms, rank 1: 1 ms; the empty step of rank 1 has no length
WORK = [
    row(0, 1),
    row(0, 2, 3_000_000, flops=0.0, model_flops=0.0, memory_bytes=0.0),
    row(1, 1),
    row(1, 2, 0),
]


def measured(of: Any, rows: list[dict[str, Any]], peaks: list[float], facts: Facts | None = None) -> Any:
    work = pl.DataFrame(rows, schema_overrides=NUMBERS)
    steps = work.with_columns(source=pl.lit("ProfilerStep"))
    columns = {"peak_flops_per_s": peaks, "memory_bytes_per_s": peaks}
    devices = pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.Float64))
    return of(work, steps, devices, facts or Facts())


def test_operations_of_the_model_are_a_share_of_the_stated_peak() -> None:
    # rank 0: 3e6 in 4 ms are 0.75e9 a second, rank 1: 3e6 + 3e6 in 1 ms are 6e9; of 30e9
    found = measured(mfu_of_programs, WORK, [30e9, 30e9])
    assert found.value == pytest.approx(100 * (0.75 + 6) / 2 / 30)
    assert found.details["per_rank_pct"] == pytest.approx({"0": 2.5, "1": 20})
    assert found.details["per_step_pct"] == pytest.approx({"1": 10, "2": 0})
    assert found.details["flops_per_step"] == pytest.approx(9e6 / 4)
    assert found.details["gpu_peak_tflops"] == pytest.approx(0.03)
    assert found.details["achieved_tflops_per_gpu"] == pytest.approx(3.375e-3)
    assert (found.details["gpu_peak_source"], found.ranks) == ("the profile", [0, 1])


def test_without_what_the_model_needs_in_every_step_products_count() -> None:
    some = [*WORK[:-1], row(1, 2, 0, modelled=3)]
    found = measured(mfu_of_programs, some, [30e9])
    assert found.details["per_rank_pct"] == pytest.approx({"0": 100 * 1 / 30, "1": 100 * 8 / 30})
    assert "recomputation" in found.details["convention"]
    uncounted = [row(0, 1), row(0, 2, counted=0, modelled=0)]
    found = measured(mfu_of_programs, uncounted, [30e9])
    assert found.details["flops_per_step"] == pytest.approx(3e6 / 2)


def test_bytes_of_memory_are_a_share_of_the_stated_bandwidth() -> None:
    # rank 0: 2e6 in 4 ms are 0.5e9 a second, rank 1: 4e6 in 1 ms are 4e9; of 20e9
    found = measured(dram_utilization_of_programs, WORK, [20e9])
    assert found.value == pytest.approx(100 * (0.5 + 4) / 2 / 20)
    assert found.details["per_rank_pct"] == pytest.approx({"0": 2.5, "1": 20})
    assert found.details["per_step_pct"] == pytest.approx({"1": 10, "2": 0})
    assert found.details["achieved_gb_per_s"] == pytest.approx(2.25)
    assert found.details["peak_gb_per_s"] == pytest.approx(20)


@pytest.mark.parametrize(
    ("of", "count"), [(mfu_of_programs, "counted"), (dram_utilization_of_programs, "sized")]
)
def test_one_known_instruction_is_enough_and_none_is_not(of: Any, count: str) -> None:
    assert measured(of, [row(0, 1, **{count: 1})], [30e9]).value > 0
    with pytest.raises(NotMeasurable):
        measured(of, [row(0, 1, **{count: 0})], [30e9])


def test_a_peak_that_the_profile_does_not_state_comes_from_the_metadata() -> None:
    stated = Facts(gpu_peak_tflops=Fact(0.03, "run_metadata.json"))
    found = measured(mfu_of_programs, WORK, [], stated)
    assert found.value == pytest.approx(11.25)
    assert found.details["gpu_peak_source"] == "run_metadata.json"
    for of, peaks, facts in (
        (mfu_of_programs, [], Facts()),
        (mfu_of_programs, [1e9, 2e9], stated),
        (dram_utilization_of_programs, [], stated),
    ):
        with pytest.raises(NotMeasurable) as refused:
            measured(of, WORK, peaks, facts)
        assert refused.value.is_repairable is (not peaks)
        assert ("gpu_peak_tflops" in refused.value.fix) is (of is mfu_of_programs)


@pytest.mark.parametrize("of", [mfu_of_programs, dram_utilization_of_programs])
def test_a_rank_whose_steps_have_no_length_has_no_rate_and_one_of_a_nanosecond_has(of: Any) -> None:
    rows = [row(0, 1, 1, model_flops=2.0, memory_bytes=2.0), row(1, 2, 0)]
    found = measured(of, rows, [40e9])
    # 2 in a nanosecond are 2e9 a second
    assert found.details["per_rank_pct"] == pytest.approx({"0": 5})
    assert found.details["per_step_pct"] == pytest.approx({"1": 5})
    assert (found.value, found.ranks) == (pytest.approx(5), [0])
