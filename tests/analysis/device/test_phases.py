"""Forward, backward, optimizer: which phase launched what."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from local_plain import Event
from local_traces import copy, kernel, launch, note, op, result, results, step, table, write

from ccl_bench.analysis.device import markers

EVALUATE = "autograd::engine::evaluate_function: "
ACCUMULATE = EVALUATE + "torch::autograd::AccumulateGrad"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


def training_step() -> list[Event]:
    """One step: thread 1 is the program's, thread 2 autograd's."""
    return [
        step(1, 0, 1000),
        note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 20),
        launch(1, 10, 11), copy("HtoD", 100, 1, 12, 20),                       # other: data loading
        op("aten::linear", 30, 60, **{"Sequence number": 7, "Fwd thread id": 0}),
        launch(2, 40, 41), kernel("gemm_a", 2, 50, 150),                       # forward
        launch(3, 45, 46), kernel(REDUCE, 3, 150, 170),                        # forward communication
        op(EVALUATE + "AddmmBackward0", 200, 300, tid=2, **{"Sequence number": 7, "Fwd thread id": 1}),
        op("aten::relu", 210, 220, tid=2, **{"Sequence number": 8, "Fwd thread id": 0}),
        launch(4, 215, 216, tid=2), kernel("relu", 4, 220, 240),               # backward, recomputed
        op("aten::mm", 245, 255, tid=2),
        launch(5, 250, 251, tid=2), kernel("gemm_b", 5, 260, 400),             # backward
        op(ACCUMULATE, 300, 350, tid=2),
        launch(6, 310, 311, tid=2), kernel("add", 6, 400, 410),                # gradient accumulation
        launch(7, 320, 321, tid=2), kernel(REDUCE, 7, 410, 500, stream=9),     # gradient communication
        launch(8, 360, 361, tid=2), kernel("cast", 8, 500, 520),               # backward: autograd's thread
        op("aten::clip", 400, 410),
        launch(9, 405, 406), kernel("norm", 9, 520, 530),                      # other: backward is over
        note("Optimizer.step#AdamW.step", 500, 600),
        launch(10, 550, 551), kernel("adam", 10, 600, 650),                    # optimizer
        note("Optimizer.zero_grad#AdamW.zero_grad", 600, 700),
        launch(11, 650, 651), kernel("fill", 11, 660, 670),                    # other
        kernel("lost", 99, 700, 703),                                          # unattributed
    ]  # fmt: skip


def times(run: Path, column: str = "time_ns") -> dict[str, int]:
    rows = table(run, "phases")
    return {phase: time // 1000 for phase, time in rows.select("phase", column).iter_rows() if time}


def test_work_belongs_to_the_phase_that_launched_it(tmp_path: Path) -> None:
    run = write(tmp_path, training_step())
    assert times(run) == {
        "forward": 100,
        "backward": 20 + 140 + 20,
        "optimizer": 50,
        "gradient_accumulation": 10,
        "other": 8 + 10 + 10,
        "unattributed": 3,
    }
    assert times(run, "communication_ns") == {"forward": 20, "gradient_communication": 90}
    assert times(run, "busy_ns")["forward"] == 120
    assert times(run, "recomputed_ns") == {"backward": 20}


def test_phases_say_when_forward_ends_and_backward_begins(tmp_path: Path) -> None:
    rows = {
        row["phase"]: row for row in table(write(tmp_path, training_step()), "phases").iter_rows(named=True)
    }
    assert rows["forward"]["end_ns"] == 150_000
    assert rows["backward"]["start_ns"] == 220_000
    assert rows["gradient_communication"]["start_ns"] is None


TIMES = ("forward_time", "backward_time", "optimizer_time")


def test_metrics_of_phases_are_seconds_a_step(tmp_path: Path) -> None:
    run = write(tmp_path, training_step())
    forward, backward, optimizer = results(run, *TIMES).values()
    assert forward.value == pytest.approx(100e-6)
    assert backward.value == pytest.approx(180e-6)
    assert optimizer.value == pytest.approx(50e-6)
    details = backward.details
    assert details["recomputed_s"] == pytest.approx(20e-6)
    assert details["gradient_communication_s"] == pytest.approx(90e-6)
    assert details["pct_of_step"] == pytest.approx(18)


def recorded_op(name: str, start: float, end: float) -> Event:
    """Return an operator that autograd's thread calls while autograd records."""
    return op(name, start, end, tid=2, **{"Sequence number": 8, "Fwd thread id": 0})


