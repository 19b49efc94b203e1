"""Benchmarks that failed, streamed nothing or counted nothing: what they store as 0 is not a number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from serving_files import aiperf, as_lines, codes, measured, read, sglang, summary_only, vllm

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result import Result

METRICS = (
    "TTFT",
    "TPOT",
    "ITL",
    "request_latency",
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
)


def _named(folder: Path, *names: str, **files: Any) -> dict[str, Result]:
    return {result.metric: result for result in measured(folder, *names, **files)}


def _zeros(*quantities: str) -> dict[str, float]:
    """Return statistics as vLLM stores them of lists that are empty: `np.mean(list or 0)`."""
    statistics = ("mean", "median", "std", "p99")
    return {f"{statistic}_{name}_ms": 0.0 for name in quantities for statistic in statistics}


def _failed_benchmark() -> dict[str, Any]:
    counts = {"num_prompts": 200, "completed": 0, "failed": 200}
    return (
        summary_only(**counts)
        | {"total_input_tokens": 0, "total_output_tokens": 0}
        | _zeros("ttft", "tpot", "itl", "e2el")
    )


def test_a_benchmark_without_success_has_no_number_whatever_it_stores(tmp_path: Path) -> None:
    results = _named(tmp_path, *METRICS, bench__json=_failed_benchmark())
    assert {result.reason for result in results.values()} == {"no request succeeded: 200 failed"}
    assert all(result.value is None for result in results.values())


def test_answers_of_one_token_have_no_time_per_token(tmp_path: Path) -> None:
    # 3 answers of one token have a time to it and no other; vLLM stores 0 as mean_tpot_ms and mean_itl_ms.
    one_token = summary_only() | {"total_output_tokens": 3} | _zeros("tpot", "itl")
    results = _named(tmp_path, "TTFT", "TPOT", "ITL", bench__json=one_token)
    assert results["TTFT"].value == pytest.approx(0.2)
    for name in ("TPOT", "ITL"):
        assert results[name].value is None
        assert results[name].reason == "vLLM stored 0 for it, as it does where nothing was measured"
    assert set(results["TTFT"].details["as_stored_s"]) == {"mean", "p99"}


def test_a_time_to_the_first_token_of_answers_that_were_not_streamed_is_their_latency(tmp_path: Path) -> None:
    # SGLang with --disable-stream: the clock is read for the latency before it is read for the "first token".
    whole = {key: value for key, value in sglang().items() if key not in {"ttfts", "itls", "output_lens"}}
    stored = {
        "mean_ttft_ms": 700.0,
        "mean_tpot_ms": -0.0002,
        "mean_itl_ms": 0.0,
        "mean_e2e_latency_ms": 700.0,
    }
    line = whole | stored | {"total_output_tokens": 300, "input_lens": None, "errors": None}
    results = _named(tmp_path, "TTFT", "TPOT", "ITL", "request_latency", bench__jsonl=as_lines([line]))
    assert results["request_latency"].value == pytest.approx(0.7)
    for name in ("TTFT", "TPOT", "ITL"):
        assert results[name].value is None
        assert results[name].reason.startswith("the answers were not streamed")


def test_listed_answers_in_one_piece_are_recognised_by_having_no_gap(tmp_path: Path) -> None:
    changes = {"itls": [[], [], []], "output_lens": [3, 2, 1], "mean_tpot_ms": 0.0}
    results = _named(tmp_path, "TTFT", "TPOT", "request_latency", bench__json=vllm(**changes))
    assert results["TTFT"].value is results["TPOT"].value is None
    assert results["request_latency"].value == pytest.approx((0.1 + 0.3 + 0.2) / 3)


def test_one_answer_that_came_at_once_is_in_no_mean_of_times_per_token(tmp_path: Path) -> None:
    # The second has two tokens and no gap: its time per token is not 0. The first gives (0.02 + 0.02) / 2.
    changes = {"itls": [[0.02, 0.02], [], []], "mean_tpot_ms": 10.0}
    results = _named(tmp_path, "TTFT", "TPOT", bench__json=vllm(**changes))
    assert results["TPOT"].value == pytest.approx(0.02)
    assert results["TPOT"].details["requests_in_one_piece"] == 1
    assert results["TTFT"].value == pytest.approx(0.2)


@pytest.mark.parametrize("statistic", ["min", "p1", "p50"])
def test_a_stored_mean_with_zeros_in_it_is_refused(tmp_path: Path, statistic: str) -> None:
    stored = summary_only() | {f"{statistic}_tpot_ms": 0.0}
    result = _named(tmp_path, "TPOT", bench__json=stored)["TPOT"]
    assert result.value is None


def test_tokens_that_nobody_counted_give_no_rate(tmp_path: Path) -> None:
    stored = summary_only() | {"total_output_tokens": 0}
    results = _named(tmp_path, "output_throughput", "total_token_throughput", bench__json=stored)
    assert [result.value for result in results.values()] == [None, None]


def test_answers_with_more_pieces_than_tokens_show_that_tokens_were_not_counted() -> None:
    # Without a tokenizer vLLM says 1 token for every answer, here of 11 pieces each.
    lists = {"itls": [[0.01] * 10] * 3, "output_lens": [1] * 3}
    content = read(vllm(**lists, mean_tpot_ms=None))
    assert codes(content) == ["tokens-uncounted"]
    assert content.findings[0].count == 3
    role_and_end = {"itls": [[0.01] * 4, [0.01] * 3, [0.01] * 2], "output_lens": [3, 2, 1]}
    assert codes(read(vllm(**role_and_end, mean_tpot_ms=None))) == []


@pytest.mark.parametrize(
    ("failed", "severity"), [(2, "warning"), (20, "warning"), (21, "error"), (199, "error")]
)
def test_every_number_carries_how_many_requests_failed(tmp_path: Path, failed: int, severity: str) -> None:
    # Of 200: 20 are a tenth, of which the others may still be taken for the server.
    stored = summary_only(num_prompts=200, completed=200 - failed, failed=failed)
    results = _named(tmp_path, "TTFT", "TPOT", "request_throughput", bench__json=stored)
    for result in results.values():
        (finding,) = (each for each in result.findings if each.code == "requests-failed")
        assert (finding.count, finding.severity) == (failed, severity)
        assert finding.message.startswith(f"{failed} of 200 requests failed ({failed / 2:.3g} %)")
        assert result.details["requests"] == {"ok": 200 - failed, "failed": failed}


def test_older_versions_store_failures_as_what_is_missing_of_the_prompts() -> None:
    content = read(summary_only(num_prompts=5))
    (finding,) = (each for each in content.findings if each.code == "requests-failed")
    assert finding.message.startswith("2 of 5 requests failed (40 %)")


AIPERF_STATISTICS = {
    "request_count": {"unit": "requests", "avg": 3.0},
    "request_latency": {"unit": "ms", "avg": 700 / 3},
    "time_to_first_token": {"unit": "ms", "avg": 200.0},
    "benchmark_duration": {"unit": "sec", "avg": 2.0},
    "error_request_count": {"unit": "requests", "avg": 5.0},
}


def test_aiperf_counts_cancelled_requests_as_errors_and_says_why_in_another_place() -> None:
    cancelled = {"error_details": {"code": 499, "type": "RequestCancellationError"}, "count": 4}
    broken = {"error_details": {"code": 503, "type": "HTTPError"}, "count": 1}
    content = read(AIPERF_STATISTICS | {"error_summary": [cancelled, broken]})
    (finding,) = content.findings
    assert finding.message == "1 of 8 requests failed (12.5 %); they are in no mean"
    totals = content.table("serving_statistics").filter(statistic="total")
    counts = dict(totals.select("quantity", "value").iter_rows())
    assert (counts["completed"], counts["failed"], counts["cancelled"]) == (3, 1, 4)


def test_an_aiperf_run_in_which_all_failed_is_recognised(tmp_path: Path) -> None:
    summary = {"error_request_count": {"unit": "requests", "avg": 7.0}}
    summary["request_count"] = {"unit": "requests", "avg": 0.0}
    result = _named(tmp_path, "TTFT", profile_export_aiperf__json=summary)["TTFT"]
    assert result.reason == "no request succeeded: 7 failed"


def test_a_benchmark_that_was_cancelled_says_so_on_every_number(tmp_path: Path) -> None:
    files = {"profile_export_aiperf__json": AIPERF_STATISTICS | {"was_cancelled": True}}
    results = _named(tmp_path, "TTFT", "request_throughput", **files)
    for result in results.values():
        assert "benchmark-cut-short" in {finding.code for finding in result.findings}


@pytest.mark.parametrize(
    "changes",
    [{"request_count": {"unit": "requests", "avg": 9.0}}, {"request_latency": {"unit": "ms", "avg": 240.0}}],
    ids=["more requests", "another latency"],
)
def test_requests_and_a_summary_of_two_benchmarks_are_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    files = {"profile_export__jsonl": as_lines(aiperf())}
    summary = AIPERF_STATISTICS | {"error_request_count": {"unit": "requests", "avg": 0.0}} | changes
    results = _named(tmp_path, *METRICS, **files, profile_export_aiperf__json=summary)
    assert all(result.value is None for result in results.values())
    assert "the files belong to two benchmarks, or one is incomplete" in results["TTFT"].reason


@pytest.mark.parametrize("duration", [0.3, 0.0, -2.0])
def test_a_length_that_is_not_that_of_the_benchmark_gives_no_rate(tmp_path: Path, duration: float) -> None:
    # The longest request takes 0.36 s.
    result = _named(tmp_path, "request_throughput", bench__json=vllm(duration=duration))["request_throughput"]
    assert result.value is None
    reported = "a request took 0.36 s in a benchmark of 0.3 s" if duration > 0 else "does not say how long"
    assert reported in result.reason
