"""Which operator of Kineto is which node of an Execution Trace, on tables made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.execution_trace.calls import completed
from ccl_bench.analysis.execution_trace.linking import (
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


def test_a_size_that_kineto_lacks_is_filled_in_and_one_that_it_has_is_kept() -> None:
    calls, et = _both({"size_bytes": [None], "dtype": [None]}, {"size_bytes": [96], "dtype": ["half"]})
    assert completed(calls, et).select("size_bytes", "dtype").rows() == [(96, "half")]
    calls, et = _both({}, {"size_bytes": [96]})
    assert completed(calls, et)["size_bytes"].to_list() == [64]


def test_another_collective_fills_nothing_in() -> None:
    calls, et = _both({"size_bytes": [None]}, {"collective": ["all_gather"]})
    assert completed(calls, et)["size_bytes"].to_list() == [None]
