"""Every tool on a run whose numbers can be worked out by hand, and beside plain counts of real traces."""

from __future__ import annotations

import gzip
import importlib
import json
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import small_gpu_run

if TYPE_CHECKING:
    from pathlib import Path

US = 1e-6


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_gpu_run.write(tmp_path_factory.mktemp("small"))


def _dict_of(tool: str, run: Path) -> dict[str, Any]:
    found: dict[str, Any] = importlib.import_module(f"tools.{tool}").metric_cal(run)
    return found


def _are(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert {key: found.get(key) for key in expected} == {
        key: pytest.approx(value) if isinstance(value, float | dict) else value
        for key, value in expected.items()
    }


def test_communication_has_bytes_times_and_bandwidths_of_each_collective(small: Path) -> None:
    message = 2 * small_gpu_run.GATHERED
    bandwidth = message / 20_000  # bytes in the 20 us of the rank that did not wait, in bytes a ns
    expected = {
        "communication_s": (20 + 20 + 25 + 20) / 2 * US,
        "communication_pct": 42.5,
        "exposed_communication_s": (20 + 25) / 2 * US,
        "per_collective_union_s": {"all_gather": 22.5 * US, "reduce_scatter": 20 * US},
        "per_collective_sum_s": {"all_gather": 22.5 * US, "reduce_scatter": 20 * US},
        "communicated_bytes": 2 * message,
        "per_collective_bytes": {"all_gather": message, "reduce_scatter": message},
        "per_collective_mean_message_bytes": {"all_gather": message, "reduce_scatter": message},
        "per_collective_calls_count": {"all_gather": 1, "reduce_scatter": 1},
        "per_collective_algorithm_gb_per_s": {"all_gather": bandwidth, "reduce_scatter": bandwidth},
        "per_collective_bus_gb_per_s": {"all_gather": bandwidth / 2, "reduce_scatter": bandwidth / 2},
        "per_collective_basis_kind": {"all_gather": "wait-free", "reduce_scatter": "wait-free"},
        "efficiency_gb_per_s": 2 * message / 42_500,
        "unattributed_calls_count": 0,
        "calls_count": 2,
        "lowest_rank_calls_count": 2,
    }
    found = _dict_of("communication", small)
    assert found.pop("per_collective_basis_kind") == expected.pop("per_collective_basis_kind")
    _are(found, expected)


def test_memory_has_peaks_efficiency_and_fragmentation_of_each_device(small: Path) -> None:
    found = _dict_of("memory", small)
    _are(
        found,
        {
            "peak_allocated_bytes": 60_000_000_000,
            "per_device_peak_allocated_bytes": {"0": 60_000_000_000, "1": 50_000_000_000},
            "per_device_peak_reserved_bytes": {"0": 80_000_000_000, "1": 80_000_000_000},
            "per_device_unused_ratio": {"0": 20 / 80, "1": 30 / 80},
            "unused_ratio": 30 / 80,
            "efficiency_ratio": 64 / 80,
            "per_device_inactive_split_ratio": {"0": 8 / 80, "1": 8 / 80},
            "per_device_allocations_count": {"0": 1000, "1": 1000},
            "per_device_frees_count": {"0": 900, "1": 900},
            "per_device_oom_count": {"0": 0, "1": 0},
            "inactive_split_ratio": 8 / 80,
        },
    )
    assert found["inactive_split_kind"] == "peaks of the counters"
    assert "no memory snapshot" in found["allocator_settings_reason"]
    assert "no times" in found["allocation_rate_reason"]


def test_memory_without_its_file_says_so(sharded: Path) -> None:
    found = _dict_of("memory", sharded)
    assert "memory_stats.json" in found["peak_memory_allocated_reason"]
    assert "memory_stats.json" in found["memory_fragmentation_reason"]
    assert "peak_allocated_bytes" not in found


def test_training_phases_have_the_time_of_what_each_launched(small: Path) -> None:
    _are(
        _dict_of("training_phases", small),
        {
            "forward_s": 40 * US,
            "forward_pct": 40.0,
            "forward_communication_s": 22.5 * US,
            "backward_s": 20 * US,
            "backward_pct": 20.0,
            "gradient_communication_s": 20 * US,
            "gradient_accumulation_s": 0.0,
            "optimizer_s": 5 * US,
            "optimizer_pct": 5.0,
            "unattributed_s": 0.0,
        },
    )


def test_fsdp_has_the_parts_of_sharding_and_what_is_hidden(small: Path) -> None:
    _are(
        _dict_of("fsdp", small),
        {
            "all_gather_s": 22.5 * US,
            "reduce_scatter_s": 20 * US,
            "communication_s": (20 + 20 + 25 + 20) / 2 * US,  # never at once
            "copy_in_s": 0.0,
            "overhead_pct": (10 + 10 + 15 + 10) / 2,  # before the first product, after the last
            "prefetch_efficiency_pct": (100 * 10 / 20 + 100 * 10 / 25) / 2,
            "all_gathers_count": 1.0,
        },
    )


def test_straggler_names_the_rank_that_the_other_waits_for(small: Path) -> None:
    found = _dict_of("straggler", small)
    assert (found["slowest_rank"], found["late_ranks"]) == ("0", ["0"])
    _are(
        found,
        {
            "straggler_lag_s": 5 * US,
            "straggler_ratio": 5 / 100,
            "per_rank_wait_s": {"0": 0.0, "1": 5 * US},
            "per_rank_caused_wait_s": {"0": 5 * US, "1": 0.0},
            "synchronisation_overhead_ratio": 5 / 200,
            "load_imbalance_ratio": 1,
            "per_rank_compute_s": {"0": 65 * US, "1": 65 * US},
            "iteration_std_across_ranks_s": 0.0,
        },
    )


def test_kernel_has_times_by_type_and_by_name(small: Path) -> None:
    found = _dict_of("kernel", small)
    _are(
        found,
        {
            "kernel_s": (105 + 110) / 2 * US,
            "kernels_count": 5.0,
            "per_type_s": {"gemm": 60 * US, "communication": 42.5 * US, "elementwise": 5 * US},
            "dominant_kernel_pct": (100 * 40 / 105 + 100 * 40 / 110) / 2,
            "dominant_compute_kernel_pct": 100 * 40 / 65,
            "copy_s": 0.0,
        },
    )
    names = list(found["per_name_s"])
    assert (len(names), names[0]) == (5, "ampere_bf16_s16816gemm_bf16_128x128_tn")
    assert sum(found["per_name_s"].values()) == pytest.approx(found["kernel_s"])


def test_gpu_utilization_shows_why_the_device_was_idle(small: Path) -> None:
    _are(
        _dict_of("gpu_utilization", small),
        {
            "busy_pct": 87.5,
            "idle_pct": 12.5,
            "idle_s": 12.5 * US,
            "idle_waiting_for_host_s": 12.5 * US,
            "idle_waiting_for_kernel_s": 0.0,
            "idle_other_s": 0.0,
            "compute_efficiency_pct": 65.0,
            "cpu_overhead_s": (2 + 10) * US,
            "cpu_overhead_pct": 12.0,
            "launch_overhead_s": 5 * US,
        },
    )


def test_gpu_utilization_says_why_hardware_is_not_saturated_in_numbers(small: Path) -> None:
    found = _dict_of("gpu_utilization", small)
    assert "copy within the device's memory" in found["memory_bandwidth_utilization_reason"]
    assert "copy of known size" in found["average_memory_bandwidth_reason"]
    assert "no shapes" in found["compute_intensity_reason"]


def test_overlap_is_what_both_do_at_once(small: Path) -> None:
    expected = {"overlap_pct": (100 * 20 / 40 + 100 * 20 / 45) / 2, "compute_s": 65 * US, "step_s": 100 * US}
    found = _dict_of("overlap", small)
    # Of 40 and of 45 us of communication, 20 us each run beside compute.
    _are(found, {**expected, "overlap_s": 20 * US, "communication_wait_s": (0 + 5) / 2 * US})
    assert "pipeline" in found["bubble_size_pipeline_reason"]


def test_bubbles_of_a_pipeline_are_in_overlap(sharded: Path) -> None:
    pipeline = sharded.parent / "llama-tiny-pp4-gloo"
    found = _dict_of("overlap", pipeline)
    assert 0 < found["bubble_ratio"] < 1
    assert found["bubble_s"] < found["step_s"]
    assert found["pipeline_efficiency_ratio"] == pytest.approx(1 - found["bubble_ratio"])
    assert "could be matched" in found["communication_wait_reason"]


def test_calls_and_bytes_of_a_pipeline_add_up(sharded: Path) -> None:
    found = _dict_of("communication", sharded.parent / "llama-tiny-pp4-gloo")
    # 8 microbatches forward and back over the 3 borders of 4 stages: 48 messages, each sent and received.
    assert found["per_collective_calls_count"] == {"recv": 48 / 4, "send": 48 / 4}
    assert found["calls_count"] == 2 * 48 / 4
    assert found["lowest_rank_calls_count"] == 2 * 8
    means = found["per_collective_mean_message_bytes"]
    total = sum(count * means[name] for name, count in found["per_collective_calls_count"].items())
    assert found["communicated_bytes"] == pytest.approx(total)


def test_throughput_is_tokens_over_the_step(small: Path) -> None:
    found = _dict_of("throughput", small)
    _are(found, {"tokens_per_s": 2048 / (100 * US), "gpus_count": 2})
    _are(found, {"per_rank_tokens_per_s": dict.fromkeys("01", 1024 / (100 * US))})


def test_the_operators_of_a_real_run_compute_what_its_model_needs(sharded: Path) -> None:
    """Six operations for each token and weight in a product, and the bytes that a loop over shapes adds up.

    A product of distributed tensors calls the local one, whose shapes are those of the rank.
    """
    done = moved = 0
    for trace in sorted(sharded.glob("kineto_trace_*")):
        found = [e for e in _events(trace) if e["name"] == "aten::mm"]
        for event in found:
            end = event["ts"] + event["dur"]
            if any(event["ts"] < e["ts"] < end for e in found if e["tid"] == event["tid"]):
                continue
            (rows, inner), (_, columns) = event["args"]["Input Dims"]
            done += 2 * rows * inner * columns
            moved += 4 * (rows * inner + inner * columns + rows * columns)
    steps, tokens, weights = 3, 16 * 128, 1_574_144 - 1_280  # without those of the norms
    assert done == steps * tokens * 6 * weights

    result = _dict_of("gpu_utilization", sharded)

    assert result["compute_intensity_flop_per_byte"] == pytest.approx(done / moved)
    assert result["matrix_product_flops_count"] == done / (steps * 4)
    assert "shapes of operators" in result["compute_intensity_kind"]


@cache
def _events(trace: Path) -> list[dict[str, Any]]:
    raw = trace.read_bytes()
    return json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)["traceEvents"]


