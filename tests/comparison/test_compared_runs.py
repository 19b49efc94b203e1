"""Generated runs with a known difference: it is found, and where; equal runs raise no alarm."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from compared_runs import PLAN, STEP, comparison, side, verdicts, written

from ccl_bench import metrics
from ccl_bench.comparison.compare import compare_runs

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.comparison.compare import Comparison
    from ccl_bench.comparison.step_breakdown import Attribution


def where(found: Comparison) -> Attribution:
    """Return where the step of the one run changed."""
    attribution = found.pairs[0].attribution
    assert attribution is not None
    return attribution


def largest(found: Attribution, division: str) -> str:
    """Return the part of a division that changed most."""
    (chosen,) = [each for each in found.divisions if each.name.startswith(division)]
    return chosen.parts[0].name


def test_a_run_compared_with_itself_did_not_change(before: Path) -> None:
    found = comparison(before, before, names=metrics.load().names())
    assert found.pairs[0].comparability.verdict == "comparable"
    assert set(verdicts(found).values()) == {"no change"}
    assert where(found).is_within_noise
    assert found.exit_status == 0


def test_a_slower_kernel_is_found_and_named(before: Path, slower: Path) -> None:
    # 12 % on the backward pass of 4 layers x 0.6 ms: 72 us a layer and GPU, about 5 % of a step of 3.2 ms.
    found = comparison(before, slower)
    assert verdicts(found)[STEP] == "worse"
    assert verdicts(found)["backward_time"] == "worse"
    assert verdicts(found)["forward_time"] == "no change"
    step = where(found)
    assert 0.03 < step.step.difference_s / step.step.baseline_s < 0.07
    assert max(step.parts, key=lambda part: part.difference_s).name == "compute"
    assert largest(step, "phase") == "backward"
    assert largest(step, "kernel type") == "gemm"
    assert "gemm" in largest(step, "kernels")


def test_a_slower_collective_is_found_and_named(before: Path, tmp_path: Path) -> None:
    # 8 all-reduces over tp a step, each 20 us longer: 160 us, 5 % of the step.
    slower = replace(PLAN.tp_all_reduce, transfer_ns=PLAN.tp_all_reduce.transfer_ns + 20_000)
    found = comparison(before, written(tmp_path / "slow", seed=2, tp_all_reduce=slower))
    assert verdicts(found)[STEP] == "worse"
    assert verdicts(found)["bandwidth_utilization_allreduce"] == "worse"
    assert verdicts(found)["bandwidth_utilization_allgather"] == "no change"
    step = where(found)
    assert max(step.parts, key=lambda part: part.difference_s).name == "exposed_communication"
    assert max(step.finest_parts, key=lambda part: part.difference_s).name == "transfer"
    assert largest(step, "collective") == "all_reduce"
    assert largest(step, "parallelism dimension") == "tp"


def test_a_slower_host_is_found_and_named(before: Path, tmp_path: Path) -> None:
    slow = replace(PLAN.host, gap_ns=PLAN.host.gap_ns + 160_000)
    found = comparison(before, written(tmp_path / "slow", seed=3, host=slow))
    assert verdicts(found)[STEP] == "worse"
    step = where(found)
    assert max(step.parts, key=lambda part: part.difference_s).name == "idle"
    assert largest(step, "cause") == "waiting for the host"
    (idle,) = [part for part in step.parts if part.name == "idle"]
    assert idle.difference_s == pytest.approx(160e-6)


def test_a_slower_rank_is_found_and_named(before: Path, tmp_path: Path) -> None:
    from ccl_bench.testing import Straggler

    found = comparison(before, written(tmp_path / "slow", stragglers=(Straggler(2, layer_ns=80_000),)))
    assert verdicts(found)[STEP] == "worse"
    assert verdicts(found)["straggler_lag_16"] == "worse"
    (waits,) = [each for each in where(found).divisions if each.name == "waiting for other ranks"]
    longer = {part.name: part.difference_s for part in where(found).finest_parts}
    assert longer["waiting"] > longer["transfer"]
    assert "exposed_communication" not in longer
    least = min(waits.parts, key=lambda part: part.difference_s)
    assert least.name == "rank 2", "all but the late rank wait for it"


def test_the_parts_of_a_difference_add_up_to_it(before: Path, slower: Path) -> None:
    step = where(comparison(before, slower))
    assert sum(part.difference_s for part in step.parts) == pytest.approx(step.step.difference_s, abs=1e-12)
    whole = {part.name: part.difference_s for part in step.parts}
    for division in step.divisions:
        if division.of:
            parts = sum(part.difference_s for part in division.parts)
            assert parts == pytest.approx(whole[division.of], abs=1e-12), division.name
    finest = sum(part.difference_s for part in step.finest_parts)
    assert finest == pytest.approx(step.step.difference_s, abs=1e-12)


def test_another_batch_size_does_not_compare_and_why(before: Path, other_batch: Path) -> None:
    found = comparison(before, other_batch)
    pair = found.pairs[0]
    assert pair.comparability.verdict == "not comparable"
    assert [each.field for each in pair.comparability.workload] == [
        "data.global_batch_size",
        "data.tokens_per_step",
    ]
    assert set(verdicts(found).values()) == {"not comparable"}
    assert pair.attribution is None
    assert found.exit_status == 3


def test_a_field_under_study_may_differ(before: Path, other_batch: Path) -> None:
    found = comparison(before, other_batch, study=["data.global_batch_size", "data.tokens_per_step"])
    assert found.pairs[0].comparability.verdict == "comparable"
    assert verdicts(found)["throughput_tokens_sec"] == "better"


def test_another_plan_for_the_same_work_compares(before: Path, tmp_path: Path) -> None:
    found = comparison(before, written(tmp_path / "other", dp_shard=2, tp=1))
    comparability = found.pairs[0].comparability
    assert comparability.verdict == "comparable"
    assert {"parallelism.tp", "hardware.device.device_count"} <= {e.field for e in comparability.studied}
    change = next(each for each in found.pairs[0].changes if each.metric == STEP)
    assert any("ranks 4 and 2" in remark for remark in change.remarks)


def test_several_runs_are_each_compared_with_the_first(before: Path, slower: Path, tmp_path: Path) -> None:
    faster = written(tmp_path / "faster", seed=5, backward_ns=500_000)
    found = comparison(before, faster, slower)
    assert [pair.name for pair in found.pairs] == [str(faster), str(slower)]
    assert [verdicts(found, place)[STEP] for place in (0, 1)] == ["better", "worse"]


def test_equal_runs_raise_hardly_any_alarm(tmp_path: Path) -> None:
    # Six runs of one plan with other noise: 15 pairs of 17 metrics that have noise.
    names = [STEP, "throughput_tokens_sec", "mfu", "forward_time", "backward_time", "optimizer_time",
             "exposed_communication_time", "total_communication_time", "total_kernel_time", "gpu_busy",
             "comm_comp_overlap", "communication_fraction", "straggler", "straggler_lag_16", "sm",
             "load_imbalance_ratio", "fsdp_overhead"]  # fmt: skip
    sides = [side(written(tmp_path / str(seed), seed=seed, tp=1), *names) for seed in range(6)]
    judged = alarms = runs_with_alarm = 0
    for place, one in enumerate(sides):
        found = compare_runs([one, *sides[place + 1 :]], names) if sides[place + 1 :] else None
        for pair in found.pairs if found else ():
            alarmed = [c.metric for c in pair.changes if c.verdict in {"better", "worse", "changed"}]
            judged += len(pair.changes)
            alarms += len(alarmed)
            runs_with_alarm += bool(alarmed)
    assert judged == 15 * len(names)
    assert alarms / judged <= 0.01
    assert runs_with_alarm / 15 <= 0.1
