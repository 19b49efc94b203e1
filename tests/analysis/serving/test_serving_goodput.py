"""Goodput under objectives that somebody states, or that the tool was given and recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from serving_files import aiperf, as_lines, measured, summary_only, vllm

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result import Result

SUMMARY = {
    "request_count": {"unit": "requests", "avg": 3.0},
    "request_latency": {"unit": "ms", "avg": 700 / 3},
    "benchmark_duration": {"unit": "sec", "avg": 2.0},
    "goodput": {"unit": "requests/sec", "avg": 1.0},
    "good_request_count": {"unit": "requests", "avg": 2.0},
}
OLDER = {"input_config": {"input": {"goodput": {"time_to_first_token": 250}}}}
NEWER = {"input_config": {"slos": {"time_to_first_token": 250.0}}}
"""Of the TTFTs 0.1, 0.3 and 0.2 s two are within 250 ms; the benchmark takes 2 s, so 1 request/s."""


def _goodput(folder: Path, **files: Any) -> Result:
    (result,) = measured(folder, "goodput", **files)
    return result


@pytest.mark.parametrize("config", [OLDER, NEWER], ids=["older", "newer"])
def test_the_objectives_of_aiperf_count_where_nobody_states_others(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    files = {"profile_export__jsonl": as_lines(aiperf()), "summary__json": SUMMARY | config}
    result = _goodput(tmp_path, **files)
    assert result.value == pytest.approx(2 / 2.0)
    assert result.details["objectives"] == {"ttft_s": 0.25}
    assert result.details["objectives_from"] == "the result of AIPerf"
    assert result.details["as_stored_requests_per_s"] == 1.0


def test_what_the_user_states_goes_before_the_objectives_in_the_file(tmp_path: Path) -> None:
    files = {"profile_export__jsonl": as_lines(aiperf()), "summary__json": SUMMARY | NEWER}
    result = _goodput(tmp_path, **files, run_metadata__json={"slo_ttft_s": 0.15})
    assert result.value == pytest.approx(1 / 2.0)
    assert result.details["objectives_from"] == "run_metadata.json"
    assert "as_stored_requests_per_s" not in result.details


@pytest.mark.parametrize("name", ["time_to_first_token", "output_token_throughput_per_user"])
def test_a_summary_alone_gives_the_goodput_that_the_tool_stored(tmp_path: Path, name: str) -> None:
    result = _goodput(tmp_path, summary__json=SUMMARY | {"input_config": {"slos": {name: 250}}})
    assert result.value == 1.0
    assert result.details["source"] == "as the tool stored it"
    assert list(result.details["objectives"].values()) == [0.25 if "first" in name else 250]


def test_a_goodput_without_its_objectives_stands_for_nothing(tmp_path: Path) -> None:
    result = _goodput(tmp_path, bench__json=summary_only(request_goodput=1.5))
    assert result.reason == (
        "no service-level objective is given; vLLM stored 1.5 requests/s but not the objectives"
    )


def test_an_objective_whose_time_nobody_measured_is_refused_and_not_missed_by_all(tmp_path: Path) -> None:
    not_streamed = vllm(ttfts=[0.0] * 3, itls=[[]] * 3, mean_ttft_ms=0.0, mean_tpot_ms=0.0)
    result = _goodput(tmp_path, bench__json=not_streamed, run_metadata__json={"slo_ttft_s": 1.0})
    assert result.reason == "no request has a ttft to compare with the objective"
