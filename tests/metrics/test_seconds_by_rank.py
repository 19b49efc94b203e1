"""Seconds a step of each rank: every rank with steps, in order, rounded as in tables."""

from __future__ import annotations

import polars as pl

from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics.shared.per_step import seconds_by_keys, seconds_by_rank

STEPS = pl.DataFrame({"rank": [None, 3, 3, 1, 1, 0]})


def test_every_rank_with_steps_has_its_mean_and_one_that_is_not_known_comes_last() -> None:
    table = pl.DataFrame({"rank": [3, 3, None, 1], "ns": [SECOND_NS, SECOND_NS, 5 * SECOND_NS, SECOND_NS]})
    found = seconds_by_rank(table, STEPS, "ns")
    assert list(found.items()) == [("0", 0.0), ("1", 0.5), ("3", 1.0), ("unknown", 5.0)]


def test_seconds_round_as_in_tables() -> None:
    table = pl.DataFrame({"rank": [0, 1, 2], "ns": [414_230_400, 669_169_000, 8_559_800]})
    whole = table.select(pl.col("ns") / pl.lit(pl.Series([1, 1, 1])) / SECOND_NS)
    assert list(seconds_by_rank(table, table, "ns").values()) == whole["ns"].to_list()
    assert whole["ns"].to_list() != [number / SECOND_NS for number in table["ns"]]


def test_seconds_of_one_rank_round_as_in_a_table_of_one_row() -> None:
    table = pl.DataFrame({"rank": [0], "ns": [8_559_800]})
    assert seconds_by_rank(table, table, "ns") == {"0": 8_559_800 / SECOND_NS}


def test_rows_are_added_up_apart_for_each_value_of_keys_in_their_order() -> None:
    rows = [("b", "x", 0, 4), ("a", "y", 0, 2), ("a", "x", 1, 6), ("a", "x", None, 8)]
    table = pl.DataFrame(rows, schema=["kind", "part", "rank", "s"], orient="row")
    found = seconds_by_keys(table.with_columns(ns=pl.col("s") * SECOND_NS), STEPS, ["kind", "part"], "ns")
    ranks = 4
    assert list(found.items()) == [
        (("a", "x"), (6 / 2 + 8) / ranks),
        (("a", "y"), 2 / ranks),
        (("b", "x"), 4 / ranks),
    ]
