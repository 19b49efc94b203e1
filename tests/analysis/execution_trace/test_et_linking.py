"""Which operator of Kineto is which node of an Execution Trace, on tables made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ccl_bench.analysis.execution_trace.calls import completed
from ccl_bench.analysis.execution_trace.linking import (
    communication_nodes,
    et_agreement,
    et_links,
    link_operators,
    linkable_nodes,
    linkable_ops,
)
from ccl_bench.analysis.findings import et_disagreements, unlinked
from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence


def _nodes(names: Sequence[str], rf_ids: Sequence[int], threads: Sequence[int] | None = None) -> pl.DataFrame:
    count = len(names)
    columns = {"node": [10 * i for i in rf_ids], "name": names, "rf_id": rf_ids, "scope": [0] * count}
    return linkable_nodes(TABLES["et_nodes"].frame({**columns, "thread": threads or [1] * count}))


def _ops(
    names: Sequence[str],
    external: Sequence[int],
    own: Sequence[int] | None = None,
    threads: Sequence[int] = (),
) -> pl.DataFrame:
    columns = {"name": names, "external_id": external, "record_function_id": own or [0] * len(names)}
    return linkable_ops(TABLES["cpu_ops"].frame({**columns, "thread": threads or [77] * len(names)}))


def test_the_id_in_both_traces_comes_first() -> None:
    link = link_operators(_nodes(["a", "b", "a"], [4, 5, 6]), _ops(["a", "b", "a"], [1, 2, 3], [6, 5, 4]))
    assert link.rule == "record function id"
    assert link.pairs.rows() == [(40, 2), (50, 1), (60, 0)]


def test_kinetos_number_runs_a_constant_ahead() -> None:
    link = link_operators(_nodes(["a", "b", "a", "c"], [4, 5, 7, 8]), _ops(["a", "b", "c"], [6, 7, 10]))
    assert (link.rule, link.offset) == ("external id", 2)
    assert link.pairs.rows() == [(40, 0), (50, 1), (80, 2)]
    assert link.rate == 1.0


def test_the_lead_of_kinetos_number_is_the_most_frequent_one() -> None:
    nodes = _nodes(list("abxccdd"), [1, 2, 3, 10, 11, 12, 13])
    link = link_operators(nodes, _ops(list("abxcd"), [6, 7, 5, 15, 18]))
    # in order, a and b are 5 ahead and x is 2 ahead; 5 also links c and d, which Kineto has once only
    assert (link.rule, link.offset) == ("external id", 5)
    assert link.pairs.rows() == [(10, 0), (20, 1), (100, 3), (130, 4)]
    assert link.rate == 4 / 5


def test_of_leads_of_kinetos_number_that_are_equally_frequent_the_smallest_counts() -> None:
    nodes = _nodes(list("axccdd"), [1, 3, 10, 11, 12, 13])
    link = link_operators(nodes, _ops(list("axcd"), [6, 5, 12, 15]))
    # a is 5 ahead and x is 2 ahead
    assert (link.rule, link.offset) == ("external id", 2)
    assert link.pairs.rows() == [(30, 1), (100, 2), (130, 3)]


@pytest.mark.parametrize(("own", "linked"), [("az", 1), ("azz", 0), ("aay", 2)])
def test_recordings_of_which_half_the_operators_agree_are_of_the_same_work(own: str, linked: int) -> None:
    numbers = range(1, len(own) + 1)
    ops = _ops("aacd"[: len(own)], numbers, numbers)
    link = link_operators(_nodes(own, numbers), ops)
    assert (link.pairs.height, link.rate) == (linked, linked / len(own))


def test_a_marked_range_or_a_node_without_an_id_is_no_operator() -> None:
    columns = {"node": [1, 2, 3, 4, 5], "name": list("abcde"), "thread": [1] * 5}
    ids = {"rf_id": [11, 12, 13, 0, 1], "scope": [7, 8, None, 0, 6]}
    nodes = linkable_nodes(TABLES["et_nodes"].frame(columns | ids))
    assert nodes.select("node", "is_operator").rows() == [(1, False), (2, True), (3, True), (5, True)]


def test_operators_of_either_kind_communicate() -> None:
    nodes = _nodes(["record_param_comms", "aten::c10d::x", "c10d::send", "aten::mm"], [1, 2, 3, 4])
    assert communication_nodes(nodes)["node"].to_list() == [10, 30]


def test_threads_with_most_names_in_common_belong_together() -> None:
    # with thread 70 only one `a` is common, however many it has; with 71 both names
    nodes = _nodes(["a", "b"], [1, 2], [1, 1])
    ops = _ops(["a"] * 5 + ["a", "b"], range(900, 914, 2), threads=[70] * 5 + [71] * 2)
    assert link_operators(nodes, ops).pairs.rows() == [(10, 5), (20, 6)]


def test_of_threads_with_as_much_in_common_the_first_belong_together_and_each_once() -> None:
    ops = _ops(["a", "b"] * 2, [901, 905, 911, 917], threads=[70, 70, 71, 71])
    assert link_operators(_nodes(["a", "b"], [1, 2], [1, 1]), ops).pairs.rows() == [(10, 0), (20, 1)]
    nodes = _nodes(["a", "b"] * 2, [1, 2, 3, 4], [2, 2, 1, 1])
    ops = _ops(["a", "b"], [901, 905], threads=[70, 70])
    assert link_operators(nodes, ops).pairs.rows() == [(30, 0), (40, 1)]


def test_with_two_threads_operators_are_paired_in_order_on_each() -> None:
    nodes = _nodes(["a", "x", "a", "x"], [1, 2, 3, 4], [1, 2, 1, 2])
    ops = _ops(["a", "a", "x", "x"], [1, 2, 1025, 1026], threads=[70, 70, 71, 71])
    link = link_operators(nodes, ops)
    assert link.rule == "order"
    assert link.pairs.rows() == [(10, 0), (20, 2), (30, 1), (40, 3)]


def test_numbers_that_fit_operators_of_another_name_are_no_links() -> None:
    link = link_operators(_nodes(["a", "b"], [4, 5]), _ops(["b", "a"], [1, 2], [4, 5]))
    assert link.rule in {"order", "external id"}
    assert link.pairs.rows() == [(40, 1), (50, 0)]


def test_recordings_of_other_work_are_not_linked() -> None:
    link = link_operators(_nodes(list("abcde"), range(1, 6)), _ops(list("avwxy"), range(1, 6)))
    assert (link.rule, link.pairs.height, link.rate) == ("none", 0, 0.0)


def test_ids_that_occur_twice_are_linked_once() -> None:
    link = link_operators(_nodes(["a", "a", "b"], [4, 4, 5]), _ops(["a", "a", "b"], [1, 2, 3], [4, 4, 5]))
    assert link.pairs.rows() == [(40, 0), (50, 2)]


def test_tables_without_rows_are_not_linked() -> None:
    assert link_operators(_nodes([], []), _ops([], [])).rule == "none"
    assert link_operators(_nodes(["a"], [1]), _ops([], [])).rate == 0.0


def _of(table: pl.DataFrame, trace: int, rank: int | None, iteration: int | None = None) -> pl.DataFrame:
    keys = {"trace": trace, "rank": rank, "iteration": iteration}
    return table.with_columns(pl.lit(value, dtype=pl.Int64).alias(key) for key, value in keys.items())


def test_an_execution_trace_belongs_to_the_kineto_trace_of_its_rank_and_window() -> None:
    names, ids = ["a", "b"], [4, 5]
    nodes = pl.concat([_of(_nodes(names, ids), trace, rank) for trace, rank in ((0, 0), (1, 1))])
    ops = pl.concat(
        [
            _of(_ops(["z", "z"], [1, 2], ids), 2, 0, 10),
            _of(_ops(names, [1, 2], ids), 3, 0, 20),
            _of(_ops(["y"], [1], [4]), 4, 1, 10),
        ]
    )
    links = et_links(nodes, ops)
    assert links.select("rank", "trace", "op_trace", "rule", "rate").rows() == [
        (0, 0, 3, "record function id", 1.0),
        (1, 1, None, "none", 0.0),
    ]
    found = unlinked(links)
    assert [(f.code, f.rank) for f in found] == [("et-unlinked", 1)]


def test_an_execution_trace_of_a_window_belongs_to_no_other_window_or_rank() -> None:
    nodes = pl.concat(
        [
            _of(_nodes(list("abc"), [4, 5, 6]), 5, 2, 10),
            _of(_nodes(list("xy"), [4, 5]), 6, 3, 20),
            _of(_nodes(list("abc"), [4, 5, 6]), 7, 4, 10),
        ]
    )
    ops = pl.concat(
        [
            _of(_ops(list("abc"), [1, 2, 3], [4, 5, 6]), 11, 2, 20),
            _of(_ops(list("abc"), [1, 2, 3], [4, 5, 6]), 12, 3, 10),
            _of(_ops(list("abz"), [1, 2, 3], [4, 5, 9]), 13, 2, 10),
            _of(_ops(list("xyzzz"), range(1, 6), range(4, 9)), 14, 3, 20),
        ]
    )
    columns = ("trace", "op_trace", "nodes", "ops", "linked", "rate")
    assert et_links(nodes, ops).select(columns).rows() == [
        (5, 13, 3, 3, 2, 2 / 3),
        (6, 14, 2, 5, 2, 1.0),
        (7, None, 3, 0, 0, 0.0),
    ]


def test_of_kineto_traces_of_one_rank_that_with_most_operators_linked_fits_best() -> None:
    nodes = _of(_nodes(list("abc"), [4, 5, 6]), 0, 0)
    ops = pl.concat([_of(_ops(own, range(3), [4, 5, 6]), k, 0, k) for k, own in enumerate(["abz", "abc"], 1)])
    assert et_links(nodes, ops).select("op_trace", "linked").rows() == [(2, 3)]


CALLS = {"call": [0], "start_ns": [100], "stream": [7], "collective": ["all_reduce"], "trace": [1]}
SIZES = {"sent_bytes": [64], "received_bytes": [64], "size_bytes": [64], "dtype": ["float"], "peer": [None]}
MARKS = {"own_sizes": [False], "uneven": [False]}


def _both(kineto: dict[str, list[object]], et: dict[str, list[object]]) -> tuple[pl.DataFrame, pl.DataFrame]:
    whose = {"rank": [0], "iteration": [None]}
    place = {"trace": [0], "node": [5], "call_trace": [1], "call_start_ns": [100], "call_stream": [7]}
    types = {"peer": pl.Int64, "received_bytes": pl.Int64, "size_bytes": pl.Int64, "dtype": pl.String}
    calls = pl.DataFrame(CALLS | whose | SIZES | MARKS | kineto, schema_overrides=types)
    own = CALLS | whose | SIZES | MARKS | place | et
    return calls, pl.DataFrame(own, schema_overrides=types)


def test_a_call_with_other_bytes_is_a_finding() -> None:
    calls, et = _both({}, {"sent_bytes": [128]})
    agreement = et_agreement(et, calls)
    assert agreement["agrees"].to_list() == [False]
    (finding,) = et_disagreements(agreement)
    assert (finding.code, finding.count) == ("et-kineto-disagree", 1)
    assert "128 bytes sent" in finding.message


def test_a_call_of_another_kind_is_a_finding() -> None:
    calls, et = _both({}, {"collective": ["all_gather"]})
    assert et_agreement(et, calls)["agrees"].to_list() == [False]


def test_a_size_that_one_side_lacks_is_no_disagreement() -> None:
    calls, et = _both({"received_bytes": [None]}, {})
    assert et_agreement(et, calls)["agrees"].to_list() == [True]


def test_calls_of_which_no_size_is_known_can_disagree_by_kind_alone() -> None:
    unknown: dict[str, list[object]] = {"sent_bytes": [None], "received_bytes": [None]}
    calls, et = _both(unknown, {})
    assert et_agreement(et, calls)["agrees"].to_list() == [None]
    calls, et = _both(unknown, {"collective": ["all_gather"]})
    assert et_agreement(et, calls)["agrees"].to_list() == [False]


@pytest.mark.parametrize(
    ("kineto", "execution", "size"), [(False, True, 96), (True, True, 64), (True, False, 64)]
)
def test_a_size_for_each_member_counts_more_than_one_for_all(
    kineto: bool, execution: bool, size: int
) -> None:
    calls, et = _both({"own_sizes": [kineto]}, {"own_sizes": [execution], "size_bytes": [96]})
    assert completed(calls, et)["size_bytes"].to_list() == [size]


def test_a_size_that_kineto_lacks_is_filled_in_and_one_that_it_has_is_kept() -> None:
    calls, et = _both({"size_bytes": [None], "dtype": [None]}, {"size_bytes": [96], "dtype": ["half"]})
    assert completed(calls, et).select("size_bytes", "dtype").rows() == [(96, "half")]
    calls, et = _both({}, {"size_bytes": [96]})
    assert completed(calls, et)["size_bytes"].to_list() == [64]


def test_another_collective_fills_nothing_in() -> None:
    calls, et = _both({"size_bytes": [None]}, {"collective": ["all_gather"]})
    assert completed(calls, et)["size_bytes"].to_list() == [None]
