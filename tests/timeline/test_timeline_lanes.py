"""Overlapping slices go side by side; none is lost and none lies across another."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from ccl_bench.timeline.slices import COLUMNS, COMPUTE, EXPOSED, STEP, assign_lanes, merge_short_slices

Rows = list[tuple[str, int, int]]

rows = st.lists(
    st.tuples(st.sampled_from([COMPUTE, EXPOSED]), st.integers(0, 60), st.integers(0, 25)), max_size=60
)


def table(found: Rows) -> pl.DataFrame:
    """Return slices from (track, start, length)."""
    return pl.DataFrame(
        [
            {
                "track": track,
                "category": track,
                "name": f"n{number}",
                "start_ns": start,
                "end_ns": start + length,
            }
            for number, (track, start, length) in enumerate(found)
        ],
        schema=COLUMNS,
    )


def crossing(lane: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the slices that begin inside another and end outside it."""
    return [(start, end) for start, end in lane if any(a < start < b < end for a, b in lane)]


@given(rows)
def test_slices_in_are_slices_out(found: Rows) -> None:
    laid = assign_lanes(table(found))
    assert sorted(laid["name"]) == sorted(f"n{number}" for number in range(len(found)))
    before = sorted((track, start, start + length) for track, start, length in found)
    assert sorted(laid.select("track", "start_ns", "end_ns").iter_rows()) == before


@given(rows)
def test_no_slice_of_a_lane_lies_across_another(found: Rows) -> None:
    for part in assign_lanes(table(found)).partition_by("track", "lane"):
        assert crossing(list(part.select("start_ns", "end_ns").iter_rows())) == []


def test_what_nests_stays_in_one_lane() -> None:
    laid = assign_lanes(table([(COMPUTE, 0, 10), (COMPUTE, 2, 3), (COMPUTE, 5, 5), (COMPUTE, 10, 4)]))
    assert set(laid["lane"]) == {0}


def test_what_crosses_takes_as_few_lanes_as_it_needs() -> None:
    # 0-10 and 5-15 cross, 12-20 crosses the second and fits behind the first.
    laid = assign_lanes(table([(COMPUTE, 0, 10), (COMPUTE, 5, 10), (COMPUTE, 12, 8)]))
    assert laid["lane"].to_list() == [0, 1, 0]


def test_the_longer_of_two_that_start_together_is_around_the_other() -> None:
    laid = assign_lanes(table([(COMPUTE, 0, 3), (COMPUTE, 0, 9)]))
    assert laid["name"].to_list() == ["n1", "n0"]
    assert set(laid["lane"]) == {0}


@given(rows, st.integers(1, 70))
def test_reduction_keeps_counts_and_times(found: Rows, most: int) -> None:
    whole = table(found)
    fewer, merged = merge_short_slices(whole, most)
    assert (merged.before, merged.after) == (whole.height, fewer.height)
    args = [
        pl.Series([text or ""]).str.extract_groups(r'"slices":(\d+),"sum_ns":(\d+)')[0]
        for text in fewer["args"]
    ]
    counts = [int(each["1"] or 1) for each in args]
    assert sum(counts) == whole.height
    lengths = [
        int(each["2"]) if each["2"] else end - start
        for each, start, end in zip(args, fewer["start_ns"], fewer["end_ns"], strict=True)
    ]
    assert sum(lengths) == sum(length for _, _, length in found)
    assert fewer.height <= max(most, 2), "there is one kind on each of two tracks"


def test_enough_room_leaves_everything_as_it_is() -> None:
    whole = table([(COMPUTE, 0, 1), (COMPUTE, 2, 1)])
    fewer, merged = merge_short_slices(whole, 2)
    assert fewer is whole
    assert merged.shorter_than_ns == 0


def test_work_is_merged_before_what_is_derived_from_it() -> None:
    many = [(COMPUTE, 10 * n, 5) for n in range(50)] + [(EXPOSED, 10 * n, 5) for n in range(50)]
    fewer, _ = merge_short_slices(table(many), 60)
    kept = dict(fewer.group_by("track").len().iter_rows())
    assert kept[EXPOSED] == 50
    assert kept[COMPUTE] <= 10


def test_steps_are_never_merged() -> None:
    fewer, _ = merge_short_slices(table([(STEP, 10 * n, 5) for n in range(50)]), 5)
    assert fewer.height == 50


def test_merged_slices_say_what_they_are() -> None:
    fewer, _ = merge_short_slices(table([(COMPUTE, 0, 5), (COMPUTE, 6, 5), (COMPUTE, 12, 5)]), 1)
    assert fewer.select("name", "start_ns", "end_ns", "args").row(0) == (
        "3 kernels", 0, 17, '"slices":3,"sum_ns":15'
    )  # fmt: skip
