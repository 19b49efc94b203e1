"""Fronts against brute force, values between points against measured ones that were left out."""

from __future__ import annotations

import csv
import functools
import os
import re
import statistics
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccl_bench.analysis.serving.curves import interpolated, knee, pareto_front

SILICON = Path(os.environ.get("CCL_BENCH_CORPUS", ""), "serving-ground-truth/silicon.csv")
NEEDS_SILICON = pytest.mark.skipif(not SILICON.is_file(), reason="CCL_BENCH_CORPUS lacks silicon.csv")
NO_CONFIGURATION = {
    "id",
    "silicon_data_source",
    "silicon_ttft_ms",
    "silicon_tpot_ms",
    "batch_size",
    "prefill_batch_size",
    "decode_batch_size",
}
LENGTH_OF_MEASURED_CURVES = 4


def brute_front(xs: list[float], ys: list[float]) -> list[int]:
    """Return the front by comparing each point with each other one."""

    def is_dominated(i: int) -> bool:
        return any(
            (xs[j] >= xs[i] and ys[j] >= ys[i] and (xs[j] > xs[i] or ys[j] > ys[i]))
            or (j < i and xs[j] == xs[i] and ys[j] == ys[i])
            for j in range(len(xs))
        )

    return sorted((i for i in range(len(xs)) if not is_dominated(i)), key=lambda i: xs[i])


@functools.cache
def silicon_curves() -> list[tuple[int, dict[float, tuple[float, float]]]]:
    """Return published curves: output tokens, and concurrency → median TTFT and TPOT, ms."""
    groups: dict[tuple[str, ...], dict[float, list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in csv.DictReader(SILICON.read_text().splitlines()):
        load = re.search(r"silicon_concurrency=(\d+)", row["silicon_data_source"])
        if row["mode"] == "agg" and load:
            settings = (value for name, value in row.items() if name not in NO_CONFIGURATION)
            key = (row["osl"], *settings)
            times = float(row["silicon_ttft_ms"]), float(row["silicon_tpot_ms"])
            groups[key][float(load[1])].append(times)
    return [
        (
            int(key[0]),
            {
                load: (statistics.median(t for t, _ in times), statistics.median(t for _, t in times))
                for load, times in sorted(curve.items())
            },
        )
        for key, curve in groups.items()
        if len(curve) >= LENGTH_OF_MEASURED_CURVES
    ]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=30))
def test_the_front_is_that_of_brute_force(points: list[tuple[int, int]]) -> None:
    xs, ys = [float(x) for x, _ in points], [float(y) for _, y in points]
    assert pareto_front(xs, ys) == brute_front(xs, ys)


def test_equal_points_keep_the_first() -> None:
    assert pareto_front([1, 2, 2, 1], [5, 3, 3, 5]) == [0, 1]


def rates(osl: int, curve: dict[float, tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Return interactivity and output tokens/s: those of all requests in flight over the time of one."""
    throughput = [1000 * load * osl / (ttft + (osl - 1) * tpot) for load, (ttft, tpot) in curve.items()]
    return [1000 / tpot for _, tpot in curve.values()], throughput


@NEEDS_SILICON
def test_fronts_of_published_curves_are_those_of_brute_force() -> None:
    curves = silicon_curves()
    assert len(curves) == 343
    for osl, curve in curves:
        xs, ys = rates(osl, curve)
        assert pareto_front(xs, ys) == brute_front(xs, ys)


@NEEDS_SILICON
def test_throughput_at_an_interactivity_is_mostly_too_low() -> None:
    errors = []
    for osl, curve in silicon_curves():
        xs, ys = rates(osl, curve)
        front = brute_front(xs, ys)
        for place in front[1:-1]:
            others = [each for each in front if each != place]
            value = interpolated([xs[each] for each in others], [ys[each] for each in others], xs[place])
            assert value is not None
            errors.append(value / ys[place] - 1)
    # What the report states of its interpolated points.
    assert statistics.mean(map(abs, errors)) == pytest.approx(0.12, abs=0.005)
    assert sum(error < 0 for error in errors) > 0.8 * len(errors)


def left_out_errors(which: int) -> list[float]:
    """Return the relative error at each inner point of each curve, computed from the other points."""
    errors = []
    for _, curve in silicon_curves():
        loads, values = list(curve), [times[which] for times in curve.values()]
        for i in range(1, len(loads) - 1):
            value = interpolated(loads[:i] + loads[i + 1 :], values[:i] + values[i + 1 :], loads[i])
            assert value is not None
            errors.append(abs(value / values[i] - 1))
    return errors


@NEEDS_SILICON
@pytest.mark.parametrize(
    ("which", "mean", "median"), [(0, 0.22, 0.073), (1, 0.053, 0.040)], ids=["ttft", "tpot"]
)
def test_errors_of_left_out_points_are_the_published_ones(which: int, mean: float, median: float) -> None:
    errors = left_out_errors(which)
    assert statistics.mean(errors) == pytest.approx(mean, rel=0.02)
    assert statistics.median(errors) == pytest.approx(median, rel=0.02)


def test_a_power_law_is_interpolated_exactly_and_never_extrapolated() -> None:
    xs, ys = [8.0, 1.0, 2.0], [24.0, 3.0, 6.0]
    assert interpolated(xs, ys, 4.0) == pytest.approx(12.0)
    assert interpolated(xs, ys, 8.0) == 24.0
    assert interpolated(xs, ys, 0.999) is None
    assert interpolated(xs, ys, 8.001) is None
    assert interpolated([], [], 1.0) is None


def test_points_without_a_logarithm_or_with_two_values_are_refused() -> None:
    with pytest.raises(ValueError, match="not positive"):
        interpolated([0.0, 1.0], [1.0, 1.0], 0.5)
    with pytest.raises(ValueError, match="two values"):
        interpolated([1.0, 1.0], [1.0, 2.0], 1.0)


def test_the_knee_is_farthest_above_the_chord() -> None:
    # Log-log, scaled: (0, 1), (1/2, 3/4), (3/4, 1/2), (1, 0); above the chord by 0, 1/4, 1/4 - with the
    # third moved to (3/4, 3/4) by 1/2. The point (1, 1) lies below the front.
    xs = [1.0, 1.0, 10**0.5, 10**0.75, 10.0]
    ys = [10.0, 1.1, 10**0.8, 10**0.75, 1.0]
    assert knee(xs, ys) == 3


def test_a_straight_or_hollow_front_has_no_knee() -> None:
    assert knee([1, 10, 100], [100, 10, 1]) is None
    assert knee([1, 10, 100], [100, 5, 1]) is None
    assert knee([1, 10, 100], [100, 11, 1]) == 1
    assert knee([1, 10], [10, 1]) is None
