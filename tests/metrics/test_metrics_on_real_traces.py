"""Every metric against a count of the same files by loops over json.load."""

import json
from pathlib import Path

import pytest
from kineto_sets import ALL, ON_CPU, ON_DEVICE, folder_of, mean, results
from plain_timeline import (
    apart,
    calls_in,
    occupancy,
    occupied,
    states,
    step_time,
    timelines,
    together,
)

from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run

SECOND = 10**9


@pytest.mark.parametrize("name", ALL)
def test_calls_are_those_that_start_in_the_device_windows_of_the_lowest_rank(name: str):
    folder = folder_of(name)
    lowest = timelines(folder)[0]
    per_step = {str(step.number): calls_in(lowest, step) for step in lowest.steps}

    found = results(folder)["coll_call_num"]

    assert found.value == mean(list(per_step.values()))
    assert found.details["per_step"] == per_step
    assert found.details["rank"] == str(lowest.rank)


@pytest.mark.parametrize("name", ALL)
def test_calls_of_every_rank_are_listed(name: str):
    lines = timelines(folder_of(name))
    counts = {str(line.rank): mean([calls_in(line, step) for step in line.steps]) for line in lines}

    assert results(folder_of(name))["coll_call_num"].details["per_rank"] == counts


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        # counts of kernels and ranges as the sets' own descriptions give them
        ("megatron-tp8", 84),
        ("nccl-args", 21 / 3),
        ("dlrm-8rank", 8),
        ("deepseek-dualpipe", 8 + 8 + 4 + 12),  # dispatch, combine, notify_dispatch, cached_notify
        ("llama-tiny-fsdp2-tp2-gloo", (15 + 33) / 3),
        ("llama-tiny-pp4-gloo", (16 + 16) / 2),
    ],
)
def test_calls_agree_with_what_is_known_of_the_set(name: str, calls: float):
    assert results(folder_of(name))["coll_call_num"].value == calls


def test_a_reduce_scatter_that_gloo_carries_out_as_an_all_reduce_keeps_its_name():
    found = results(folder_of("llama-tiny-fsdp2-tp2-gloo"))["coll_call_num"]

    assert found.details["per_collective"] == {
        "all_gather": 15 / 3,
        "all_reduce": 24 / 3,
        "reduce_scatter": 9 / 3,
    }


def _slowest(folder: Path) -> float:
    """Return the mean over steps of the longest step of any rank, s."""
    lengths: dict[int, list[int]] = {}
    for line in timelines(folder):
        for step in line.steps:
            lengths.setdefault(step.number, []).append(step.length)
    return mean([max(step) / SECOND for step in lengths.values()])


@pytest.mark.parametrize("name", ["nccl-args", "dlrm-8rank"])
def test_step_time_from_traces_is_the_mean_of_the_slowest_ranks_steps(name: str):
    found = results(folder_of(name))["iteration_wall_clock_time"]

    assert found.value == pytest.approx(_slowest(folder_of(name)), rel=1e-15)
    assert found.window == "ProfilerStep"


def test_the_steps_of_the_tensor_parallel_run_take_603_to_634_ms():
    found = results(folder_of("megatron-tp8"))["iteration_wall_clock_time"]
    per_rank = found.details["per_rank_s"]

    # from the ProfilerStep to the last kernel that it launched; the ranges on the CPU take 589 to 626 ms
    lines = timelines(folder_of("megatron-tp8"))
    lengths = {str(line.rank): line.steps[0].length / SECOND for line in lines}
    assert (min(lengths.values()), max(lengths.values())) == pytest.approx((0.60324, 0.633541))
    assert per_rank == pytest.approx(lengths)
    assert found.value == pytest.approx(max(lengths.values()), rel=1e-15)
    ranges = max(line.steps[0].end - line.steps[0].start for line in lines) / SECOND
    assert found.details["host_range_s"] == pytest.approx(ranges) == pytest.approx(0.625731)
    assert found.details["slowest_rank"] == [int(max(lengths, key=lambda rank: lengths[rank]))]


