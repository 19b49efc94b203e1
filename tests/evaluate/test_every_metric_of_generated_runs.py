"""Whatever a run is and however it was recorded, every metric is that of its plan, or says that it is not."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from made_plans import made_plans
from small_runs import measured

from ccl_bench.testing import (
    TORCH_NAME,
    Expected,
    Plan,
    Style,
    damage,
    timeline,
    trace_path,
    values,
    write_run,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ccl_bench.result import Result

OF_DEVICES = (
    "iteration_wall_clock_time",
    "throughput_tokens_sec",
    "mfu",
    "gpu_busy",
    "gpu_idle",
    "coll_call_num",
    "comm_comp_overlap",
)
"""What is reported of each device by itself."""

METRICS = (
    *OF_DEVICES,
    "comm_comp_overlap_16",
    "traffic_distribution",
    "traffic_distribution_16",
    "straggler",
    "straggler_lag_16",
    "exposed_wait_time",
    "exposed_transfer_time",
    "bubble_size_pipeline",
    "token_to_expert_assignment",
)
"""All that a plan gives a value for, the same number under another name left out."""

small_plans = made_plans().filter(lambda plan: plan.world_size <= 8)

ways_to_record = st.builds(
    Style,
    is_pretty=st.booleans(),
    compresses=st.booleans(),
    has_absolute_times=st.booleans(),
    has_launch_arrows=st.booleans(),
    file_name=st.sampled_from(["rank{rank}_trace", "kineto_trace_{rank}", TORCH_NAME]),
    peers=st.sampled_from(["rank", "place", "operator"]),
    numbers_own_groups=st.booleans(),
)

# Each example writes and measures a run; to make a failing one smaller takes minutes.
few = settings(max_examples=2, phases=[Phase.explicit, Phase.generate])


def reported(
    plan: Plan, style: Style, spoil: Callable[[Path], object] = Path
) -> tuple[list[Result], dict[str, float]]:
    """Write a run, spoil it, and return what is reported of it and what the plan comes to."""
    with tempfile.TemporaryDirectory() as folder:
        known = values(write_run(plan, Path(folder), style=style))
        spoil(Path(folder))
        return measured(Path(folder), *METRICS), known


def is_right(result: Result, known: Mapping[str, float]) -> bool:
    """Whether a value is that of the plan; where the plan has none, whether it is refused."""
    if result.value is None or result.metric not in known:
        return (result.value is None) == (result.metric not in known)
    return result.value == pytest.approx(known[result.metric], rel=1e-9, abs=1e-15)


def assert_right(results: Iterable[Result], known: Mapping[str, float]) -> None:
    """Fail for the metrics that are not what the plan says."""
    wrong = {
        one.metric: (one.value, known.get(one.metric), one.reason)
        for one in results
        if not is_right(one, known)
    }
    assert not wrong


def assert_nothing_silently_wrong(results: Iterable[Result], known: Mapping[str, float]) -> None:
    """Fail for the metrics that are neither what the plan says, nor refused, nor bear a warning."""
    wrong = {
        one.metric: (one.value, known.get(one.metric), [finding.code for finding in one.findings])
        for one in results
        if not is_right(one, known)
        and one.value is not None
        and all(finding.severity == "note" for finding in one.findings)
    }
    assert not wrong


@few
@given(small_plans, ways_to_record)
def test_every_metric_is_that_of_the_plan_however_it_was_recorded(plan: Plan, style: Style):
    assert_right(*reported(plan, style))


@few
@given(small_plans, st.integers(1, 2))
def test_what_was_launched_before_the_recording_is_in_no_number(plan: Plan, before: int):
    behind = replace(plan, unrecorded_steps=before, host=replace(plan.host, waits_for_device=False))
    assert_right(*reported(behind, Style()))


@few
@given(small_plans)
def test_two_devices_of_one_process_count_for_themselves(plan: Plan):
    assume(plan.world_size // plan.pp % 2 == 0)
    together = replace(plan, host=replace(plan.host, steps_start_together=True))
    expected = Expected(timeline(together))
    results, known = reported(together, Style(devices_in_process=2))
    if expected.operations:  # no device is the lowest rank, so calls are a mean over devices too
        calls = [expected.calls(rank, n) for rank in range(plan.world_size) for n in plan.step_numbers]
        known["coll_call_num"] = fmean(map(len, calls))
    assert_right([one for one in results if one.metric in OF_DEVICES], known)
    assert_nothing_silently_wrong(results, known)


@few
@given(small_plans, st.integers(2, 50), st.integers(0, 49))
def test_lost_kernels_are_said_with_every_number_that_they_change(plan: Plan, every: int, first: int):
    results, known = reported(plan, Style(), lambda f: damage.lose_kernels(trace_path(f, 0), every, first))
    assert_nothing_silently_wrong(results, known)


@few
@given(small_plans, st.floats(0.05, 0.95), st.booleans())
def test_a_truncated_rank_is_said_with_every_number_that_it_changes(plan: Plan, share: float, packed: bool):
    style = Style(compresses=packed)
    results, known = reported(
        plan,
        style,
        lambda folder: damage.truncate(trace_path(folder, plan.world_size - 1, style=style), share),
    )
    assert_nothing_silently_wrong(results, known)


@few
@given(small_plans)
def test_two_ranks_in_one_file_are_said_with_every_number_that_they_change(plan: Plan):
    assume(plan.world_size > 1)
    results, known = reported(plan, Style(), lambda f: damage.mix_in(trace_path(f, 0), trace_path(f, 1)))
    assert_nothing_silently_wrong(results, known)
