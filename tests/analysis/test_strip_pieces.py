"""Short pieces of a step put together, on tables small enough to follow by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from ccl_bench.analysis.strip import fewer


def pieces(rows: list[tuple[int, str, str, int, int]]) -> pl.DataFrame:
    """Return pieces given as (lane, kind, name, start, length), the longest of which is the piece itself."""
    return pl.DataFrame(
        [
            {
                "lane": lane,
                "kind": kind,
                "name": name,
                "call": 5,
                "start_ns": start,
                "end_ns": start + length,
                "count": 1,
                "busy_ns": length,
                "longest_ns": length,
            }
            for lane, kind, name, start, length in rows
        ],
        schema_overrides={"call": pl.Int64},
    )


def rows(table: pl.DataFrame) -> list[tuple[Any, ...]]:
    """Return what is shown of pieces."""
    shown = ("lane", "kind", "name", "call", "start_ns", "end_ns", "count", "busy_ns")
    return table.select(shown).rows()


def test_few_pieces_stay_as_they_are() -> None:
    table = pieces([(7, "compute", "a", 0, 10), (7, "memory", "b", 20, 1)])
    assert rows(fewer(table, 1000, 2)) == rows(table)


def test_short_neighbours_have_the_kind_that_took_longest_and_the_name_of_its_longest_piece() -> None:
    table = pieces(
        [
            (7, "compute", "gemm", 0, 3),
            (7, "compute", "add", 4, 4),
            (7, "memory", "HtoD", 9, 5),
            (7, "compute", "long", 20, 100),
            (8, "memory", "HtoD", 2, 1),
        ]
    )
    # Bins are 1/64 of 1024 ns: the first three pieces of lane 7 start in one, and are together 12 ns long.
    assert rows(fewer(table, 1024, 3)) == [
        (7, "compute", "add", None, 0, 14, 3, 12),
        (7, "compute", "long", 5, 20, 120, 1, 100),
        (8, "memory", "HtoD", 5, 2, 3, 1, 1),
    ]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from("cm"),
            st.sampled_from("ab"),
            st.integers(0, 9_999),
            st.integers(1, 400),
        ),
        min_size=1,
        max_size=60,
    ),
    st.integers(10, 40),
)
def test_nothing_is_lost_and_few_are_left(found: list[tuple[int, str, str, int, int]], most: int) -> None:
    table = pieces(found)
    left = fewer(table, 10_400, most)
    assert left.height <= most
    assert left["count"].sum() == len(found)
    assert left["busy_ns"].sum() == sum(length for *_, length in found)
    spans = ("start_ns", "end_ns")
    assert left.select(pl.col(spans[0]).min(), pl.col(spans[1]).max()).row(0) == table.select(
        pl.col(spans[0]).min(), pl.col(spans[1]).max()
    ).row(0)
