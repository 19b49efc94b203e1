"""Steps: where they come from, and which device work belongs to each."""

import pytest
from frames import derive, derive_from, table

from ccl_bench.trace.formats.kineto.reader import read_kineto


def mark(name, start, end, *, on_device=False):
    return {"name": name, "start_ns": start, "end_ns": end, "on_device": on_device, "process": 1, "thread": 1}


def launch(start, correlation):
    return {"name": "cudaLaunchKernel", "start_ns": start, "end_ns": start + 1, "correlation": correlation}


def kernel(start, end, correlation=None, name="gemm"):
    return {
        "name": name,
        "start_ns": start,
        "end_ns": end,
        "correlation": correlation,
        "device": 0,
        "stream": 7,
    }


def steps(marks=(), kernels=(), memcpy=(), launches=(), cpu_ops=()):
    found = derive(
        "steps",
        annotations=table("annotations", marks),
        kernels=table("kernels", kernels),
        memcpy=table("memcpy", memcpy),
        launches=table("launches", launches),
        cpu_ops=table("cpu_ops", cpu_ops),
    )
    return found.rows()


def test_profiler_steps_are_steps():
    found = steps([mark("ProfilerStep#3", 0, 10), mark("ProfilerStep#4", 10, 25)])
    assert found == [(3, 0, 10, 0, 10, "ProfilerStep"), (4, 10, 25, 10, 25, "ProfilerStep")]


def test_the_device_twin_of_a_step_is_no_second_step():
    found = steps([mark("ProfilerStep#3", 0, 10), mark("ProfilerStep#3", 4, 30, on_device=True)])
    assert found == [(3, 0, 10, 0, 10, "ProfilerStep")]


def test_a_window_reaches_to_the_last_kernel_launched_in_the_step():
    found = steps(
        [mark("ProfilerStep#1", 0, 10), mark("ProfilerStep#2", 10, 20)],
        kernels=[kernel(5, 17, 1), kernel(18, 33, 2)],
        launches=[launch(4, 1), launch(12, 2)],
    )
    assert [row[3:5] for row in found] == [(0, 17), (17, 33)]


def test_a_copy_launched_in_a_step_extends_it_too():
    found = steps(
        [mark("ProfilerStep#1", 0, 10)],
        memcpy=[{"kind": "HtoD", "start_ns": 9, "end_ns": 40, "correlation": 1}],
        launches=[launch(4, 1)],
    )
    assert [row[3:5] for row in found] == [(0, 40)]


def test_work_launched_outside_all_steps_extends_none():
    found = steps(
        [mark("ProfilerStep#1", 10, 20), mark("ProfilerStep#2", 30, 40)],
        kernels=[kernel(5, 100, 1), kernel(25, 200, 2), kernel(45, 300, 3)],
        launches=[launch(4, 1), launch(25, 2), launch(44, 3)],
    )
    assert [row[3:5] for row in found] == [(10, 20), (30, 40)]


def test_a_long_kernel_does_not_make_windows_overlap():
    found = steps(
        [mark("ProfilerStep#1", 0, 10), mark("ProfilerStep#2", 10, 20), mark("ProfilerStep#3", 20, 90)],
        kernels=[kernel(5, 50, 1), kernel(12, 15, 2)],
        launches=[launch(4, 1), launch(12, 2)],
    )
    assert [row[3:5] for row in found] == [(0, 50), (50, 50), (50, 90)]


def test_all_kernels_of_one_graph_launch_count():
    found = steps(
        [mark("ProfilerStep#1", 0, 10)],
        kernels=[kernel(5, 20, 1), kernel(20, 60, 1)],
        launches=[launch(4, 1)],
    )
    assert [row[3:5] for row in found] == [(0, 60)]


def test_a_step_marked_twice_counts_once():
    found = steps(
        [mark("ProfilerStep#1", 0, 10), mark("ProfilerStep#1", 12, 20), mark("ProfilerStep#2", 20, 30)]
    )
    assert [row[:3] for row in found] == [(1, 0, 10), (2, 20, 30)]


@pytest.mark.parametrize(
    "name",
    ["step {}", "iteration_{}", "Iter {}", "train_step {}", "training step #{}", "step={}", "## step {} ##"],
)
def test_numbered_ranges_are_steps(name):
    found = steps([mark(name.format(n), 10 * n, 10 * n + 10) for n in (5, 6)])
    assert found == [(5, 50, 60, 50, 60, "numbered range"), (6, 60, 70, 60, 70, "numbered range")]


@pytest.mark.parametrize("name", ["optimizer step {}x", "stepper {}", "layer {}", "forward {}"])
def test_other_numbered_ranges_are_no_steps(name):
    found = steps([mark(name.format(n), 10 * n, 10 * n + 10) for n in (5, 6)])
    assert [row[-1] for row in found] == ["whole trace"]


def test_a_number_too_large_for_a_step_is_passed_over():
    found = steps([mark("ProfilerStep#99999999999999999999", 0, 10), mark("ProfilerStep#2", 10, 20)])
    assert [row[0] for row in found] == [2]


def test_optimizer_ranges_end_steps():
    marks = [mark("Optimizer.step#AdamW.step", start, start + 5) for start in (10, 110, 210)]
    assert [row[:3] for row in steps(marks)] == [(0, 15, 115), (1, 115, 215)]


def test_one_optimizer_range_tells_nothing():
    found = steps([mark("Optimizer.step#AdamW.step", 10, 15)], kernels=[kernel(0, 90)])
    assert found == [(0, 0, 90, 0, 90, "whole trace")]


def test_a_repeating_communication_pattern_gives_steps():
    pattern = ["ncclDevKernel_AllGather", "ncclDevKernel_ReduceScatter", "ncclDevKernel_ReduceScatter"]
    kernels = [kernel(100 * n, 100 * n + 10, name=name) for n, name in enumerate(pattern * 4)]
    found = steps(kernels=kernels)
    assert [row[:3] for row in found] == [(0, 0, 300), (1, 300, 600), (2, 600, 900)]
    assert {row[-1] for row in found} == {"communication pattern"}


def test_equal_calls_are_no_pattern():
    kernels = [kernel(100 * n, 100 * n + 10, name="ncclDevKernel_AllReduce") for n in range(12)]
    assert [row[-1] for row in steps(kernels=kernels)] == ["whole trace"]


def test_without_any_mark_the_whole_trace_is_one_window():
    found = steps(kernels=[kernel(20, 90)], cpu_ops=[{"name": "aten::add", "start_ns": 5, "end_ns": 6}])
    assert found == [(0, 5, 90, 5, 90, "whole trace")]


def test_an_empty_trace_has_no_steps():
    assert steps() == []


def test_a_real_run_with_device_twins_has_three_steps(corpus):
    import gzip

    with gzip.open(corpus / "kineto" / "nccl-args" / "rank0.nccl_data.json.gz") as stream:
        found = derive_from(read_kineto(stream, "x"), "steps")
    assert found.height == 3
    starts, ends = found["device_start_ns"].to_list(), found["device_end_ns"].to_list()
    assert all(start < end for start, end in zip(starts, ends, strict=True))
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
