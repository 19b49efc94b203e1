"""The text report: one run as a page, and the name of its file."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from ccl_bench.report.render.text import COLUMNS, text, text_report_name
from ccl_bench.result import Result
from ccl_bench.result.inspection import InspectedFact, InspectedIssue, InspectedTrace, Inspection

MADE = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)


def _run(model: str = "llama3_8B", world_size: int | None = 16, **degrees: int) -> Inspection:
    facts = {axis: InspectedFact(degree, "workload card") for axis, degree in degrees.items()}
    return Inspection("runs/one", world_size, [0, 1], facts=facts, model=model)


def _ok(metric: str, value: float, unit: str = "s", **details: Any) -> Result:
    return Result(metric, "ok", unit, "neither", value, details=details)


def _missing(metric: str, reason: str) -> Result:
    return Result(metric, "not_measurable", "s", "neither", reason=reason)


def _lines(found: Inspection, *results: Result) -> list[str]:
    return [" ".join(line.split()) for line in text(found, results).splitlines()]


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (_run(dp_replicate=2, dp_shard=4, tp=2), "llama3_8B_dp2x4_tp2_gpu16"),
        (_run(dp_replicate=1, dp_shard=2, tp=2, pp=4), "llama3_8B_dp1x2_tp2_pp4_gpu16"),
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


def test_an_empty_run_is_a_short_page() -> None:
    assert _lines(Inspection("somewhere")) == [
        "CCL-Bench report: somewhere",
        "",
        "Run",
        "directory somewhere",
        "traces 0 files, 0 B",
        "",
        "Findings",
        "nothing wrong",
    ]


def test_findings_stand_before_the_numbers() -> None:
    found = _run()
    found.issues = [
        InspectedIssue("error", "half of it is lost", "file-truncated", "rank0.json", fix="again")
    ]
    lines = _lines(found, _ok("gpu_busy", 50.0, "%", per_rank_pct={"0": 40.0, "1": 60.0}))
    assert lines.index("error rank0.json: half of it is lost (file-truncated)") < lines.index("Throughput")
    assert "device busy 50.00 % rank 0: 40.00 % to rank 1: 60.00 %" in lines


def test_traffic_has_a_row_for_each_collective_and_one_for_all() -> None:
    traffic = _ok(
        "traffic_distribution_16",
        0.004,
        "GB",
        per_collective_gb={"all_reduce": 0.003, "all_gather": 0.001},
        per_collective_calls={"all_reduce": 6.0, "all_gather": 2.0, "barrier": 1.0},
        unattributed_calls_count=3,
    )
    times = _ok("total_communication_time", 0.02, per_collective_s={"all_reduce": 0.012, "barrier": 0.001})
    lines = _lines(_run(), traffic, times)
    start = lines.index("COLLECTIVE CALLS BYTES SHARE TIME")
    assert lines[start + 1 : start + 6] == [
        "all_reduce 6 3 MB 75.00 % 12 ms",
        "all_gather 2 1 MB 25.00 % -",
        "barrier 1 - - 1 ms",
        "all 9 4 MB 20 ms",
        "3 calls of unknown size in all",
    ]


def test_bandwidth_says_what_its_time_rests_on() -> None:
    bandwidth = _ok(
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
    lines = _lines(_run(), bandwidth, _missing("bandwidth_utilization_allreduce", "no allreduce"))
    assert "all_gather 146.800 GB/s 167.770 GB/s 29.36 % 1,200 20 GB upper bound between nodes" in lines
    assert "not measurable: no allreduce" in " ".join(lines[lines.index("No value for") :])


def test_what_is_missing_says_why_in_its_place_and_at_the_end() -> None:
    reason = "the number of tokens in a step is not known"
    lines = _lines(_run(), _missing("throughput_tokens_sec", reason))
    assert f"throughput - not measurable: {reason}" in lines
    assert lines[-3:] == ["No value for", "throughput_tokens_sec", f"not measurable: {reason}"]


def test_a_pipeline_is_shown_beside_its_theory() -> None:
    theory = {"formula": "(p-1)/(m+p-1)", "fraction_ratio": 3 / 11}
    bubble = _ok("bubble_size_pipeline", 0.1, fraction_ratio=0.4, theory=theory)
    assert "bubble 100 ms 40.00 % of the traced step; (p-1)/(m+p-1) gives 27.27 %" in _lines(_run(), bubble)


def test_no_line_of_a_file_is_longer_than_the_page() -> None:
    found = _run(tp=2)
    found.issues = [InspectedIssue("warning", "long " * 60, "ranks-missing")]
    found.traces = [InspectedTrace("rank0.json", "kineto", 10, 0, "file", None, [1, 2], "ProfilerStep")]
    written = text(found, [_missing("mfu", "because " * 40)])
    assert max(map(len, written.splitlines())) <= COLUMNS


def test_a_hostile_name_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in text(_run(model="\x1b[31mred"), [_missing("mfu", "\x1b[2J")])


def test_serving_results_are_told_with_their_percentiles() -> None:
    spread = {"mean": 0.2, "p50": 0.1, "p99": 0.9}
    lines = _lines(
        _run(), _ok("TTFT", 0.2, distribution_s=spread), _ok("output_throughput", 1234.5, "tokens/s")
    )
    start = lines.index("Serving")
    assert lines[start + 1 : start + 4] == [
        "Output tokens 1,234 tokens/s",
        "TIME MEAN P50 P90 P95 P99",
        "Time to first token 200 ms 100 ms - - 900 ms",
    ]
    assert "Serving" not in _lines(_run(), _missing("TTFT", "no benchmark"))
