"""Limits as people write them, and what crosses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from results_by_hand import mean_of, result

from ccl_bench import metrics
from ccl_bench.base.errors import UsageError
from ccl_bench.comparison.changes import find_changes
from ccl_bench.comparison.thresholds import Judgement, judge_threshold, parse_threshold

if TYPE_CHECKING:
    from ccl_bench.result import Result

STEP, RATE, CALLS = "iteration_wall_clock_time", "throughput_tokens_sec", "coll_call_num"


def judgement(limit: str, *pairs: tuple[Result, Result]) -> Judgement:
    """Return what a limit comes to for the given pairs of results."""
    sides: list[dict[str, Result]] = [{r.metric: r for r in side} for side in zip(*pairs, strict=True)]
    found = find_changes(*sides, [one.metric for one, _ in pairs])
    return judge_threshold(parse_threshold(limit, metrics.load().canonical), found)


def pair(change: float, metric: str = STEP, better: str = "lower") -> tuple[Result, Result]:
    """Return steady results of which the second is larger by a share."""
    steps = [1.0, 1.01, 0.99] * 4
    return (
        mean_of(*steps, metric=metric, better=better),
        mean_of(*[step * (1 + change) for step in steps], metric=metric, better=better),
    )


@pytest.mark.parametrize(
    ("limit", "change", "outcome"),
    [
        (f"{STEP}>5%", 0.06, "crossed"), (f"{STEP}>5%", 0.04, "kept"), (f"{STEP}>5%", -0.06, "kept"),
        (f"{STEP}<-5%", -0.06, "crossed"), (f"{STEP}<-5%", 0.06, "kept"),
        (f"{STEP}:5%", 0.06, "crossed"), (f"{STEP}:5%", -0.06, "kept"),
        (f"{STEP}>0.05", 0.06, "crossed"), (f"{STEP} > 0.07", 0.06, "kept"), (f"{STEP}<5%", 0.06, "kept"),
        ("5%", 0.06, "crossed"), ("5 %", 0.04, "kept"), ("5%", -0.06, "kept"),
    ],
)  # fmt: skip
def test_a_limit_is_crossed_by_what_it_says(limit: str, change: float, outcome: str) -> None:
    assert judgement(limit, pair(change)).outcome == outcome


def test_worse_is_what_the_metric_calls_worse() -> None:
    falling = pair(-0.1, RATE, "higher")
    assert judgement(f"{RATE}:5%", falling).outcome == "crossed"
    assert judgement(f"{RATE}:5%", pair(0.1, RATE, "higher")).outcome == "kept"
    assert judgement("5%", falling) == Judgement("5%", "crossed", (RATE,))


def test_a_metric_without_a_better_side_crosses_by_changing_at_all() -> None:
    for change in (0.1, -0.1):
        assert judgement(f"{CALLS}:5%", pair(change, CALLS, "neither")).outcome == "crossed"
    assert judgement("5%", pair(0.0), pair(0.1, CALLS, "neither")).outcome == "kept"


def test_a_limit_that_asks_for_a_gain_is_crossed_without_one() -> None:
    assert judgement(f"{RATE}<5%", pair(0.0, RATE, "higher")).outcome == "crossed"
    assert judgement(f"{RATE}<5%", pair(0.1, RATE, "higher")).outcome == "kept"


def test_what_may_be_noise_crosses_nothing() -> None:
    noisy = mean_of(1.0, 1.4, 0.8, 1.2), mean_of(1.3, 1.0, 1.5, 1.1)  # 11 % apart, within noise
    assert judgement(f"{STEP}>5%", noisy).outcome == "kept"


def test_a_number_without_noise_is_taken_as_it_is_where_it_is_named() -> None:
    grown = tuple(result(value, metric="peak_memory_allocated", unit="GB") for value in (40.0, 44.0))
    assert judgement("peak_memory_allocated:5%", grown).outcome == "crossed"
    assert judgement("peak_memory_allocated>5", grown).outcome == "kept"
    assert judgement("5%", grown).outcome == "not judged"
    assert judgement("5%", grown, pair(0.0)).outcome == "kept"


@pytest.mark.parametrize("limit", [":10%", ">10%", "<10%", ":4", ">4", "<4"])
def test_a_limit_that_is_met_exactly_is_kept(limit: str) -> None:
    grown = tuple(result(value, metric="peak_memory_allocated", unit="GB") for value in (40.0, 44.0))
    assert judgement(f"peak_memory_allocated{limit}", grown).outcome == "kept"


@pytest.mark.parametrize(
    ("limit", "outcome"), [(":9.95%", "crossed"), (">3.95", "crossed"), ("<4.05", "crossed")]
)
def test_a_limit_is_crossed_just_beyond(limit: str, outcome: str) -> None:
    grown = tuple(result(value, metric="peak_memory_allocated", unit="GB") for value in (40.0, 44.0))
    assert judgement(f"peak_memory_allocated{limit}", grown).outcome == outcome


def test_a_limit_of_0_is_crossed_by_any_worsening() -> None:
    assert judgement(f"{STEP}:0%", pair(0.06)).outcome == "crossed"
    assert judgement(f"{STEP}:0", pair(-0.06)).outcome == "kept"
    assert judgement(f"{STEP}<5%", pair(0.0)).outcome == "crossed"


def test_runs_that_are_not_comparable_meet_no_limit() -> None:
    sides: list[dict[str, Result]] = [{STEP: each} for each in pair(0.06)]
    found = find_changes(*sides, [STEP], are_comparable=False)
    for text in ("5%", f"{STEP}:5%"):
        limit = parse_threshold(text, metrics.load().canonical)
        assert judge_threshold(limit, found).outcome == "not judged"
    assert judge_threshold(limit, found).reason == "the runs are not comparable"


def test_what_cannot_be_judged_is_not_kept() -> None:
    revised = mean_of(1.0, 1.0), mean_of(2.0, 2.0, revision=2)
    found = judgement(f"{STEP}:5%", revised)
    assert (found.outcome, found.metrics) == ("not judged", ())
    assert "revision" in found.reason
    assert "neither run" in judgement("mfu:5%", pair(0.1)).reason
    zero = mean_of(0.0, 0.0), mean_of(1.0, 1.0)
    assert judgement(f"{STEP}:5%", zero).reason == "the baseline is 0"
    assert judgement(f"{STEP}:0.5", zero).outcome == "crossed"


def test_an_alias_is_the_metric() -> None:
    assert parse_threshold("iter_time_16:5%", metrics.load().canonical).metric == STEP


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fast", "is not a valid limit"), ("", "is not a valid limit"), ("mfu>", "is not a valid limit"),
        ("mfu>x%", "is not a valid limit"),
        ("5", "names no metric"), ("mfu:-5%", "cannot be negative"), ("-5%", "cannot be negative"),
        ("mfv>5%", "did you mean mfu"), ("mfu>5%%", "is not a valid limit"),
        ("mfu>1e999", "is not a valid limit"),
    ],
)  # fmt: skip
def test_what_is_no_limit_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_threshold(text, metrics.load().canonical)
    assert said in str(refused.value)
