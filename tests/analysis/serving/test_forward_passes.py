"""Prefill and decode steps in traces: recognised by names of vLLM and SGLang, else refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from serving_files import vllm

from ccl_bench.analysis.serving.forward_passes import forward_passes
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run
from ccl_bench.schema import TABLES

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result import Result

PREFILL, DECODE = "execute_context_1(512)_generation_0(0)", "execute_context_0(0)_generation_8(8)"


def _passes(*ranges: tuple) -> list[tuple]:
    """Return (phase, requests, start, end) of ranges given as (name, start, end, on device, external id)."""
    columns = {
        "name": [r[0] for r in ranges],
        "start_ns": [r[1] for r in ranges],
        "end_ns": [r[2] for r in ranges],
        "on_device": [len(r) > 3 for r in ranges],
        "external_id": [r[3] if len(r) > 3 else None for r in ranges],
    }
    none = [TABLES[name].empty() for name in ("kernels", "memcpy", "launches", "devices")]
    found = forward_passes(TABLES["annotations"].frame(columns), *none)
    return found.select("phase", "requests", "start_ns", "end_ns").rows()


@pytest.mark.parametrize(
    ("name", "phase", "requests"),
    [
        (PREFILL, "prefill", 1),
        (DECODE, "decode", 8),
        ("execute_context_3(2047)_generation_1(1)", "mixed", 4),
        ("execute_7_context_2(sq128sk256)_generation_0(sq0sk0)", "prefill", 2),
        ("step[EXTEND bs=2 toks=4096]", "prefill", 2),
        ("step[DECODE bs=16]", "decode", 16),
        ("step[MIXED bs=3 c=1 g=2 c_sq=5]", "mixed", 3),
    ],
)
def test_a_pass_is_recognised_by_its_name(name: str, phase: str, requests: int) -> None:
    assert _passes((name, 0, 10)) == [(phase, requests, 0, 10)]


def test_the_correlation_zero_joins_no_work_to_a_pass() -> None:
    columns = {"name": [DECODE], "start_ns": [0], "end_ns": [10], "on_device": [False], "external_id": [None]}
    launches = {"start_ns": [2, 3, 10], "end_ns": [3, 4, 11], "correlation": [0, 1, 2]}
    kernels = {"start_ns": [500, 20, 700], "end_ns": [600, 40, 800], "correlation": [0, 1, 2]}
    given = {"kernels": kernels, "memcpy": {}, "launches": launches, "devices": {}}
    tables = [
        TABLES[name].frame({column: values.get(column, [None] * 3) for column in TABLES[name].columns})
        if values
        else TABLES[name].empty()
        for name, values in given.items()
    ]
    found = forward_passes(TABLES["annotations"].frame(columns), *tables)
    assert found.select("start_ns", "end_ns").rows() == [(20, 40)]


@pytest.mark.parametrize(
    "name",
    [
        "execute_model",
        "run_batch",
        "scheduler.run_batch",
        "execute_new_1_cached_3",
        "step[VERIFY bs=4]",
        "step 4",
        "execute_context_0(0)_generation_0(0)",
        f"execute_context_{'9' * 30}(1)_generation_0(0)",
    ],
)
def test_a_name_that_does_not_say_is_no_pass(name: str) -> None:
    assert _passes((name, 0, 10)) == []


def test_the_device_has_the_last_word_on_when_a_pass_ran() -> None:
    assert _passes((DECODE, 0, 5), (DECODE, 3, 20, 7)) == [("decode", 8, 3, 20)]


def test_twins_of_a_pass_on_several_streams_are_one() -> None:
    twins = ((DECODE, 10, 60, 1), (DECODE, 5, 40, 1), (DECODE, 55, 90, 2))
    assert _passes(*twins) == [("decode", 8, 5, 60), ("decode", 8, 55, 90)]


def test_twins_without_an_id_are_one_where_they_overlap() -> None:
    twins = ((DECODE, 0, 60, 0), (DECODE, 10, 70, 0), (DECODE, 70, 90, 0))
    assert _passes(*twins) == [("decode", 8, 0, 70), ("decode", 8, 70, 90)]


def test_of_ranges_inside_each_other_the_outermost_is_the_pass() -> None:
    on_cpu = ((DECODE, 0, 50), ("step[DECODE bs=8]", 5, 45), (DECODE, 60, 90))
    assert _passes(*on_cpu) == [("decode", 8, 0, 50), ("decode", 8, 60, 90)]
    twins = ((DECODE, 10, 60, 1), ("step[DECODE bs=8]", 10, 60, 2), ("step[DECODE bs=8]", 15, 40, 3))
    assert _passes(*twins) == [("decode", 8, 10, 60)]


def _trace(*ranges: tuple[str, int, int]) -> dict:
    """Return a Kineto trace with ranges of (name, start, duration), us."""
    common = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1}
    events = [common | {"name": name, "ts": start, "dur": dur} for name, start, dur in ranges]
    return {"schemaVersion": 1, "traceEvents": events}


def _measured(folder: Path, *names: str, **files: dict) -> list[Result]:
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return evaluate(open_run(folder), names)


SERVED = _trace((PREFILL, 0, 300), (DECODE, 400, 20), (DECODE, 500, 40))


def test_step_times_are_means_over_the_passes_of_one_phase(tmp_path: Path) -> None:
    prefill, decode = _measured(tmp_path, "prefill_step_time", "decode_step_time", rank0_trace=SERVED)
    assert prefill.value == pytest.approx(300e-6)
    assert decode.value == pytest.approx(30e-6)
    assert decode.details["passes"] == {"decode": 2, "prefill": 1}
    assert decode.details["timed"] == "on the CPU, which is the device"


def test_step_times_are_means_over_ranks(tmp_path: Path) -> None:
    slower = _trace((DECODE, 0, 50))
    (decode,) = _measured(tmp_path, "decode_step_time", rank0_trace=SERVED, rank1_trace=slower)
    assert decode.value == pytest.approx((30e-6 + 50e-6) / 2)
    assert decode.ranks == [0, 1]


@pytest.mark.parametrize(("name", "instead"), [("TTFT", "prefill_step_time"), ("TPOT", "decode_step_time")])
def test_a_pass_never_bears_the_name_of_what_a_user_waits_for(
    tmp_path: Path, name: str, instead: str
) -> None:
    (result,) = _measured(tmp_path, name, rank0_trace=SERVED)
    assert (result.status, result.value) == ("not_measurable", None)
    assert instead in result.reason
    assert result.fix.endswith(f"or ask for {instead}")


def test_a_serving_benchmark_goes_before_the_traces_beside_it(tmp_path: Path) -> None:
    files = {"rank0_trace": SERVED, "bench": vllm()}
    ttft, decode = _measured(tmp_path, "TTFT", "decode_step_time", **files)
    assert ttft.value == pytest.approx(0.2)
    assert decode.value == pytest.approx(30e-6)
    assert ttft.findings == decode.findings == []


def test_passes_that_mix_both_are_neither(tmp_path: Path) -> None:
    mixed = _trace(("execute_context_1(5)_generation_1(1)", 0, 30), (DECODE, 40, 20))
    prefill, decode = _measured(tmp_path, "prefill_step_time", "decode_step_time", rank0_trace=mixed)
    assert prefill.reason.endswith("there are 1 decode and 1 mixed passes, which do both at once")
    assert decode.value == pytest.approx(20e-6)


def test_ranges_that_do_not_say_give_no_step_time(tmp_path: Path) -> None:
    (prefill,) = _measured(tmp_path, "prefill_step_time", rank0_trace=_trace(("execute_model", 0, 9)))
    assert prefill.status == "not_measurable"
    assert "no range in the traces is marked as a prefill or decode pass" in prefill.reason


def _launched(*work: tuple[int, int, int], kind: str = "kernel") -> list[dict]:
    """Return launches with their work, given as (launch, start, duration), us."""
    events = []
    for number, (at, start, dur) in enumerate(work, start=1):
        common = {"ph": "X", "pid": 1, "tid": 1, "args": {"correlation": number, "stream": 7, "device": 0}}
        events.append(common | {"cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": at, "dur": 1})
        if dur:
            events.append(common | {"cat": kind, "name": "gemm", "ts": start, "dur": dur, "pid": 0, "tid": 7})
    return events


def test_a_pass_without_a_twin_takes_as_long_as_the_work_that_it_launched(tmp_path: Path) -> None:
    served = _trace((DECODE, 0, 20), (DECODE, 30, 20), (PREFILL, 60, 20))
    served["traceEvents"] += _launched((1, 5, 90), (9, 95, 10), (31, 105, 120), (61, 225, 300), (85, 600, 9))
    prefill, decode = _measured(tmp_path, "prefill_step_time", "decode_step_time", rank0_trace=served)
    assert decode.value == pytest.approx(((105 - 5) + (225 - 105)) / 2 * 1e-6)
    assert prefill.value == pytest.approx((525 - 225) * 1e-6)
    assert decode.details["timed"] == "on the device"


def test_launches_that_lead_to_nothing_are_no_time_of_a_pass(tmp_path: Path) -> None:
    served = _trace((DECODE, 0, 20), (DECODE, 30, 20))
    served["traceEvents"] += _launched((1, 0, 0), (31, 0, 0))
    (decode,) = _measured(tmp_path, "decode_step_time", rank0_trace=served)
    assert (decode.status, decode.value) == ("not_measurable", None)
    assert "which only launches a pass" in decode.reason


def test_a_pass_without_work_is_left_out_and_counted(tmp_path: Path) -> None:
    served = _trace((DECODE, 0, 20), (DECODE, 30, 20))
    served["traceEvents"] += _launched((1, 5, 90), (31, 0, 0))
    (decode,) = _measured(tmp_path, "decode_step_time", rank0_trace=served)
    assert decode.value == pytest.approx(90e-6)
    assert decode.details["passes_without_a_time"] == 1