def test_communicated_bytes_of_a_real_run_are_those_of_its_records(sharded: Path) -> None:
    """Counted over `record_param_comms` of every rank, inside its steps, by nothing but this loop."""
    whole, steps = {"allreduce": 0, "_allgather_base": 0, "_reduce_scatter_base": 0}, 0
    for trace in sorted(sharded.glob("kineto_trace_*")):
        events = _events(trace)
        inside = [
            e for e in events if e["name"].startswith("ProfilerStep#") and e["cat"] == "user_annotation"
        ]
        steps += len(inside)
        for event in events:
            if event["name"] == "record_param_comms":
                assert any(s["ts"] <= event["ts"] < s["ts"] + s["dur"] for s in inside)
                side = "Out" if event["args"]["Collective name"] == "_allgather_base" else "In"
                whole[event["args"]["Collective name"]] += 4 * event["args"][f"{side} msg nelems"]

    found = _dict_of("communication", sharded)["per_collective_bytes"]

    assert found == {
        "all_reduce": whole["allreduce"] / steps,
        "all_gather": whole["_allgather_base"] / steps,
        "reduce_scatter": whole["_reduce_scatter_base"] / steps,
    }


def test_bandwidths_of_the_tool_are_those_of_the_metrics(sharded: Path) -> None:
    from ccl_bench.evaluate.compute import evaluate
    from ccl_bench.run import open_run

    kinds = {"all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reducescatter"}
    results = evaluate(open_run(sharded), [f"bandwidth_utilization_{kind}" for kind in kinds.values()])

    found = _dict_of("communication", sharded)["per_collective_bus_gb_per_s"]

    assert found == dict(zip(kinds, [result.value for result in results], strict=True))


