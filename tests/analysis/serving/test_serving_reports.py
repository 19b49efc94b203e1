"""Reports of AIPerf, inference-perf and GuideLLM: what they state of all requests, and several loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from serving_files import (
    DURATION,
    codes,
    guidellm,
    guidellm_report,
    inference_perf,
    inference_perf_summary,
    measured,
    read,
    vllm,
)

if TYPE_CHECKING:
    from pathlib import Path

RATES = ("request_throughput", "output_throughput", "total_token_throughput")
TIMES = ("TTFT", "TPOT", "ITL", "request_latency")


def _values(folder: Path, *names: str, **files: Any) -> list[float | None]:
    return [result.value for result in measured(folder, *names, **files)]


def test_rates_that_aiperf_states_are_read_where_it_states_no_duration(tmp_path: Path) -> None:
    summary = {
        "request_throughput": {"unit": "requests/sec", "avg": 0.5},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 44.9},
        "request_latency": {"unit": "ms", "avg": 2000.0},
        "request_count": {"unit": "requests", "avg": 80.0},
        "input_config": {"endpoint": {"streaming": False}},
    }
    results = measured(tmp_path, *RATES, "TTFT", summary__json=summary)
    assert [result.value for result in results] == [0.5, 44.9, None, None]
    assert results[0].details["source"] == "as the tool stored it"
    assert results[3].reason.startswith("the answers were not streamed")


def test_a_rate_that_can_be_computed_is_not_the_stored_one(tmp_path: Path) -> None:
    assert _values(tmp_path, "request_throughput", bench__json=vllm(request_throughput=9.0)) == [3 / DURATION]


def test_requests_of_inference_perf_give_the_times_that_its_summary_states(tmp_path: Path) -> None:
    expected = [0.2, 0.04, 0.1 / 3, 0.7 / 3]
    listed, summarised = tmp_path / "listed", tmp_path / "summarised"
    listed.mkdir()
    summarised.mkdir()
    assert _values(listed, *TIMES, requests__json=inference_perf()) == pytest.approx(expected)
    summary = inference_perf_summary()
    # 3 requests at 1.5 a second are 2 s.
    assert _values(summarised, *TIMES, *RATES, summary__json=summary) == pytest.approx(
        [*expected, 1.5, 3.0, 33.0]
    )


def test_a_folder_of_one_load_stage_is_one_benchmark(tmp_path: Path) -> None:
    files = {
        "per_request__json": inference_perf(),
        "stage_0__json": inference_perf_summary({"requested_rate": 1.0}),
        "summary__json": inference_perf_summary(),
    }
    results = measured(tmp_path, "TTFT", "request_throughput", **files)
    assert [result.value for result in results] == pytest.approx([0.2, 1.5])
    assert [finding.code for finding in results[0].findings] == []


def test_several_load_stages_are_refused_with_their_loads(tmp_path: Path) -> None:
    other = inference_perf_summary({"requested_rate": 4.0})
    other["successes"] = other["successes"] | {"count": 5}
    stages = {"stage_0__json": inference_perf_summary({"requested_rate": 2.0}), "stage_1__json": other}
    (result,) = measured(tmp_path, "TTFT", **stages)
    assert "2 results" in result.reason
    assert "2 requests/s, 3 completed; 4 requests/s, 5 completed" in result.reason
    assert "stage_0_lifecycle_metrics.json" in result.fix


def test_a_time_per_piece_of_older_inference_perf_is_no_time_per_token(tmp_path: Path) -> None:
    # latency - ttft = 0.1/3 s for one further token of the mean answer; half of it is no rounding.
    summary = inference_perf_summary()
    summary["successes"]["latency"]["time_per_output_token"] = {"mean": 0.05 / 3}
    results = measured(tmp_path, "TPOT", "ITL", summary__json=summary)
    assert [result.status for result in results] == ["not_measurable", "ok"]
    assert codes(read(summary)) == ["statistics-disagree"]


def test_failed_requests_of_inference_perf_have_no_times() -> None:
    entries = inference_perf()
    entries[1] |= {"error": {"error_type": "HTTP Error 503", "error_msg": "busy"}, "info": {}}
    requests = read(entries).table("requests")
    assert requests["status"].to_list() == ["ok", "failed", "ok"]
    assert requests["error"][1] == "busy"
    assert requests["latency_s"][1] is None


def test_what_inference_perf_asks_of_prometheus_is_no_result_of_requests() -> None:
    from ccl_bench.trace import formats

    successes = b'"successes": {"count": 3, "request_latency": {}, "throughput": 1, "queue_len": {}}'
    head = b'{"load_summary": {}, ' + successes + b', "failures": {}}'
    form = formats.recognised(head)
    assert form is None or form.profile != "serving"


def test_a_benchmark_of_guidellm_is_measured_by_its_requests(tmp_path: Path) -> None:
    results = measured(tmp_path, *TIMES, *RATES, benchmarks__json=guidellm_report(guidellm()))
    assert [result.value for result in results] == pytest.approx(
        [0.2, 0.04, 0.1 / 3, 0.7 / 3, 3 / DURATION, 6 / DURATION, 66 / DURATION]
    )
    assert results[2].details["source"].startswith("statistics that the tool stored")


def test_several_rates_of_guidellm_are_refused_with_their_rates(tmp_path: Path) -> None:
    report = guidellm_report(guidellm(rate=1.5), guidellm(rate=4.0))
    (result,) = measured(tmp_path, "TTFT", benchmarks__json=report)
    assert "(1.5 requests/s, 3 completed; 4 requests/s, 3 completed)" in result.reason
    assert "into a file of its own" in result.fix


def test_a_sample_of_requests_does_not_replace_the_statistics_of_all(tmp_path: Path) -> None:
    sampled = guidellm()
    sampled["requests"]["successful"] = sampled["requests"]["successful"][:2]
    results = measured(tmp_path, "TTFT", "TPOT", benchmarks__json=guidellm_report(sampled))
    assert results[0].value == pytest.approx(0.2)
    assert results[1].value is None  # its time per token is another mean
    assert {finding.code for finding in results[0].findings} == {"requests-not-listed"}


def test_requests_outside_the_window_of_measurement_are_warm_up(tmp_path: Path) -> None:
    warm = guidellm()
    early = {"request_start_time": 990.0, "request_end_time": 999.0, "request_latency": 9.0}
    warm["requests"]["successful"].insert(0, early | {"output_tokens": 1, "time_to_first_token_ms": 8000.0})
    (result,) = measured(tmp_path, "TTFT", benchmarks__json=guidellm_report(warm))
    assert result.value == pytest.approx(0.2)
    assert result.details["requests"] == {"ok": 3, "warmup": 1}


def test_errored_and_incomplete_requests_of_guidellm_are_apart() -> None:
    entry = guidellm()
    entry["requests"]["errored"] = [{"request_id": "e", "info": {"error": "HTTP 500"}}]
    entry["requests"]["incomplete"] = [{"request_id": "i", "request_latency": 0.1}]
    requests = read(guidellm_report(entry)).table("requests")
    assert requests["status"].to_list() == ["ok"] * 3 + ["failed", "cancelled"]
    assert requests["error"][3] == "HTTP 500"
