"""Statistics: quantiles of Student's t as in the printed tables, percentiles and spreads by hand."""

from __future__ import annotations

import math

import pytest

from ccl_bench.analysis.statistics import evenly, percentile, percentile_curve, spread, student_quantile

# Two-sided 99 % and 95 %, as in Fisher and Yates' table of t.
TABLE = [
    (1, 63.657, 12.706), (2, 9.925, 4.303), (3, 5.841, 3.182), (4, 4.604, 2.776), (5, 4.032, 2.571),
    (7, 3.499, 2.365), (10, 3.169, 2.228), (15, 2.947, 2.131), (20, 2.845, 2.086), (30, 2.750, 2.042),
    (60, 2.660, 2.000), (120, 2.617, 1.980),
]  # fmt: skip


@pytest.mark.parametrize(("degrees", "ninety_nine", "ninety_five"), TABLE)
def test_quantiles_are_those_of_the_table(degrees: int, ninety_nine: float, ninety_five: float) -> None:
    assert student_quantile(0.995, degrees) == pytest.approx(ninety_nine, abs=6e-4)
    assert student_quantile(0.975, degrees) == pytest.approx(ninety_five, abs=6e-4)


def test_fractions_of_a_degree_lie_between_their_neighbours() -> None:
    quantiles = [student_quantile(0.995, degrees / 4) for degrees in range(4, 200)]
    assert quantiles == sorted(quantiles, reverse=True)


def test_fewer_than_one_degree_counts_as_one() -> None:
    assert student_quantile(0.995, 0.3) == student_quantile(0.995, 1)


@pytest.mark.parametrize(
    ("share", "degrees", "expected"),
    [
        (0.6, 3, 0.2766707),
        (0.75, 3, 0.7648923),
        (0.6, 4, 0.2707223),
        (0.75, 4, 0.7406971),
        (0.9, 4, 1.533206),
        (0.6, 5, 0.2671809),
        (0.75, 5, 0.7266868),
        (0.9, 5, 1.475884),
    ],
)
def test_quantiles_near_the_middle_are_those_of_the_table(
    share: float, degrees: int, expected: float
) -> None:
    assert student_quantile(share, degrees) == pytest.approx(expected, rel=1e-6)


def test_many_degrees_come_to_the_normal_distribution() -> None:
    assert student_quantile(0.995, 1e6) == pytest.approx(2.575829, abs=1e-4)


@pytest.mark.parametrize(("degrees", "expected"), [(3, 12.924), (4, 8.610), (5, 6.869), (10, 4.587)])
def test_quantiles_far_out_are_those_of_the_table(degrees: int, expected: float) -> None:
    assert student_quantile(0.9995, degrees) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize("share", [0.9, 0.975, 0.995, 0.9995])
def test_quantiles_at_4_degrees_are_those_of_the_closed_form(share: float) -> None:
    root = math.sqrt(4 * share * (1 - share))
    expected = 2 * math.sqrt(math.cos(math.acos(root) / 3) / root - 1)
    assert student_quantile(share, 4) == pytest.approx(expected, rel=1e-5)


def _share_below(t: float, degrees: int) -> float:
    """Return the closed form of the distribution of whole degrees [Abramowitz and Stegun, 26.7]."""
    angle = math.atan(t / math.sqrt(degrees))
    within = math.cos(angle) ** 2
    term = math.cos(angle) if degrees % 2 else 1.0
    terms = [term]
    for number in range(3 - (degrees + 1) % 2, degrees - 1, 2):
        term *= (number - 1) / number * within
        terms.append(term)
    inside = math.sin(angle) * sum(terms)
    return 1 / 2 + ((angle + inside) / math.pi if degrees % 2 else inside / 2)


@pytest.mark.parametrize(
    ("share", "degrees", "precision"),
    [
        *((share, 5, 5e-6) for share in (0.6, 0.75, 0.9, 0.975, 0.995, 0.9995)),
        (0.95, 3, 8e-6),
        (0.7, 3, 3e-8),
        (0.975, 4, 5e-8),
        (0.85, 5, 1e-9),
        (0.99, 5, 3e-8),
        (0.9999, 10, 1e-8),
    ],
)
def test_quantiles_have_their_share_below(share: float, degrees: int, precision: float) -> None:
    t = student_quantile(share, degrees)
    below, above = (_share_below(t * factor, degrees) for factor in (1 - precision, 1 + precision))
    assert below < share < above


@pytest.mark.parametrize(
    ("share", "expected"), [(0, 10), (25, 20), (50, 30), (100, 50), (10, 14), (95, 48), (99, 49.6)]
)
def test_percentiles_are_interpolated_between_the_values_around_them(share: float, expected: float) -> None:
    # five values: a quarter of the percents lies between each two of them
    assert percentile([50, 30, 10, 40, 20], share) == pytest.approx(expected)
    assert percentile([7], share) == 7


def test_a_curve_has_every_whole_percentile() -> None:
    curve = percentile_curve([200, 0, 100])
    assert curve == pytest.approx([2 * share for share in range(101)])


@pytest.mark.parametrize(
    ("count", "most", "kept"),
    [
        (3, 3, [0, 1, 2]),
        (4, 3, [0, 1, 2]),
        (7, 3, [0, 2, 4]),
        (0, 3, []),
        (10, 4, [0, 2, 5, 7]),
        (4, 4, [0, 1, 2, 3]),
    ],
)
def test_at_most_so_many_values_are_kept_evenly(count: int, most: int, kept: list[int]) -> None:
    assert evenly([*range(count)], most) == kept


def test_a_spread_has_the_deviation_of_a_sample() -> None:
    # 2, 4, 9 are 3, 1 and 4 from their mean of 5: the variance is 26 / 2
    found = spread([9, 2, 4])
    assert found == pytest.approx(
        {"count": 3, "mean": 5, "min": 2, "p50": 4, "p95": 8.5, "max": 9, "std": 13**0.5, "cv": 13**0.5 / 5}
    )
    assert "std" not in spread([9])
    around_0 = spread([-1, 1])
    assert (around_0["std"], "cv" in around_0) == (pytest.approx(2**0.5), False)
