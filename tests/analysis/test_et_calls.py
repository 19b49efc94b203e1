"""Calls of Execution Traces and of Kineto, and which are the same, on tables made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frames import derive, table

from ccl_bench.analysis.derived import DERIVED
from ccl_bench.analysis.execution_trace.calls import et_calls
from ccl_bench.analysis.execution_trace.linking import linkable_nodes, linkable_ops
from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable

OPERATOR = "record_param_comms"


def _operators(*rows: tuple[int, int, str, int]) -> pl.DataFrame:
    return table(
        "cpu_ops", [dict(zip(("start_ns", "end_ns", "name", "thread"), r, strict=True)) for r in rows]
    )


def _kernels(rows: Iterable[tuple[int, str, int, int]]) -> pl.DataFrame:
    """Return kernels of 10 ns with start, name, stream and correlation."""
    names = ("start_ns", "name", "stream", "correlation")
    return table("kernels", [dict(zip(names, r, strict=True)) | {"end_ns": r[0] + 10} for r in rows])


def _launches(rows: Iterable[tuple[int, int, int]]) -> pl.DataFrame:
    """Return launches with correlation, time and thread."""
    names = ("correlation", "start_ns", "thread")
    return table("launches", [dict(zip(names, row, strict=True)) for row in rows])


def test_a_kernel_is_the_call_of_the_operator_in_which_it_was_launched() -> None:
    operators = _operators(
        (0, 200, "c10d::allreduce_", 1),
        (10, 100, OPERATOR, 1),
        (110, 150, "aten::mm", 1),
        (200, 300, OPERATOR, 1),
        (400, 450, OPERATOR, 2),
        (500, 600, OPERATOR, 1),
    )
    sums = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    calls = [(1000, sums, 7, 3), (1100, sums, 7, 2), (1200, sums, 9, 1)]
    # 5 and 6 are of one operator, so that neither is its call; 7 computes, 8 is of a thread without operator
    others = [(1300, sums, 7, 5), (1400, sums, 7, 6), (1500, "gemm", 7, 7), (1600, sums, 8, 8)]
    # 1 was launched on the end of operator 3, 2 in operator 1, 3 on the start of operator 4
    launches = [(1, 300, 1), (2, 50, 1), (3, 400, 2), (5, 510, 1), (6, 520, 1), (7, 60, 1), (8, 60, 3)]
    linked = derive(
        "call_operators", cpu_ops=operators, kernels=_kernels([*calls, *others]), launches=_launches(launches)
    )
    assert linked.sort("start_ns").rows() == [(1000, 7, 4), (1100, 7, 1)]


def test_without_recorded_arguments_operators_of_c10d_make_the_calls() -> None:
    operators = _operators(
        (10, 100, "c10d::allreduce_", 1), (20, 90, "c10d::nothing", 1), (30, 80, "all_reduce", 1)
    )
    kernels = _kernels([(1000, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 7, 1)])
    linked = derive("call_operators", cpu_ops=operators, kernels=kernels, launches=_launches([(1, 40, 1)]))
    assert linked.rows() == [(1000, 7, 0)]


def _gloo(*sources: tuple[str, str, int]) -> dict[str, pl.DataFrame]:
    """Return one range of gloo, at 50 on thread 5, and the operators that may have started it."""
    ranges = [{"start_ns": 50, "end_ns": 60, "name": "gloo:all_reduce", "thread": 5, "on_device": False}]
    rows = [
        {"source": source, "name": name, "start_ns": start, "end_ns": start + 9, "thread": 1}
        for source, name, start in sources
    ]
    return {"annotations": table("annotations", ranges), "collectives": table("collectives", rows)}


def test_a_range_of_gloo_is_the_call_of_the_operator_that_recorded_its_arguments() -> None:
    operators = _operators((2, 40, "c10d::allreduce_", 1), (10, 19, OPERATOR, 1))
    gloo = _gloo(("op", "c10d::allreduce_", 2), ("host", "allreduce", 10))
    assert derive("call_operators", cpu_ops=operators, **gloo).rows() == [(50, 5, 1)]
    alone = _operators((10, 19, OPERATOR, 1))
    assert derive("call_operators", cpu_ops=alone, **gloo).rows() == [(50, 5, 0)]


def test_a_range_of_gloo_is_the_call_of_an_operator_of_c10d_where_none_recorded_arguments() -> None:
    operators = _operators((1, 2, "aten::mm", 1), (2, 40, "c10d::allreduce_", 1))
    gloo = _gloo(("op", "c10d::allreduce_", 2))
    assert derive("call_operators", cpu_ops=operators, **gloo).rows() == [(50, 5, 1)]


def _of(frame: pl.DataFrame, trace: int, rank: int) -> pl.DataFrame:
    keys = {"iteration": None, "rank": rank, "trace": trace}
    return frame.with_columns(pl.lit(value, dtype=pl.Int64).alias(key) for key, value in keys.items())


def test_calls_of_an_execution_trace_have_their_place_in_the_kineto_trace_of_their_rank() -> None:
    """Traces 3 and 4 are Execution Traces of the ranks 1 and 2, traces 5 and 6 those of Kineto."""
    nodes, ops = [], []
    for rank in (1, 2):
        ids = [10 * rank, 10 * rank + 1, 10 * rank + 2]
        own = {"node": [7, 8, 9], "name": [OPERATOR] * 3, "rf_id": ids, "thread": [1] * 3}
        nodes.append(_of(linkable_nodes(TABLES["et_nodes"].frame(own)), 2 + rank, rank))
        own = {"name": [OPERATOR] * 3, "record_function_id": ids[::-1], "thread": [1] * 3}
        ops.append(_of(linkable_ops(TABLES["cpu_ops"].frame(own)), 4 + rank, rank))
    schema = DERIVED.get("et_described_calls").table.empty().schema
    described = pl.concat(
        _of(pl.DataFrame({"node": [9, 7, 8]}, schema_overrides=schema), 2 + rank, rank) for rank in (1, 2)
    ).with_columns(pl.lit(None, dtype=type_).alias(name) for name, type_ in schema.items() if name != "node")
    operators = pl.DataFrame(
        # operator 0 of rank 1 and operator 1 of rank 2 made no single call
        {"trace": [5, 5, 6, 6], "op": [1, 2, 0, 2], "start_ns": [100, 200, 300, 400], "stream": [7, 8, 9, 10]}
    )
    calls = et_calls(described, pl.concat(nodes), pl.concat(ops), operators)
    columns = ("trace", "node", "call_trace", "call_start_ns", "call_stream")
    # operators are numbered in the reverse order of nodes: 0 is 9, 1 is 8, 2 is 7
    assert calls.select(columns).rows() == [
        (3, 9, None, None, None),
        (3, 7, 5, 200, 8),
        (3, 8, 5, 100, 7),
        (4, 9, 6, 300, 9),
        (4, 7, 6, 400, 10),
        (4, 8, None, None, None),
    ]
    nothing = et_calls(described, pl.concat(nodes), pl.concat(ops).clear(), operators)
    assert nothing["call_trace"].to_list() == [None] * 6


def _exchange(**members: Any) -> pl.DataFrame:
    """Return the call of rank 6 in an exchange of 12 floats for 14, with rows of two elements."""
    split = {"in_elements": 12, "in_split": [1, 2, 3], "out_elements": 14, "out_split": [1, 1, 5]}
    call = {"node": 1, "name": "all_to_allv", "group_name": "1", "group_size": 3, "dtype": "Float", **split}
    groups = [{"name": "1", "size": 3, **members}]
    identity = TABLES["identity"].frame({"rank": [6], "world_size": [12]})
    communication = table("et_communication", [call | {"rank_argument": 1}])
    return derive(
        "et_described_calls",
        et_communication=communication,
        et_groups=table("et_groups", groups),
        identity=identity,
    )


def test_what_a_rank_sends_itself_is_at_its_place_among_the_members() -> None:
    # 3 of 6 rows stay here: 12 * 3/6 floats go to others, 14 * 2/7 come from others
    assert _exchange(ranks=[9, 4, 6])["size_bytes"].to_list() == [6 * 4]
    # 2 of 6 rows stay here, and 1 of 7 is its own: 12 * 4/6 = 8 go, 14 * 6/7 = 12 come
    assert _exchange(ranks=[9, 6, 4])["size_bytes"].to_list() == [12 * 4]


def test_without_members_a_rank_is_at_the_place_that_it_states() -> None:
    assert _exchange()["size_bytes"].to_list() == [12 * 4]


def test_groups_of_an_execution_trace_are_those_that_it_communicated_in() -> None:
    call = {"node": 1, "name": "allreduce", "group_name": "2", "group_size": 3}
    groups = [{"name": "1", "size": 2, "ranks": [0, 1]}, {"name": "2", "size": 3, "ranks": [0, 2, 5]}]
    found = derive(
        "et_call_groups",
        et_communication=table("et_communication", [call]),
        et_groups=table("et_groups", groups),
    )
    assert found.select("members", "size").rows() == [([0, 2, 5], 3)]