def test_a_stretch_of_recomputation_ends_where_a_node_begins(tmp_path: Path) -> None:
    """A function in Python, and what it launches between two operators, is part of the stretch."""
    events = [
        op(EVALUATE + "CheckpointFunctionBackward", 0, 100, tid=2),
        op("aten::detach", 5, 6, tid=2),
        recorded_op("MyFunction", 8, 10),
        recorded_op("aten::linear", 20, 30),
        recorded_op("aten::gelu", 40, 50),
        op(EVALUATE + "GeluBackward0", 55, 60, tid=2),
        op("aten::gelu_backward", 56, 57, tid=2),
        op(EVALUATE + "MyFunctionBackward", 61, 80, tid=2),
        recorded_op("aten::linear", 62, 70),
        op("aten::mm", 72, 73, tid=2),
    ]
    found = table(write(tmp_path, events), "recomputations")
    assert found.select("start_ns", "end_ns", "thread").rows() == [(8_000, 50_000, 2), (62_000, 70_000, 2)]


@pytest.mark.parametrize(
    "inside",
    [
        [recorded_op("aten::mul", 10, 20), recorded_op("aten::mm", 30, 40)],
        [op("aten::zeros", 5, 6, tid=2), recorded_op("aten::index_put", 10, 20)],
        [recorded_op("MyFunction", 10, 20), op("aten::mm", 30, 40, tid=2)],
        [recorded_op("_ToTorchTensor", 10, 20), op("aten::mm", 30, 40, tid=2)],
        [op("aten::mm", 10, 20, tid=2), op("aten::mm", 30, 40, tid=2)],
    ],
    ids=["create_graph", "create_graph after zeros", "function", "DTensor", "gradient"],
)
def test_a_node_that_does_not_run_forward_again_recomputes_nothing(
    inside: list[Event], tmp_path: Path
) -> None:
    """`create_graph=True` records the whole gradient; a function in Python has a number wherever it runs."""
    run = write(tmp_path, [op(EVALUATE + "MulBackward0", 0, 100, tid=2), *inside])
    assert table(run, "recomputations").is_empty()


def test_concurrent_work_of_a_phase_counts_once_in_time_and_twice_in_the_sum(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100),
        op("aten::mm", 0, 20),
        launch(1, 1, 2), kernel("a", 1, 10, 50),
        launch(2, 3, 4), kernel("b", 2, 30, 60, stream=8),
        op(EVALUATE + "MmBackward0", 70, 80, tid=2), launch(3, 71, 72, tid=2), kernel("c", 3, 80, 90),
    ]  # fmt: skip
    run = write(tmp_path, events)
    assert times(run) == {"forward": 50, "backward": 10}
    assert times(run, "duration_ns") == {"forward": 70, "backward": 10}


def test_microbatches_alternate_between_forward_and_backward(tmp_path: Path) -> None:
    events = [step(1, 0, 400)]
    for start in (0, 200):
        events += [
            op("aten::mm", start, start + 90),
            launch(start + 1, start + 10, start + 11),
            kernel("f", start + 1, start + 20, start + 30),
            op(EVALUATE + "MmBackward0", start + 100, start + 190, tid=2),
            launch(start + 2, start + 110, start + 111, tid=2),
            kernel("b", start + 2, start + 120, start + 140),
        ]
    assert times(write(tmp_path, events)) == {"forward": 20, "backward": 40}


def test_an_optimizer_inside_the_backward_pass_is_the_optimizer(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100),
        op("aten::mm", 0, 5), launch(9, 1, 2), kernel("f", 9, 2, 3),
        op(ACCUMULATE, 10, 50, tid=2),
        note("Optimizer.step#SGD.step", 20, 40, tid=2),
        launch(1, 30, 31, tid=2), kernel("sgd", 1, 40, 47),
    ]  # fmt: skip
    assert times(write(tmp_path, events)) == {"forward": 1, "optimizer": 7}


def test_a_backward_pass_inside_the_optimizer_is_backward(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100),
        note("Optimizer.step#LBFGS.step", 10, 90),
        note("backward", 20, 40),
        op("aten::mm", 20, 30), launch(1, 25, 26), kernel("b", 1, 30, 37),
        launch(2, 50, 51), kernel("o", 2, 60, 61),
    ]  # fmt: skip
    assert times(write(tmp_path, events)) == {"backward": 7, "optimizer": 1}


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("## forward ##", "forward"),
        ("Forward 3", "forward"),
        ("attn(F)", "forward"),
        ("PP:0F1", "forward"),
        ("DistributedDataParallel.forward", "forward"),
        ("FSDP::pre_forward (blocks.0)", "forward"),
        ("## backward ##", "backward"),
        ("backward_step", "backward"),
        ("mlp(W)", "backward"),
        ("PP:1W0", "backward"),
        ("FSDP::root_post_backward_callback", "backward"),
        ("## optimizer ##", "optimizer"),
        ("optimizer_step", "optimizer"),
        ("forward_backward", "other"),
        ("Optimizer.zero_grad#SGD.zero_grad", "other"),
    ],
)
def test_ranges_say_what_they_are_by_name(tmp_path: Path, name: str, phase: str) -> None:
    events = [
        step(1, 0, 100),
        op(EVALUATE + "X", 1, 2, tid=2),  # over before anything is launched, so nothing is forward by default
        note(name, 10, 50),
        op("aten::mm", 10, 20), launch(1, 15, 16), kernel("k", 1, 30, 35),
    ]  # fmt: skip
    assert times(write(tmp_path, events)) == {phase: 5}


