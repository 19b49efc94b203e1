"""Injected causes are named, and worth what the plan without them saves; healthy runs are left alone."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from injected import CASES, HEALTHY, PIPELINE, SHARDED, diagnosed, diagnosed_case, only, step_s

from ccl_bench import diagnosis
from ccl_bench.diagnosis.diagnose import diagnose
from ccl_bench.run import open_run
from ccl_bench.testing import Straggler, trace_path, write_run

NO_GAIN = {"few_microbatches"}
"""Diagnoses whose gain is unknown."""

BESIDE = {"exposed_collectives"}
"""True of runs in which communication is slow, whatever makes it slow."""

ROUGHLY = {
    "launch_bound": 0.02,
    "slow_calls": 0.02,
    "small_messages": 0.02,
    "copies_in_step": 0.05,
    "exposed_collectives": 0.01,
    "host_pauses": 0.01,
}
"""Diagnosis → share by which the run without the cause may differ: its launches change too."""


COUNTED = {
    *("late host", "slow device", "garbage collection", "pause without a name", "named pause"),
    *("compilation", "module loading"),
}
"""Causes that another case, or a test below, injects twice or in some steps; `make diagnoses` counts all.

Pauses differ from those of the data loader by a mark alone; `tests/conclusions` has a run of each.
"""


@pytest.mark.parametrize("name", [name for name in CASES if name not in COUNTED])
def test_an_injected_cause_is_named_and_worth_what_the_plan_saves(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    found = diagnosed_case(case, tmp_path)
    assert {each.name for each in found.diagnoses} <= {case.diagnosis, *BESIDE}
    first = next(each for each in found.diagnoses if each.name == case.diagnosis)
    assert first.ranks == list(case.ranks)
    gain_s = step_s(case.plan) - step_s(case.without)
    assert first.gain_s == pytest.approx(gain_s, rel=ROUGHLY.get(case.diagnosis, 1e-6), abs=1e-9)
    if case.ranks:
        assert {each.rank for each in first.evidence} <= {*case.ranks}
    assert case.diagnosis not in found.silent


def test_every_rule_has_a_run_with_its_cause() -> None:
    tested = {case.diagnosis for case in CASES.values()} | NO_GAIN | {"synchronisation", "fp32_products"}
    assert tested == {rule.name for rule in diagnosis.load()}


ALIKE = {"sharded", "wide", "more noise", "replicated", "pipeline"}
"""Healthy runs of which there is one with noise, or with less; `make diagnoses` counts alarms of all."""


@pytest.mark.parametrize("name", [name for name in HEALTHY if name not in ALIKE])
def test_a_healthy_run_is_left_alone(name: str, tmp_path: Path) -> None:
    found = diagnosed(HEALTHY[name], tmp_path)
    assert [each.title for each in found.diagnoses] == []
    assert found.why_no_gains == ""


def test_recording_windows_with_equal_numbers_are_steps_of_their_own(tmp_path: Path) -> None:
    """Rank 2 is late in the second of two windows: the mean of their six steps gains half."""
    late = Straggler(2, host_ns=2_000_000)
    write_run(SHARDED, tmp_path / "iteration_1")
    write_run(replace(SHARDED, stragglers=(late,)), tmp_path / "iteration_2")
    found = diagnose(open_run(tmp_path), jobs=1)
    (cause,) = found.diagnoses
    assert (cause.name, cause.ranks, cause.steps) == ("late_ranks", [2], [4, 5, 6])
    assert cause.gain_s == pytest.approx(0.001)
    assert found.verdict is not None
    assert found.verdict.steps == 6


def test_a_rank_that_is_slow_in_some_steps_is_seen_in_those(tmp_path: Path) -> None:
    late = Straggler(3, host_ns=2_000_000, steps=(2, 5, 8))
    found = only(diagnosed(replace(SHARDED, steps=8, stragglers=(late,)), tmp_path))
    assert (found.name, found.ranks, found.steps) == ("late_ranks", [3], [2, 5, 8])
    assert found.gain_s == pytest.approx(3 / 8 * 0.002, abs=1e-9)
    assert found.gain_error == pytest.approx(0, abs=1e-9)


def test_few_microbatches_have_no_gain_and_the_number_that_would_do(tmp_path: Path) -> None:
    """Two stages: 1 / (4 + 1) is 20 %; 1 / (9 + 1) is 10 %."""
    found = only(diagnosed(replace(PIPELINE, microbatches=4), tmp_path))
    assert (found.name, found.gain_s, found.share) == ("few_microbatches", None, None)
    assert "20%" in found.title
    assert found.remedy.startswith("9 microbatches would leave 10%")


CORPUS = os.environ.get("CCL_BENCH_CORPUS")
recorded = pytest.mark.skipif(not CORPUS, reason="CCL_BENCH_CORPUS is not set")


@recorded
def test_the_slow_worker_and_stage_of_a_recorded_pipeline_are_named_in_their_steps() -> None:
    """Scenarios alternate by twos: clean, slow (rank 1), last (ranks 3 and 7), over 24 steps."""
    run = Path(str(CORPUS)) / "injected-pp" / "train-pp4-dp2"
    found = {each.name: each for each in diagnose(open_run(run), jobs=1).diagnoses}
    slow = {step for step in range(24) if step % 6 in {2, 3}}
    last = {step for step in range(24) if step % 6 in {4, 5}}
    assert found["late_ranks"].ranks == [1]
    assert len(slow & {*found["late_ranks"].steps}) >= 0.9 * len(slow)
    assert found["uneven_stages"].ranks == [3, 7]
    assert len(last & {*found["uneven_stages"].steps}) >= 0.9 * len(last)


@recorded
def test_calls_that_wait_for_the_device_are_counted_in_a_recorded_run() -> None:
    """Each of dlrm's ranks calls cudaStreamSynchronize nine or ten times in its step."""
    run = Path(str(CORPUS)) / "kineto" / "dlrm-8rank"
    found = {each.name: each for each in diagnose(open_run(run), jobs=1).diagnoses}["synchronisation"]
    assert "9 times a step in cudaStreamSynchronize" in found.title
    assert found.gain_s is not None
    assert 0 < found.gain_s < 0.0199


