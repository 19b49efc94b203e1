"""A run that torch's profiler and Nsight Systems both recorded: each number rests on one of them."""

import json

import pytest
from exports import export, kernel, mark

from ccl_bench.evaluate.compute import evaluate
from ccl_bench.evaluate.inspect import inspect
from ccl_bench.run import open_run

ACTIVE = [{"typeId": 1 << 40, "metricId": 0, "metricName": "SM Active [Throughput %]"}]
STEPS = {"NVTX_EVENTS": [mark(0, 100, "step 1"), mark(100, 200, "step 2")]}
WORK = {"CUPTI_ACTIVITY_KIND_KERNEL": [kernel(10, 60), kernel(110, 160)]}


def samples(*values):
    """Return samples of SM Active every 50 ns."""
    rows = [
        {"timestamp": 20 + 50 * n, "typeId": 1 << 40, "metricId": 0, "value": value}
        for n, value in enumerate(values)
    ]
    return {"GPU_METRICS": rows, "TARGET_INFO_GPU_METRICS": ACTIVE}


def report(folder, **more):
    """Write a report of one process with two steps."""
    return export(folder / "report.sqlite", STEPS | WORK | more, ("gemm",))


@pytest.fixture
def run(tmp_path):
    """Return a run of one rank with a Kineto trace of one step, half of which a kernel fills."""
    event = {"ph": "X", "pid": 1, "tid": 1}
    step = event | {"cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 100}
    shape = {"device": 0, "stream": 7, "correlation": 1, "blocks per SM": 0.5}
    ran = event | {"cat": "kernel", "name": "gemm", "ts": 20, "dur": 50, "args": shape}
    content = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": 0, "world_size": 1},
        "traceEvents": [step, ran],
    }
    (tmp_path / "rank0_trace.json").write_text(json.dumps(content))
    return tmp_path


def measured(place, *names, mode="auto"):
    found = evaluate(open_run(place, profile_mode=mode), names, use_cache=False, jobs=1)
    return {result.metric: result for result in found}


def codes(result):
    return {finding.code for finding in result.findings}


def formats(result):
    return {trace.format for trace in result.provenance.traces}


def test_a_number_that_torch_shows_rests_on_torch(run):
    report(run)
    busy = measured(run, "gpu_busy")["gpu_busy"]
    assert busy.value == pytest.approx(50)  # 50 us of 100 us
    assert (formats(busy), codes(busy)) == ({"kineto"}, {"nsys-set-aside", "launches-missing"})


def test_hardware_samples_of_a_report_come_before_an_estimate_from_torch(run):
    report(run, **samples(20, 40, 60, 80))
    found = measured(run, "sm", "gpu_busy")
    assert found["sm"].value == pytest.approx(50)  # the mean of four samples
    assert found["sm"].details["kind"] == "measured"
    assert (formats(found["sm"]), codes(found["sm"])) == ({"nsys"}, {"nsys-used", "launches-missing"})
    assert formats(found["gpu_busy"]) == {"kineto"}


def test_a_report_without_samples_does_not_replace_the_estimate(run):
    report(run)
    use = measured(run, "sm")["sm"]
    assert use.value == pytest.approx(25)  # half of the multiprocessors half of the time
    assert (use.details["kind"], formats(use)) == ("estimated", {"kineto"})


def test_a_metric_without_a_value_from_torch_is_recognised_by_the_report(run):
    trace = json.loads((run / "rank0_trace.json").read_text())
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e["cat"] != "kernel"]
    trace["traceEvents"].append(trace["traceEvents"][0] | {"cat": "cpu_op", "name": "aten::mm", "dur": 10})
    (run / "rank0_trace.json").write_text(json.dumps(trace))
    report(run)
    kernels = measured(run, "total_kernel_time")["total_kernel_time"]
    assert kernels.value == pytest.approx(50e-9)  # 50 ns in each of two steps
    assert "nsys-used" in codes(kernels)


@pytest.mark.parametrize("mode", ["torch", "nsys"])
def test_a_mode_that_names_one_recorder_asks_no_other(run, mode):
    report(run, **samples(20, 40, 60, 80))
    use = measured(run, "sm", mode=mode)["sm"]
    assert use.details["kind"] == {"torch": "estimated", "nsys": "measured"}[mode]
    assert codes(use).isdisjoint({"nsys-used", "nsys-set-aside"})


def test_inspect_shows_the_same_as_the_metrics(run):
    report(run, **samples(20, 40, 60, 80))
    (run / "rank0_trace.json").write_text('{"schemaVersion": 1, "traceEvents": 5}')
    reported = {metric.metric: metric.status for metric in inspect(open_run(run), use_cache=False).metrics}
    names = [name for name in reported if name not in {"moe_fraction"}]
    assert {r.metric: r.status for r in measured(run, *names).values()} == {n: reported[n] for n in names}
    assert reported["sm"] == "ok"
