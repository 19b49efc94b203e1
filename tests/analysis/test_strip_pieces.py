"""Short pieces of a step put together, on tables small enough to follow by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from ccl_bench.analysis.strip import fewer, step_pieces


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


SHOWN = ("lane", "kind", "name", "call", "start_ns", "end_ns", "count", "busy_ns")


def rows(table: pl.DataFrame) -> list[tuple[Any, ...]]:
    """Return what is shown of pieces."""
    return table.select(SHOWN).rows()


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


STEPS = pl.DataFrame(
    {"step": [4, 5, 6], "device_start_ns": [0, 100, 200], "device_end_ns": [100, 200, 300]},
)
CALLS = pl.DataFrame(
    {"stream": [9], "collective": ["all_reduce"], "call": [3], "size_bytes": [64]}
    | {"start_ns": [140], "end_ns": [210]}
)
WORK = pl.DataFrame(
    {"kind": ["compute", "memory"], "start_ns": [90, 110], "end_ns": [150, 120], "stream": [7, 8]}
)
KERNELS = WORK.with_columns(
    name=pl.lit("gemm"), is_kernel=pl.Series([True, False]), correlation=pl.Series([1, 2])
)
COPIES = pl.DataFrame(
    {
        "kind": ["HtoD", "DtoD"],
        "start_ns": [110, 110],
        "end_ns": [120, 120],
        "stream": [8, 8],
        "correlation": [2, 9],
    }
)
OPERATORS = pl.DataFrame(
    {"name": ["outer", "aten::mm"], "start_ns": [90, 90], "end_ns": [150, 150], "thread": [7, 7]}
)


def middle(kernels: pl.DataFrame) -> list[tuple[Any, ...]]:
    found = step_pieces(STEPS, kernels, COPIES, WORK, CALLS, OPERATORS)
    shown = ("step", "on_device", *SHOWN[:4], "size_bytes", *SHOWN[4:], "longest_ns")
    return found.select(shown).rows()


CALL = (9, "communication", "all_reduce", 3, 64, 140, 200, 1, 60, 60)


def test_pieces_of_the_middle_step_are_cut_at_its_ends() -> None:
    # The copy that no work of the device names is part of a call.
    assert middle(KERNELS) == [
        (5, True, 7, "compute", "gemm", None, None, 100, 150, 1, 50, 50),
        (5, True, 8, "memory", "HtoD", None, None, 110, 120, 1, 10, 10),
        (5, True, *CALL),
    ]
    assert middle(KERNELS.head(1))[0][:2] == (5, True)


def test_without_a_device_pieces_are_what_the_cpu_computed() -> None:
    assert middle(KERNELS.clear()) == [
        (5, False, 7, "compute", "aten::mm", None, None, 100, 150, 1, 50, 50),
        (5, False, *CALL),
    ]


def test_of_two_steps_the_second_is_the_middle_one() -> None:
    found = step_pieces(STEPS.head(2).reverse(), KERNELS, COPIES, WORK, CALLS, OPERATORS)
    assert found["step"].unique().to_list() == [5]


def test_what_is_as_long_as_a_bin_stays_apart() -> None:
    # 65,536 bins of 64 ns, then 128: two of 64 ns stay apart in the first, and are one piece in the second
    window = 64 << 16
    table = pieces([(7, "compute", "a", 0, 64), (7, "compute", "b", 64, 64)])
    assert rows(fewer(table, window, 1)) == [(7, "compute", "a", None, 0, 128, 2, 128)]
    long = pieces([(7, "compute", "a", 0, 64), (7, "compute", "b", 64, 63), (7, "compute", "c", 127, 1)])
    assert rows(fewer(long, window, 2)) == [
        (7, "compute", "a", 5, 0, 64, 1, 64),
        (7, "compute", "b", None, 64, 128, 2, 64),
    ]
    # bins are no finer: in half of one, two pieces would be left
    short = pieces([(7, "compute", name, 20 * n, 20) for n, name in enumerate("abc")])
    assert rows(fewer(short, window, 2)) == [(7, "compute", "a", None, 0, 60, 3, 60)]


def test_more_lanes_than_pieces_are_kept() -> None:
    table = pieces([(lane, "compute", "a", 0, 1) for lane in range(3)])
    assert fewer(table, 0, 2).height == 3
