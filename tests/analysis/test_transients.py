"""Steps unlike the others: warm-up at the beginning and outliers are found, and noise is neither."""

from hypothesis import given
from hypothesis import strategies as st

from ccl_bench.analysis.derived import DERIVED
from ccl_bench.analysis.steps.findings import outliers, transient_findings, warm_up

MS = 1_000_000


def noisy(least=8.1, most=11.9, fewest=3, longest=60):
    """Lengths within 20 % of 10 ms, in ns."""
    return st.lists(st.integers(int(least * MS), int(most * MS)), min_size=fewest, max_size=longest)


def times(*windows, source="step_times.json"):
    """Return a table of step times, in ms, of one rank in one or several recording windows."""
    rows = [
        (10 * window if len(windows) > 1 else None, step, round(length * MS))
        for window, lengths in enumerate(windows)
        for step, length in enumerate(lengths)
    ]
    iterations, steps, lengths = zip(*rows, strict=True)
    columns = {"iteration": iterations, "rank": [0] * len(rows), "step": steps, "duration_ns": lengths}
    return DERIVED.get("step_times").table.frame({**columns, "source": [source] * len(rows)})


@given(noisy())
def test_noise_is_neither_warm_up_nor_an_outlier(lengths):
    assert warm_up(lengths) == 0
    assert outliers(lengths) == []


@given(st.lists(st.floats(2.5, 1_000), min_size=1, max_size=5), noisy(fewest=5), st.integers(1, 10**9))
def test_slow_first_steps_are_warm_up_at_every_scale(factors, rest, scale):
    first = [factor * max(rest) for factor in factors]
    assert warm_up([length * scale for length in first + rest]) == len(factors)


@given(noisy(fewest=6), st.floats(2.5, 1_000), st.data())
def test_a_slow_step_after_usual_ones_is_an_outlier_and_no_warm_up(lengths, factor, data):
    place = data.draw(st.integers(3, len(lengths) - 1))
    lengths[place] = round(factor * max(lengths))
    assert warm_up(lengths) == 0
    noise = sorted(abs(length - sorted(lengths)[len(lengths) // 2]) for length in lengths)
    if lengths[place] > 20 * MS + 9 * noise[len(noise) // 2]:
        assert outliers(lengths) == [place]


@given(st.lists(st.integers(1, 10**12), max_size=30))
def test_whatever_the_lengths_half_of_the_steps_are_no_warm_up(lengths):
    count = warm_up(lengths)
    assert 2 * count <= len(lengths)
    assert count == 0 or min(lengths[:count]) > max(lengths[count:])


def test_two_steps_say_nothing_of_each_other():
    assert warm_up([2_000, 10]) == 0
    assert warm_up([2_000, 10, 10]) == 1


def test_a_first_step_of_exactly_one_and_a_half_times_the_median_is_no_warm_up():
    assert warm_up([15, 10, 10, 10]) == 0
    assert warm_up([16, 10, 10, 10]) == 1


def test_a_first_step_as_far_above_the_longest_as_that_is_above_the_shortest_is_no_warm_up():
    # 14 - 8 = 6 above 14 is 20, which is more than 1.5 times the median of 10
    assert warm_up([20, 14, 10, 10, 10, 8]) == 0
    assert warm_up([21, 14, 10, 10, 10, 8]) == 1


def test_warm_up_that_fades_is_found_to_its_end():
    # After three steps the rest lies between 10 and 11, so that its limit is 15.
    assert warm_up([2_000, 500, 100, 11, 10, 10, 10, 10]) == 3


def test_a_step_on_the_limit_of_noise_is_no_outlier():
    # deviations are 0, 0, 5, 5, 5, 5 and more: the noise is 1.4826 x 5000 = 7413, and six times that is 44478
    lengths = [30_000, 30_000, 35_000, 25_000, 35_000, 25_000]
    assert outliers([*lengths, 30_000 + 44_478]) == []
    assert outliers([*lengths, 30_000 + 44_479]) == [6]


def test_a_step_of_twice_or_half_the_median_is_no_outlier():
    assert outliers([40, 40, 40, 40, 40, 80]) == outliers([40, 40, 40, 40, 40, 20]) == []
    assert outliers([40, 40, 40, 40, 40, 81]) == outliers([40, 40, 40, 40, 40, 19]) == [5]
    assert outliers([40, 40, 40, 81]) == []  # four steps are too few
    assert outliers([40, 40, 40, 40, 81]) == [4]  # a fifth of them


def test_two_kinds_of_steps_are_no_outliers():
    assert outliers([10, 10, 40, 10, 10, 40]) == []  # a third of them
    assert outliers([10, 10, 10, 10, 10, 40]) == [5]  # a sixth


def test_a_step_that_is_too_short_is_an_outlier():
    assert outliers([10, 10, 10, 10, 10, 2]) == [5]


def test_warm_up_is_reported_with_its_length_and_the_mean_without_it():
    # (2,000 + 5 · 10) / 6 = 341.67 ms
    (found,) = transient_findings(None, times([2_000, 10, 10, 10, 10, 10]))
    assert (found.code, found.severity, found.count) == ("warmup-steps", "warning", 1)
    assert found.touches == ("step_times",)
    for part in ("step 0 takes 2 s", "others is 0.01 s", "is 0.3417 s", "(--skip-steps 1) 0.01 s"):
        assert part in found.message


def test_warm_up_that_moves_no_mean_is_a_note():
    # One step of twice the length in 500: the mean is 0.2 % longer.
    (found,) = transient_findings(None, times([20] + [10] * 500))
    assert found.severity == "note"


def test_warm_up_that_makes_the_mean_longer_by_one_percent_exactly_is_a_note():
    # (151 + 50 x 100) / 51 = 101
    severities = [transient_findings(None, times([n] + [100] * 50))[0].severity for n in (151, 152)]
    assert severities == ["note", "warning"]


def test_each_recording_window_has_its_own_warm_up():
    # --skip-steps 2 leaves out two steps of each window: (10 + 10 + 10) / 3 of the first and the second.
    lengths = [100, 10, 10, 10, 10], [300, 200, 10, 10, 10]
    (found,) = transient_findings(None, times(*lengths))
    assert found.count == 3
    assert "step 0:0 takes 0.1 s, step 10:0 takes 0.3 s, step 10:1 takes 0.2 s" in found.message
    assert "(--skip-steps 2) 0.01 s" in found.message


def test_an_outlier_is_reported_beside_warm_up():
    found = transient_findings(None, times([2_000, *[10] * 10, 70, *[10] * 10]))
    assert [finding.code for finding in found] == ["warmup-steps", "outlier-steps"]
    assert found[1].message == "step 11 takes 0.07 s, but the median step takes 0.01 s"


def test_the_slowest_rank_makes_the_length_of_a_step():
    table = times([10, 10, 10, 10])
    slow = table.with_columns(rank=1 + 0 * table["rank"], duration_ns=table["duration_ns"] * 5).head(1)
    assert transient_findings(None, table) == []
    (found,) = transient_findings(None, table.vstack(slow))
    assert "step 0 takes 0.05 s" in found.message
