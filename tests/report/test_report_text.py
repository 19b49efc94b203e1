"""The text report: the page of a run for a terminal, and the name of its file."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from observations import ok

from ccl_bench.base.findings import Issue
from ccl_bench.report.console import to_text
from ccl_bench.report.page import identity, report_page, title
from ccl_bench.report.render.text import COLUMNS, text, text_page, text_report_name
from ccl_bench.result import Result
from ccl_bench.result.inspection import InspectedFact, InspectedGroup, InspectedTrace, Inspection
from ccl_bench.result.report_data import MessageSize, ReportData, Series

MADE = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)


def _run(model: str = "llama3_8B", world_size: int | None = 16, **degrees: int) -> Inspection:
    facts = {axis: InspectedFact(degree, "workload card") for axis, degree in degrees.items()}
    return Inspection("runs/one", world_size, [0, 1], facts=facts, model=model)


def _missing(metric: str, reason: str, fix: str = "") -> Result:
    return Result(metric, "not_measurable", "s", "neither", reason=reason, fix=fix, is_repairable=bool(fix))


def _text(found: Inspection, *results: Result, **series: Any) -> str:
    return text(report_page(ReportData(found, list(results), Series(**series))))


def _lines(found: Inspection, *results: Result, **series: Any) -> list[str]:
    return [" ".join(line.split()) for line in _text(found, *results, **series).splitlines()]


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (_run(dp_replicate=2, dp_shard=4, tp=2), "llama3_8B_dp2x4_tp2_gpu16"),
        (_run(dp_replicate=1, dp_shard=2, tp=2, pp=4), "llama3_8B_dp1x2_tp2_pp4_gpu16"),
        (_run(dp_replicate=2, dp_shard=2, tp=2, pp=2), "llama3_8B_dp2x2_tp2_pp2_gpu16"),
        (_run(dp_replicate=2, tp=2, pp=1), "llama3_8B_dp2x4_tp2_gpu16"),
        (_run(tp=16), "llama3_8B_dp1x1_tp16_gpu16"),
        (_run(), "llama3_8B_gpu16"),
        (_run(world_size=None, tp=2), "llama3_8B_dp1x1_tp2_gpu2"),
        (_run(model=""), "one_gpu16"),
        (_run(model="org/my model: 8B", tp=4), "org_my_model_8B_dp1x4_tp4_gpu16"),
        (_run(model="../../etc", tp=16), "etc_dp1x1_tp16_gpu16"),
    ],
)
def test_the_file_is_named_after_time_model_degrees_and_gpus(found: Inspection, name: str) -> None:
    assert text_report_name(found, MADE) == f"20260203_040506_{name}.txt"


def test_degrees_that_no_fact_states_come_from_the_process_groups() -> None:
    found = _run(world_size=8)
    found.groups = [
        InspectedGroup("mesh_dp_shard", 4, [0, 2, 4, 6], "dp_shard", 4),
        InspectedGroup("mesh_tp", 2, [0, 1], "tp", 2),
        InspectedGroup("mesh_pp", 8, [0, 1], "pp", 0),  # nobody used it
    ]
    assert text_report_name(found, MADE) == "20260203_040506_llama3_8B_dp1x4_tp2_gpu8.txt"


def test_an_empty_run_is_a_short_page() -> None:
    lines = _lines(Inspection("somewhere"))
    assert lines[:9] == [
        "CCL-Bench report: somewhere",
        "directory somewhere",
        "traces 0 files, 0 B",
        "",
        "Data quality",
        "complete",
        "",
        "Headline numbers",
        "No metric has a value for this run.",
    ]


def test_findings_stand_before_the_numbers() -> None:
    found = _run()
    found.issues = [Issue("error", "half of it is lost", "file-truncated", "rank0.json", fix="again")]
    lines = _lines(found, ok("gpu_busy", 50.0, "%", per_rank_pct={"0": 40.0, "1": 60.0}))
    error = lines.index("error rank0.json: half of it is lost (file-truncated)")
    assert lines[error + 1] == "fix: again"
    assert error < lines.index("Headline numbers")
    assert "Device busy 50.00 % rank 0: 40.00 % to rank 1: 60.00 %" in lines


def test_traffic_has_a_row_for_each_collective() -> None:
    traffic = ok(
        "traffic_distribution_16",
        0.004,
        "GB",
        per_collective_gb={"all_reduce": 0.003, "all_gather": 0.001},
        per_collective_calls={"all_reduce": 6.0, "all_gather": 2.0, "barrier": 1.0},
        unattributed_calls_count=3,
    )
    times = ok("total_communication_time", 0.02, per_collective_s={"all_reduce": 0.012, "barrier": 0.001})
    lines = _lines(_run(), traffic, times)
    start = lines.index("COLLECTIVE CALLS BYTES SHARE OF BYTES TIME")
    assert lines[start + 1 : start + 5] == [
        "all_reduce 6 3 MB 75.00 % 12 ms",
        "all_gather 2 1 MB 25.00 % -",
        "barrier 1 - - 1 ms",
        "3 calls of unknown size in all.",
    ]


def test_bandwidth_says_what_its_time_rests_on() -> None:
    bandwidth = ok(
        "bandwidth_utilization_allgather",
        146.8,
        "GB/s",
        algorithm_bandwidth_gb_per_s=167.77,
        calls_count=1200,
        total_bytes=20e9,
        basis="upper bound",
        reach="between nodes",
        share_of_link_pct=29.36,
    )
    sizes = [MessageSize("all_gather", "dp", "between nodes", "raw", 8, 8, 1200, 1.0, 2.0, 3.0)]
    lines = _lines(_run(), bandwidth, bus_bandwidth=sizes)
    assert "all_gather 146.8 GB/s 167.8 GB/s 29.36 % 1,200 20 GB upper bound between nodes" in lines


def test_what_is_missing_says_why_and_what_would_give_it() -> None:
    reason = "the number of tokens in a step is unknown"
    lines = _lines(_run(), _missing("throughput_tokens_sec", reason, "write seq_len"))
    start = lines.index("No value for")
    below = " ".join(lines[start : lines.index("Definitions")])
    for part in ("throughput_tokens_sec", "not measurable", reason, "write seq_len"):
        assert part in below


def test_a_chart_is_its_summary(observed: ReportData) -> None:
    page = report_page(observed)
    shown = " ".join(text(page).split())
    for chart in page.charts():
        assert f"{chart.title}: {chart.summary}" in shown


def test_no_line_of_a_file_is_longer_than_the_page(observed: ReportData) -> None:
    found = _run(tp=2)
    found.issues = [Issue("warning", "long " * 60, "ranks-missing")]
    found.traces = [InspectedTrace("rank0.json" * 20, "kineto", 10, 0, "file", None, [1, 2], "ProfilerStep")]
    for written in (_text(found, _missing("mfu", "because " * 40, "write it")), text(report_page(observed))):
        assert max(map(len, written.splitlines())) <= COLUMNS


@pytest.mark.parametrize("columns", [60, COLUMNS, 1000])
def test_nothing_is_cut_whatever_the_width(observed: ReportData, columns: int) -> None:
    page = report_page(observed)
    shown = to_text(text_page(page), width=columns)
    assert "…" not in shown
    in_one = "".join(shown.split())
    for section in page.appendix:
        for table in section.tables:
            for row in table.rows:
                for cell in row:
                    word = cell if isinstance(cell, str) else cell.text or getattr(cell, "metric", "")
                    assert "".join(word.split()) in in_one or word == "-"


def test_a_hostile_name_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in _text(_run(model="\x1b[31mred"), _missing("mfu", "\x1b[2J"))


def test_serving_results_have_their_percentiles() -> None:
    spread = {"mean": 0.2, "p50": 0.1, "p99": 0.9}
    results = (ok("TTFT", 0.2, distribution_s=spread), ok("output_throughput", 1234.5, "tokens/s"))
    lines = _lines(_run(), *results)
    assert "Output throughput 1,234 tokens/s" in lines
    start = lines.index("LATENCY MEAN P50 P99")
    assert lines[start + 1] == "Time to first token 200 ms 100 ms 900 ms"
    assert "Serving" not in _lines(_run(), _missing("TTFT", "no benchmark"))


def test_the_head_of_a_page_states_what_the_run_is() -> None:
    traces = [
        InspectedTrace("a.json", "kineto", 1000, 0, "file", 20, [1, 2], "ProfilerStep"),
        InspectedTrace("b.json", "nsys", 2000, 1, "file", 10, [2, 3], "annotations"),
    ]
    found = _run(tp=2, dp_shard=4)
    found.traces, found.missing_ranks, found.choice = traces, [2, 3], "steps 1-3"
    found.libraries = {"nccl_version": ["2.27", "2.28"]}
    assert dict(identity(found)) == {
        "directory": "runs/one", "model": "llama3_8B", "parallelism": "dp_shard 4, tp 2",
        "ranks": "2 of 16: 0-1; missing 2-3", "devices": "", "libraries": "nccl_version 2.27 and 2.28",
        "traces": "2 kineto, nsys files, 3 kB", "windows": "10, 20",
        "steps": "3 steps (numbers 1-3), from ProfilerStep, annotations; chosen: steps 1-3",
    }  # fmt: skip
    assert title(found) == "llama3_8B"
    assert title(Inspection("runs/two/")) == "two"
    assert title(Inspection("/")) == "/"
    assert dict(identity(Inspection("a")))["ranks"] == ""
