"""What was launched and has no record: reported from one launch in a hundred, refused from one in ten."""

import gzip
import json
from pathlib import Path

import pytest
from local_traces import Event, copy, kernel, launch, op, result, results, step, value, write

from ccl_bench.result import Result


def steady(lost: int = 0, count: int = 100) -> list[Event]:
    """Return a step with `count` kernels of 1 us, 10 us apart, without the records of the first `lost`."""
    events = [step(1, 0, 10 * count + 10)]
    for number in range(1, count + 1):
        at = 10 * number
        events.append(launch(number, at - 5, at - 4))
        events += [kernel("gemm", number, at, at + 1)] if number > lost else []
    return events


def reported(found: Result) -> list[tuple[str, str, int]]:
    return [(each.code, each.severity, each.count) for each in found.findings]


def test_one_lost_kernel_in_a_hundred_is_only_noted(tmp_path: Path) -> None:
    found = result(write(tmp_path, steady(lost=1), world_size=1), "gpu_busy")
    assert (found.value, reported(found)) == (
        pytest.approx(100 * 99 / 1010),
        [("kernels-missing", "note", 1)],
    )


def queued(unrecorded: int, host_end: int = 1_000, marks: int = 1) -> list[Event]:
    """Return 100 launches of 1 us in `marks` steps, and kernels of 10 us that lack the last `unrecorded`."""
    events = [step(n + 1, n * host_end // marks, (n + 1) * host_end // marks) for n in range(marks)]
    events += [launch(n + 1, 2 * n + 1, 2 * n + 2) for n in range(99)]
    events += [launch(100, host_end - 2, host_end - 1)]
    return events + [kernel("gemm", n + 1, 20 + 10 * n, 30 + 10 * n) for n in range(100 - unrecorded)]


@pytest.mark.parametrize(("host_end", "code"), [(461, "window-ended"), (462, "kernels-lost")])
def test_work_behind_the_end_of_a_recording_is_not_lost(host_end: int, code: str, tmp_path: Path) -> None:
    # 40 kernels had run from 20 to 420 us; records of the last tenth, 40 us, may be missing. The last launch
    # ends 1 us before the host does.
    events = [each for each in queued(60, host_end) if each["name"] != "ProfilerStep#1"]
    found = result(write(tmp_path, events, world_size=1), "total_kernel_time")
    assert code in {each.code for each in found.findings}
    assert found.value == (pytest.approx(400e-6) if code == "window-ended" else None)


def test_steps_whose_work_had_not_run_when_the_recording_ended_are_in_no_number(tmp_path: Path) -> None:
    # Steps of 105 us on the host; the last 25 launches, all of the second step, have no kernel.
    found = result(write(tmp_path, queued(60, 430, marks=2), world_size=1), "total_kernel_time")
    assert found.value is None
    found = result(write(tmp_path, queued(1, 1_010, marks=2), world_size=1), "total_kernel_time")
    assert [each for each in reported(found) if each[0] == "window-ended"] == [("window-ended", "note", 1)]
    assert found.value == pytest.approx(990e-6)


OF_DEVICES = ("gpu_busy", "gpu_idle", "total_kernel_time", "idle_breakdown", "sm")


def test_more_are_reported_with_every_number_of_the_device(tmp_path: Path) -> None:
    events = steady(lost=10)
    for each in events:
        each["args"]["blocks per SM"] = 1.0
    for found in results(write(tmp_path, events, world_size=1), *OF_DEVICES).values():
        assert found.status == "ok"
        assert reported(found) == [("kernels-missing", "warning", 10)]
        assert "10 of 100 kernel launches in steps (10.0 %)" in found.findings[0].message


def test_beyond_a_tenth_no_number_of_the_device_is_left(tmp_path: Path) -> None:
    for found in results(write(tmp_path, steady(lost=11), world_size=1), *OF_DEVICES).values():
        assert (found.status, found.value) == ("not_measurable", None)
        assert "11 of 100 kernel launches in steps (11.0 %)" in found.reason
        assert found.fix


def test_the_length_of_steps_does_not_rest_on_kernels(tmp_path: Path) -> None:
    run = write(tmp_path, steady(lost=50), world_size=1)
    assert value(run, "iteration_wall_clock_time") == pytest.approx(1010e-6)


def test_launches_after_the_last_step_may_still_wait_for_their_turn(tmp_path: Path) -> None:
    late = [launch(1000 + number, 2000 + number, 2000.5 + number) for number in range(50)]
    assert reported(result(write(tmp_path, steady() + late, world_size=1), "gpu_busy")) == []


def test_a_launch_at_the_very_end_of_the_last_step_lies_behind_it(tmp_path: Path) -> None:
    at_the_end = [launch(1000 + number, 1010, 1010.5, tid=2 + number) for number in range(50)]
    found = result(write(tmp_path, steady() + at_the_end, world_size=1), "gpu_busy")
    assert reported(found) == [("window-ended", "note", 50)]


def test_launches_without_a_correlation_are_not_taken_for_lost(tmp_path: Path) -> None:
    unnumbered = [launch(0, 2 + number / 100, 2.005 + number / 100, tid=2) for number in range(50)]
    assert reported(result(write(tmp_path, steady() + unnumbered, world_size=1), "gpu_busy")) == []


def test_launches_that_only_record_a_graph_start_nothing(tmp_path: Path) -> None:
    begin = launch(2000, 2, 2.5, name="cudaStreamBeginCapture")
    end = launch(2001, 4, 4.5, name="cudaStreamEndCapture")
    captured = [launch(3000 + n, 3 + n / 100, 3.005 + n / 100, tid=2) for n in range(50)]
    assert (
        reported(result(write(tmp_path, [*steady(), begin, *captured, end], world_size=1), "gpu_busy")) == []
    )


def test_launches_around_a_capture_count(tmp_path: Path) -> None:
    begin = launch(2000, 302, 302.5, name="cudaStreamBeginCapture")
    end = launch(2001, 304, 304.5, name="cudaStreamEndCapture")
    captured = launch(3000, 303, 303.1)
    found = result(write(tmp_path, [*steady(lost=50), begin, captured, end], world_size=1), "gpu_busy")
    # 30 of them before the capture, and 20 after it
    assert reported(found)[0] == ("kernels-lost", "error", 50)
    assert "50 of 100 kernel launches" in found.findings[0].message


def test_a_launch_within_another_is_the_same_launch(tmp_path: Path) -> None:
    inner = [launch(3000 + n, 10 * n - 4.8, 10 * n - 4.4, name="cuLaunchKernel") for n in range(1, 101)]
    assert reported(result(write(tmp_path, steady() + inner, world_size=1), "gpu_busy")) == []


@pytest.mark.parametrize(
    "name", ["cudaLaunchKernelExC", "cuLaunchKernelEx", "hipLaunchKernel", "hipModuleLaunchKernel"]
)
def test_every_call_that_launches_a_kernel_counts(tmp_path: Path, name: str) -> None:
    more = [launch(1000 + n, 10 * n, 10 * n + 1, name=name) for n in range(1, 21)]
    assert reported(result(write(tmp_path, steady() + more, world_size=1), "gpu_busy"))[0] == (
        "kernels-lost", "error", 20,
    )  # fmt: skip


def test_copies_that_were_lost_are_reported_of_copies(tmp_path: Path) -> None:
    calls = [launch(1000 + n, 10 * n, 10 * n + 1, name="cudaMemcpyAsync") for n in range(1, 11)]
    ran = [copy("DtoD", 1000, 1000 + n, 10 * n + 2, 10 * n + 3) for n in range(1, 10)]
    found = result(write(tmp_path, steady() + calls + ran, world_size=1), "average_memory_bandwidth")
    assert found.value == pytest.approx(1.0)  # 1,000 bytes in 1 us
    assert reported(found) == [("copies-missing", "warning", 1)]


def test_a_memory_set_of_nothing_leaves_no_record(tmp_path: Path) -> None:
    sets = [launch(1000 + n, 10 * n, 10 * n + 1, name="cudaMemsetAsync") for n in range(1, 11)]
    assert reported(result(write(tmp_path, steady() + sets, world_size=1), "gpu_busy")) == []


def graphs(hidden: int) -> list[Event]:
    """Return ten launches of graphs of 50 us of work each, `hidden` of them without a record of it."""
    events = [step(1, 0, 1000), launch(99, 1, 2), kernel("copy", 99, 3, 23)]
    for number in range(1, 11):
        at = 90 * number
        events.append(launch(number, at, at + 1, name="cudaGraphLaunch"))
        nodes = [kernel("gemm", number, at + 5, at + 30), kernel("gemm", number, at + 30, at + 55)]
        events += nodes if number > hidden else []
    return events


def test_graphs_whose_kernels_were_recorded_count_in_full(tmp_path: Path) -> None:
    found = result(write(tmp_path, graphs(hidden=0), world_size=1), "gpu_busy")
    assert (found.value, reported(found)) == (pytest.approx(100 * (20 + 10 * 50) / 1000), [])


@pytest.mark.parametrize("hidden", [1, 10])
def test_graphs_without_kernels_leave_no_number_of_the_device(tmp_path: Path, hidden: int) -> None:
    found = result(write(tmp_path, graphs(hidden), world_size=1), "gpu_busy")
    assert (found.status, reported(found)) == (
        "not_measurable",
        [("cuda-graphs-hide-kernels", "error", hidden)],
    )


def test_a_trace_that_is_left_out_refuses_nothing(tmp_path: Path) -> None:
    collective = kernel("ncclDevKernel_AllReduce", 500, 1001, 1002, stream=8)
    whole = [*steady(), launch(500, 995, 996), collective]
    run = write(tmp_path, whole, whole, whole)
    cut = run / "kineto_trace_2.json"
    text = cut.read_text()
    cut.write_text(text[: text.index('"gemm"')])
    found = result(run, "gpu_busy")
    assert found.value == pytest.approx(100 * 101 / 1010)
    assert "kernels-lost" not in [code for code, *_ in reported(found)]


def without_kernels(source: Path, folder: Path, share: float) -> Path:
    """Write a recorded run again without the first `share` of the kernels of each trace."""
    folder.mkdir()
    for path in sorted(source.glob("*.json.gz")):
        document = json.loads(gzip.decompress(path.read_bytes()))
        events = document["traceEvents"]
        kernels = [e for e in events if e.get("cat") == "kernel"]
        lost = {id(e) for e in kernels[: int(share * len(kernels))]}
        document["traceEvents"] = [e for e in events if id(e) not in lost]
        (folder / path.name.removesuffix(".gz")).write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize("name", ["nccl-args", "deepseek-dualpipe"])
def test_a_recorded_run_that_loses_a_third_of_its_kernels_is_refused(
    corpus: Path, tmp_path: Path, name: str
) -> None:
    source = corpus / "kineto" / name
    assert not {"kernels-lost", "kernels-missing"} & {
        code for code, *_ in reported(result(source, "gpu_busy"))
    }
    found = result(without_kernels(source, tmp_path / name, 0.3), "gpu_busy")
    assert found.status == "not_measurable"
    assert "kernels-lost" in {finding.code for finding in found.findings}


def test_a_recorded_run_that_loses_all_of_its_kernels_is_no_run_on_the_cpu(
    corpus: Path, tmp_path: Path
) -> None:
    source = corpus / "kineto" / "deepseek-dualpipe"
    found = result(without_kernels(source, tmp_path / source.name, 1), "gpu_busy")
    assert (found.status, found.findings[-1].code) == ("not_measurable", "device-work-missing")


SIGNS = {
    "launches": ({}, [launch(n, n, n + 1) for n in range(1, 78)], "77 launches of kernels"),
    "runtime": ({}, [launch(1, 5, 6, name="cudaMalloc")], "1 calls of a device's runtime"),
    "backend": ({"backend": "hccl"}, [], "the collective backend hccl"),
    "devices": ({"device": "NVIDIA A100-SXM4-80GB"}, [], "1 devices that the process saw"),
    "operators": ({}, [op("aten::_mps_convolution", 50, 60)], "1 operators that only run on an accelerator"),
    "copies": ({}, [copy("HtoD", 8, 1, 30, 40)], "1 copies or memory sets of a device"),
}


@pytest.mark.parametrize("sign", SIGNS)
def test_where_something_shows_a_device_the_cpu_does_not_stand_in_for_it(tmp_path: Path, sign: str) -> None:
    more, events, said = SIGNS[sign]
    run = write(tmp_path, [step(1, 0, 100), op("aten::mm", 10, 20), *events], **{"backend": "gloo", **more})
    step_time, *of_devices = results(run, "iteration_wall_clock_time", *OF_DEVICES[:-1]).values()
    for found in of_devices:
        assert (found.status, found.value) == ("not_measurable", None)
        assert said in found.reason
    assert step_time.value == pytest.approx(100e-6)


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo,cuda:nccl", "mpi"])
def test_a_run_on_cpus_is_measured_on_them(tmp_path: Path, backend: str) -> None:
    run = write(tmp_path, [step(1, 0, 100), op("aten::mm", 10, 20)], backend=backend)
    assert value(run, "gpu_busy") == pytest.approx(10)


def test_copies_alone_show_how_fast_copies_are(tmp_path: Path) -> None:
    run = write(tmp_path, [step(1, 0, 100), copy("DtoD", 1000, 1, 30, 40)], world_size=1)
    assert value(run, "average_memory_bandwidth") == pytest.approx(0.1)  # 1,000 bytes in 10 us
    assert result(run, "gpu_busy").status == "not_measurable"


def test_several_ranks_without_a_recognised_call_are_an_error_of_the_data(tmp_path: Path) -> None:
    events = [*steady(), launch(500, 995, 996), kernel("a_reduction_nobody_knows", 500, 1001, 1002)]
    for found in results(write(tmp_path, events, events), "gpu_busy", "total_kernel_time").values():
        assert reported(found) == [("communication-unrecognised", "error", 2)]


def test_numbers_of_communication_are_refused_then(tmp_path: Path) -> None:
    names = ("coll_call_num", "total_communication_time", "straggler", "traffic_distribution")
    for found in results(write(tmp_path, steady(), steady()), *names).values():
        assert found.status == "not_measurable"
        assert "communication-unrecognised" in [code for code, *_ in reported(found)]
