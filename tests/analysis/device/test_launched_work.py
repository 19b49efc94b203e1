"""Kinds of device work: by the operator that launched it first, by its name second."""

from pathlib import Path

import polars as pl
import pytest
from local_traces import Event, copy, kernel, launch, op, result, results, step, table, tables, write

GEMM = "ampere_sgemm_128x64_nn"
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)"
BARRIER = "void c10d::symmetric_memory::barrier_kernel(unsigned int**)"


def launched_in(operator: str, *names: str) -> list[Event]:
    """Return a step in which an operator launches kernels of these names, 10 us each, one after the other."""
    events = [step(1, 0, 100), op(operator, 5, 20, **{"Input Dims": [[4, 256]], "Input type": ["float"]})]
    for number, name in enumerate(names, start=1):
        start = 20 + 10 * number
        events += [launch(number, 5 + number, 5.5 + number), kernel(name, number, start, start + 10)]
    return events


def kinds(run: Path) -> list[tuple[str, str | None]]:
    return table(run, "device_work").select("kind", "collective").rows()


@pytest.mark.parametrize(
    ("operator", "collective"),
    [
        ("record_param_comms", "all_gather"),
        ("c10d::allreduce_", "all_reduce"),
        ("symm_mem::one_shot_all_reduce", "all_reduce"),
        ("symm_mem::_low_contention_reduce_scatter", "reduce_scatter"),
        ("_C_custom_ar::all_reduce", "all_reduce"),
        ("_C::fused_all_reduce_residual", "all_reduce"),
        ("vllm::all_reduce", "all_reduce"),
        ("trtllm::allreduce", "all_reduce"),
    ],
)
def test_a_kernel_of_any_name_is_what_its_operator_carries_out(
    tmp_path: Path, operator: str, collective: str
) -> None:
    events = launched_in(operator, "my_own_kernel")
    if operator == "record_param_comms":
        events[1]["args"] |= {"Collective name": "allgather", "In msg nelems": 8, "dtype": "Float"}
    found = tables(write(tmp_path, events), "device_work", "calls", "kernel_time")
    assert found["device_work"].select("kind", "collective").rows() == [("communication", collective)]
    assert found["calls"]["collective"].to_list() == [collective]
    assert found["kernel_time"]["type"].to_list() == ["communication"]


def test_what_torch_computes_inside_a_collective_stays_compute_and_a_local_copy_memory(
    tmp_path: Path,
) -> None:
    events = [
        *launched_in("c10d::allgather_", FILL, "ncclDevKernel_AllGather_RING_LL(ncclDevComm*)"),
        launch(3, 9, 9.5), copy("DtoD", 64, 3, 60, 70),
    ]  # fmt: skip
    assert kinds(write(tmp_path, events)) == [
        ("compute", None), ("communication", "all_gather"), ("memory", None),
    ]  # fmt: skip


def test_a_kernel_launched_outside_of_every_operator_is_recognised_by_its_name(tmp_path: Path) -> None:
    events = [*launched_in("c10d::allreduce_"), launch(1, 30, 31), kernel("my_own_kernel", 1, 40, 50)]
    events += [launch(2, 32, 33), kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 2, 50, 60)]
    assert kinds(write(tmp_path, events)) == [("compute", None), ("communication", "all_reduce")]


def test_an_operator_that_ended_before_says_nothing_of_a_later_launch_beside_it(tmp_path: Path) -> None:
    events = launched_in("c10d::allreduce_")
    events += [op("c10d::allreduce_", 5, 20, tid=2), launch(1, 30, 31, tid=2), kernel("mine", 1, 40, 50)]
    events += [launch(2, 10, 11, tid=3), kernel("mine", 2, 60, 70)]
    assert kinds(write(tmp_path, events)) == [("compute", None)] * 2


def test_copies_between_devices_of_one_collective_are_one_call(tmp_path: Path) -> None:
    """Three copies of 10 us in [30, 70) with a barrier before and after: 40 us of one call, two barriers."""
    events = [
        *launched_in("symm_mem::_low_contention_all_gather", BARRIER),
        launch(2, 7, 7.5), copy("PtoP", 4096, 2, 40, 50),
        launch(3, 8, 8.5), copy("PtoP", 4096, 3, 50, 60),
        launch(4, 9, 9.5), copy("PtoP", 4096, 4, 60, 70),
        launch(5, 15, 16), kernel(BARRIER, 5, 75, 80),
        launch(6, 50, 51), copy("PtoP", 4096, 6, 80, 90),
    ]  # fmt: skip
    run = write(tmp_path, events, events)
    calls = table(run, "calls").filter(pl.col("rank") == 0)
    assert calls.select("collective", "start_ns", "end_ns").rows() == [
        ("barrier", 30_000, 40_000), ("all_gather", 40_000, 70_000), ("barrier", 75_000, 80_000),
    ]  # fmt: skip
    # the copy that no collective launched is memory still
    time, overlap = results(run, "total_communication_time", "comm_comp_overlap").values()
    assert time.value == pytest.approx(45e-6)
    parts = overlap.details["mean_step_s"]
    assert parts["exposed_memory"] == pytest.approx(10e-6)


