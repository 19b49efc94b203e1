"""Which operator started a range of gloo: by kind, size and time, and nothing where that leaves a choice."""

import polars as pl

from ccl_bench.analysis.communication.arguments import pair_with_operators

SCHEMA = {"start_ns": pl.Int64, "collective": pl.String, "elements": pl.Int64}


def pairs(ranges, operators):
    """Return the operator of each range; operators are (start, collective, elements, what they say)."""
    said = {what: number for number, what in enumerate(sorted({row[3] for row in operators}))}
    started = pl.DataFrame([row[:3] for row in operators], schema=SCHEMA, orient="row").with_columns(
        said=pl.Series([said[row[3]] for row in operators], dtype=pl.UInt64)
    )
    begun = pl.DataFrame(ranges, schema=SCHEMA, orient="row")
    return pair_with_operators(begun, started).to_list()


def test_size_and_kind_decide_whatever_the_order():
    operators = [(0, "all_reduce", 9, "a"), (1, "all_gather", 4, "b"), (2, "all_reduce", 5, "c")]
    assert pairs([(3, "all_reduce", 5), (4, "all_gather", 4), (5, "all_reduce", 9)], operators) == [2, 1, 0]


def test_a_reduce_scatter_is_carried_out_as_an_all_reduce():
    assert pairs([(3, "all_reduce", 8)], [(0, "reduce_scatter", 8, "a")]) == [0]


def test_operators_that_say_the_same_are_taken_in_order():
    operators = [(0, "all_reduce", 8, "a"), (1, "all_reduce", 8, "a")]
    assert pairs([(2, "all_reduce", 8), (3, "all_reduce", 8)], operators) == [0, 1]


def test_a_choice_between_operators_that_say_different_things_is_left_open():
    operators = [(0, "all_reduce", 8, "a"), (1, "reduce_scatter", 8, "b"), (9, "all_reduce", 8, "a")]
    ranges = [(2, "all_reduce", 8), (3, "all_reduce", 8), (10, "all_reduce", 8)]
    assert pairs(ranges, operators) == [None, None, 2]


def test_one_after_the_other_there_is_no_choice():
    operators = [(0, "all_reduce", 8, "a"), (5, "reduce_scatter", 8, "b")]
    assert pairs([(2, "all_reduce", 8), (6, "all_reduce", 8)], operators) == [0, 1]


def test_a_range_begun_before_any_operator_was_started_before_the_recording():
    assert pairs([(0, "barrier", None), (4, "barrier", None)], [(3, "barrier", None, "a")]) == [None, 0]


def test_a_range_of_another_size_is_another_call():
    assert pairs([(1, "all_reduce", 8)], [(0, "all_reduce", 9, "a")]) == [None]


def test_where_the_trace_has_no_sizes_kinds_must_do():
    assert pairs([(1, "all_reduce", None)], [(0, "all_reduce", 9, "a")]) == [0]


def test_an_operator_without_a_range_leaves_those_after_it_open():
    operators = [(0, "all_reduce", 8, "a"), (1, "all_reduce", 8, "a")]
    assert pairs([(2, "all_reduce", 8)], operators) == [None]


def test_without_operators_nothing_is_paired():
    assert pairs([(1, "all_reduce", 8)], []) == [None]
