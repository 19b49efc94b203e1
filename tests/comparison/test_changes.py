"""Verdicts on single metrics, from results written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from results_by_hand import error, mean_of, result

from ccl_bench.comparison.changes import Change, find_changes, judge_shares
from ccl_bench.comparison.noise import difference_interval
from ccl_bench.comparison.step_breakdown import Attribution, StepPart

if TYPE_CHECKING:
    from ccl_bench.result import Result

STEADY = (1.00, 1.01, 0.99, 1.00, 1.01, 0.99, 1.00, 1.01, 0.99, 1.00)


def changed(one: Result | None, other: Result | None, **options: object) -> Change:
    """Return the change of the one metric that the results are of."""
    name = (one or other).metric  # type: ignore[union-attr]
    sides = [{name: each} if each else {} for each in (one, other)]
    (found,) = find_changes(*sides, [name], **options)  # type: ignore[arg-type]
    return found


def scaled(factor: float) -> tuple[float, ...]:
    return tuple(factor * step for step in STEADY)


def test_a_slowdown_beyond_noise_is_worse() -> None:
    found = changed(mean_of(*STEADY), mean_of(*scaled(1.05)))
    assert found.verdict == "worse"
    assert found.difference == pytest.approx(0.05)
    assert found.relative == pytest.approx(0.05)
    assert found.interval is not None
    assert 0 < found.interval.low < 0.05 < found.interval.high
    assert found.samples == (10, 10)


@pytest.mark.parametrize(
    ("better", "verdict"), [("lower", "better"), ("higher", "worse"), ("neither", "changed")]
)
def test_the_direction_of_the_metric_decides(better: str, verdict: str) -> None:
    assert changed(mean_of(*STEADY, better=better), mean_of(*scaled(0.9), better=better)).verdict == verdict


def test_a_result_compared_with_itself_did_not_change() -> None:
    found = changed(mean_of(*STEADY), mean_of(*STEADY))
    assert (found.verdict, found.difference, found.relative, found.remarks) == ("no change", 0, 0, ())


def test_a_noisy_result_compared_with_itself_did_not_change_either() -> None:
    wild = (1.0, 3.0, 0.5)
    assert changed(mean_of(*wild), mean_of(*wild)).verdict == "no change"


def test_a_difference_within_noise_is_no_change() -> None:
    assert changed(mean_of(*STEADY), mean_of(*STEADY[::-1], 1.02)).verdict == "no change"


def test_a_certain_but_tiny_difference_is_no_change() -> None:
    # The steps are equal, so that 0.5 % is certain; below 1 % nothing is called worse.
    assert changed(mean_of(*[1.0] * 9), mean_of(*[1.005] * 9)).verdict == "no change"
    assert changed(mean_of(*[1.0] * 9), mean_of(*[1.005] * 9), tolerance=0.001).verdict == "worse"


def test_noise_that_could_hide_5_percent_says_so() -> None:
    found = changed(mean_of(1.0, 1.3, 0.8, 1.1), mean_of(1.1, 0.9, 1.2, 1.05))
    assert found.verdict == "cannot tell"
    assert "may hide in the noise" in found.remarks[0]
    assert "may be unstable: there are only 4 samples" in found.remarks
    assert found.is_unstable


def test_a_number_without_samples_shows_nothing_of_its_noise() -> None:
    found = changed(result(10.0), result(11.0))
    assert (found.verdict, found.interval) == ("cannot tell", None)
    assert "noise" in found.remarks[0]
    assert changed(result(10.0), result(10.0)).verdict == "no change"
    assert changed(result(10.0), result(10.05)).verdict == "no change"


def test_a_share_that_moves_by_less_than_a_tenth_of_a_point_is_no_change() -> None:
    one, other = (mean_of(*[value] * 9, unit="%") for value in (0.84, 0.80))
    assert changed(one, other).verdict == "no change"
    assert changed(mean_of(*[84.0] * 9, unit="%"), mean_of(*[80.0] * 9, unit="%")).verdict == "better"


def test_nothing_is_a_share_of_a_baseline_of_0() -> None:
    found = changed(mean_of(0.0, 0.0, 0.0), mean_of(0.5, 0.5, 0.5))
    assert (found.verdict, found.relative, found.difference) == ("worse", None, 0.5)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (mean_of(*STEADY, revision=2), "revision 1 and 2"),
        (mean_of(*STEADY, unit="ms"), "unit s and ms"),
        (mean_of(*STEADY, window="step_times.json"), "window ProfilerStep and step_times.json"),
        (mean_of(*STEADY, findings=[error("ranks-beyond-world")]), "error ranks-beyond-world on one side"),
        (mean_of(*STEADY, details={"kind": "estimated"}), "kind unknown and estimated"),
    ],
)
def test_numbers_of_different_kinds_are_not_judged(other: Result, said: str) -> None:
    found = changed(mean_of(*STEADY), other)
    assert (found.verdict, found.is_blocked) == ("cannot tell", True)
    assert found.remarks[0].startswith(said)


def test_an_error_on_both_sides_is_reported_and_judged() -> None:
    sides = [mean_of(*steps, findings=[error("clock-broken")]) for steps in (STEADY, scaled(1.05))]
    found = changed(*sides)
    assert found.verdict == "worse"
    assert found.remarks == (
        "error clock-broken on both sides: both numbers rest on data with the same error",
    )


def test_another_number_of_ranks_is_reported_and_judged() -> None:
    found = changed(mean_of(*STEADY), mean_of(*scaled(1.05), ranks=[0]))
    assert found.verdict == "worse"
    assert found.remarks[0].startswith("ranks 2 and 1")


def test_a_metric_that_one_side_lacks_is_reported_with_its_reason() -> None:
    missing = result(None, reason="no collective was matched")
    found = changed(mean_of(*STEADY), missing)
    assert (found.verdict, found.baseline, found.other) == ("cannot tell", pytest.approx(1.0), None)
    assert found.remarks == ("the other run has no value: no collective was matched",)
    assert changed(None, mean_of(*STEADY)).remarks == ("the baseline has no value",)


def test_a_metric_that_both_sides_lack_is_left_out() -> None:
    missing = result(None, reason="not applicable")
    assert find_changes({"m": missing}, {"m": missing}, ["m"]) == ()


def test_runs_that_do_not_compare_are_not_judged() -> None:
    found = changed(mean_of(*STEADY), mean_of(*scaled(2)), are_comparable=False)
    assert found.verdict == "not comparable"
    assert found.difference == pytest.approx(1.0)


def test_samples_of_a_variant_are_in_its_own_unit() -> None:
    # comm_comp_overlap_16 is the same number as a ratio; its details are in percent.
    sides = [
        result(value / 100, unit="ratio", better="higher", metric="comm_comp_overlap_16",
               details={"per_step_pct": {"1": value, "2": value}, "per_step_s": {}})
        for value in (40.0, 30.0)
    ]  # fmt: skip
    found = changed(*sides)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((-0.1, -0.1))


def test_requests_are_samples_too() -> None:
    sides = [
        result(v, metric="TTFT", details={"values_s": [v - 0.001, v, v + 0.001] * 10}) for v in (0.1, 0.12)
    ]
    assert [changed(*sides).samples, changed(*sides).verdict] == [(30, 30), "worse"]


def test_a_share_that_rises_because_the_step_shrank_is_not_worse() -> None:
    """Idle 20 % of 100 ms and 25 % of 80 ms are both 20 ms; 30 % of 80 ms are 24 ms."""
    idle = mean_of(20.0, 20.1, 19.9, 20.0, metric="gpu_idle", unit="%")
    for later, verdict in ((25.0, "changed"), (30.0, "worse")):
        more = mean_of(later, later + 0.1, later - 0.1, later, metric="gpu_idle", unit="%")
        changes = find_changes({"gpu_idle": idle}, {"gpu_idle": more}, ["gpu_idle"])
        assert changes[0].verdict == "worse"
        shorter = Attribution(StepPart("window", 0.1, 0.08, -0.02), ())
        assert judge_shares(changes, shorter, 0.01)[0].verdict == verdict
        longer = Attribution(StepPart("window", 0.08, 0.1, 0.02), ())
        assert judge_shares(changes, longer, 0.01)[0].verdict == "worse"


@pytest.mark.parametrize(
    ("better", "moved", "is_worse"),
    [
        ("lower", 1.0, True), ("lower", -1.0, False), ("lower", 0.0, False), ("lower", None, False),
        ("higher", -1.0, True), ("higher", 1.0, False), ("higher", 0.0, False), ("higher", None, False),
        ("neither", 1.0, False), ("neither", -1.0, False),
    ],
)  # fmt: skip
def test_worse_is_a_move_in_the_worse_direction(better: Any, moved: float | None, is_worse: bool) -> None:
    assert Change("m", "s", better, "cannot tell", difference=moved).is_worse is is_worse


@pytest.mark.parametrize(
    ("after", "verdict"), [(5.0, "cannot tell"), (4.5, "no change"), (3.0, "cannot tell")]
)
def test_a_change_of_the_tolerance_is_not_small(after: float, verdict: str) -> None:
    assert changed(result(4.0), result(after), tolerance=0.25).verdict == verdict
    assert changed(result(-4.0), result(-after), tolerance=0.25).verdict == verdict


def test_two_values_of_0_differ_by_a_share_of_0() -> None:
    found = changed(result(0.0), result(0.0))
    assert (found.relative, found.difference, found.verdict) == (0.0, 0.0, "no change")
    assert changed(result(-2.0), result(-3.0)).relative == -0.5


def test_a_difference_without_noise_is_not_unstable_however_few_samples_show_it() -> None:
    found = changed(mean_of(1.0, 1.0, 1.0), mean_of(1.5, 1.5, 1.5))
    assert (found.verdict, found.is_unstable, found.remarks) == ("worse", False, ())


@pytest.mark.parametrize(("reach", "verdict"), [(0.048, "no change"), (0.06, "cannot tell")])
def test_noise_may_hide_less_than_a_twentieth(reach: float, verdict: str) -> None:
    # Steps of the same mean; the interval is as wide as they spread.
    base = difference_interval(STEADY, STEADY[::-1])
    assert base is not None
    scale = reach / max(-base.low, base.high)
    steps = [1 + scale * (step - 1) for step in STEADY]
    found = changed(mean_of(*steps), mean_of(*steps[::-1]))
    assert found.verdict == verdict
    assert found.remarks == (() if reach < 0.05 else ("a change of up to 6 % may hide in the noise",))


def test_an_interval_lies_around_the_values_where_they_are_no_plain_means() -> None:
    # means 1 and 1.5, values 4 and 6: the interval of a difference of 0.5 moves to 2
    found = changed(result(4.0, *[1.0] * 8), result(6.0, *[1.5] * 8))
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == (2.0, 2.0)


def test_a_share_whose_time_grew_by_the_tolerance_is_not_worse() -> None:
    # 25 % of 80 ms are 20 ms; with a tolerance of a quarter, 16 ms before may have become 20 ms
    for before, verdict in ((16.0, "changed"), (15.9, "worse")):
        change = Change("gpu_idle", "%", "lower", "worse", before, 25.0)
        shorter = Attribution(StepPart("window", 0.1, 0.08, -0.02), ())
        assert judge_shares([change], shorter, 0.25)[0].verdict == verdict
        assert judge_shares([change], None, 0.25)[0].verdict == "worse"
        within = replace(shorter, is_within_noise=True)
        assert judge_shares([change], within, 0.25)[0].verdict == "worse"
        equal = replace(shorter, step=StepPart("window", 0.1, 0.1, 0.0))
        assert judge_shares([change], equal, 0.25)[0].verdict == "worse"
        assert judge_shares([replace(change, metric="mfu")], shorter, 0.25)[0].verdict == "worse"
