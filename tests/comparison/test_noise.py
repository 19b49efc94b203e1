"""The interval of a difference: right as often as it says, for few steps and for steps that are alike."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest

from ccl_bench.analysis.statistics import student_quantile
from ccl_bench.comparison.noise import (
    MOST_SAMPLES,
    autocorrelation_factor,
    difference_interval,
    small_sample_factor,
    thinned,
    unstable,
)

Draw = Callable[[random.Random], float]

DRAWS: dict[str, Draw] = {
    "normal": lambda r: r.gauss(1, 0.02),
    "skewed": lambda r: math.exp(r.gauss(0, 0.1)),
    "with outliers": lambda r: r.gauss(1, 0.01) + (0.3 if r.random() < 0.05 else 0),
}


def false_alarms(draw: Draw, count: int, trials: int = 200) -> float:
    """Return the share of pairs from one distribution whose interval leaves out 0."""
    source = random.Random(7)
    alarms = 0
    for _ in range(trials):
        pair = [[draw(source) for _ in range(count)] for _ in range(2)]
        found = difference_interval(*pair)
        assert found is not None
        alarms += not found.has_zero
    return alarms / trials


def alike(source: random.Random, count: int, likeness: float) -> list[float]:
    """Return steps of which each resembles the one before (an autoregressive series)."""
    found, deviation = [], source.gauss(0, 0.02)
    for _ in range(count):
        found.append(1 + deviation)
        deviation = likeness * deviation + source.gauss(0, 0.02 * math.sqrt(1 - likeness**2))
    return found


@pytest.mark.parametrize("count", [2, 12])
@pytest.mark.parametrize("kind", DRAWS)
def test_equal_runs_are_called_different_in_about_one_of_a_hundred(kind: str, count: int) -> None:
    # 200 trials of 1 % give 2 alarms; 9 or more are seen in less than one of a thousand such tests.
    assert false_alarms(DRAWS[kind], count) < 9 / 200


def test_a_plain_percentile_interval_would_raise_many_more() -> None:
    def plain(one: list[float], other: list[float], source: random.Random) -> bool:
        means = sorted(
            statistics.fmean(source.choices(other, k=len(other)))
            - statistics.fmean(source.choices(one, k=len(one)))
            for _ in range(400)
        )
        return means[2] > 0 or means[-3] < 0

    source = random.Random(3)
    pairs = [[[source.gauss(1, 0.02) for _ in range(3)] for _ in range(2)] for _ in range(200)]
    assert sum(plain(*pair, source) for pair in pairs) / len(pairs) > 0.08


def test_steps_that_resemble_each_other_widen_the_interval() -> None:
    source = random.Random(11)
    pairs = [[alike(source, 48, 0.5) for _ in range(2)] for _ in range(100)]
    intervals = [difference_interval(*pair) for pair in pairs]
    assert sum(found is not None and not found.has_zero for found in intervals) <= 4
    shuffled = [[random.Random(n).sample(side, len(side)) for side in pair] for n, pair in enumerate(pairs)]
    narrow = [difference_interval(*pair) for pair in shuffled]
    assert sum(found is not None and not found.has_zero for found in narrow) > 4


@pytest.mark.parametrize(("count", "found_at_least"), [(4, 0.25), (8, 0.8), (30, 1.0)])
def test_a_slowdown_of_5_percent_under_noise_of_2_is_found(count: int, found_at_least: float) -> None:
    source = random.Random(5)
    found = 0
    for _ in range(100):
        one, other = ([source.gauss(mean, 0.02) for _ in range(count)] for mean in (1, 1.05))
        interval = difference_interval(one, other)
        found += interval is not None and interval.low > 0
    assert found / 100 >= found_at_least


def test_the_interval_lies_around_the_difference_of_means() -> None:
    one, other = [1.0, 1.1, 0.9, 1.0], [2.0, 2.2, 1.9, 2.1]
    found = difference_interval(one, other)
    assert found is not None
    assert found.low < 1.05 < found.high


def test_the_same_samples_give_the_same_interval() -> None:
    one, other = [1.0, 1.1, 0.9], [1.2, 1.0, 1.1]
    assert difference_interval(one, other) == difference_interval(one, other)


def test_swapping_the_sides_about_turns_the_interval_round() -> None:
    one, other = [1.0, 1.1, 0.9, 1.05, 0.97], [1.2, 1.25, 1.1, 1.15, 1.18]
    there, back = difference_interval(one, other), difference_interval(other, one)
    assert there is not None
    assert back is not None
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low), rel=0.15)


def test_equal_steps_leave_no_room_for_noise() -> None:
    found = difference_interval([2.0] * 3, [2.5] * 3)
    assert found is not None
    assert (found.low, found.high) == (0.5, 0.5)


@pytest.mark.parametrize("sides", [([], [1.0, 2.0]), ([1.0], [1.0, 2.0]), ([1.0, 2.0], [])])
def test_one_sample_shows_nothing_of_noise(sides: tuple[list[float], list[float]]) -> None:
    assert difference_interval(*sides) is None


def test_many_samples_are_thinned_evenly() -> None:
    kept = thinned([float(n) for n in range(3 * MOST_SAMPLES)])
    assert (len(kept), kept[0], kept[1], kept[-1]) == (MOST_SAMPLES, 0, 3, 3 * MOST_SAMPLES - 3)
    assert thinned([1.0, 2.0]) == [1.0, 2.0]


def test_few_samples_and_wide_ones_are_unstable() -> None:
    steady = [1.0, 1.01] * 4
    assert unstable(steady, steady) == ""
    assert unstable(steady[:3], steady) == "there are only 3 samples"
    # 21 % of deviation over the root of 8 samples are 7 % of the mean; of 800 samples they are 0.7 %.
    assert unstable(steady, [1.0, 1.5] * 4) == "single samples spread by 21 %"
    assert unstable(steady, [1.0, 1.5] * 400) == ""


def test_a_first_step_that_stands_out_is_named() -> None:
    assert unstable([1.0, 1.01] * 8, [9.0, *[1.0, 1.01] * 8]).endswith("without the first by 1 %")


def test_few_samples_widen_the_interval_by_student_and_by_the_plug_in_deviation() -> None:
    # Variances 2 over 2 samples are 1 on each side: 2^2 / (1 / 1 + 1 / 1) = 2 degrees of freedom, at which
    # 99.5 % lie below t = 9.92484; the normal quantile is 2.57583. The plug-in variances are half as large.
    assert small_sample_factor([0, 2], [4, 6]) == pytest.approx(9.92484 / 2.57583 * math.sqrt(2), rel=1e-5)
    # Equal samples leave one side: 1^2 / (1 / 1) = 1 degree of freedom, t = 63.6567.
    beyond = 63.6567 / 2.57583
    assert small_sample_factor([0, 2], [5, 5, 5]) == pytest.approx(beyond * math.sqrt(2), rel=1e-5)
    # Variances 3 over 3 samples are 1 on each side: 2^2 / (1 / 2 + 1 / 2) = 4 degrees of
    # freedom, t = 4.60409. The plug-in variances are 2 / 3 as large.
    assert small_sample_factor([0, 0, 3], [1, 1, 4]) == pytest.approx(
        4.60409 / 2.57583 * math.sqrt(3 / 2), rel=1e-5
    )
    assert small_sample_factor([1, 1], [2, 2]) == 1


def test_steps_that_resemble_the_step_before_widen_the_interval() -> None:
    # From the mean: -1.5, -0.5, 0.5, 1.5. Products of neighbours are 0.75 - 0.25 + 0.75 = 1.25, squares 5:
    # r = 0.25, corrected 0.25 + (1 + 0.75) / 4 = 0.6875, and sqrt(1.6875 / 0.3125) = sqrt(5.4).
    rising = [1.0, 2.0, 3.0, 4.0]
    assert autocorrelation_factor(rising, rising) == pytest.approx(math.sqrt(5.4))
    # Beside 2 samples, -1 and 1, of products -1 and squares 2: r = 0.25 / 7, over (4 + 2) / 2 samples.
    alike = 0.25 / 7 + (1 + 0.75 / 7) / 3
    expected = math.sqrt((1 + alike) / (1 - alike))
    assert autocorrelation_factor(rising, [0.0, 2.0]) == pytest.approx(expected)


def test_steps_that_alternate_or_are_equal_widen_nothing_and_a_trend_by_a_limit() -> None:
    assert autocorrelation_factor([1.0, 2.0, 1.0, 2.0], [1.0, 2.0, 1.0, 2.0]) == 1
    assert autocorrelation_factor([3.0, 3.0], [4.0, 4.0]) == 1
    # A correlation is believed up to 0.9: sqrt(1.9 / 0.1).
    trend = [float(n) for n in range(100)]
    assert autocorrelation_factor(trend, trend) == pytest.approx(math.sqrt(19))


def test_a_first_step_is_named_where_the_others_spread_by_less_than_half() -> None:
    # 1 and 2 four times each: deviation sqrt(2 / 7) over 1.5, 36 %. With a first 6 sqrt(20 / 8) over 2, 79 %.
    # With a first 5: sqrt(116 / 9 / 8) over 17 / 9, 67 %, of which 36 % is more than half.
    rest = [1.0, 2.0] * 4
    assert unstable(rest, [6.0, *rest]) == "single samples spread by 79 %, without the first by 36 %"
    assert unstable(rest, [5.0, *rest]) == "single samples spread by 67 %"


def test_an_interval_reaches_from_the_tails_of_resampled_means_each_side_widened() -> None:
    # Of 4 resampled values of 0, 0, 0, 4 all are 4 in 1 of 256 resamples, which is less than half a
    # percent, and three or more in 13 of 256: the upper tail of the means is 3, and the lower one is 0.
    one, other = [0.0, 0.0, 0.0, 4.0], [10.0] * 4
    widening = small_sample_factor(one, other) * autocorrelation_factor(one, other)
    found = difference_interval(one, other)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((9 - 2 * widening, 9 + 1 * widening))
    back = difference_interval(other, one)
    assert back is not None
    assert (back.low, back.high) == pytest.approx((-9 - 1 * widening, -9 + 2 * widening))


@pytest.mark.parametrize(("count", "kept"), [(0, 0), (1, 1), (1000, 1000), (1001, 501), (2001, 667)])
def test_of_more_than_a_thousand_samples_every_second_or_third_is_used(count: int, kept: int) -> None:
    assert len(thinned([1.0] * count)) == kept


def test_samples_of_mean_0_do_not_spread() -> None:
    assert unstable([0.0] * 8, [0.0] * 8) == ""
    assert unstable([0.0] * 7, [0.0] * 8) == "there are only 7 samples"


def test_a_standard_error_of_exactly_a_twentieth_is_stable() -> None:
    # 16 samples of 4 and 6: variance 16 / 15, and so chosen that the deviation is 0.2 of the mean.
    apart = math.sqrt(15 / 16)
    assert unstable([5 - apart, 5 + apart] * 8, [5.0] * 16) == ""
    assert unstable([5 - 1.01 * apart, 5 + 1.01 * apart] * 8, [5.0] * 16) == "single samples spread by 20 %"


def test_the_interval_is_that_of_a_bootstrap_in_plain_python() -> None:
    def means(samples: list[float], seed: int) -> list[float]:
        drawn = random.Random(seed).randbytes(4 * 4_000 * len(samples))
        places = [
            int.from_bytes(drawn[at : at + 4], "little") % len(samples) for at in range(0, len(drawn), 4)
        ]
        rows = (places[at : at + len(samples)] for at in range(0, len(places), len(samples)))
        return [statistics.fmean(samples[place] for place in row) for row in rows]

    one, other = [1.0, 1.2, 0.9, 1.1], [1.3, 1.0, 1.2, 1.5]
    pairs = zip(means(one, 20_240_229), means(other, 20_240_230), strict=True)
    differences = sorted(after - before for before, after in pairs)
    tails = []
    for share in (0.005, 0.995):
        below = math.floor(share * 3_999)
        step = differences[below + 1] - differences[below]
        tails.append(differences[below] + step * (share * 3_999 - below))
    found, middle = difference_interval(one, other), statistics.fmean(other) - statistics.fmean(one)
    widening = small_sample_factor(one, other) * autocorrelation_factor(one, other)
    assert found is not None
    assert [found.low, found.high] == pytest.approx([middle + (tail - middle) * widening for tail in tails])


def test_samples_of_unequal_number_have_degrees_by_welch() -> None:
    # variances of means 2 / 2 and 3 / 3: (1 + 1)^2 / (1 / 1 + 1 / 2) degrees; as drawn 1 / 2 and 2 / 3
    beyond = student_quantile(0.995, 8 / 3) / 2.575829
    assert small_sample_factor([0, 2], [0, 0, 3]) == pytest.approx(beyond * math.sqrt(2 / (7 / 6)), rel=1e-5)


def test_a_spread_of_exactly_the_limit_is_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [1.0, 3.0] * 8  # the root of 16 samples is 4
    limit = math.sqrt(statistics.variance(samples)) / 2 / 4
    monkeypatch.setattr("ccl_bench.comparison.noise.WIDE", limit)
    assert unstable(samples, samples) == ""
    monkeypatch.setattr("ccl_bench.comparison.noise.WIDE", math.nextafter(limit, 0))
    assert unstable(samples, samples) != ""
