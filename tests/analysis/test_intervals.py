"""Interval arithmetic against a timeline that is walked nanosecond by nanosecond."""

import itertools

import polars as pl
from frames import instants, spans
from hypothesis import given
from hypothesis import strategies as st

from ccl_bench.analysis.intervals import clip, merge_intervals, union_lengths, window_at

TIME = st.integers(-5, 40)
interval = st.tuples(TIME, st.integers(0, 15)).map(lambda t: (t[0], t[0] + t[1]))
intervals = st.lists(interval, max_size=12)


@st.composite
def windows_in_order(draw):
    """Return sorted windows that do not overlap; they may touch, or be empty."""
    bounds = sorted(draw(st.lists(TIME, max_size=10)))
    return list(zip(bounds[::2], bounds[1::2], strict=False))


def union_length(intervals):
    """Return the length of the union of all `intervals`, in one window around them."""
    around = [(intervals["start_ns"].min() or 0, intervals["end_ns"].max() or 0)]
    return union_lengths(intervals, spans(around)).item()


@given(pairs=intervals)
def test_the_length_of_a_union_counts_each_nanosecond_once(pairs):
    assert union_length(spans(pairs)) == len(instants(pairs))


@given(pairs=intervals)
def test_merged_intervals_cover_the_same_instants_and_keep_apart(pairs):
    found = merge_intervals(spans(pairs)).rows()
    assert instants(found) == instants(pairs)
    assert all(start < end for start, end in found)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(found))


@given(pairs=intervals, windows=windows_in_order())
def test_union_lengths_are_those_inside_each_window(pairs, windows):
    covered = instants(pairs)
    expected = [len(covered & instants([window])) for window in windows]
    assert union_lengths(spans(pairs), spans(windows)).to_list() == expected


@given(times=st.lists(TIME, max_size=12), windows=windows_in_order())
def test_a_time_lies_in_the_window_that_holds_its_instant_and_the_end_is_outside(times, windows):
    windows = [window for window in windows if window[0] < window[1]]
    expected = [
        next((row for row, (opens, closes) in enumerate(windows) if opens <= time < closes), None)
        for time in times
    ]
    assert window_at(pl.Series(times, dtype=pl.Int64), spans(windows)).to_list() == expected


@given(pairs=intervals, windows=windows_in_order())
def test_clipped_parts_are_those_inside_each_window(pairs, windows):
    found = clip(spans(pairs, row=range(len(pairs))), spans(windows))
    got = sorted(
        (window, row, start, end)
        for start, end, row, window in found.select("start_ns", "end_ns", "row", "window").rows()
    )
    expected = sorted(
        (w, row, max(start, opens), min(end, closes))
        for w, (opens, closes) in enumerate(windows)
        for row, (start, end) in enumerate(pairs)
        if max(start, opens) < min(end, closes)
    )
    assert got == expected


@given(pairs=st.lists(st.tuples(interval, st.integers(0, 2), st.sampled_from("ab")), max_size=14))
def test_intervals_of_different_keys_do_not_merge(pairs):
    frame = spans([p for p, _, _ in pairs], stream=[k for _, k, _ in pairs], kind=[c for _, _, c in pairs])
    frame = frame.cast({"stream": pl.Int64, "kind": pl.String})
    found = merge_intervals(frame, "stream", "kind")
    for stream in range(3):
        for kind in "ab":
            rows = found.filter(stream=stream, kind=kind).select("start_ns", "end_ns").rows()
            assert instants(rows) == instants([p for p, s, k in pairs if (s, k) == (stream, kind)])
            assert all(end < start for (_, end), (start, _) in itertools.pairwise(rows))


def test_overlapping_kernels_count_once():
    assert union_length(spans([(0, 10), (5, 15)])) == 15


def test_touching_intervals_become_one():
    assert merge_intervals(spans([(0, 10), (10, 15)])).rows() == [(0, 15)]


def test_an_interval_inside_another_adds_nothing():
    assert merge_intervals(spans([(0, 100), (10, 20), (30, 40)])).rows() == [(0, 100)]


def test_intervals_of_no_length_add_nothing():
    assert merge_intervals(spans([(5, 5), (7, 7)])).rows() == []
    assert union_lengths(spans([(5, 5)]), spans([(0, 10)])).to_list() == [0]


def test_an_interval_over_three_windows_gives_a_part_in_each():
    parts = clip(spans([(5, 35)]), spans([(0, 10), (10, 20), (30, 40)]))
    assert parts.select("window", "start_ns", "end_ns").rows() == [(0, 5, 10), (1, 10, 20), (2, 30, 35)]


def test_nothing_in_gives_nothing_out():
    assert union_length(spans([])) == 0
    assert union_lengths(spans([]), spans([(0, 10), (20, 30)])).to_list() == [0, 0]
    assert union_lengths(spans([(0, 10)]), spans([])).to_list() == []
    assert clip(spans([(0, 10)]), spans([])).height == 0


def test_nanoseconds_since_the_epoch_are_exact():
    now = 1_790_857_026_000_000_001
    assert union_length(spans([(now, now + 1), (now + 3, now + 5)])) == 3
    assert union_lengths(spans([(now, now + 9)]), spans([(now + 8, now + 20)])).to_list() == [1]
