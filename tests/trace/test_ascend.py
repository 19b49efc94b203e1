"""Traces of Ascend devices and of MTIA: their device's work is work of a device, never that of the CPU."""

import json
from pathlib import Path

import pytest

from ccl_bench.evaluate.compute import evaluate
from ccl_bench.result import Result
from ccl_bench.run import open_run
from ccl_bench.trace.cache import read_content
from ccl_bench.trace.discovery import discover_traces

Event = dict[str, object]

BASE = 1_699_529_623_106_750


def called(pid: int, name: str) -> Event:
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}


def ran(
    name: str, start: float, length: float, pid: int, tid: int = 1, cat: str = "", **args: object
) -> Event:
    """Return a complete event at `start`, us; the exporter writes times as text and lengths as numbers."""
    event: Event = {
        "ph": "X",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": f"{BASE + start:.3f}",
        "dur": length,
    }
    return event | ({"cat": cat} if cat else {}) | {"args": {k.replace("_", " "): v for k, v in args.items()}}


def task(name: str, start: float, length: float, kind: str, connection: int, stream: int = 2) -> Event:
    event = ran(name, start, length, 3, stream, Task_Type=kind, Physic_Stream_Id=stream)
    event["args"] = {**event["args"], "connection_id": connection}  # type: ignore[dict-item]
    return event


def call(start: float, connection: int) -> Event:
    return ran("AscendCL@aclnnMatmul", start, 1, 2) | {"args": {"connection_id": connection}}


def trace_view(hardware: bool = True) -> list[Event]:
    """Return a step of 1000 us: compute 100..300 and 400..500, a collective 250..450, a copy 600..650.

    So compute is 300 us, communication 200, both 100, and the device works for 450 us.
    """
    processes = [called(1, "Python"), called(2, "CANN")]
    host = [
        ran("ProfilerStep#5", 0, 1000, 1, cat="cpu_op"),
        ran("aten::mm", 5, 20, 1, cat="cpu_op"),
        ran("aten::mm", 6, 18, 1, cat="enqueue"),
        call(10, 1), call(30, 2), call(50, 3), call(70, 4),
    ]  # fmt: skip
    if not hardware:
        return [*processes, *host]
    device = [
        task("MatMulV2", 100, 200, "AI_CORE", 1),
        task("Add", 400, 100, "AI_VECTOR_CORE", 2),
        task("MEMCPY_ASYNC", 600, 50, "SDMA", 3),
        task("EVENT_WAIT", 700, 200, "EVENT_WAIT_SQE", 4),
        task("hcom_allReduce__101_0_1", 250, 200, "AI_CPU", 5, stream=9),
    ]
    collectives = [
        ran("hcom_allReduce__101_0_1", 250, 200, 4, 20),
        ran("Notify_Wait", 250, 100, 4, 21),
        ran("Memcpy", 350, 100, 4, 21),
    ]
    computed = [ran("Computing", 100, 400, 5), ran("Free", 650, 350, 5)]
    named = [called(3, "Ascend Hardware"), called(4, "Communication"), called(5, "Overlap Analysis")]
    return [*processes, *named, *host, *device, *collectives, *computed]


def results(path: Path, *names: str) -> list[Result]:
    return evaluate(open_run(path.parent), names, jobs=1, use_cache=False)


def written(folder: Path, content: object) -> Path:
    path = folder / "trace_view.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_trace_of_torch_npu_is_known_by_its_processes(tmp_path: Path, wrapped: bool) -> None:
    events = trace_view()
    path = written(tmp_path, {"traceEvents": events} if wrapped else events)
    (trace,) = discover_traces(path).traces
    assert trace.form.name == "ascend"