@pytest.mark.parametrize("name", ["llama-tiny-fsdp2-tp2-gloo", "llama-tiny-pp4-gloo"])
def test_step_time_of_an_example_comes_from_its_side_file(name: str):
    written = json.loads((folder_of(name) / "step_times_per_rank.json").read_text())
    slowest = [max(step) for step in zip(*written.values(), strict=True)]

    found = results(folder_of(name))["iteration_wall_clock_time"]

    assert found.value == pytest.approx(mean(slowest), rel=1e-15)
    assert found.window == "step_times_per_rank.json"


@pytest.mark.parametrize("name", ["llama-tiny-fsdp2-tp2-gloo", "llama-tiny-pp4-gloo"])
def test_throughput_of_an_example_is_its_tokens_over_its_step_time(name: str):
    folder = folder_of(name)
    written = json.loads((folder / "step_times_per_rank.json").read_text())
    step_s = mean([max(step) for step in zip(*written.values(), strict=True)])

    found = results(folder)["throughput_tokens_sec"]

    assert found.value == pytest.approx(16 * 128 / step_s, rel=1e-12)
    assert found.details["tokens_per_s_per_gpu"] == pytest.approx(16 * 128 / step_s / 4, rel=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_overlap_is_the_time_of_both_over_the_time_of_communication(name: str):
    shares = {}
    for line in timelines(folder_of(name)):
        found = states(line)
        both, any_communication = (
            together(found, "compute", "communication"),
            together(found, "communication"),
        )
        shares[str(line.rank)] = 100 * both / any_communication

    result = results(folder_of(name))["comm_comp_overlap"]

    assert result.details["per_rank_pct"] == pytest.approx(shares, rel=1e-12)
    assert result.value == pytest.approx(mean(list(shares.values())), rel=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_the_parts_of_a_step_are_counted_apart_and_add_up(name: str):
    parts: dict[str, list[float]] = {
        key: [] for key in ("compute", "exposed_communication", "exposed_memory", "idle", "window")
    }
    for line in timelines(folder_of(name)):
        found, count = states(line), len(line.steps) * SECOND
        parts["compute"].append(together(found, "compute") / count)
        parts["exposed_communication"].append(apart(found, "communication", "compute") / count)
        parts["exposed_memory"].append(apart(found, "memory", "compute", "communication") / count)
        parts["idle"].append(found[frozenset()] / count)
        parts["window"].append(step_time(line) / count)

    shown = results(folder_of(name))["comm_comp_overlap"].details["mean_step_s"]

    assert shown == pytest.approx({key: mean(values) for key, values in parts.items()}, rel=1e-12)
    *pieces, window = shown.values()
    assert sum(pieces) == pytest.approx(window, rel=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_busy_is_the_time_with_any_work(name: str):
    lines = timelines(folder_of(name))
    busy = {
        str(line.rank): 100 * (step_time(line) - states(line)[frozenset()]) / step_time(line)
        for line in lines
    }

    found = results(folder_of(name))

    assert found["gpu_busy"].details["per_rank_pct"] == pytest.approx(busy, rel=1e-12)
    assert found["gpu_busy"].value == pytest.approx(mean(list(busy.values())), rel=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_idle_is_the_time_without_work(name: str):
    idle = [100 * states(line)[frozenset()] / step_time(line) for line in timelines(folder_of(name))]

    assert results(folder_of(name))["gpu_idle"].value == pytest.approx(mean(idle), rel=1e-12)


@pytest.mark.parametrize("name", ON_DEVICE)
def test_sm_is_the_share_of_multiprocessors_that_kernels_could_occupy(name: str):
    shares = [100 * occupied(line) / step_time(line) for line in timelines(folder_of(name))]

    found = results(folder_of(name))["sm"]

    assert found.value == pytest.approx(mean(shares), rel=1e-5)  # shares of one multiprocessor in millionths
    assert found.details["kind"] == "estimated"


@pytest.mark.parametrize("name", ON_DEVICE)
def test_occupancy_is_weighted_by_the_length_of_each_kernel(name: str):
    expected = mean([occupancy(line) for line in timelines(folder_of(name))])

    found = results(folder_of(name))["sm"].details["estimated_achieved_occupancy_pct"]

    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ON_CPU)
def test_a_run_without_a_device_has_no_multiprocessors(name: str):
    found = results(folder_of(name))["sm"]

    assert (found.status, found.value) == ("not_measurable", None)
    assert "launch shape" in found.reason


@pytest.mark.parametrize("name", ON_CPU)
def test_a_run_without_a_device_has_no_peak_to_compare_with(name: str):
    found = results(folder_of(name))["mfu"]

    assert (found.status, found.value) == ("not_applicable", None)
    assert "no accelerator" in found.reason


@pytest.mark.parametrize("name", ON_DEVICE)
def test_device_windows_lose_no_kernel_that_a_step_launched(name: str):
    for line in timelines(folder_of(name)):
        first, last = line.steps[0].device[0], line.steps[-1].device[1]
        inside = [start for start, _ in line.communication if first <= start < last]
        shown = results(folder_of(name))["coll_call_num"].details["per_rank"][str(line.rank)]

        assert shown * len(line.steps) == len(inside) == len(line.communication)


def test_work_runs_on_after_the_cpu_has_left_the_step():
    late_ms = [
        (line.steps[0].device[1] - line.steps[0].end) / 1e6 for line in timelines(folder_of("megatron-tp8"))
    ]
    shown = results(folder_of("megatron-tp8"))["comm_comp_overlap"].details["mean_step_s"]["window"]
    on_cpu = mean(
        [(line.steps[0].end - line.steps[0].start) / SECOND for line in timelines(folder_of("megatron-tp8"))]
    )

    assert max(late_ms) > 30
    assert shown == pytest.approx(on_cpu + mean(late_ms) / 1000)


def test_communication_that_is_not_called_nccl_is_found():
    found = results(folder_of("deepseek-dualpipe"))
    names = {kernel["name"] for kernel in timelines(folder_of("deepseek-dualpipe"))[0].kernels}

    assert not any("nccl" in name for name in names)
    assert found["coll_call_num"].details["per_collective"]["all_to_all"] == 16  # 8 dispatch and 8 combine
    assert found["comm_comp_overlap"].value > 90


@pytest.mark.parametrize("name", ["llama-tiny-fsdp2-tp2-gloo", "llama-tiny-pp4-gloo"])
def test_quality_of_an_example_is_the_last_loss_it_wrote(name: str):
    written = json.loads((folder_of(name) / "training_metrics.json").read_text())

    found = results(folder_of(name))["training_quality"]

    assert found.value == written["loss"][-1]
    assert found.details["perplexity"] == pytest.approx(2.718281828459045 ** written["loss"][-1])
    assert [point["value"] for point in found.details["series"]["loss"]] == written["loss"]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("variant", "plain", "factor"),
    [
        ("coll_call_num_16", "coll_call_num", 1),
        ("iter_time_16", "iteration_wall_clock_time", 1),
        ("throughput_tokens_16", "throughput_tokens_sec", 1),
        ("training_quality_16", "training_quality", 1),
        ("comm_comp_overlap_16", "comm_comp_overlap", 1 / 100),
    ],
)
def test_a_name_of_the_16_set_is_the_same_number_in_its_unit(
    name: str, variant: str, plain: str, factor: float
):
    found = results(folder_of(name))

    assert found[variant].status == found[plain].status
    if found[plain].value is not None:
        assert found[variant].value == pytest.approx(found[plain].value * factor, rel=1e-15)


def test_the_overlap_of_the_16_set_is_a_ratio():
    found = results(folder_of("nccl-args"))["comm_comp_overlap_16"]

    assert found.unit == "ratio"
    assert 0 < found.value < 1


def test_step_time_of_an_example_from_its_traces_alone(tmp_path: Path):
    folder = folder_of("llama-tiny-pp4-gloo")
    for path in folder.glob("kineto_trace_*.json.gz"):
        (tmp_path / path.name).symlink_to(path)

    (found,) = evaluate(open_run(tmp_path), ["iteration_wall_clock_time"])

    assert found.value == pytest.approx(_slowest(folder), rel=1e-15)
    assert found.window == "ProfilerStep"
