"""What tools stored of real benchmarks comes out of their lists of requests again.

JSON prints doubles with all their digits, so `DIGITS` allows for the order of a sum and no more.
"""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING

import pytest

from ccl_bench.analysis.serving.benchmark import (
    distribution,
    gaps,
    latencies,
    times_per_output_token,
    times_to_first_token,
)
from ccl_bench.analysis.statistics import percentile
from ccl_bench.base.lazy_imports import pl
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run
from ccl_bench.trace import formats

if TYPE_CHECKING:
    from pathlib import Path

DIGITS = 1e-15
METRICS = (
    "TTFT",
    "TPOT",
    "ITL",
    "request_latency",
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
)
VLLM = ("vllm-tp8", "vllm-tp4pp2")

exactly = lambda value: pytest.approx(value, rel=DIGITS)  # noqa: E731


def _only(folder: Path, pattern: str = "*") -> Path:
    (found,) = folder.glob(pattern)
    return found


def _json(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


def _ok(path: Path) -> pl.DataFrame:
    """Return the requests of a file that succeeded."""
    with path.open("rb") as stream:
        form = formats.recognised(stream.read(256 << 10))
        stream.seek(0)
        return form.read(stream, path.name).table("requests").filter(pl.col("status") == "ok")


def _values(place: Path) -> dict[str, float]:
    return {result.metric: result.value for result in evaluate(open_run(place), METRICS)}


@pytest.mark.parametrize("name", VLLM)
def test_vllm_statistics_of_ttft_and_itl_come_out_to_all_digits(corpus: Path, name: str) -> None:
    path = _only(corpus / "serving" / name)
    stored, ok = _json(path), _ok(path)
    for quantity, values in (("ttft", times_to_first_token(ok)), ("itl", gaps(ok))):
        own = distribution(values)
        found = {"mean": own["mean"], "median": own["p50"], "p99": own["p99"], "std": own["std_population"]}
        for statistic, value in found.items():
            assert value * 1000 == exactly(stored[f"{statistic}_{quantity}_ms"])


@pytest.mark.parametrize("name", VLLM)
def test_vllm_tpot_comes_out_to_the_digits_that_the_missing_latency_leaves(corpus: Path, name: str) -> None:
    # The file holds no latency. For the first token vLLM looks at the clock twice, so that ttft + itls is
    # longer than its latency by less than a microsecond a token.
    path = _only(corpus / "serving" / name)
    stored, own = _json(path), distribution(times_per_output_token(_ok(path)))
    found = {"mean": own["mean"], "median": own["p50"], "p99": own["p99"], "std": own["std_population"]}
    for statistic, value in found.items():
        assert value * 1000 == pytest.approx(stored[f"{statistic}_tpot_ms"], rel=1e-6)
        assert f"{value * 1000:.2f}" == f"{stored[f'{statistic}_tpot_ms']:.2f}"  # as vLLM prints them


@pytest.mark.parametrize("name", VLLM)
def test_vllm_metrics_are_the_stored_numbers(corpus: Path, name: str) -> None:
    path = _only(corpus / "serving" / name)
    stored, found = _json(path), _values(path)
    assert found["TTFT"] == exactly(stored["mean_ttft_ms"] / 1000)
    assert found["ITL"] == exactly(stored["mean_itl_ms"] / 1000)
    assert found["request_throughput"] == exactly(stored["request_throughput"])
    assert found["output_throughput"] == exactly(stored["output_throughput"])
    assert found["total_token_throughput"] == exactly(stored["total_token_throughput"])


def test_the_rates_in_vllm_file_names_are_no_ranks(corpus: Path) -> None:
    run = open_run(corpus / "serving" / "vllm-tp4pp2")
    assert run.traces[0].relative.endswith("qps_16.json")
    assert run.ranks == []


AIPERF = {
    "ttft": times_to_first_token,
    "request_latency": latencies,
    "inter_token_latency": times_per_output_token,
    "inter_chunk_latency": gaps,
}


@pytest.mark.parametrize("name", AIPERF)
def test_aiperf_statistics_come_out_to_all_digits(corpus: Path, name: str) -> None:
    folder = corpus / "serving" / "aiperf"
    stored = _json(folder / "profile_export_aiperf.json")["records"][name]
    values = AIPERF[name](_ok(folder / "profile_export.jsonl"))
    own = distribution(values)
    assert own["count"] == stored["count"]
    assert own["mean"] * 1000 == exactly(stored["avg"])
    assert own["std_population"] * 1000 == pytest.approx(stored["std"], rel=1e-14)
    assert (own["min"] * 1000, own["max"] * 1000) == (exactly(stored["min"]), exactly(stored["max"]))
    for share in (1, 5, 25, 50, 75, 90, 95, 99):
        assert percentile(values, share) * 1000 == exactly(stored[f"p{share}"])


def test_aiperf_throughput_and_duration_come_out_to_all_digits(corpus: Path, tmp_path: Path) -> None:
    folder = corpus / "serving" / "aiperf"
    stored = _json(folder / "profile_export_aiperf.json")["records"]
    alone = tmp_path / "profile_export.jsonl"
    alone.symlink_to(folder / "profile_export.jsonl")
    for place in (folder, alone):
        found = _values(place)
        assert found["request_throughput"] == exactly(stored["request_throughput"]["avg"])
        assert found["output_throughput"] == exactly(stored["output_token_throughput"]["avg"])


def test_aiperf_cancelled_requests_are_counted_apart(corpus: Path) -> None:
    (result,) = evaluate(open_run(corpus / "serving" / "aiperf"), ["TTFT"])
    assert result.details["requests"] == {"ok": 89, "cancelled": 11}
    assert result.details["distribution_s"]["count"] == 89
    assert result.findings == []


def test_genai_bench_statistics_come_out_to_all_digits(corpus: Path) -> None:
    path = _only(corpus / "serving" / "genai-bench")
    stored, ok = _json(path)["aggregated_metrics"], _ok(path)
    values = {"ttft": times_to_first_token, "e2e_latency": latencies, "tpot": times_per_output_token}
    for name, of in values.items():
        own, said = distribution(of(ok)), stored["stats"][name]
        assert own["mean"] == exactly(said["mean"])
        assert own["std_population"] == pytest.approx(said["stddev"], rel=1e-14)
        for share in (25, 50, 75, 90, 95, 99):
            assert percentile(of(ok), share) == exactly(said[f"p{share}"])
    found = _values(path)
    assert found["request_throughput"] == exactly(stored["requests_per_second"])
    assert found["output_throughput"] == exactly(stored["mean_output_throughput_tokens_per_s"])
    assert found["total_token_throughput"] == exactly(stored["mean_total_tokens_throughput_tokens_per_s"])


def test_llmperf_statistics_come_out_to_all_digits(corpus: Path) -> None:
    folder = corpus / "serving" / "llmperf"
    stored, ok = _json(_only(folder, "summary*")), _ok(_only(folder, "individual*"))
    values = {
        "ttft_s": times_to_first_token(ok),
        "end_to_end_latency_s": latencies(ok),
        "inter_token_latency_s": ok["own_tpot_s"].to_list(),
    }
    for name, times in values.items():
        assert len(times) == stored["results_num_completed_requests"] == 101
        assert distribution(times)["mean"] == exactly(stored[f"results_{name}_mean"])
        assert statistics.stdev(times) == pytest.approx(stored[f"results_{name}_stddev"], rel=1e-14)
        for share in (25, 50, 75, 90, 95, 99):
            assert percentile(times, share) == exactly(stored[f"results_{name}_quantiles_p{share}"])
    found = _values(folder)
    assert found["output_throughput"] == exactly(stored["results_mean_output_throughput_token_per_s"])
    assert found["request_throughput"] * 60 == exactly(stored["results_num_completed_requests_per_min"])


def test_llmperf_tpot_leaves_the_first_token_out_and_says_so(corpus: Path) -> None:
    folder = corpus / "serving" / "llmperf"
    listed = [r for r in _json(_only(folder, "individual*")) if r["error_code"] is None]
    own = [(r["end_to_end_latency_s"] - r["ttft_s"]) / (r["number_output_tokens"] - 1) for r in listed]
    (result,) = evaluate(open_run(folder), ["TPOT"])
    assert result.value == exactly(statistics.fmean(own))
    assert "includes the first token" in result.details["fields"]["differs"]
    assert result.details["requests"] == {"ok": 101, "failed": 49}


def test_no_real_result_disagrees_with_itself(corpus: Path) -> None:
    for folder in (corpus / "serving").iterdir():
        results = evaluate(open_run(folder), ["TTFT", "TPOT"])
        found = {finding.code for result in results for finding in result.findings}
        assert found <= {"requests-failed"}, folder.name


def _recomputed(folder: Path) -> dict[str, float]:
    """Return the means of a corpus benchmark, with json and lists alone."""
    if folder.name in VLLM:
        document = _json(_only(folder))
        lists = [document[name] for name in ("ttfts", "itls", "output_lens", "input_lens")]
        asked = list(zip(*lists, strict=True))
        rows = [(ttft, ttft + sum(gaps), gaps, given, taken) for ttft, gaps, given, taken in asked]
        return _means(rows, document["duration"])
    if folder.name == "aiperf":
        lines = (folder / "profile_export.jsonl").read_text(encoding="utf-8").splitlines()
        found = [entry["metrics"] for entry in map(json.loads, lines) if not entry.get("error")]
        rows = [
            (
                each["ttft"]["value"] / 1000,
                each["request_latency"]["value"] / 1000,
                [gap / 1000 for gap in each["inter_chunk_latency"]["value"]],
                each["output_sequence_length"]["value"],
                each["input_sequence_length"]["value"],
            )
            for each in found
        ]
        duration = _json(folder / "profile_export_aiperf.json")["records"]["benchmark_duration"]["avg"]
        return _means(rows, duration)
    if folder.name == "genai-bench":
        document = _json(_only(folder))
        rows = [
            (each["ttft"], each["e2e_latency"], [], each["num_output_tokens"], each["num_input_tokens"])
            for each in document["individual_request_metrics"]
        ]
        return _means(rows, document["aggregated_metrics"]["run_duration"])
    listed = [each for each in _json(_only(folder, "individual*")) if each["error_code"] is None]
    rows = [
        (
            each["ttft_s"],
            each["end_to_end_latency_s"],
            [],
            each["number_output_tokens"],
            each["number_input_tokens"],
        )
        for each in listed
    ]
    per_minute = _json(_only(folder, "summary*"))["results_num_completed_requests_per_min"]
    return _means(rows, 60 * len(rows) / per_minute)


def _means(rows: list[tuple], duration: float) -> dict[str, float]:
    """Return each metric of requests of (TTFT, latency, gaps, tokens given, tokens taken)."""
    between = [gap for _, _, gaps, _, _ in rows for gap in gaps]
    given, taken = sum(row[3] for row in rows), sum(row[4] for row in rows)
    found = {
        "TTFT": statistics.fmean(row[0] for row in rows),
        "TPOT": statistics.fmean((row[1] - row[0]) / (row[3] - 1) for row in rows if row[3] > 1),
        "request_latency": statistics.fmean(row[1] for row in rows),
        "request_throughput": len(rows) / duration,
        "output_throughput": given / duration,
        "total_token_throughput": (given + taken) / duration,
    }
    return found | ({"ITL": statistics.fmean(between)} if between else {})


@pytest.mark.parametrize("name", [*VLLM, "aiperf", "genai-bench", "llmperf"])
def test_every_number_is_what_json_and_lists_alone_give(corpus: Path, name: str) -> None:
    folder = corpus / "serving" / name
    found = {metric: value for metric, value in _values(folder).items() if value is not None}
    assert found == pytest.approx(_recomputed(folder), rel=1e-12)
