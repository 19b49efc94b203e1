"""Pipeline bubbles: as planned, as theory has them, and in which part of the step they fall."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cross_runs import EXAMPLES, documents, facts, measured, result, rewrite, tables
from recorded_runs import results_of

from ccl_bench.analysis.pipeline import theoretical_bubble_fraction
from ccl_bench.testing import Copy, Expected, Host, Message, Plan, Straggler, plans, trace_path, write_run

PIPELINES = {
    "even, free messages": plans.even_pipeline(3, 4),
    "even, costly messages": Plan(
        pp=3, microbatches=5, layers=1, steps=2, pipeline=Message(4_194_304, 70_000)
    ),
    "uneven stages": Plan(
        pp=3, microbatches=4, steps=2, layers=(1, 2, 1), forward_ns=(90_000, 170_000, 210_000)
    ),
    "fewer microbatches than stages": Plan(pp=3, microbatches=2, layers=1, steps=2),
    "with data parallelism": Plan(pp=2, dp_shard=2, microbatches=3, layers=1, steps=2, jitter_ns=400),
    "with tensor parallelism and a slow rank": Plan(
        pp=2, tp=2, microbatches=3, layers=1, steps=2, stragglers=(Straggler(1, layer_ns=55_000),)
    ),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_bubbles_are_those_of_the_plan_to_the_nanosecond(name: str, tmp_path: Path):
    expected = write_run(PIPELINES[name], tmp_path)
    rows = tables(tmp_path, "bubbles")["bubbles"].rows(named=True)
    assert len(rows) == expected.plan.world_size * expected.plan.steps
    per_stage = expected.plan.world_size // expected.plan.pp
    for row in rows:
        assert row["bubble_ns"] == expected.bubble_ns(row["rank"], row["step"])
        # A bubble is waiting for messages, and time in which the device is idle or only copies.
        parts = expected.parts(row["rank"], row["step"])
        assert row["message_wait_ns"] == row["bubble_ns"] - parts.idle_ns - parts.exposed_memory_ns
        assert row["stage"] == row["rank"] // per_stage
        if expected.plan.host.launch_ns:  # a host that needs no time leaves no range to tell phases by
            assert row["warm_up_ns"] + row["steady_ns"] + row["cool_down_ns"] == row["bubble_ns"]
        assert row["unmatched"] == 0


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 4)])
def test_an_ideal_pipeline_has_the_bubble_of_theory(stages: int, microbatches: int, tmp_path: Path):
    write_run(plans.even_pipeline(stages, microbatches), tmp_path)
    details = measured(tmp_path, "bubble_size_pipeline").details
    share = (stages - 1) / (microbatches + stages - 1)
    assert details["fraction_ratio"] == pytest.approx(share)
    assert details["theory"] == {"fraction_ratio": pytest.approx(share), "formula": "(p-1)/(m+p-1)"}
    assert details["stage_imbalance_ratio"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("schedule", "chunks", "expected"),
    [
        ("Interleaved-1F1B", 2, (3 / (2 * 8 + 3), "(p-1)/(v*m+p-1)")),
        ("Interleaved-1F1B", None, None),
        ("1F1B", 2, (3 / (8 + 3), "(p-1)/(m+p-1)")),
        ("ZBVZeroBubble", 2, None),
    ],
)
def test_theory_knows_flat_and_interleaved_schedules(
    schedule: str, chunks: int | None, expected: tuple[float, str] | None
):
    stated = {"pp": 4, "microbatches": 8, "pp_schedule": schedule}
    known = facts(**stated, virtual_stages=chunks) if chunks else facts(**stated)
    assert theoretical_bubble_fraction(known) == expected


def test_the_imbalance_is_the_compute_time_of_the_busiest_stage_over_that_of_the_mean_one(tmp_path: Path):
    expected = write_run(PIPELINES["uneven stages"], tmp_path)
    compute = [
        sum(expected.parts(stage, step).compute_ns for step in expected.plan.step_numbers)
        for stage in range(expected.plan.pp)
    ]
    ratio = measured(tmp_path, "bubble_size_pipeline").details["stage_imbalance_ratio"]
    assert ratio == pytest.approx(max(compute) * len(compute) / sum(compute))
    assert ratio > 1.2


def test_the_parts_of_an_ideal_pipeline_are_those_of_its_schedule(tmp_path: Path):
    # a host that needs 8 ns for a launch, beside passes of 300 and 600 us
    forward, backward, p = 300_000, 600_000, 4
    write_run(
        replace(plans.even_pipeline(p, 8), steps=1, host=replace(plans.IDEAL_HOST, launch_ns=8)), tmp_path
    )
    stages = measured(tmp_path, "bubble_size_pipeline").details["per_stage"]
    for stage in range(p):
        row = stages[str(stage)]
        whole = row["warm_up_s"] + row["steady_s"] + row["cool_down_s"]
        assert (
            row["bubble_s"]
            == pytest.approx(whole)
            == pytest.approx((p - 1) * (forward + backward) / 1e9, abs=1e-6)
        )
        assert row["warm_up_s"] == pytest.approx(warm_up(p, stage, forward, backward) / 1e9, abs=1e-6)
    # the last stage neither waits between its passes nor has anything to do after them
    assert stages[str(p - 1)]["steady_s"] == pytest.approx(0, abs=1e-6)


def warm_up(p: int, stage: int, forward: int, backward: int) -> int:
    """Return the idle time of a stage before its first backward pass.

    The first gradient reaches stage s when the first microbatch has gone down to the last stage and p - 1 - s
    stages back; until then s has run the forward passes that it runs ahead.
    """
    first_backward = p * forward + (p - 1 - stage) * backward
    return first_backward - (p - stage) * forward


def test_parts_of_a_stage_are_cut_at_its_first_backward_and_last_forward_work(tmp_path: Path):
    plan = PIPELINES["even, costly messages"]
    expected = write_run(plan, tmp_path)
    for row in tables(tmp_path, "stage_parts")["stage_parts"].to_dicts():
        work = passes(expected, row["rank"], row["step"])
        start, end = expected.windows(row["rank"])[row["step"] - plan.first_step]
        cuts = [start, min(work["backward"])[0], max(end for _, end in work["forward"]), end]
        at = dict(zip(("warm-up", "steady", "cool-down"), pairwise(cuts), strict=True))
        length = row["end_ns"] - row["start_ns"]
        assert length == at[row["part"]][1] - at[row["part"]][0]


def passes(expected: Expected, rank: int, step: int) -> dict[str, list[tuple[int, int]]]:
    """Return the kernels of the forward and backward passes of a step, messages and collectives left out."""
    record = expected.timeline.steps[step - expected.plan.first_step][rank]
    found: dict[str, list[tuple[int, int]]] = {"forward": [], "backward": []}
    for item, start, end in zip(
        expected.timeline.program(rank).instructions, record.starts, record.ends, strict=True
    ):
        if item.kernel and item.phase in found:
            found[item.phase].append((start, end))
    return found


def test_parts_are_absent_with_a_reason_where_phases_are_not_reported(tmp_path: Path):
    expected = write_run(plans.even_pipeline(2, 2), tmp_path)

    def unlaunched(trace: dict[str, Any]) -> None:
        trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("cat") != "cuda_runtime"]

    for rank in (0, 1):
        rewrite(trace_path(tmp_path, rank), unlaunched)
    found = measured(tmp_path, "bubble_size_pipeline")
    assert "warm_up_s" not in found.details["per_stage"]["0"]
    assert "does not separate forward from backward" in found.details["parts_missing"]
    assert found.value == pytest.approx(expected.bubble_ns(0, 1) / 1e9)


def test_optimizer_and_gradient_reduction_are_no_bubble(tmp_path: Path):
    base = {"pp": 2, "dp_shard": 2, "microbatches": 2, "layers": 1, "steps": 1, "input_copy": Copy(0, 0)}
    host = Host(launch_ns=0, latency_ns=0, gap_ns=0, between_steps_ns=0, steps_start_together=True)
    found = []
    for name, more in (("plain", {"optimizer_ns": 0}), ("more", {"optimizer_ns": 400_000})):
        write_run(Plan(**base, host=host, **more), tmp_path / name)
        found.append(measured(tmp_path / name, "bubble_size_pipeline").value)
    assert found[1] == pytest.approx(found[0])


def test_a_message_without_partner_counts_as_waiting_and_is_said_to(tmp_path: Path):
    plan = Plan(pp=2, microbatches=2, layers=1, steps=1, missing_ranks=frozenset({1}))
    write_run(plan, tmp_path)
    found = measured(tmp_path, "bubble_size_pipeline")
    assert found.details["unmatched_messages_count"] > 0
    assert {"messages-unmatched", "ranks-missing"} == {finding.code for finding in found.findings}


def test_the_recorded_pipeline_is_reported_beside_theory():
    folder = EXAMPLES / "llama-tiny-pp4-gloo"
    found = results_of(folder)["bubble_size_pipeline"]
    assert found.details["theory"]["fraction_ratio"] == pytest.approx(3 / 11)
    stages = found.details["per_stage"]
    assert sorted(stages) == ["0", "1", "2", "3"]
    traces = documents(folder)
    for stage, row in stages.items():
        trace = traces[int(stage)]
        steps = [e["dur"] for e in trace["traceEvents"] if str(e.get("name")).startswith("ProfilerStep#")]
        parts = row["bubble_s"] + row["compute_s"] + row["exposed_transfer_s"] + row["exposed_collectives_s"]
        assert parts == pytest.approx(sum(steps) / len(steps) / 1e6, rel=1e-6)
        assert row["warm_up_s"] + row["steady_s"] + row["cool_down_s"] == pytest.approx(row["bubble_s"])
    assert found.details["unmatched_messages_count"] == 0


def test_a_run_without_pipeline_has_no_bubble_and_one_without_card_no_stage(tmp_path: Path):
    write_run(Plan(dp_shard=2, steps=1), tmp_path / "flat")
    assert result(tmp_path / "flat", "bubble_size_pipeline").status == "not_applicable"
    write_run(plans.even_pipeline(2, 2), tmp_path / "silent")
    (tmp_path / "silent" / "workload_card.yaml").unlink()
    assert result(tmp_path / "silent", "bubble_size_pipeline").status == "not_measurable"