def test_tasks_are_kernels_and_copies_and_waiting_is_neither(tmp_path: Path) -> None:
    (trace,) = discover_traces(written(tmp_path, trace_view())).traces
    content, _ = read_content(
        trace, ["kernels", "memcpy", "launches", "annotations", "cpu_ops"], use_cache=False
    )
    kernels = content.table("kernels")
    assert kernels.select("name", "start_ns", "end_ns", "device", "stream", "correlation").rows() == [
        ("MatMulV2", (BASE + 100) * 1000, (BASE + 300) * 1000, 0, 2, 1),
        ("hcom_allReduce__101_0_1", (BASE + 250) * 1000, (BASE + 450) * 1000, 0, 20, None),
        ("Add", (BASE + 400) * 1000, (BASE + 500) * 1000, 0, 2, 2),
    ]
    assert content.table("memcpy").select("start_ns", "correlation").rows() == [((BASE + 600) * 1000, 3)]
    assert content.table("launches")["correlation"].to_list() == [1, 2, 3, 4]
    assert content.table("annotations")["name"].to_list() == ["ProfilerStep#5"]
    assert content.table("cpu_ops")["name"].to_list() == ["aten::mm"]


def test_numbers_of_an_ascend_device_are_its_own(tmp_path: Path) -> None:
    path = written(tmp_path, trace_view())
    busy, idle, overlap, exposed, kernels = results(
        path, "gpu_busy", "gpu_idle", "comm_comp_overlap", "exposed_communication_time", "total_kernel_time"
    )
    assert busy.value == pytest.approx(45)
    assert idle.value == pytest.approx(55)
    assert overlap.value == pytest.approx(50)
    assert exposed.value == pytest.approx(100e-6)
    assert kernels.value == pytest.approx(500e-6)
    assert busy.window == "ProfilerStep"


def test_an_ascend_trace_without_its_hardware_is_no_run_on_the_cpu(tmp_path: Path) -> None:
    (busy,) = results(written(tmp_path, trace_view(hardware=False)), "gpu_busy")
    assert (busy.status, busy.findings[-1].code) == ("not_measurable", "device-work-missing")
    assert "4 calls of a device's runtime" in busy.reason


def test_a_task_of_an_unknown_type_is_named_and_no_work(tmp_path: Path) -> None:
    events = [*trace_view(), task("new", 800, 100, "QUANTUM", 9)]
    (busy,) = results(written(tmp_path, events), "gpu_busy")
    assert busy.value == pytest.approx(45)
    assert next(f.message for f in busy.findings if f.code == "categories-unknown").endswith("QUANTUM 1")


def test_a_damaged_file_is_unreadable_and_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, trace_view())
    path.write_text(path.read_text()[:-40])
    (busy,) = results(path, "gpu_busy")
    assert (busy.status, busy.reason) == ("not_measurable", "no trace of the run could be read")


def mtia(*events: Event) -> dict[str, object]:
    mark = {
        "ph": "X",
        "cat": "user_annotation",
        "name": "ProfilerStep#1",
        "pid": 1,
        "tid": 1,
        "ts": 0,
        "dur": 100,
    }
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 90}
    return {"schemaVersion": 1, "traceEvents": [mark, op, *events]}


def mtia_event(cat: str, name: str, start: int, length: int, correlation: int) -> Event:
    place = {"pid": 1, "tid": 1, "ts": start, "dur": length}
    return {"ph": "X", "cat": cat, "name": name, **place, "args": {"correlation": correlation}}


def test_events_of_mtia_s_command_processor_are_its_kernels(tmp_path: Path) -> None:
    events = [
        mtia_event("mtia_runtime", "runFunction", 2, 3, 1),
        mtia_event("mtia_ccp_events", "kernel_fc", 10, 30, 1),
        mtia_event("mtia_insight", "counter", 10, 80, 2),
    ]
    path = tmp_path / "kineto_trace_0.json"
    path.write_text(json.dumps(mtia(*events)))
    (busy,) = results(path, "gpu_busy")
    assert (busy.value, busy.findings) == (pytest.approx(30), [])


@pytest.mark.parametrize(
    "category", ["mtia_runtime", "xpu_runtime", "xpu_driver", "hpu_op", "privateuse1_runtime", "driver"]
)
def test_a_runtime_s_calls_without_kernels_are_no_run_on_the_cpu(tmp_path: Path, category: str) -> None:
    path = tmp_path / "kineto_trace_0.json"
    path.write_text(json.dumps(mtia(mtia_event(category, "launch", 2, 3, 1))))
    (busy,) = results(path, "gpu_busy")
    assert (busy.status, busy.findings[-1].code) == ("not_measurable", "device-work-missing")