@recorded
def test_the_data_loader_of_a_recording_of_torch_1_8_is_named() -> None:
    """Its ranges have the category of operators. Time in them while the device is idle is lost."""
    run = Path(str(CORPUS)) / "conclusions" / "old-loader"
    idle_us, loads = 0, 0
    for path in run.iterdir():
        events = msgspec.json.decode(gzip.decompress(path.read_bytes()))["traceEvents"]
        work = [each for each in events if each.get("cat") in {"Kernel", "Memcpy", "Memset"}]
        work.sort(key=lambda event: event["ts"])
        for load in (each for each in events if str(each["name"]).startswith("enumerate(DataLoader)#")):
            loads += 1
            at, end = load["ts"], load["ts"] + load["dur"]
            for each in work:
                idle_us += max(0, min(each["ts"], end) - at)
                at = max(at, min(each["ts"] + each["dur"], end))
            idle_us += end - at
    assert loads == 12
    first = diagnose(open_run(run), jobs=1, use_cache=False).diagnoses[0]
    assert first.name == "data_loading"
    assert first.gain_s == pytest.approx(idle_us / loads / 1e6, rel=0.03)


def test_products_in_float32_could_be_faster_by_the_ratio_of_peaks(tmp_path: Path) -> None:
    """Products are renamed to those of float32; an A100's peak in TF32 is 156 against 19.5 TFLOP/s."""
    write_run(SHARDED, tmp_path)
    products_us = 0.0
    for rank in range(4):
        path = trace_path(tmp_path, rank)
        content = json.loads(path.read_text(encoding="utf-8"))
        for event in content["traceEvents"]:
            if str(event.get("name")).startswith("ampere_bf16_s16816gemm"):
                event["name"] = "ampere_sgemm_128x64_nn"
                products_us += event["dur"] / 4 / SHARDED.steps
        path.write_text(json.dumps(content), encoding="utf-8")
    found = only(diagnose(open_run(tmp_path), jobs=1, use_cache=False))
    assert found.name == "fp32_products"
    assert found.gain_s == pytest.approx(products_us * 7 / 8 / 1e6, rel=0.1)
    assert found.gain_s < products_us / 1e6
