"""Prefill and decode steps in traces: recognised by names of vLLM and SGLang, else refused."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from serving_files import vllm

from ccl_bench.analysis.serving.forward_passes import forward_passes, phases
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog import load_data
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
        ("step[TARGET_VERIFY bs=64]", "decode", 64),
        ("step[SPLIT_PREFILL bs=2]", "prefill part", 2),
        ("step[DLLM_EXTEND bs=5]", "mixed", 5),
        ("step[DRAFT_EXTEND bs=6]", "draft", 6),
        ("step[DRAFT_EXTEND_V2 bs=6]", "draft", 6),
        ("execute_new_2_cached_0", "prefill", 2),
        ("execute_new_0_cached_7", "decode", 7),
        ("execute_new_3_cached_5", "mixed", 8),
    ],
)
def test_a_pass_is_recognised_by_its_name(name: str, phase: str, requests: int) -> None:
    assert _passes((name, 0, 10)) == [(phase, requests, 0, 10)]


@pytest.mark.parametrize(
    ("name", "generated", "prefilled"),
    [
        ("execute_context_2(512)_generation_6(24)", 24, 512),
        ("execute_7_context_2(sq128sk256)_generation_0(sq0sk0)", None, None),
        ("step[EXTEND bs=2 toks=4096]", None, 4096),
        ("step[DECODE bs=16 toks=16]", None, None),
        ("execute_new_2_cached_0", None, None),
    ],
)
def test_tokens_of_a_pass_are_those_that_its_range_states(
    name: str, generated: int | None, prefilled: int | None
) -> None:
    assert phases(pl.Series([name])).select("generated", "prefilled").rows() == [(generated, prefilled)]


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
        "execute_new_0_cached_0",
        "execute_new_1_cached_x",
        "step[VERIFY bs=4]",
        "step[IDLE bs=0]",
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
    assert _passes(*twins) == [("decode", 8, 5, 60), ("decode", 8, 60, 90)]


def test_twins_without_an_id_are_one_where_they_overlap() -> None:
    twins = ((DECODE, 0, 60, 0), (DECODE, 10, 70, 0), (DECODE, 70, 90, 0))
    assert _passes(*twins) == [("decode", 8, 0, 70), ("decode", 8, 70, 90)]


EXTEND, VERIFY, DECODE_8 = "step[EXTEND bs=8 toks=4096]", "step[TARGET_VERIFY bs=8]", "step[DECODE bs=8]"


def _phases(*names: str) -> list[str]:
    return [row[0] for row in _passes(*((name, 10 * n, 10 * n + 5) for n, name in enumerate(names)))]


def test_what_is_called_decoding_beside_passes_that_verify_is_the_draft_model() -> None:
    assert _phases(DECODE_8, DECODE_8, VERIFY, "step[DRAFT_EXTEND bs=8]", DECODE_8, DECODE_8, VERIFY) == [
        *("draft", "draft", "decode", "draft", "draft", "draft", "decode"),
    ]
    assert _phases(DECODE_8, DECODE_8, EXTEND, DECODE_8) == ["decode", "decode", "prefill", "decode"]


def test_the_draft_model_prefills_after_the_target_model_under_the_same_name() -> None:
    last = "step[EXTEND bs=8 toks=100]"
    chunks = (EXTEND, EXTEND, EXTEND, EXTEND, last, last)
    assert _phases(*chunks, VERIFY, last, last, VERIFY) == [
        *("prefill", "draft", "prefill", "draft", "prefill", "draft", "decode", "prefill", "draft", "decode"),
    ]
    assert _phases(*chunks, DECODE_8) == [*["prefill"] * 6, "decode"]


def test_prefill_passes_that_do_not_all_come_in_pairs_are_the_target_models() -> None:
    last = "step[EXTEND bs=8 toks=100]"
    assert _phases(EXTEND, EXTEND, last, VERIFY) == ["prefill", "prefill", "prefill", "decode"]
    assert _phases(EXTEND, VERIFY, EXTEND, VERIFY) == ["prefill", "decode", "prefill", "decode"]


def test_every_mode_has_a_known_phase_and_a_source() -> None:
    data = load_data("forward_passes")
    for row in data["pass"]:
        assert row.get("phase") in {"prefill", "decode", "mixed", "prefill part", "draft", None}
        assert row.get("drafts") in {"all", "every second", None}
        assert data["sources"][row["source"]]["document"].startswith("https://")


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
    assert "contains no kernel but 2 calls of a device's runtime" in decode.reason
    kernel_alone = _launched((90, 95, 5))[-1:]
    served["traceEvents"][2:] = kernel_alone
    (decode,) = _measured(tmp_path, "decode_step_time", rank0_trace=served)
    assert (decode.status, decode.value) == ("not_measurable", None)
    assert "which only launches a pass" in decode.reason


def test_a_pass_without_work_is_left_out_and_counted(tmp_path: Path) -> None:
    served = _trace((DECODE, 0, 20), (DECODE, 30, 20))
    served["traceEvents"] += _launched((1, 5, 90), (31, 0, 0))
    (decode,) = _measured(tmp_path, "decode_step_time", rank0_trace=served)
    assert decode.value == pytest.approx(90e-6)
    assert decode.details["passes_without_a_time"] == 1


def _served(*passes: tuple[str, int, int, list[tuple]], recorded: dict | None = None) -> dict:
    """Return a trace of passes, given as (name, start, duration, work), us, with their launches and work.

    Work is (launch, start, duration) of a kernel on stream 7, and the number of another stream if it is a
    copy there.
    """
    trace = _trace(*(each[:3] for each in passes)) | (recorded or {})
    for number, (at, start, dur, *stream) in enumerate([w for each in passes for w in each[3]], start=1):
        args = {"correlation": number, "stream": stream[0] if stream else 7, "device": 0}
        call = {"ph": "X", "pid": 1, "tid": 1, "cat": "cuda_runtime", "name": "hipLaunchKernel", "dur": 1}
        cat, name = ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)") if stream else ("kernel", "gemm")
        work = {"ph": "X", "pid": 0, "tid": args["stream"], "cat": cat, "name": name, "ts": start, "dur": dur}
        trace["traceEvents"] += [call | {"ts": at, "args": args}, work | {"args": args}]
    return trace


def test_a_host_that_waits_in_a_range_makes_no_pass_longer(tmp_path: Path) -> None:
    # A prefill of 494 ms; the host enters the decode pass at 10 ms, copies its inputs on another stream,
    # waits for the prefill until 484 ms, and launches a graph that takes 10.4 ms.
    prefill = (EXTEND, 0, 9_000, [(100, 200, 494_000)])
    decode = (DECODE_8, 10_000, 485_000, [(10_100, 10_200, 5, 9), (494_500, 494_600, 10_400)])
    values = _measured(
        tmp_path, "prefill_step_time", "decode_step_time", rank0_trace=_served(prefill, decode)
    )
    assert [each.value for each in values] == pytest.approx([0.494, 0.0108], rel=1e-9)
    assert {each.details["timed"] for each in values} == {"on the device"}
    assert values[1].details["timed_by"] == {"from the first to the last work launched in the range": 1}


def test_a_host_that_runs_ahead_makes_no_pass_shorter_nor_lets_it_wait(tmp_path: Path) -> None:
    # Each range takes 3 ms, each pass 20 ms of kernels and 1 ms between them; passes queue behind each other.
    # Inputs are copied on another stream as soon as they are launched.
    passes = [
        (
            DECODE_8,
            4_000 * n,
            3_000,
            [(at, at + 10, 5, 9), *((at + 20, 21_000 * n + k, 10_000) for k in (100, 11_100))],
        )
        for n in range(5)
        for at in (4_000 * n + 10,)
    ]
    (decode,) = _measured(tmp_path, "decode_step_time", rank0_trace=_served(*passes))
    ends = [21_000 * n + 21_100 for n in range(5)]
    expected = [ends[0] - 20, *(end - before for before, end in pairwise(ends))]
    assert decode.value == pytest.approx(sum(expected) / 5 * 1e-6, rel=1e-9)


def test_kernels_launched_between_passes_or_before_the_recording_are_part_of_none(tmp_path: Path) -> None:
    # The graph of a draft model runs until 5,000 us and is launched in no range; copies do not delay a pass.
    served = _served((DECODE_8, 1_000, 100, [(1_010, 1_020, 5, 9), (1_030, 5_010, 2_000)]))
    args = {"correlation": 90, "stream": 7, "device": 0}
    call = {
        "ph": "X",
        "pid": 1,
        "tid": 1,
        "cat": "cuda_runtime",
        "name": "cudaGraphLaunch",
        "ts": 500,
        "dur": 1,
    }
    ran = {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": "gemm", "ts": 600, "dur": 4_400}
    served["traceEvents"] += [call | {"args": args}, ran | {"args": args}]
    (decode,) = _measured(tmp_path, "decode_step_time", rank0_trace=served)
    assert decode.value == pytest.approx((7_010 - 5_000) * 1e-6, rel=1e-9)
    served["traceEvents"][-1] |= {"cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pinned)"}
    (decode,) = _measured(tmp_path, "decode_step_time", rank0_trace=served)
    assert decode.value == pytest.approx((7_010 - 1_020) * 1e-6, rel=1e-9)


def test_a_pass_beside_a_longer_one_that_was_launched_before_is_not_behind_it(tmp_path: Path) -> None:
    prefill, decode = (EXTEND, 0, 50, [(10, 100, 9_000)]), (DECODE_8, 60, 50, [(70, 200, 300, 9)])
    (result,) = _measured(tmp_path, "decode_step_time", rank0_trace=_served(prefill, decode))
    assert result.value == pytest.approx(300e-6, rel=1e-9)


def test_work_of_ranges_inside_a_pass_counts_although_its_twin_lacks_it(tmp_path: Path) -> None:
    served = _served((DECODE_8, 0, 100, [(10, 200, 50), (20, 260, 300)]))
    twin = {
        "ph": "X",
        "cat": "gpu_user_annotation",
        "name": DECODE_8,
        "pid": 0,
        "tid": 7,
        "ts": 200,
        "dur": 50,
    }
    served["traceEvents"].append(twin | {"args": {"External id": 3}})
    (decode,) = _measured(tmp_path, "decode_step_time", rank0_trace=served)
    assert decode.value == pytest.approx(360e-6, rel=1e-9)
    served["traceEvents"] = [event for event in served["traceEvents"] if event["cat"] != "cuda_runtime"]
    (decode,) = _measured(tmp_path, "decode_step_time", rank0_trace=served)
    assert decode.value == pytest.approx(50e-6, rel=1e-9)
    assert decode.details["timed_by"] == {"the range on the device": 1}


def test_with_speculative_decoding_a_decode_pass_is_that_of_the_target_model(tmp_path: Path) -> None:
    # A round of 10 ms: two passes of a draft model of 200 us each, then 7,400 us of the target model.
    rounds = [
        (name, at, 150, [(at + 10, at + 20, dur)])
        for n in range(4)
        for name, at, dur in (
            (DECODE_8, 10_000 * n, 200),
            (DECODE_8, 10_000 * n + 300, 200),
            (VERIFY, 10_000 * n + 600, 7_400),
        )
    ]
    (decode,) = _measured(tmp_path, "decode_step_time", rank0_trace=_served(*rounds))
    assert decode.value == pytest.approx(0.0074, rel=1e-9)
    assert decode.details["passes"] == {"decode": 4, "draft": 8}
    assert decode.details["modes"] == {"TARGET_VERIFY": 4}
    assert decode.details["draft_pass_s"] == pytest.approx(0.0002, rel=1e-9)


@pytest.mark.parametrize("together", [(), ("gpu_busy",)])
def test_the_cpu_of_a_server_with_a_device_is_none(tmp_path: Path, together: tuple[str, ...]) -> None:
    served = _trace((DECODE_8, 0, 474_000)) | {
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1}
    }
    decode, *_ = _measured(tmp_path, "decode_step_time", *together, rank0_trace=served)
    assert decode.value is None
    assert "CPU work does not stand in for device work" in decode.reason
