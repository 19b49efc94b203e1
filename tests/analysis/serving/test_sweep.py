"""Several results in a run are one curve, with numbers that can be worked out by hand."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from serving_files import (
    DURATION,
    aiperf,
    as_lines,
    guidellm,
    guidellm_report,
    summary_only,
    text_of,
    vllm,
)

import ccl_bench as ccl
from ccl_bench.base.errors import NotMeasurable

if TYPE_CHECKING:
    from ccl_bench.api.sweep import ServingSweep

CORPUS = Path(os.environ.get("CCL_BENCH_CORPUS", ""), "serving")


def sweep(folder: Path, metadata: dict[str, Any] | None = None, **files: Any) -> ServingSweep:
    """Write results `NAME.json` and metadata into a run, and return its sweep."""
    for name, value in files.items():
        (folder / f"{name}.json").write_text(text_of(value))
    if metadata:
        (folder / "run_metadata.json").write_text(json.dumps(metadata))
    return ccl.open(folder, use_cache=False).sweep()


def at(concurrency: int | None, tpot_ms: float, tokens: int = 60, **changes: Any) -> dict[str, Any]:
    """Return a result without single requests: `tokens` output tokens in 2 s."""
    return summary_only(max_concurrency=concurrency, mean_tpot_ms=tpot_ms) | {
        "total_output_tokens": tokens,
        "completed": tokens // 20,
        "total_input_tokens": tokens // 2,
        **changes,
    }


def why_refused(folder: Path, **files: Any) -> str:
    """Return why results are no sweep."""
    with pytest.raises(NotMeasurable) as refused:
        sweep(folder, **files)
    return str(refused.value)


def test_points_are_by_load_and_per_device(tmp_path: Path) -> None:
    # 20 ms a token are 50 tokens/s; 60, 400 and 120 tokens in 2 s on 4 devices are 7.5, 50 and 15 tokens/s.
    files = {"b_tp4": at(8, 40, 400), "a_tp4": at(1, 20, 60), "c_tp4": at(16, 50, 120)}
    found = sweep(tmp_path, **files)
    assert [point.load for point in found.points] == ["concurrency 1", "concurrency 8", "concurrency 16"]
    interactivity = [point.interactivity.median for point in found.points if point.interactivity]
    assert interactivity == pytest.approx([50, 25, 20])
    assert [found.data.throughput(place) for place in range(3)] == pytest.approx([7.5, 50, 15])
    assert [point.total_throughput.median for point in found.points if point.total_throughput] == [
        45,
        300,
        90,
    ]
    assert (found.data.devices, found.data.devices_from) == (4, "the results, tp 4 · pp 1 · dp 1")
    assert [point.load for point in found.front] == ["concurrency 8", "concurrency 1"]
    # Halfway between 25 and 50 in logarithms: halfway between 50 and 7.5.
    assert found.at(interactivity=25 * 2**0.5) == pytest.approx((50 * 7.5) ** 0.5)
    assert found.at(interactivity=51) is None


def test_repeats_are_one_point_with_median_and_range(tmp_path: Path) -> None:
    files = {f"r{n}": at(8, tpot) for n, tpot in enumerate((40, 30, 35))}
    found = sweep(tmp_path, **files, other=at(1, 20))
    one, eight = found.points
    assert (one.repeats, eight.repeats) == (1, 3)
    assert eight.tpot_s is not None
    assert (eight.tpot_s.median, eight.tpot_s.min, eight.tpot_s.max) == pytest.approx((0.035, 0.03, 0.04))
    assert found.data.devices is None
    assert "number of devices" in found.data.why_no_devices


def test_single_requests_give_times_and_goodput(tmp_path: Path) -> None:
    # Of TTFT 0.1, 0.3 and 0.2 s two are within 0.2 s, in 2 s.
    slow = vllm(request_rate=4.0, duration=2 * DURATION)
    found = sweep(tmp_path, {"slo_ttft_s": 0.2}, a=slow, b=vllm(request_rate=2.0))
    assert [point.load for point in found.points] == ["2 requests/s", "4 requests/s"]
    assert [point.goodput.median for point in found.points if point.goodput] == [1.0, 0.5]
    first = found.points[0]
    times = [each.median for each in (first.ttft_s, first.tpot_s, first.itl_s) if each]
    assert times == pytest.approx([0.2, 0.04, 0.1 / 3])
    assert found.data.objective is None


def test_a_tpot_objective_is_interpolated_on_the_front(tmp_path: Path) -> None:
    found = sweep(tmp_path, {"slo_tpot_s": 0.025}, a=at(8, 40, 400), b=at(1, 20, 60))
    assert found.data.objective is not None
    # 40 tokens/s per user between 25 (200 tokens/s) and 50 (30 tokens/s).
    assert found.data.objective.throughput == pytest.approx(200 * (30 / 200) ** 0.678071905)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (at(8, 40, model_id="n"), "different configurations: model is m or n"),
        (at(8, 40, tensor_parallel_size=2), "tp is not stated or 2"),
        (at(8, 40, total_output_tokens=64), "output tokens of the results differ: 20 to 21.33 per request"),
        (at(None, 40), "1 of 2 results state neither a concurrency nor a request rate"),
    ],
)
def test_what_is_no_one_curve_is_refused(tmp_path: Path, other: dict[str, Any], reason: str) -> None:
    assert reason in why_refused(tmp_path, a=at(1, 20), b=other)


def test_lengths_may_differ_by_sampling(tmp_path: Path) -> None:
    assert len(sweep(tmp_path, a=at(1, 20), b=at(8, 40, total_output_tokens=63)).points) == 2  # 5 %


def test_one_result_is_no_sweep_nor_are_copies_of_it(tmp_path: Path) -> None:
    assert "fewer than two results" in why_refused(tmp_path, a=vllm(), b=vllm())


def test_requests_and_their_summary_in_two_files_are_one_result(tmp_path: Path) -> None:
    def summary(concurrency: int, mean_ms: float) -> dict[str, Any]:
        records = {"request_latency": {"unit": "ms", "avg": mean_ms}, "request_count": {"avg": 3}}
        return records | {"input_config": {"loadgen": {"concurrency": concurrency}}}

    slower = aiperf()
    for each in slower:
        each["metrics"]["request_latency"]["value"] *= 2
    for folder, requests, concurrency, mean_ms in (
        ("one", aiperf(), 1, 700 / 3),
        ("two", slower, 2, 1400 / 3),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "profile_export.jsonl").write_text(as_lines(requests))
        (tmp_path / folder / "profile_export_aiperf.json").write_text(
            json.dumps(summary(concurrency, mean_ms))
        )
    found = sweep(tmp_path)
    # The rest of an answer of 0.28 s of 3 tokens with TTFT 0.1 s takes 0.09 s a token, of 0.72 s 0.42 s.
    tpots = [point.tpot_s.median for point in found.points if point.tpot_s]
    assert tpots == pytest.approx([0.04, (0.09 + 0.42) / 2])


def test_the_benchmarks_of_one_file_are_a_sweep(tmp_path: Path) -> None:
    found = sweep(tmp_path, benchmarks=guidellm_report(guidellm(rate=1.0), guidellm(rate=2.0)))
    assert [point.load for point in found.points] == ["1 requests/s", "2 requests/s"]


CARD = """\
version: 1
workload: {model: {phase: inference}}
Model-executor: {model_plan_parallelization: {tp: 4, pp: 2}}
"""


def test_devices_come_from_metadata_else_from_the_card(tmp_path: Path) -> None:
    (tmp_path / "workload_card.yaml").write_text(CARD)
    found = sweep(tmp_path, a=at(1, 20), b=at(8, 40))
    assert (found.data.devices, found.data.devices_from) == (8, "workload card, tp · pp · dp")
    found = sweep(tmp_path, {"world_size": 16})
    assert (found.data.devices, found.data.devices_from) == (16, "run_metadata.json")


def test_devices_that_sources_contradict_are_unknown(tmp_path: Path) -> None:
    found = sweep(tmp_path, {"world_size": 8}, a_tp4=at(1, 20), b_tp4=at(8, 40))
    assert found.data.devices is None
    assert "sources disagree" in found.data.why_no_devices


@pytest.mark.skipif(not CORPUS.is_dir(), reason="CCL_BENCH_CORPUS lacks serving results")
def test_recorded_results_give_the_means_that_the_tool_stored(tmp_path: Path) -> None:
    recorded = [*CORPUS.glob("vllm-*/*.json")]
    stored = {}
    for path in recorded:
        (tmp_path / path.parent.name).mkdir()
        shutil.copy(path, tmp_path / path.parent.name / path.name)
        document = json.loads(path.read_text())
        stored[document["request_rate"]] = document
    assert "tp is 4 or 8" in why_refused(tmp_path)
    # As if both were of one configuration, their points have the stored means.
    for number, path in enumerate(tmp_path.glob("*/*.json")):
        path.rename(path.with_name(f"{number}.json"))
        path.parent.rename(tmp_path / f"folder{number}")
    for point in sweep(tmp_path).points:
        document = stored[point.request_rate]
        for name, time in (("ttft", point.ttft_s), ("tpot", point.tpot_s), ("itl", point.itl_s)):
            assert time is not None
            assert time.median * 1000 == pytest.approx(document[f"mean_{name}_ms"], rel=1e-5)
        for name, rate in (("output", point.output_throughput), ("total_token", point.total_throughput)):
            assert rate is not None
            assert rate.median == pytest.approx(document[f"{name}_throughput"], rel=1e-12)
