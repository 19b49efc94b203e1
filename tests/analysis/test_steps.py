"""Steps: where they come from, and which device work belongs to each."""

import polars as pl
import pytest
from frames import derive, derive_from, table

from ccl_bench.analysis.steps.marks import (
    chosen_ranges,
    overlapping_ranges,
    range_names,
    select_step_times,
    select_steps,
)
from ccl_bench.result.step_choice import StepChoice
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
    columns = ("step", "start_ns", "end_ns", "device_start_ns", "device_end_ns", "source")
    return found.select(columns).rows()


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


def test_a_window_begins_once_what_was_launched_before_the_step_has_ended():
    found = steps(
        [mark("step 1", 10, 20), mark("step 2", 30, 40)],
        kernels=[kernel(5, 16, 1), kernel(16, 34, 2), kernel(34, 38, 3), kernel(38, 60, 4)],
        launches=[launch(4, 1), launch(12, 2), launch(25, 3), launch(31, 4)],
    )
    assert [row[3:5] for row in found] == [(16, 34), (38, 60)]


def test_a_window_begins_once_what_was_launched_before_the_recording_has_ended():
    backlog = [kernel(0, 12, 1), kernel(12, 50, 2)]
    found = steps(
        [mark("ProfilerStep#1", 0, 20), mark("ProfilerStep#2", 20, 40)],
        kernels=[*backlog, kernel(50, 80, 4), kernel(80, 110, 5)],
        memcpy=[{"kind": "HtoD", "start_ns": 4, "end_ns": 6, "correlation": 3, "stream": 20}],
        launches=[launch(3, 3), launch(5, 4), launch(25, 5)],
    )
    assert [row[3:5] for row in found] == [(50, 80), (80, 110)]


def test_what_runs_beside_the_first_work_of_a_step_does_not_delay_its_window():
    found = steps(
        [mark("ProfilerStep#1", 10, 60)],
        kernels=[kernel(20, 50, 1), kernel(0, 90, 2) | {"stream": 20}],
        launches=[launch(12, 1), launch(2, 2)],
    )
    assert [row[3:5] for row in found] == [(20, 60)]


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


def test_a_step_marked_in_two_pieces_counts_once_and_whole():
    found = steps(
        [mark("ProfilerStep#1", 0, 10), mark("ProfilerStep#1", 12, 20), mark("ProfilerStep#2", 20, 30)]
    )
    assert [row[:3] for row in found] == [(1, 0, 20), (2, 20, 30)]


def test_every_step_counts_where_numbers_begin_again_in_each_epoch():
    marks = [mark(f"step {number}", 10 * at, 10 * at + 9) for at, number in enumerate([3, 4, 0, 1, 2, 0, 1])]
    found = steps(marks)
    assert [row[:3] for row in found] == [(3 + at, 10 * at, 10 * at + 9) for at in range(7)]


def test_epochs_that_count_from_one_go_on_without_a_gap():
    marks = [mark(f"step {number}", 10 * at, 10 * at + 9) for at, number in enumerate([1, 2, 1, 2])]
    assert [row[0] for row in steps(marks)] == [1, 2, 3, 4]


def test_epochs_of_one_step_are_steps():
    assert [row[0] for row in steps([mark("step 0", 10 * at, 10 * at + 9) for at in range(3)])] == [0, 1, 2]


def test_the_outermost_numbered_ranges_are_steps():
    marks = [mark(f"iteration {n}", 100 * n, 100 * n + 90) for n in range(3)]
    marks += [mark(f"step {k}", 100 * n + 20 * k, 100 * n + 20 * k + 10) for n in range(3) for k in range(4)]
    assert [row[:3] for row in steps(marks)] == [(0, 0, 90), (1, 100, 190), (2, 200, 290)]


def test_inner_ranges_whose_outer_one_was_not_recorded_are_no_steps():
    marks = [mark("step 2", 40, 50), mark("step 3", 60, 70)]
    marks += [mark(f"iteration {n}", 100 * n, 100 * n + 90) for n in (1, 2)]
    marks += [mark(f"step {k}", 100 * n + 20 * k, 100 * n + 20 * k + 10) for n in (1, 2) for k in range(4)]
    assert [row[:3] for row in steps(marks)] == [(1, 100, 190), (2, 200, 290)]


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