def test_kernels_of_one_custom_all_reduce_are_one_call(tmp_path: Path) -> None:
    names = (
        "void aiter::reduce_scatter_cross_device_store<float, 8>(int)",
        "void aiter::my_second_half<float>(int)",
    )
    run = write(tmp_path, launched_in("aiter::all_reduce_reg", *names))
    calls = table(run, "calls")
    assert calls.select("collective", "start_ns", "end_ns").rows() == [("all_reduce", 30_000, 50_000)]


def fused_step() -> list[Event]:
    """Return a step of 100 us: 20 fused, of which 5 beside compute and 5 beside communication."""
    return [
        *launched_in("symm_mem::fused_all_gather_matmul", GEMM, FILL),      # [30, 50) fused
        launch(8, 60, 61), kernel(GEMM, 8, 45, 60),                         # 15 compute
        launch(9, 62, 63), kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 9, 25, 35, stream=9),
    ]  # fmt: skip


def test_fused_work_is_neither_hidden_nor_exposed_and_the_parts_add_up(tmp_path: Path) -> None:
    run = write(tmp_path, fused_step(), fused_step())
    found = table(run, "breakdown").row(0, named=True)
    assert found["compute_ns"] == 15_000
    assert found["fused_ns"] == 15_000
    assert found["communication_ns"] == 10_000
    assert found["overlap_ns"] == 0
    assert found["exposed_communication_ns"] == 5_000
    names = ("comm_comp_overlap", "exposed_communication_time", "total_kernel_time", "gpu_busy")
    overlap, exposed, kernels, busy = results(run, *names).values()
    parts = overlap.details["mean_step_s"]
    assert parts["fused"] == pytest.approx(15e-6)
    window = parts.pop("window")
    assert sum(parts.values()) == pytest.approx(window) == pytest.approx(100e-6)
    assert exposed.value == pytest.approx(5e-6)
    assert kernels.details["per_type_s"]["fused"] == pytest.approx(20e-6)
    by_step = busy.details["per_step_parts_s"]["1"]
    assert sum(by_step.values()) - by_step["window"] == pytest.approx(by_step["window"])


@pytest.mark.parametrize(
    "name",
    [
        "void cutlass::Kernel2<bytedance::flux::FluxGemmKernel<bytedance::flux::GemmMeta<x>>>(int)",
        "void cutlass::device_kernel<cutlass::Gemm<x, cutlass::gemm::PersistentAsyncInputScheduler<y>>>()",
        "kernel_cutlass_gemm_allreduce_sm100",
        "void deep_gemm::sm100_fp8_fp4_mega_moe_impl<8>(void*)",
        "kernel_gemm_rs_producer",
    ],
)
def test_a_kernel_that_multiplies_and_communicates_is_fused_by_its_name(tmp_path: Path, name: str) -> None:
    run = write(tmp_path, [step(1, 0, 100), launch(1, 1, 2), kernel(name, 1, 10, 40)])
    assert kinds(run) == [("fused", None)]
    assert table(run, "calls").is_empty()


def test_a_run_without_fused_work_lists_no_part_of_it(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100),
        launch(1, 1, 2),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 1, 10, 40),
    ]
    parts = result(write(tmp_path, events, events), "comm_comp_overlap").details["mean_step_s"]
    assert list(parts) == ["compute", "exposed_communication", "exposed_memory", "idle", "window"]


@pytest.mark.parametrize(
    ("operator", "dims", "types", "size"),
    [
        ("symm_mem::one_shot_all_reduce", [[16, 64], [], []], ["c10::BFloat16", "", ""], 16 * 64 * 2),
        ("_C_custom_ar::all_reduce", [[], [8, 32], [8, 32], [], []], ["Scalar", "float", "float"], 1024),
        ("vllm::all_reduce", [[4, 256], []], ["c10::Half", ""], 2048),
        ("symm_mem::multimem_all_gather_out", [[4, 8], [], [16, 8]], ["float", "", "float"], 512),
    ],
)  # fmt: skip
def test_the_size_of_a_custom_collective_stands_in_the_inputs_of_its_operator(
    tmp_path: Path, operator: str, dims: list[list[int]], types: list[str], size: int
) -> None:
    events = launched_in(operator, "my_own_kernel")
    events[1]["args"] = {"Input Dims": dims, "Input type": types}
    run = write(tmp_path, events, events)
    assert table(run, "calls")["size_bytes"].to_list() == [size] * 2


def test_an_operator_whose_kernels_all_look_local_is_reported(tmp_path: Path) -> None:
    found = result(
        write(tmp_path, launched_in("c10d::allreduce_", FILL), launched_in("c10d::allreduce_")), "gpu_busy"
    )
    reported = [finding for finding in found.findings if finding.code == "kernels-unclassified"]
    assert [(finding.rank, finding.count) for finding in reported] == [(0, 1)]
    assert "FillFunctor" in reported[0].message


def test_a_large_share_of_kernels_without_a_type_is_said(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100),
        launch(1, 1, 2),
        kernel("mine", 1, 10, 40),
        launch(2, 3, 4),
        kernel(GEMM, 2, 40, 60),
    ]
    details = result(write(tmp_path, events), "total_kernel_time").details
    assert details["types_unknown"].startswith("60 % of kernel time")
    assert "mine" in details["types_unknown"]
