"""The section on a serving sweep: its points, its front, and what it does not print."""

from __future__ import annotations

from typing import Any

import pytest
from observations import looked, made, rows

from ccl_bench.report.page import report_page
from ccl_bench.report.render.text import text
from ccl_bench.report.sections.sweep import sweep
from ccl_bench.result.sweep import Repeated, Sweep, SweepObjective, SweepPoint


def point(concurrency: float, tpot_s: float, throughput: float, spread: float = 1.0) -> SweepPoint:
    """Return a point; with a spread above 1, of three results."""
    return SweepPoint(
        f"concurrency {concurrency:g}",
        concurrency,
        None,
        1 if spread == 1 else 3,
        ttft_s=Repeated(*[concurrency / 10] * 3),
        tpot_s=Repeated(*[tpot_s] * 3),
        interactivity=Repeated(*[1 / tpot_s] * 3),
        output_throughput=Repeated(throughput, throughput / spread, throughput * spread),
    )


POINTS = [point(1, 0.01, 200), point(2, 0.02, 400, 1.1), point(4, 0.025, 390)]
SWEEP = Sweep(
    "vllm",
    {"tool": "vllm", "model": "m", "disaggregated": "false"},
    POINTS,
    devices=4,
    devices_from="the results",
    objectives_s={"tpot": 0.015},
    front=[1, 0],
    knee=1,
    objective=SweepObjective(0.015, 1 / 0.015, 300 / 4),
)


def values(spec: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the data of each layer of a chart."""
    return [layer["data"]["values"] for layer in spec["layer"]]


def test_the_table_has_every_point_per_gpu_with_its_spread() -> None:
    points, objective = sweep(looked(sweep=SWEEP)).tables
    assert points.columns == (
        *("load", "TTFT", "TPOT", "tokens/s per user", "output tokens/s per GPU"),
        *("results", "Pareto"),
    )
    assert rows(points) == [
        ["concurrency 1", "100 ms", "10 ms", "100", "50", "1", "front"],
        ["concurrency 2", "200 ms", "20 ms", "50", "100 (90.91 to 110)", "3", "knee"],
        ["concurrency 4", "400 ms", "25 ms", "40", "97.5", "1", ""],
    ]
    assert rows(objective) == [["TPOT at most 15 ms", "66.67", "75"]]


def test_the_front_is_a_line_the_objective_hollow_and_ttft_only_measured() -> None:
    against_interactivity, against_ttft = sweep(looked(sweep=SWEEP)).charts
    line, points, hollow, labels = values(against_interactivity.spec)
    assert [each["name"] for each in line] == ["concurrency 2", "concurrency 1"]
    assert [each["kind"] for each in points] == ["on the Pareto front"] * 2 + ["dominated"]
    assert [(each["x"], each["y"], each["kind"]) for each in hollow] == [
        (pytest.approx(66.67, abs=0.01), 75.0, "interpolated, not measured")
    ]
    assert [(each["name"], each["label"]) for each in labels] == [("concurrency 2", "knee")]
    (measured,) = values(against_ttft.spec)
    assert [each["x"] for each in measured] == pytest.approx([100, 200, 400])


def test_without_a_number_of_gpus_throughput_is_that_of_all() -> None:
    unknown = Sweep("vllm", {"tool": "vllm"}, POINTS, why_no_devices="nothing states it", front=[1, 0])
    section = sweep(looked(sweep=unknown))
    assert "output tokens/s" in section.tables[0].columns
    assert "Throughput is that of all GPUs, not per GPU: nothing states it." in section.notes


def test_a_report_without_several_results_has_no_such_section() -> None:
    assert "Serving sweep" not in text(report_page(made()))
    refused = text(report_page(made(why_no_sweep="tp is 4 or 8")))
    assert "No curve: tp is 4 or 8." in refused