def backward(at):
    return {"name": "autograd::engine::evaluate_function: AddmmBackward0", "start_ns": at, "end_ns": at + 1}


def optimizer(name, start, end):
    return mark(f"Optimizer.step#{name}.step", start, end)


def test_optimizers_without_a_backward_pass_between_them_are_of_one_step():
    marks = [
        optimizer(n, 100 * k + at, 100 * k + at + 5)
        for k in range(3)
        for n, at in (("Muon", 50), ("AdamW", 60))
    ]
    found = steps(marks, cpu_ops=[backward(100 * k + 20) for k in range(3)])
    assert [row[:3] for row in found] == [(0, 65, 165), (1, 165, 265)]


def test_optimizers_inside_another_one_are_part_of_it():
    marks = [optimizer("ZeroRedundancyOptimizer", 100 * k, 100 * k + 20) for k in range(3)]
    marks += [optimizer("Adam", 100 * k + 2, 100 * k + 18) for k in range(3)]
    assert [row[:3] for row in steps(marks)] == [(0, 20, 120), (1, 120, 220)]


def adversarial(first, second, steps_, loads=()):
    """Return ranges and operators of two models in turn: a backward pass of 4 nodes, then one of 7."""
    marks = [
        m
        for k in range(steps_)
        for m in (optimizer(first, 100 * k + 30, 100 * k + 35), optimizer(second, 100 * k + 80, 100 * k + 85))
    ]
    marks += [
        mark("enumerate(DataLoader)#_Iter.__next__", 100 * k + at, 100 * k + at + 2)
        for k in range(steps_)
        for at in loads
    ]
    nodes = [
        backward(100 * k + at + n)
        for k in range(steps_)
        for at, many in ((10, 4), (50, 7))
        for n in range(many)
    ]
    return {"marks": marks, "cpu_ops": nodes}


@pytest.mark.parametrize("names", [("Adam", "Adam"), ("Adam", "RMSprop")])
def test_optimizers_that_take_turns_make_one_step_together(names):
    found = steps(**adversarial(*names, 4))
    assert [row[:3] for row in found] == [(0, 85, 185), (1, 185, 285), (2, 285, 385)]


def test_updates_that_each_read_data_are_steps_however_their_passes_differ():
    assert len(steps(**adversarial("Adam", "Adam", 4, loads=(0, 40)))) == 7


def test_updates_of_which_every_second_reads_data_take_turns():
    found = steps(**adversarial("Adam", "Adam", 4, loads=(0,)))
    assert [row[:3] for row in found] == [(0, 85, 185), (1, 185, 285), (2, 285, 385)]


def test_one_turn_of_two_optimizers_shows_nothing():
    assert [row[-1] for row in steps(**adversarial("Adam", "RMSprop", 1))] == ["whole trace"]


@pytest.mark.parametrize(
    "name",
    [
        "execute_context_0(0)_generation_64(64)",
        "step[DECODE bs=64]",
        "step[TARGET_VERIFY bs=64]",
        "step[IDLE bs=0]",
        "execute_new_2_cached_62",
        "gpu_model_runner: forward",
        "[Executor] _forward_step 7: 0 ctx reqs, 64 gen reqs",
        "execute_model",
    ],
)
def test_a_forward_pass_of_a_server_lasts_until_the_next(name):
    marks = [mark(name, 100 * n, 100 * n + 60) for n in range(3)]
    marks += [mark("execute_model", 100 * n + 1, 100 * n + 50) for n in range(3)]
    found = steps(marks)
    assert [(*row[:3], row[-1]) for row in found] == [
        (0, 0, 100, "forward pass"),
        (1, 100, 200, "forward pass"),
    ]


