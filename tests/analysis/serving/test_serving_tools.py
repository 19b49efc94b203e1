"""Each tool's file is recognised by its content and gives the same requests."""

from __future__ import annotations

import pytest
from serving_files import (
    GAPS,
    LATENCIES,
    OUTPUTS,
    TTFTS,
    aiperf,
    as_lines,
    codes,
    genai_bench,
    guidellm,
    guidellm_report,
    inference_perf,
    llmperf,
    read,
    sglang,
    summary_only,
    text_of,
    vllm,
)

from ccl_bench.catalog import load_data
from ccl_bench.metrics.shared.serving import meaning
from ccl_bench.trace import formats

RESULTS = {
    "vllm": vllm(),
    "sglang": as_lines([sglang()]),
    "genai_bench": genai_bench(),
    "genai_bench in ms": genai_bench("ms"),
    "aiperf": as_lines(aiperf()),
    "aiperf with old names": as_lines(aiperf("old")),
    "llmperf": llmperf(),
    "inference_perf": inference_perf(),
    "inference_perf with flat sizes": inference_perf("old"),
    "guidellm": guidellm_report(guidellm()),
    "guidellm with old names": guidellm_report(guidellm("old")),
}

every_tool = pytest.mark.parametrize("name", RESULTS)


@every_tool
def test_a_result_is_recognised_by_content_as_that_of_one_tool(name: str) -> None:
    head = text_of(RESULTS[name]).encode()
    assert [form.name for form in formats.load() if form.recognises(head)] == [name.split(" ", maxsplit=1)[0]]


@every_tool
def test_each_tool_gives_the_same_times_and_tokens(name: str) -> None:
    requests = read(RESULTS[name]).table("requests")
    assert requests["status"].to_list() == ["ok"] * 3
    assert requests["ttft_s"].to_list() == pytest.approx(TTFTS)
    assert requests["latency_s"].to_list() == pytest.approx(LATENCIES)
    assert requests["output_tokens"].to_list() == OUTPUTS


@every_tool
def test_a_sound_result_gives_no_findings(name: str) -> None:
    assert codes(read(RESULTS[name])) == []


@pytest.mark.parametrize("name", ["vllm", "sglang", "aiperf", "inference_perf"])
def test_gaps_stay_with_their_request(name: str) -> None:
    found = read(RESULTS[name]).table("requests")["gaps_s"].to_list()
    assert found == [pytest.approx(each) for each in GAPS]


@pytest.mark.parametrize(
    "other",
    [
        '{"traceEvents": [], "model_id": "", "num_prompts": 1, "duration": 1, "completed": 1}',
        '{"step": [1], "loss": [2.0]}',
        '{"world_size": 8, "duration": 3}',
        "[]",
        "",
        "ttft_s inter_token_latency_s end_to_end_latency_s",
    ],
)
def test_another_file_is_no_serving_result(other: str) -> None:
    form = formats.recognised(other.encode())
    assert form is None or form.profile != "serving"


def test_a_vllm_request_with_an_error_failed() -> None:
    content = read(
        vllm(
            errors=["", "HTTP 500", ""],
            output_lens=[3, 0, 1],
            ttfts=[0.1, 0.0, 0.2],
            completed=2,
            mean_ttft_ms=150,
            mean_tpot_ms=20,
        )
    )
    requests = content.table("requests")
    assert requests["status"].to_list() == ["ok", "failed", "ok"]
    assert requests["error"].to_list() == ["", "HTTP 500", ""]
    assert requests["ttft_s"].to_list() == [0.1, None, 0.2]
    assert codes(content) == ["requests-failed"]


def test_a_vllm_failure_without_a_reason_is_recognised_by_its_missing_output() -> None:
    requests = read(vllm(output_lens=[3, 0, 1], completed=2)).table("requests")
    assert requests["status"].to_list() == ["ok", "failed", "ok"]


def test_answers_that_were_not_streamed_have_no_time_to_the_first_token() -> None:
    requests = read(vllm(ttfts=[0.0] * 3, itls=[[]] * 3, mean_ttft_ms=None, mean_tpot_ms=None)).table(
        "requests"
    )
    assert requests["status"].to_list() == ["ok"] * 3
    assert requests["ttft_s"].null_count() == requests["latency_s"].null_count() == 3


def test_aiperf_shows_cancelled_failed_and_warm_up_requests_apart() -> None:
    records = aiperf()
    records[0]["error"] = {"code": 499, "type": "RequestCancellationError", "message": "gone"}
    records[1]["error"] = {"code": 500, "type": "ServerError", "message": "broken"}
    records[2]["metadata"]["benchmark_phase"] = "warmup"
    requests = read(as_lines(records)).table("requests")
    assert requests["status"].to_list() == ["cancelled", "failed", "warmup"]
    assert requests["error"].to_list() == ["gone", "broken", ""]


def test_genai_bench_and_llmperf_requests_with_an_error_code_failed() -> None:
    whole = genai_bench()
    whole["individual_request_metrics"][1] |= {"error_code": 429, "error_message": "slow down"}
    whole["aggregated_metrics"]["num_completed_requests"] = 2
    whole["aggregated_metrics"]["stats"] = {}
    listed = llmperf()
    listed[1] |= {"error_code": -100, "error_msg": "too few"}
    for content, error in ((read(whole), "slow down"), (read(listed), "too few")):
        assert content.table("requests")["status"].to_list() == ["ok", "failed", "ok"]
        assert content.table("requests")["error"][1] == error


def test_several_results_on_lines_of_one_file_are_several_benchmarks() -> None:
    for line in (sglang(), vllm()):
        requests = read(as_lines([line, line])).table("requests")
        assert requests["benchmark"].to_list() == [0, 0, 0, 1, 1, 1]


def test_statistics_are_kept_in_seconds_under_one_name() -> None:
    rows = read(vllm()).table("serving_statistics").select("quantity", "statistic", "value").rows()
    assert ("ttft", "mean", 0.2) in rows
    assert ("ttft", "p99", 0.298) in rows
    assert ("duration", "total", 2.0) in rows


def test_a_result_without_lists_says_how_to_get_them() -> None:
    content = read(summary_only())
    assert content.table("requests").is_empty()
    assert codes(content) == ["requests-not-listed"]
    assert "--save-detailed" in content.findings[0].message


def test_what_the_fields_of_each_tool_mean_has_a_source() -> None:
    sources = load_data("serving_tools")["sources"]
    for form in (form for form in formats.load() if form.profile == "serving"):
        assert {"ttft", "latency", "tokens"} <= set(meaning(form.name))
        row = next(row for row in load_data("serving_tools")["tool"] if row["name"] == form.name)
        assert sources[row["source"]]["document"].startswith("https://")