def test_gradients_are_communicated_in_the_backward_pass_and_on_threads_of_autograd_alone(
    tmp_path: Path,
) -> None:
    reduces = "torch::distributed::reducer::mul_out"
    events = [
        step(1, 0, 200),
        note("backward", 10, 50),  # on the thread of the program
        op(reduces, 20, 30), launch(1, 25, 26), kernel("a", 1, 30, 37),
        op(EVALUATE + "X", 60, 90, tid=2),
        note("Optimizer.zero_grad#SGD.zero_grad", 65, 80, tid=2),
        op(reduces, 70, 75, tid=2), launch(2, 71, 72, tid=2), kernel("b", 2, 75, 78),
        launch(3, 76, 77, tid=2), kernel("c", 3, 78, 82),
        op(reduces, 100, 110), launch(4, 105, 106), kernel("d", 4, 110, 111),
    ]  # fmt: skip
    assert times(write(tmp_path, events)) == {"gradient_communication": 7 + 3, "other": 4 + 1}


def test_what_was_launched_outside_of_every_step_is_no_forward_by_default(tmp_path: Path) -> None:
    events = [
        op("aten::mm", 0, 90), launch(1, 5, 6), kernel("early", 1, 30, 33),
        step(1, 20, 100),
        launch(2, 22, 23), kernel("f", 2, 23, 30),
        op(EVALUATE + "X", 60, 70, tid=2), launch(3, 61, 62, tid=2), kernel("b", 3, 65, 66),
        launch(4, 70, 71), kernel("late", 4, 72, 74),  # on the very end of the backward pass
    ]  # fmt: skip
    assert times(write(tmp_path, events)) == {"forward": 7, "backward": 1, "other": 3 + 2}


def test_ddp_copies_between_gradients_and_buckets_are_gradient_communication(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100),
        op(ACCUMULATE, 10, 50, tid=2),
        op("torch::distributed::reducer::mul_out", 20, 30, tid=2),
        launch(1, 25, 26, tid=2), kernel("mul", 1, 30, 37),
        op("torch.distributed.ddp.reducer::copy_bucket_to_grad", 60, 70, tid=2),
        launch(2, 65, 66, tid=2), copy("DtoD", 10, 2, 70, 72),
    ]  # fmt: skip
    assert times(write(tmp_path, events)) == {"gradient_communication": 9}


def test_without_a_device_operators_count_and_nodes_of_autograd_do_not(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100),
        op("aten::linear", 10, 30), op("aten::mm", 12, 22),
        op(EVALUATE + "MmBackward0", 40, 70), op("MmBackward0", 41, 69), op("aten::mm", 45, 65),
        note("Optimizer.step#SGD.step", 80, 90), op("aten::add_", 81, 84),
    ]  # fmt: skip
    assert times(write(tmp_path, events)) == {"forward": 20, "backward": 20, "optimizer": 3}


def test_forward_and_backward_cannot_be_distinguished_where_neither_is_marked(tmp_path: Path) -> None:
    run = write(tmp_path, [step(1, 0, 100), op("aten::mm", 0, 5), launch(9, 1, 2), kernel("f", 9, 2, 3)])
    assert {found.status for found in results(run, *TIMES).values()} == {"not_measurable"}


def test_without_launches_no_work_has_a_phase(tmp_path: Path) -> None:
    found = result(write(tmp_path, [step(1, 0, 100), kernel("f", 9, 2, 3)]), "forward_time")
    assert found.status == "not_measurable"
    assert "traced back" in (found.reason or "")


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.integers(1, 2)), max_size=8),
    st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 75)), st.integers(1, 2)), max_size=8),
)
def test_the_enclosing_range_begins_where_a_look_at_each_instant_finds_it(
    spans: list[tuple[int, int, int]], points: list[tuple[int | None, int]]
) -> None:
    ranges = pl.DataFrame(
        [(start, start + size, thread) for start, size, thread in spans],
        schema={"start_ns": pl.Int64, "end_ns": pl.Int64, "thread": pl.Int64},
        orient="row",
    )
    times = pl.DataFrame(points, schema={"at": pl.Int64, "thread": pl.Int64}, orient="row")
    expected = []
    for at, thread in points:
        covered = {t for start, size, own in spans if own == thread for t in range(start, start + size)}
        touching = {start for start, size, own in spans if own == thread and size} | covered
        begin = at if at in covered else None
        while begin is not None and begin - 1 in touching:
            begin -= 1
        expected.append(begin)
    assert markers.enclosing(times, ranges, "at").to_list() == expected