def test_passes_of_a_draft_model_are_no_steps_and_belong_to_the_step_they_run_in():
    names = ["step[DECODE bs=8]", "step[DECODE bs=8]", "step[TARGET_VERIFY bs=8]", "step[DRAFT_EXTEND bs=8]"]
    marks = [
        mark(name, 100 * n + 10 * k, 100 * n + 10 * k + 5) for n in range(3) for k, name in enumerate(names)
    ]
    assert [row[:3] for row in steps(marks)] == [(0, 20, 120), (1, 120, 220)]


def served(*starts, name="step[DECODE bs=8]", worked=True):
    """Return the arguments of a server's passes of 5 ns, each with 20 ns of work that starts 1 ns later."""
    launches = [launch(start + 1, n + 1) for n, start in enumerate(starts)]
    kernels = [kernel(start + 2, start + 22, n + 1) for n, start in enumerate(starts)]
    count = len(starts) - (not worked)
    return {
        "marks": [mark(name, start, start + 5) for start in starts],
        "launches": launches[:count],
        "kernels": kernels[:count],
    }


def test_the_last_pass_of_a_server_is_as_long_as_the_others_on_average():
    assert [row[:3] for row in steps(**served(0, 100, 220, 300))] == [
        *[(0, 0, 100), (1, 100, 220), (2, 220, 300), (3, 300, 400)],
    ]
    assert [row[:3] for row in steps(**served(0, 100, 220, 300, worked=False))] == [
        *[(0, 0, 100), (1, 100, 220), (2, 220, 300)],
    ]


def test_the_last_pass_is_compared_with_those_of_its_kind():
    passes = served(0, 100, 1000, 1100)
    passes["marks"][1]["name"] = "step[EXTEND bs=1 toks=9]"
    assert [row[:3] for row in steps(**passes)][-1] == (3, 1100, 1200)
    passes["marks"][-1]["name"] = "step[MIXED bs=1]"
    assert [row[:3] for row in steps(**passes)][-1] == (2, 1000, 1100)


def test_one_pass_shows_no_step():
    assert [row[-1] for row in steps(**served(0))] == ["whole trace"]


def test_optimizer_ranges_end_steps():
    marks = [mark("Optimizer.step#AdamW.step", start, start + 5) for start in (10, 110, 210)]
    assert [row[:3] for row in steps(marks)] == [(0, 15, 115), (1, 115, 215)]


def test_one_optimizer_range_shows_nothing():
    found = steps([mark("Optimizer.step#AdamW.step", 10, 15)], kernels=[kernel(0, 90)])
    assert found == [(0, 0, 90, 0, 90, "whole trace")]


PATTERN = ["ncclDevKernel_AllGather", "ncclDevKernel_ReduceScatter", "ncclDevKernel_ReduceScatter"]


def test_a_repeating_communication_pattern_with_updates_of_parameters_gives_steps():
    kernels = [kernel(100 * n, 100 * n + 10, name=name) for n, name in enumerate(PATTERN * 4)]
    kernels += [kernel(300 * n + 250, 300 * n + 260, name="multi_tensor_apply_kernel") for n in range(4)]
    found = steps(kernels=kernels)
    assert [row[:3] for row in found] == [(0, 0, 300), (1, 300, 600), (2, 600, 900)]
    assert {row[-1] for row in found} == {"communication pattern"}


def test_two_calls_that_repeat_three_times_are_a_pattern_and_twice_are_none():
    def starts(repeats):
        names = ["ncclDevKernel_AllGather", "ncclDevKernel_ReduceScatter"] * repeats
        kernels = [kernel(100 * n, 100 * n + 10, name=name) for n, name in enumerate(names)]
        updates = range(50, 200 * repeats, 200)
        kernels += [kernel(at, at + 10, name="multi_tensor_apply_kernel") for at in updates]
        return [row[:3] for row in steps(kernels=kernels) if row[-1] == "communication pattern"]

    assert starts(3) == [(0, 0, 200), (1, 200, 400)]
    assert starts(2) == []


@pytest.mark.parametrize("lacking", [0, 1, 2, None])
def test_every_repetition_of_a_pattern_must_update_parameters(lacking):
    kernels = [kernel(100 * n, 100 * n + 10, name=name) for n, name in enumerate(PATTERN * 3)]
    updates = [kernel(300 * n + 250, 300 * n + 260, name="multi_tensor_apply_kernel") for n in range(3)]
    found = steps(kernels=kernels + [row for n, row in enumerate(updates) if n != lacking])
    assert {row[-1] for row in found} == {"communication pattern" if lacking is None else "whole trace"}


