"""Where the time of a step went, against a timeline that is walked nanosecond by nanosecond."""

import itertools

import polars as pl
import pytest
from frames import derive, derive_from, instants, spans, table
from hypothesis import given
from hypothesis import strategies as st
from plain_json import document
from recorded_runs import content_of

from ccl_bench.analysis.device.breakdown import sm_use

COMPUTE, COMMUNICATION = "gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"

ONE_OF_EACH = [
    "deepseek-dualpipe/train.json.gz",
    "gloo-fsdp2-tp2-args/rank0_trace.json.gz",
    "gloo-fsdp2-tp2-args/rank3_trace.json.gz",
    "nccl-args/rank0.nccl_data.json.gz",
    "dlrm-8rank/worker0_step_12.pt.trace.json.gz",
    "dlrm-8rank/worker7_step_12.pt.trace.json.gz",
    "megatron-tp8/megatron_kineto_0.json.gz",
    "megatron-tp8/megatron_kineto_6.json.gz",
]
each_real_trace = pytest.mark.parametrize("file", ONE_OF_EACH)

span = st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda t: (t[0], t[0] + t[1]))
spans_of_a_kind = st.lists(span, max_size=8)


def step_marks(bounds):
    return [
        {
            "name": f"ProfilerStep#{n}",
            "start_ns": start,
            "end_ns": end,
            "on_device": False,
            "process": 1,
            "thread": 1,
        }
        for n, (start, end) in enumerate(bounds)
    ]


def ran(pairs, name):
    return [{"name": name, "start_ns": a, "end_ns": b, "device": 0, "stream": 7} for a, b in pairs]


def breakdown(bounds, compute=(), communication=(), memory=()):
    return derive(
        "breakdown",
        annotations=table("annotations", step_marks(bounds)),
        kernels=table("kernels", [*ran(compute, COMPUTE), *ran(communication, COMMUNICATION)]),
        memcpy=table("memcpy", [{"kind": "DtoD", "start_ns": a, "end_ns": b} for a, b in memory]),
    ).to_dicts()


@st.composite
def adjacent_steps(draw):
    bounds = sorted(draw(st.sets(st.integers(0, 80), min_size=2, max_size=5)))
    return list(itertools.pairwise(bounds))


@given(
    bounds=adjacent_steps(), compute=spans_of_a_kind, communication=spans_of_a_kind, memory=spans_of_a_kind
)
def test_every_nanosecond_of_a_step_is_in_one_part(bounds, compute, communication, memory):
    if not (compute or communication or memory):
        return
    computing, communicating, moving = instants(compute), instants(communication), instants(memory)
    for found, bound in zip(breakdown(bounds, compute, communication, memory), bounds, strict=True):
        window = instants([bound])
        assert found["window_ns"] == len(window)
        assert found["compute_ns"] == len(window & computing)
        assert found["communication_ns"] == len(window & communicating)
        assert found["overlap_ns"] == len(window & computing & communicating)
        assert found["exposed_communication_ns"] == len(window & communicating - computing)
        assert found["exposed_memory_ns"] == len(window & moving - computing - communicating)
        assert found["busy_ns"] == len(window & (computing | communicating | moving))
        assert found["idle_ns"] == len(window - computing - communicating - moving)


def test_communication_hidden_under_compute_is_not_exposed():
    (found,) = breakdown([(0, 100)], compute=[(0, 50)], communication=[(30, 80)], memory=[(70, 90)])
    assert found["overlap_ns"] == 50 - 30
    assert found["exposed_communication_ns"] == 80 - 50
    assert found["exposed_memory_ns"] == 90 - 80
    assert found["idle_ns"] == 100 - 90


def test_of_calls_at_once_the_one_that_started_first_is_exposed():
    started = [(10, 30), (15, 20), (25, 50), (40, 60), (70, 80)]
    found = derive(
        "exposed_calls",
        annotations=table("annotations", step_marks([(0, 75)])),
        kernels=table("kernels", [*ran(started, COMMUNICATION), *ran([(0, 12), (44, 46)], COMPUTE)]),
    )
    # computing from 0 to 12 and 44 to 46; the second call lies in the first; the last ends after the step
    assert found.select("start_ns", "end_ns").rows() == [(12, 30), (30, 44), (46, 50), (50, 60), (70, 75)]
    assert found["call"].to_list() == [0, 2, 2, 3, 4]
    assert set(found["step"]) == {0}


