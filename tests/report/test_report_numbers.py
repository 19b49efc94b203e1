"""Numbers and words as text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccl_bench.base.text import counted, plain
from ccl_bench.report.formatting import (
    amount,
    duration,
    exact,
    percent,
    ranges,
    short,
    size,
    step_word,
    time_unit,
    with_unit,
)
from ccl_bench.result import WHOLE_TRACE, Result


@given(st.floats(allow_nan=False))
def test_an_exact_number_reads_back_as_itself(value: float) -> None:
    assert float(exact(value)) == value


@given(st.integers(-(2**53) + 1, 2**53 - 1))
def test_a_whole_number_has_no_point(value: int) -> None:
    assert exact(float(value)) == str(value)


def test_what_is_no_number_is_said_as_python_says_it() -> None:
    assert (exact(math.nan), exact(math.inf)) == ("nan", "inf")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (16.0, "16"),
        (123456789.0, "123456789"),
        (7968.707849236765, "7968.71"),
        (0.0043428747, "0.00434287"),
        (4.3428747e-05, "4.34287e-05"),
        (0.0, "0"),
    ],
)
def test_a_short_number_has_six_digits_and_whole_ones_all(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (85_174_583_296, "85.2 GB"),
        (2e12, "2 TB"),
        (999.7e6, "1,000 MB"),
    ],
)
def test_sizes_are_decimal(value: float, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (3e-8, "30 ns"),
        (2.5e-6, "2.5 µs"),
        (0.0145, "14.5 ms"),
        (1.1, "1.1 s"),
        (1234.5, "1,234 s"),
    ],
)
def test_durations_have_a_fitting_unit(value: float, text: str) -> None:
    assert duration(value) == text


def test_counted_things_are_one_or_many() -> None:
    assert (counted(1, "rank"), counted(2, "rank"), counted(5520, "kernel")) == (
        "1 rank",
        "2 ranks",
        "5,520 kernels",
    )


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([0, 1, 2, 3], "0-3"), ([0, 2, 3, 7], "0, 2-3, 7"), ([1, 3, 5, 7], "1, 3, ... 7")],
)
def test_runs_of_numbers_are_drawn_together(numbers: list[int], text: str) -> None:
    assert ranges(numbers, 2 if len(numbers) == 4 and numbers[0] == 1 else 12) == text


def test_text_that_steers_a_terminal_becomes_harmless() -> None:
    assert plain("a\x1b[31m\tb\nc") == "a?[31m b c"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0312, "s", "31.2 ms"),
        (57.846, "%", "57.85 %"),
        (2.25, "ratio", "2.25"),
        (0.0063, "GB", "6.3 MB"),
        (1992.1769, "tokens/s", "1,992 tokens/s"),
        (0.97457, "requests/s", "0.9746 requests/s"),
        (16.0, "calls", "16 calls"),
    ],
)
def test_a_value_is_reported_in_its_unit(value: float, unit: str, text: str) -> None:
    assert with_unit(value, unit) == text


@pytest.mark.parametrize(
    ("seconds", "unit"), [([2.0, 0.1], "s"), ([0.02, 0.5], "ms"), ([3e-5], "µs"), ([3e-8], "ns"), ([], "ns")]
)
def test_times_share_the_unit_of_the_largest(seconds: list[float], unit: str) -> None:
    assert time_unit(seconds)[1] == unit


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.00 %"), (0.1, "0.10 %"), (0.099, "0.099 %"), (0.00123, "0.0012 %"), (12.345, "12.35 %"),
     (-1.0, "-1 %")],
)  # fmt: skip
def test_shares_have_two_decimals_from_a_tenth_of_a_percent_on(value: float, text: str) -> None:
    assert percent(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(999.4, "999.4"), (1000, "1,000"), (-1000.4, "-1,000"), (0.123456, "0.1235"), (-999, "-999"), (0, "0")],
)
def test_amounts_have_four_digits_below_a_thousand(value: float, text: str) -> None:
    assert amount(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.0**53 - 1, "9007199254740991"), (2.0**53, "9007199254740992.0"), (-(2.0**53), "-9007199254740992.0")],
)
def test_whole_numbers_have_no_point_as_long_as_all_of_them_exist(value: float, text: str) -> None:
    assert exact(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e12, "1 TB"), (1e9, "1 GB"), (1e6, "1 MB"), (1e3, "1 kB"), (999.4, "999 B"), (1e12 - 1e6, "1,000 GB")],
)
def test_sizes_change_their_unit_at_its_power_of_a_thousand(value: float, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.0, "1 s"), (1e-3, "1 ms"), (1e-6, "1 µs"), (9e-7, "900 ns"), (-0.5, "-500 ms")]
)
def test_durations_change_their_unit_at_its_size(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "per", "unit"),
    [([1.0], 1.0, "s"), ([-1e-3, 0], 1e3, "ms"), ([1e-6], 1e6, "µs"), ([0.0], 1e9, "ns")],
)
def test_a_unit_of_time_has_its_number_in_a_second(seconds: list[float], per: float, unit: str) -> None:
    assert time_unit(seconds) == (pytest.approx(per), unit)


def test_at_most_twelve_ranges_are_written() -> None:
    apart = [2 * number for number in range(13)]
    assert ranges(apart[:12]) == ", ".join(map(str, apart[:12]))
    assert ranges(apart) == f"{', '.join(map(str, apart[:12]))}, ... 24"
    assert ranges([1, 2, 3, 5, 6]) == "1-3, 5-6"


def test_a_whole_trace_is_no_step() -> None:
    def seen(window: str, value: float | None = 1.0) -> Result:
        return Result(
            "m", "ok" if value is not None else "not_measurable", "s", "lower", value, window=window
        )

    assert step_word(seen(WHOLE_TRACE)) == "traced span"
    assert step_word(seen(WHOLE_TRACE), None, seen("ProfilerStep", None)) == "traced span"
    assert step_word(seen(WHOLE_TRACE), seen("ProfilerStep")) == "step"
    assert step_word() == "step"