def test_waits_of_a_real_run_are_what_durations_exceed_the_shortest(corpus: Path) -> None:
    """On eight ranks with one group, the k-th all-reduce of each is the same collective."""
    run = corpus / "kineto" / "megatron-tp8"
    ranks = []
    for trace in sorted(run.glob("*.json*")):
        calls = [e for e in _events(trace) if e.get("cat") == "kernel" and "nccl" in e["name"].lower()]
        ranks.append([call["dur"] for call in sorted(calls, key=lambda call: call["ts"])])
    shortest = [min(durations) for durations in zip(*ranks, strict=True)]
    waits = [sum(own) - sum(shortest) for own in ranks]

    found = _dict_of("straggler", run)

    assert list(found["per_rank_wait_s"].values()) == pytest.approx([wait * US for wait in waits])
    assert found["straggler_lag_s"] == pytest.approx((max(waits) - min(waits)) * US)


def test_kernel_time_of_a_real_run_is_the_sum_of_its_kernels(corpus: Path) -> None:
    run = corpus / "kineto" / "megatron-tp8"
    sums, counts = [], []
    for trace in sorted(run.glob("*.json*")):
        kernels = [event for event in _events(trace) if event.get("cat") == "kernel"]
        sums.append(sum(kernel["dur"] for kernel in kernels))
        counts.append(len(kernels))

    found = _dict_of("kernel", run)

    assert found["kernel_s"] == pytest.approx(sum(sums) / len(sums) * US)
    assert found["kernels_count"] == sum(counts) / len(counts)