def test_two_streams_at_once_count_once():
    (found,) = breakdown([(0, 100)], compute=[(0, 50), (0, 50), (25, 60)])
    assert (found["compute_ns"], found["idle_ns"]) == (60, 40)


def test_a_synchronisation_is_no_work():
    synchronised = [{"name": "cudaStreamSynchronize", "start_ns": 0, "end_ns": 90, "correlation": 5}]
    found = derive(
        "breakdown",
        annotations=table("annotations", step_marks([(0, 100)])),
        kernels=table("kernels", ran([(0, 10)], COMPUTE)),
        launches=table("launches", synchronised),
    )
    assert found["busy_ns"].to_list() == [10]


def test_metadata_makes_a_kernel_communication_whatever_its_name():
    row = {"name": "my_fused_kernel", "start_ns": 0, "end_ns": 9, "collective": "allreduce"}
    found = derive("work", kernels=table("kernels", [row]))
    assert found["kind"].to_list() == ["communication"]
    assert derive("calls", kernels=table("kernels", [row]))["collective"].to_list() == ["all_reduce"]


def test_a_kernel_without_a_recorded_grid_has_no_share_of_the_device():
    rows = [
        {"name": "a", "start_ns": 0, "end_ns": 9, "blocks_per_sm": 0.25},
        {"name": "b", "start_ns": 1, "end_ns": 9, "blocks_per_sm": 7.0},
        {"name": "c", "start_ns": 2, "end_ns": 9},
    ]
    assert derive("work", kernels=table("kernels", rows))["occupied"].to_list() == [0.25, 1.0, None]


def test_shares_that_no_device_has_are_unknown():
    rows = [
        {"name": "a", "start_ns": 0, "end_ns": 9, "blocks_per_sm": -9.2e18, "occupancy_pct": -1.0},
        {"name": "b", "start_ns": 1, "end_ns": 9, "blocks_per_sm": 9.2e18, "occupancy_pct": 1e300},
        {"name": "c", "start_ns": 2, "end_ns": 9, "blocks_per_sm": 0.5, "occupancy_pct": 100.0},
    ]
    found = derive("work", kernels=table("kernels", rows))
    assert found["occupied"].to_list() == [None, 1.0, 0.5]
    assert found["occupancy_pct"].to_list() == [None, None, 100.0]


rated_kernels = st.lists(
    st.tuples(span, st.sampled_from(("compute", "communication")), st.sampled_from((None, 0.25, 0.75))),
    max_size=8,
)


@given(adjacent_steps(), rated_kernels)
def test_occupied_time_is_the_sum_over_every_nanosecond_of_each_adjacent_window(bounds, kernels):
    steps = pl.DataFrame(
        {"step": range(len(bounds)), **spans(bounds).rename(lambda name: f"device_{name}").to_dict()}
        | {"length_ns": [end - start for start, end in bounds]}
    )
    work = spans(
        [pair for pair, _, _ in kernels],
        kind=pl.Series([kind for _, kind, _ in kernels], dtype=pl.String),
        occupied=pl.Series([share for _, _, share in kernels], dtype=pl.Float64),
        occupancy_pct=pl.Series([None] * len(kernels), dtype=pl.Float64),
        is_kernel=pl.Series([True] * len(kernels), dtype=pl.Boolean),
    )

    found = sm_use(steps, work)

    for column, kinds in (
        ("occupied_ns", ("compute", "communication")),
        ("compute_occupied_ns", ("compute",)),
        ("communication_occupied_ns", ("communication",)),
    ):
        wanted = [(pair, share) for pair, kind, share in kernels if kind in kinds and share]
        assert found[column].to_list() == [
            sum(min(1.0, sum(share for (a, b), share in wanted if a <= at < b)) for at in range(*window))
            for window in bounds
        ]


def content(corpus, file):
    return content_of(corpus / "kineto" / file)


@each_real_trace
def test_the_parts_of_a_real_step_add_up_to_its_window(corpus, file):
    rows = derive_from(content(corpus, file), "breakdown").to_dicts()
    assert rows
    for row in rows:
        parts = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
        assert sum(row[part] for part in parts) == row["window_ns"]
        assert row["communication_ns"] == row["overlap_ns"] + row["exposed_communication_ns"]
        assert all(row[key] >= 0 for key in row if key.endswith("_ns"))
        assert row["compute_ns"] > 0