def test_what_each_layer_of_a_pass_repeats_is_no_step():
    layers = ["ncclDevKernel_AllGather", "ncclDevKernel_ReduceScatter"] * 32
    kernels = [kernel(100 * n, 100 * n + 10, name=name) for n, name in enumerate(layers)]
    kernels += [kernel(100 * n + 20, 100 * n + 90, name="gemm") for n in range(64)]
    kernels.append(kernel(6400, 6500, name="multi_tensor_apply_kernel"))
    assert steps(kernels=kernels) == [(0, 0, 6500, 0, 6500, "whole trace")]


def test_equal_calls_are_no_pattern():
    kernels = [kernel(100 * n, 100 * n + 10, name="ncclDevKernel_AllReduce") for n in range(12)]
    kernels += [kernel(100 * n + 50, 100 * n + 60, name="multi_tensor_apply_kernel") for n in range(12)]
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


def chosen(*names, pattern=r"pass (\w+)"):
    """Return the numbers of steps that are ranges of these names, 10 ns each."""
    marks = [mark(name, 10 * place, 10 * place + 10) for place, name in enumerate(names)]
    found = chosen_ranges(table("annotations", marks), table("marker", [{"pattern": pattern}]))
    return None if found is None else found["step"].to_list()


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (("pass 4", "pass 7", "other 9"), [4, 7]),
        (("pass 4", "pass 4"), [0, 1]),
        (("pass 4", "pass last"), [0, 1]),
        (("other 9",), None),
    ],
)
def test_chosen_ranges_have_the_numbers_of_their_names_if_each_has_its_own(names, numbers):
    assert chosen(*names) == numbers


def test_the_outermost_chosen_ranges_are_steps():
    marks = [
        mark("pass 9", 2, 3), mark("pass 2", 0, 9), mark("pass 4", 0, 10), mark("pass 5", 10, 20),
        mark("pass 6", 19, 20), mark("pass 7", 20, 20), mark("pass 8", 30, 40, on_device=True),
    ]  # fmt: skip
    found = chosen_ranges(table("annotations", marks), table("marker", [{"pattern": r"pass (\d+)"}]))
    assert found.select("step", "start_ns", "end_ns").rows() == [(4, 0, 10), (5, 10, 20)]


def test_ranges_that_end_after_the_range_they_begin_in_are_counted():
    # the second ends 5 ns after the first, the third with the second, and the last begins when that ends
    marks = [mark("pass", 0, 10), mark("pass", 5, 15), mark("pass", 12, 15), mark("pass", 15, 20)]
    assert overlapping_ranges(table("annotations", marks), "pass") == 1


def test_names_of_ranges_are_listed_by_how_often_they_occur():
    marks = [mark("b", 0, 1), mark("c", 1, 2), mark("a", 2, 3), mark("c", 3, 4)]
    on_device = [mark("a", 0, 1, on_device=True)] * 3
    assert range_names(table("annotations", marks + on_device)) == ["c", "a", "b"]


def test_the_first_steps_are_skipped_before_others_are_chosen_by_number():
    every = pl.DataFrame({"step": [1, 2, 3, 4, 5, 6]})
    choice = StepChoice("1-3,6", skip=2)
    assert select_steps(every, choice)["step"].to_list() == [3, 6]
    assert select_steps(every, StepChoice(skip=4))["step"].to_list() == [5, 6]
    # of two ranks, whose rows come in any order
    both = pl.DataFrame({"step": [4, 3, 2, 1, 1, 2, 3, 4]})
    assert select_step_times(both, StepChoice("1-3", skip=2))["step"].to_list() == [3, 3]


def test_a_file_without_any_work_holds_no_whole_step():
    assert derive("whole_steps", annotations=table("annotations", [mark("ProfilerStep#1", 0, 1)])).rows() == [
        (1, False)
    ]
