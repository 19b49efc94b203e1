"""Pieces of device work: their kind, launch, operator and call, on tables made by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from frames import derive, table

from ccl_bench.analysis.device.breakdown import sm_use
from ccl_bench.analysis.device.programs import program_work

SUM = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
GATHER = "ncclDevKernel_AllGather_RING_LL(x)"
OTHER = "ncclDevKernel_Foo(x)"
BARRIER = "void c10d::symmetric_memory::barrier_kernel(unsigned int**)"


def _pieces(
    operators: list[tuple[str, int, int]],
    pieces: list[tuple[int | None, str]],
    copies: list[tuple[int, str]] = [],  # noqa: B006
    **columns: Any,
) -> pl.DataFrame:
    """Return `device_work` of operators, and of kernels and copies given with the time of their launch."""
    launched = [*pieces, *copies]
    spans = [
        {"start_ns": 1000 + 10 * n, "end_ns": 1005 + 10 * n, "stream": 7, "correlation": n}
        for n in range(1, len(launched) + 1)
    ]
    names = [{"name": name, **columns} for _, name in pieces] + [{"kind": kind} for _, kind in copies]
    rows = [span | name for span, name in zip(spans, names, strict=True)]
    return derive(
        "device_work",
        cpu_ops=table(
            "cpu_ops", [{"name": n, "start_ns": s, "end_ns": e, "thread": 1} for n, s, e in operators]
        ),
        launches=table(
            "launches",
            [
                {"correlation": n, "start_ns": at, "end_ns": at + 1, "thread": 1}
                for n, (at, _) in enumerate(launched, 1)
                if at is not None
            ],
        ),
        kernels=table("kernels", rows[: len(pieces)]),
        memcpy=table("memcpy", rows[len(pieces) :]),
    )


def test_a_sure_name_says_more_than_the_operator_and_the_operator_more_than_an_unsure_one() -> None:
    found = _pieces([("c10d::allreduce_", 0, 50)], [(5, GATHER), (6, OTHER), (7, "mine"), (60, OTHER)])
    assert found["collective"].to_list() == [
        "all_gather", "all_reduce", "all_reduce", "other_communication",
    ]  # fmt: skip
    assert set(found["kind"]) == {"communication"}


def test_kernels_of_torch_are_calls_of_their_own_beside_a_copy_inside_the_device() -> None:
    found = _pieces([("c10d::allreduce_", 0, 50)], [(5, SUM), (6, "mine")], [(7, "DtoD")])
    assert found["call_ns"].to_list() == [None] * 3
    assert found["kind"].to_list() == ["communication", "communication", "memory"]


def test_kernels_of_torch_are_parts_of_one_call_with_copies_between_devices() -> None:
    pieces = [(5, "mine"), (6, BARRIER), (60, SUM)]
    found = _pieces([("c10d::allreduce_", 3, 50)], pieces, [(7, "PtoP"), (61, "PtoP")])
    assert found["call_ns"].to_list() == [3, None, None, 3, None]
    assert found["kind"].to_list() == [*["communication"] * 4, "memory"]


def test_all_that_an_operator_of_others_launches_is_one_call_but_for_barriers_and_recorded_ones() -> None:
    operators = [("aiter::all_reduce_reg", 3, 50)]
    found = _pieces(operators, [(5, "mine"), (6, GATHER), (7, BARRIER)])
    assert found["call_ns"].to_list() == [3, 3, None]
    assert found["collective"].to_list() == ["all_reduce", "all_reduce", "barrier"]
    recorded = _pieces(operators, [(5, "mine")], collective="allgather")
    assert recorded.select("call_ns", "collective").rows() == [(None, "all_gather")]


def test_work_is_of_the_outermost_operator_around_its_launch() -> None:
    operators = [
        ("c10d::allreduce_", 0, 100),
        ("c10d::allgather_", 0, 60),
        ("c10d::broadcast_", 10, 20),
        ("c10d::reduce_", 30, 40),
        ("c10d::allgather_", 100, 110),  # from the very end of the first
    ]
    launches = [0, 15, 35, 99, 100, 109, 110, None]
    found = _pieces(operators, [(at, "mine") for at in launches])
    assert found["operator_ns"].to_list() == [0, 0, 0, 0, 100, 100, None, None]
    assert found["operator"].to_list() == [*["all_reduce"] * 4, *["all_gather"] * 2, None, None]


@pytest.mark.parametrize(
    ("first", "before"),
    [(1, []), (2, [1]), (5, [1]), (6, [1, 5])],
)
def test_work_with_a_number_below_the_first_recorded_one_was_launched_before(
    first: int, before: list[int]
) -> None:
    numbers = [-1, 0, 1, 5, 6, None]
    found = derive(
        "device_work",
        launches=table(
            "launches",
            [
                {"correlation": n, "start_ns": 100 + n, "end_ns": 200 + n, "thread": 1}
                for n in {0, -1, first, 6}
            ]
            + [{"correlation": 6, "start_ns": 900, "end_ns": 901, "thread": 2}],
        ),
        kernels=table(
            "kernels",
            [{"name": "k", "start_ns": 1000, "end_ns": 1001, "correlation": number} for number in numbers],
        ),
    )
    by_number = dict(zip(numbers, found.iter_rows(named=True), strict=True))
    assert [n for n in numbers if by_number[n]["launched_before"]] == before
    linked = {n: row["launch_ns"] for n, row in by_number.items() if row["launch_ns"] is not None}
    # the number 0 links nothing
    assert linked == {n: 100 + n for n in {first, 6} & {1, 5, 6}}


def test_shares_outside_their_range_are_not_known() -> None:
    values: list[tuple[float | None, float | None]] = [
        (0.0, 0.0), (0.25, 0.5), (1.5, 100.0), (-0.5, 100.5), (None, -0.5),
    ]  # fmt: skip
    rows = [
        {"name": "k", "start_ns": n, "end_ns": n + 1, "blocks_per_sm": blocks, "occupancy_pct": share}
        for n, (blocks, share) in enumerate(values)
    ]
    found = derive("device_work", kernels=table("kernels", rows))
    assert found.select("occupied", "occupancy_pct").rows() == [
        (0.0, 0.0), (0.25, 0.5), (1.0, 100.0), (None, None), (None, None),
    ]  # fmt: skip


def test_what_an_operator_calls_at_its_very_end_is_no_work_of_its_own() -> None:
    rows = [("aten::linear", 0, 10), ("aten::mm", 2, 10), ("aten::relu", 10, 12), ("aten::add", 11, 12)]
    operators = [
        {"name": name, "start_ns": start, "end_ns": end, "process": 1, "thread": 1}
        for name, start, end in rows
    ]
    found = derive("work", cpu_ops=table("cpu_ops", operators))
    assert found.select("start_ns", "end_ns").rows() == [(0, 10), (10, 12)]


def test_counts_of_instructions_are_those_of_the_step_in_which_they_began() -> None:
    steps = pl.DataFrame(
        {"step": [4, 5, 6], "device_start_ns": [100, 200, 300], "device_end_ns": [170, 300, 310]}
        | {"length_ns": [70, 100, 10]}
    )
    rows = [(100, 3.0, 2.0, 64.0), (169, 5.0, None, None), (170, 7.0, 7.0, 7.0), (200, None, 1.0, 32.0)]
    counts = [
        {"start_ns": at, "end_ns": at + 500, "flops": flops, "model_flops": model, "memory_bytes": size}
        for at, flops, model, size in rows
    ]
    assert program_work(steps, table("hlo_operations", counts)).to_dicts() == [
        dict(zip(WORK, values, strict=True))
        for values in (
            (4, 70, 2, 2, 8.0, 1, 2.0, 1, 64.0),
            (5, 100, 1, 0, 0.0, 1, 1.0, 1, 32.0),
            (6, 10, 0, 0, 0.0, 0, 0.0, 0, 0.0),
        )
    ]


WORK = (
    *("step", "window_ns", "instructions", "counted", "flops", "modelled", "model_flops"),
    *("sized", "memory_bytes"),
)


def test_the_occupancy_of_a_step_is_weighted_by_the_time_of_kernels_inside_it() -> None:
    steps = pl.DataFrame(
        {"step": [4, 5, 6], "device_start_ns": [100, 200, 300], "device_end_ns": [200, 300, 310]}
        | {"length_ns": [100, 100, 10]}
    )
    rows = [(90, 120, 50.0), (150, 160, 20.0), (170, 180, None), (190, 230, 10.0), (250, 260, None)]
    kernels = [
        {"start_ns": a, "end_ns": b, "kind": "compute", "occupied": 0.5, "occupancy_pct": share}
        | {"is_kernel": True}
        for a, b, share in rows
    ]
    columns = ("step", "occupancy_pct", "occupancy_weight_ns", "rated_kernels", "kernels")
    # in step 4: 20 ns of 50 %, 10 ns of 20 %, 10 ns of 10 %; in step 5 30 ns of 10 %
    assert sm_use(steps, pl.DataFrame(kernels)).select(columns).rows() == [
        (4, (20 * 50 + 10 * 20 + 10 * 10) / 40, 40, 4, 4),
        (5, 10.0, 30, 2, 2),
        (6, None, 0, 0, 0),
    ]


def test_a_call_on_no_stream_has_the_collective_that_its_arguments_state() -> None:
    kernel = {"name": GATHER, "start_ns": 50, "end_ns": 60, "stream": None, "correlation": 1}
    described = {"source": "kernel", "name": "broadcast", "start_ns": 50, "correlation": 1}
    tables = {"kernels": table("kernels", [kernel]), "collectives": table("collectives", [described])}
    assert derive("origins", **tables)["collective"].to_list() == ["broadcast"]