def union(pairs):
    """Return the length of a union by a sweep over sorted starts."""
    total, reach = 0, None
    for start, end in sorted(pairs):
        total += max(0, end - (start if reach is None else max(start, reach)))
        reach = end if reach is None else max(reach, end)
    return total


@pytest.mark.parametrize("rank", (0, 7))
def test_communication_of_a_real_step_equals_a_sweep_over_plain_json(corpus, rank):
    """One step, whose window holds all kernels; times are whole microseconds."""
    file = f"megatron-tp8/megatron_kineto_{rank}.json.gz"
    events = document(corpus / "kineto" / file)["traceEvents"]
    kernels = [
        (e["ts"] * 1000, (e["ts"] + e["dur"]) * 1000, e["name"]) for e in events if e.get("cat") == "kernel"
    ]
    communicating = [(a, b) for a, b, name in kernels if name.startswith("nccl")]
    computing = [(a, b) for a, b, name in kernels if not name.startswith("nccl")]
    (found,) = derive_from(content(corpus, file), "breakdown").to_dicts()
    assert found["communication_ns"] == union(communicating)
    assert found["compute_ns"] == union(computing)
    assert found["exposed_communication_ns"] == union(communicating + computing) - union(computing)


# Runs without a device.


def operator(name, start, end, thread=1, process=1):
    return {"name": name, "start_ns": start, "end_ns": end, "process": process, "thread": thread}


def gloo(name, start, end, thread=2):
    return {
        "name": name,
        "start_ns": start,
        "end_ns": end,
        "process": 1,
        "thread": thread,
        "on_device": False,
    }


def host_work(cpu_ops, annotations=()):
    found = derive("work", cpu_ops=table("cpu_ops", cpu_ops), annotations=table("annotations", annotations))
    return sorted(found.select("start_ns", "end_ns", "kind").rows())


def test_without_a_device_operators_that_call_no_other_are_compute():
    found = host_work([operator("linear", 0, 10), operator("addmm", 2, 8), operator("relu", 10, 12)])
    assert found == [(2, 8, "compute"), (10, 12, "compute")]


def test_without_a_device_an_operator_of_the_dispatcher_computes_with_what_it_calls():
    # aten::mm works for 5 ms beyond the views that it makes.
    found = host_work(
        [operator("aten::linear", 0, 10), operator("aten::mm", 2, 8), operator("aten::t", 3, 4)]
    )
    assert found == [(0, 10, "compute")]


def test_without_a_device_of_nodes_of_autograd_only_the_operators_compute():
    backward = "autograd::engine::evaluate_function: MmBackward0"
    found = host_work(
        [operator(backward, 0, 20), operator("MmBackward0", 1, 19), operator("aten::mm", 5, 15)]
    )
    assert found == [(5, 15, "compute")]


def test_without_a_device_of_what_calls_communication_the_other_callees_compute():
    callees = [
        operator("aten::empty", 2, 4),
        operator("c10d::allgather_", 5, 9),
        operator("aten::cat", 9, 12),
    ]
    found = host_work([operator("custom::unshard", 0, 20), *callees])
    assert found == [(2, 4, "compute"), (9, 12, "compute")]


def test_operators_of_equal_times_count_once():
    assert host_work([operator("outer", 0, 10), operator("inner", 0, 10)]) == [(0, 10, "compute")]


def test_threads_do_not_nest_in_each_other():
    found = host_work([operator("a", 0, 10, thread=1), operator("b", 2, 8, thread=2)])
    assert found == [(0, 10, "compute"), (2, 8, "compute")]


def test_without_a_device_gloo_ranges_are_communication():
    found = host_work([operator("c10d::allreduce_", 0, 9)], [gloo("gloo:all_reduce", 5, 30)])
    assert found == [(5, 30, "communication")]


def test_operators_inside_a_gloo_range_are_part_of_it():
    found = host_work(
        [operator("aten::view", 6, 7, thread=2), operator("relu", 6, 7)], [gloo("gloo:all_reduce", 5, 30)]
    )
    assert found == [(5, 30, "communication"), (6, 7, "compute")]