def test_memory_of_a_snapshot_has_peaks_and_rates(corpus: Path) -> None:
    """A peak lies between the 1.3 GB allocated at the end and the most that was reserved."""
    found = _dict_of("memory", corpus / "memory")
    assert 1.3e9 < found["peak_allocated_bytes"] <= found["per_device_peak_reserved_bytes"]["0"]
    assert 0 < found["unused_ratio"] < 1
    assert found["per_device_allocations_per_s"]["0"] > 0
    assert "allocation_rate_reason" not in found


def test_fragmentation_of_a_snapshot_is_of_two_moments(corpus: Path) -> None:
    """The dump is counted from the blocks of the pickle; its settings are listed as it holds them."""
    import pickle

    held = pickle.loads((corpus / "memory" / "rank0_memory_snapshot.pickle").read_bytes())
    reserved = sum(segment["total_size"] for segment in held["segments"])
    used = sum(segment["allocated_size"] for segment in held["segments"])
    split = sum(
        block["size"]
        for segment in held["segments"]
        if any(block["state"] != "inactive" for block in segment["blocks"])
        for block in segment["blocks"]
        if block["state"] == "inactive"
    )
    found = _dict_of("memory", corpus / "memory")
    _are(
        found,
        {
            "per_device_unused_at_dump_ratio": {"0": 1 - used / reserved},
            "per_device_inactive_split_at_dump_ratio": {"0": split / reserved},
        },
    )
    assert found["inactive_split_ratio"] == found["per_device_inactive_split_at_peak_ratio"]["0"]
    assert found["inactive_split_kind"] == "peak of the snapshot's history"
    assert found["allocator_settings"]["max_split_size"] == held["allocator_settings"]["max_split_size"]
