"""Two serving sweeps at equal interactivity, with ratios that are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ccl_bench.comparison.compare import compare_runs
from ccl_bench.comparison.run_results import RunResults
from ccl_bench.comparison.sweeps import compare_sweeps
from ccl_bench.report.comparison.markdown import markdown
from ccl_bench.report.comparison.page import html
from ccl_bench.report.comparison.text import page
from ccl_bench.report.console import to_text
from ccl_bench.result.sweep import Repeated, Sweep, SweepPoint


def sweep(points: dict[float, float], **changes: Any) -> Sweep:
    """Return a sweep of two GPUs with interactivity → output tokens/s, by falling interactivity."""
    measured = [
        SweepPoint(
            f"concurrency {number}",
            number,
            None,
            1,
            interactivity=Repeated(*[interactivity] * 3),
            output_throughput=Repeated(*[throughput] * 3),
        )
        for number, (interactivity, throughput) in enumerate(points.items(), 1)
    ]
    whole = Sweep(
        "vllm",
        {"model": "m"},
        measured,
        input_tokens=1024,
        output_tokens=1024,
        devices=2,
        front=[*range(len(points))][::-1],
    )
    return replace(whole, **changes)


BASELINE = sweep({100: 100, 25: 400})
"""Throughput is 10,000 / interactivity on the whole front."""
OTHER = sweep({200: 150, 50: 600})
"""Three times that."""


def test_throughput_is_compared_where_both_have_points_on_either_side() -> None:
    change = compare_sweeps(RunResults("a", {}, sweep=BASELINE), RunResults("b", {}, sweep=OTHER))
    assert change is not None
    assert [point.interactivity for point in change.points] == [50, 100]
    assert [point.ratio for point in change.points] == pytest.approx([3, 3])
    assert [(point.baseline, point.other) for point in change.points] == [
        (pytest.approx(100), 300),
        (50, pytest.approx(150)),
    ]
    sides = [(point.is_baseline_measured, point.is_other_measured) for point in change.points]
    assert sides == [(False, True), (True, False)]


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (replace(OTHER, configuration={"model": "n"}), "they serve different models: m and n"),
        (replace(OTHER, output_tokens=512), "the output tokens of a request differ: 1024 and 512"),
        (replace(OTHER, input_tokens=None), "the input tokens of a request are unknown"),
        (replace(OTHER, objectives_s={"tpot": 0.02}), "their objectives differ: none and tpot 0.02 s"),
        (replace(OTHER, devices=None, why_no_devices="nothing states GPUs"), "nothing states GPUs"),
        (sweep({400: 10, 200: 20}), "their measured ranges of interactivity do not overlap"),
    ],
)
def test_other_work_is_refused_with_the_reason(other: Sweep, reason: str) -> None:
    sides = RunResults("a", {}, sweep=BASELINE), RunResults("b", {}, sweep=other)
    change = compare_sweeps(*sides)
    assert change is not None
    assert (change.points, change.refused) == ((), reason)
    assert compare_runs(sides, []).exit_status == 3


def test_a_run_that_is_no_sweep_is_refused_and_two_are_not_mentioned() -> None:
    side, none = RunResults("a", {}, sweep=BASELINE), RunResults("b", {})
    refused = compare_sweeps(side, none)
    assert refused is not None
    assert refused.refused.startswith("the run is no sweep: it holds fewer than two results")
    assert compare_sweeps(none, none) is None


def test_each_form_shows_the_rows() -> None:
    comparison = compare_runs([RunResults("a", {}, sweep=BASELINE), RunResults("b", {}, sweep=OTHER)], [])
    for shown in (to_text(page(comparison)), markdown(comparison), html(comparison)):
        assert "The run has 3 times the throughput of the baseline from 50 to 100" in shown
