"""Results of vLLM that are no single serving benchmark: offline benchmarks, sweeps."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from serving_files import codes, measured, read, summary_only

if TYPE_CHECKING:
    from pathlib import Path

LATENCIES = [1.9, 2.0, 2.4]
LATENCY = {
    "avg_latency": 2.1,
    "latencies": LATENCIES,
    "percentiles": {"10": 1.92, "25": 1.95, "50": 2.0, "75": 2.2, "90": 2.32, "99": 2.392},
}
THROUGHPUT = {
    "elapsed_time": 10.0,
    "num_requests": 200,
    "total_num_tokens": 50_000,
    "requests_per_second": 20.0,
    "tokens_per_second": 5000.0,
}
SWEEP = [{"run_number": number, "max_num_seqs": 32, **summary_only()} for number in range(3)]


def test_bench_latency_shows_the_latency_of_batches_and_nothing_of_tokens(tmp_path: Path) -> None:
    results = measured(tmp_path, "request_latency", "TTFT", "request_throughput", latency__json=LATENCY)
    assert results[0].value == pytest.approx(math.fsum(LATENCIES) / 3)
    assert results[0].details["as_stored_s"] == {"mean": 2.1, "p50": 2.0, "p90": 2.32, "p99": 2.392}
    assert "without queue" in results[0].details["fields"]["latency"]
    assert results[1].reason.startswith("vllm bench latency times whole batches")
    assert results[2].value is None


def test_a_mean_that_the_batches_do_not_give_is_found() -> None:
    assert codes(read(LATENCY | {"avg_latency": 2.2})) == ["statistics-disagree"]
    assert codes(read(LATENCY)) == []


def test_bench_throughput_shows_requests_and_tokens_a_second(tmp_path: Path) -> None:
    names = ("request_throughput", "total_token_throughput", "output_throughput", "request_latency")
    results = measured(tmp_path, *names, throughput__json=THROUGHPUT)
    assert [result.value for result in results] == [200 / 10.0, 50_000 / 10.0, None, None]
    assert results[2].reason.startswith(
        "the vllm bench throughput result does not say how many output tokens"
    )
    assert results[3].reason.startswith("vllm bench throughput times all requests")


def test_a_sweep_is_several_benchmarks_and_says_so(tmp_path: Path) -> None:
    (result,) = measured(tmp_path, "TTFT", summary__json=SWEEP)
    assert result.reason.startswith("the run holds 3 results of serving benchmarks")
    assert "run=0.json" in result.fix


def test_a_sweep_of_one_run_is_that_benchmark(tmp_path: Path) -> None:
    (result,) = measured(tmp_path, "TTFT", summary__json=json.dumps(SWEEP[:1], indent=4))
    assert result.value == pytest.approx(0.2)


@pytest.mark.parametrize("junk", [[3], [[]], ["run"]])
def test_a_list_of_something_else_is_refused_with_its_place(tmp_path: Path, junk: list[Any]) -> None:
    text = json.dumps([*SWEEP[:1], *junk])
    (result,) = measured(tmp_path, "TTFT", summary__json=text)
    assert "result 1 is not an object" in result.fix
