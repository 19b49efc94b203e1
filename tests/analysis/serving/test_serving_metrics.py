"""The metrics of a serving benchmark, on requests whose times can be worked out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from serving_files import aiperf, as_lines, llmperf, measured, summary_only, vllm

from ccl_bench.analysis.serving.benchmark import (
    Benchmark,
    all_tokens,
    completed,
    distribution,
    ends_of,
    longest,
    times_per_output_token,
    total,
    tpot_of_each,
    within_objectives,
)
from ccl_bench.metrics.shared.serving import MOST_LISTED

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result import Result


def _one(folder: Path, name: str, **files: Any) -> Result:
    (result,) = measured(folder, name, **(files or {"bench__json": vllm()}))
    return result


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TTFT", (0.1 + 0.3 + 0.2) / 3),
        ("TPOT", ((0.14 - 0.1) / 2 + (0.36 - 0.3) / 1) / 2),
        ("ITL", (0.02 + 0.02 + 0.06) / 3),
        ("request_latency", (0.14 + 0.36 + 0.2) / 3),
        ("request_throughput", 3 / 2.0),
        ("output_throughput", (3 + 2 + 1) / 2.0),
        ("total_token_throughput", (10 + 20 + 30 + 3 + 2 + 1) / 2.0),
    ],
)
def test_each_metric_is_what_its_formula_gives(tmp_path: Path, name: str, value: float) -> None:
    assert _one(tmp_path, name).value == pytest.approx(value)


def test_percentiles_and_every_request_are_in_the_details(tmp_path: Path) -> None:
    details = _one(tmp_path, "TTFT").details
    assert details["values_s"] == [0.1, 0.3, 0.2]
    assert details["distribution_s"]["p50"] == pytest.approx(0.2)
    assert details["distribution_s"]["p90"] == pytest.approx(0.2 + 0.8 * 0.1)
    assert details["distribution_s"]["p99"] == pytest.approx(0.2 + 0.98 * 0.1)


def test_details_list_no_more_than_a_few_thousand_requests(tmp_path: Path) -> None:
    many = MOST_LISTED + 7
    lists = {
        "ttfts": [0.1] * many,
        "itls": [[0.1]] * many,
        "output_lens": [2] * many,
        "input_lens": [1] * many,
    }
    whole = vllm(**lists, errors=None, completed=many, mean_ttft_ms=100, mean_tpot_ms=100)
    details = _one(tmp_path, "TTFT", bench__json=whole).details
    assert len(details["values_s"]) == MOST_LISTED
    assert details["values_left_out"] == 7
    assert details["distribution_s"]["count"] == many


def test_requests_with_one_token_are_left_out_of_tpot_and_counted(tmp_path: Path) -> None:
    result = _one(tmp_path, "TPOT")
    assert result.details["distribution_s"]["count"] == 2
    assert result.details["requests_with_one_token"] == 1
    assert result.details["tokens_per_second_and_user"] == pytest.approx(1 / 0.04)


def test_requests_of_two_tokens_and_more_are_not_those_of_one(tmp_path: Path) -> None:
    # 0.02 and 0.05 s a token after the first
    longer = vllm(output_lens=[3, 3, 1], itls=[[0.02, 0.02], [0.05, 0.05], []], mean_tpot_ms=35.0)
    result = _one(tmp_path, "TPOT", bench__json=longer)
    assert result.value == pytest.approx(0.035)
    assert result.details["requests_with_one_token"] == 1
    assert result.details["tokens_per_second_and_user"] == pytest.approx(1 / 0.035)


def test_failed_requests_are_in_no_mean(tmp_path: Path) -> None:
    whole = vllm(errors=["", "gone", ""], completed=2, mean_ttft_ms=150, mean_tpot_ms=20)
    results = measured(tmp_path, "TTFT", "TPOT", "ITL", "output_throughput", bench__json=whole)
    assert [result.value for result in results] == pytest.approx([0.15, 0.02, 0.02, 2.0])
    assert all(result.details["requests"] == {"ok": 2, "failed": 1} for result in results)
    assert {finding.code for result in results for finding in result.findings} == {"requests-failed"}


def test_a_benchmark_in_which_nothing_succeeded_has_no_numbers(tmp_path: Path) -> None:
    result = _one(tmp_path, "TTFT", bench__json=vllm(errors=["x"] * 3, completed=0))
    assert (result.status, result.reason) == ("not_measurable", "no request succeeded: 3 failed")


def test_the_result_says_which_fields_of_which_tool_it_rests_on(tmp_path: Path) -> None:
    result = _one(tmp_path, "TPOT")
    assert result.details["tool"] == "vLLM"
    assert result.details["fields"]["latency"].startswith("ttfts + sum of itls")
    assert result.details["source"] == "each request"
    assert result.window == "serving benchmark, vLLM"
    assert [trace.format for trace in result.provenance.traces] == ["vllm"]


def test_the_tools_own_mean_stands_where_it_recorded_no_requests(tmp_path: Path) -> None:
    results = measured(tmp_path, "TTFT", "TPOT", "ITL", "output_throughput", bench__json=summary_only())
    assert [result.value for result in results] == [0.2, 0.04, None, 3.0]
    assert results[0].details["source"].startswith("statistics that the tool stored")
    assert [finding.code for finding in results[0].findings] == ["requests-not-listed"]


def test_the_inter_token_latency_of_an_llmperf_summary_stands_for_nothing(tmp_path: Path) -> None:
    summary = {
        "results_inter_token_latency_s_mean": 0.1,
        "results_ttft_s_mean": 0.2,
        "results_num_completed_requests": 3,
        "results_num_completed_requests_per_min": 90.0,
    }
    ttft, tpot = measured(tmp_path, "TTFT", "TPOT", summary__json=summary)
    assert ttft.value == 0.2
    assert tpot.status == "not_measurable"


def test_requests_and_summary_of_one_tool_are_one_benchmark(tmp_path: Path) -> None:
    summary = {"results_ttft_s_mean": 0.2, "results_num_completed_requests": 3}
    summary["results_num_completed_requests_per_min"] = 90.0
    files = {"individual__json": llmperf(), "summary__json": summary}
    ttft, throughput = measured(tmp_path, "TTFT", "request_throughput", **files)
    assert ttft.details["as_stored_s"] == {"mean": 0.2}
    assert throughput.value == pytest.approx(1.5)


def test_a_result_that_does_not_say_how_long_it_took_has_no_throughput(tmp_path: Path) -> None:
    result = _one(tmp_path, "request_throughput", individual__json=llmperf())
    assert result.reason == "the LLMPerf result does not say how long the benchmark took"


def test_the_length_of_a_benchmark_follows_from_its_requests_where_nobody_says_it(tmp_path: Path) -> None:
    # The first is sent at 0, the last at 1 s and answered 0.2 s later.
    result = _one(tmp_path, "request_throughput", profile_export__jsonl=as_lines(aiperf()))
    assert result.value == pytest.approx(3 / 1.2)
    assert result.details["duration"] == "from the first request sent to the last token received"


@pytest.mark.parametrize(
    "files",
    [
        {"qps_1__json": vllm(), "qps_2__json": vllm(request_rate=2)},
        {"qps_1__json": vllm(), "qps_2__json": summary_only()},
        {"a__jsonl": as_lines([vllm(), vllm()])},
        {"a__json": vllm(), "b__json": llmperf()},
    ],
    ids=["two files", "one without lists", "two lines", "two tools"],
)
def test_several_benchmarks_are_refused_and_never_mixed(tmp_path: Path, files: dict[str, Any]) -> None:
    result = _one(tmp_path, "TTFT", **files)
    assert result.status == "not_measurable"
    assert result.reason.startswith("the run holds 2 results of serving benchmarks")


def test_serving_metrics_are_for_inference(tmp_path: Path) -> None:
    card = "workload:\n  model:\n    phase: training\n"
    assert _one(tmp_path, "TTFT", bench__json=vllm(), workload_card__yaml=card).status == "not_applicable"


def test_a_run_without_any_result_says_what_to_record(tmp_path: Path) -> None:
    result = _one(tmp_path, "ITL", run_metadata__json={"world_size": 1})
    assert result.reason == "the run holds no result of a serving benchmark"
    assert "--save-detailed" in result.fix


@pytest.mark.parametrize(
    ("objectives", "good"),
    [
        ({"slo_ttft_s": 0.25}, 2),  # 0.1 and 0.2
        ({"slo_tpot_s": 0.05}, 2),  # 0.02, and the one with a single token
        ({"slo_ttft_s": 0.15, "slo_tpot_s": 0.05}, 1),
        ({"slo_latency_s": 0.36}, 3),
        ({"slo_latency_s": 0.01}, 0),
    ],
)
def test_goodput_counts_the_requests_that_keep_every_objective(
    tmp_path: Path, objectives: dict[str, float], good: int
) -> None:
    result = _one(tmp_path, "goodput", bench__json=vllm(), run_metadata__json=objectives)
    assert result.value == pytest.approx(good / 2.0)
    assert result.details["share_of_all"] == pytest.approx(good / 3)


def test_goodput_needs_an_objective(tmp_path: Path) -> None:
    result = _one(tmp_path, "goodput")
    assert result.reason == "no service-level objective is given"
    assert "slo_ttft_s" in result.fix


def test_failed_requests_keep_no_objective(tmp_path: Path) -> None:
    files = {
        "bench__json": vllm(errors=["", "gone", ""], completed=2),
        "run_metadata__json": {"slo_ttft_s": 9},
    }
    result = _one(tmp_path, "goodput", **files)
    assert result.value == pytest.approx(2 / 2.0)
    assert result.details["share_of_all"] == pytest.approx(2 / 3)


def test_answers_in_one_piece_are_left_out_of_tpot_and_counted(tmp_path: Path) -> None:
    # the second request has two tokens and no gap between them
    whole = vllm(itls=[[0.02, 0.02], [], []], mean_tpot_ms=None)
    result = _one(tmp_path, "TPOT", bench__json=whole)
    assert result.value == pytest.approx(0.02)
    assert result.details["requests_in_one_piece"] == 1
    assert result.details["requests_with_one_token"] == 1
    assert _one(tmp_path, "TPOT").details["requests_in_one_piece"] == 0


@pytest.mark.parametrize(("duration", "has_value"), [(0.36, True), (0.3597, True), (0.3595, False)])
def test_a_request_longer_than_its_benchmark_by_a_thousandth_gives_no_rate(
    tmp_path: Path, duration: float, has_value: bool
) -> None:
    result = _one(tmp_path, "request_throughput", bench__json=vllm(duration=duration))
    assert (result.value is not None) is has_value
    assert "so the length of the benchmark is wrong" in result.reason or has_value


def _ok(*rows: tuple[float | None, float | None, int | None]) -> pl.DataFrame:
    """Return requests given as (ttft, latency, output tokens)."""
    types = {"ttft_s": pl.Float64, "latency_s": pl.Float64, "output_tokens": pl.Int64}
    return pl.DataFrame([*rows], schema=types, orient="row")


def test_requests_keep_objectives_that_they_meet_exactly() -> None:
    # 3 tokens with 0.5 s from one to the next; one token; 2 tokens at once; unknown times
    requests = _ok(
        (1.0, 2.0, 3), (1.0, 1.0, 1), (2.0, 2.0, 2), (None, 2.0, 3), (1.0, None, 1), (1.0, 2.0, None)
    )

    def kept(**limits: float) -> list[int]:
        given = {"ttft_s": None, "tpot_s": None, "latency_s": None} | limits
        numbered = requests.with_row_index("number")
        return within_objectives(numbered, **given)["number"].to_list()  # type: ignore[arg-type]

    assert kept() == [0, 1, 2, 3, 4, 5]
    assert kept(ttft_s=1.0) == [0, 1, 4, 5]
    assert kept(tpot_s=0.5) == [0, 1, 2, 4]
    assert kept(tpot_s=0.49) == [1, 2, 4]
    assert kept(latency_s=2.0) == [0, 1, 2, 3, 5]
    assert kept(latency_s=1.9) == [1]
    assert kept(ttft_s=1.0, latency_s=1.0) == [1]


def test_the_time_per_output_token_is_of_the_tokens_after_the_first() -> None:
    requests = _ok((1.0, 2.0, 3), (1.0, 1.0, 1), (2.0, 2.0, 2), (None, 2.0, 3), (1.0, 2.0, 2))
    assert tpot_of_each(requests).to_list() == [0.5, None, None, None, 1.0]
    assert times_per_output_token(requests) == [0.5, 1.0]


def test_a_distribution_has_the_deviation_of_sample_and_population() -> None:
    # 1, 2, 3, 6 are 2, 1, 0 and 3 from their mean: 14 over 3, and over 4
    found = distribution([6.0, 1.0, 3.0, 2.0])
    assert (found["mean"], found["std"], found["std_population"]) == pytest.approx(
        (3, (14 / 3) ** 0.5, 3.5**0.5)
    )
    assert (found["p90"], found["p99"]) == pytest.approx((5.1, 5.91))
    assert "std_population" not in distribution([1.0])


def _seen(ok: pl.DataFrame, ends: dict[str, int] | None = None, **stored: float) -> Benchmark:
    known = {(name.rpartition("_")[0], "total"): value for name, value in stored.items()}
    return Benchmark("vllm", ok, ends or {}, known, frozenset(), False, None, "")


def test_tokens_are_those_of_the_requests_else_as_stored() -> None:
    rows = _ok((1.0, 2.0, 3), (1.0, 2.0, 2)).with_columns(input_tokens=pl.Series([10, None]))
    assert (total(_seen(rows), "output_tokens"), total(_seen(rows), "input_tokens")) == (5, None)
    none = rows.clear()
    assert total(_seen(none, output_tokens_total=7.0), "output_tokens") == 7
    assert total(_seen(none), "output_tokens") is None
    assert all_tokens(_seen(none, output_tokens_total=7.0, input_tokens_total=4.0)) == 11
    assert all_tokens(_seen(none, output_tokens_total=7.0, tokens_total=20.0)) == 20
    assert all_tokens(_seen(none, output_tokens_total=7.0)) is None


def test_ends_are_those_listed_else_as_counted() -> None:
    rows = _ok((1.0, 2.0, 3), (1.0, 2.0, 2))
    listed = _seen(rows, {"warmup": 1, "ok": 2, "failed": 4})
    assert [*ends_of(listed).items()] == [("ok", 2), ("failed", 4), ("warmup", 1)]
    assert ends_of(_seen(rows.clear(), completed_total=3.0, failed_total=2.0)) == {"ok": 3, "failed": 2}
    assert ends_of(_seen(rows.clear(), completed_total=3.0, failed_total=0.0)) == {"ok": 3}
    assert (completed(listed), longest(listed), longest(_seen(rows.clear()))) == (2, 2.0, 0.0)
