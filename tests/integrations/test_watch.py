"""Traces measured as they are written: each window once, when it is whole; numbers for dashboards."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import invoke
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.integrations.watching.gauges import PrometheusPage, gauges
from ccl_bench.integrations.watching.watch import MeasuredWindow, StoredResults, Watcher, WatchOptions
from ccl_bench.integrations.watching.windows import WatchedFolder, Window, WindowTracker
from ccl_bench.result import Result, ResultFinding
from ccl_bench.testing import Expected, Plan, timeline, values, write_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PLAN = Plan(dp_shard=2, steps=2)
EXPECTED = values(Expected(timeline(PLAN)))
NAMES = ("coll_call_num", "gpu_busy", "ttft")
TRACE = Path("profile_trace", "iteration_10", "rank1_trace.json")


class Seen:
    """A watcher and its results."""

    def __init__(
        self, root: Path, kept: Path | None = None, *, settle_s: float = 0.0, patience_s: float = 1e6
    ) -> None:
        self.windows: list[MeasuredWindow] = []
        self.remarks: list[str] = []
        self.kept = StoredResults(kept) if kept else None
        self.watcher = Watcher(
            WatchOptions(root, "plain", NAMES, settle_s, patience_s),
            store=self.kept,
            sinks=[],
            report=lambda measured, _file: self.windows.append(measured),
            remark=self.remarks.append,
        )

    def look(self) -> list[str]:
        """Look, and return the windows that were measured."""
        before = len(self.windows)
        self.watcher.look()
        return [measured.window for measured in self.windows[before:]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a directory with one window of two ranks."""
    write_run(PLAN, tmp_path / "outputs", iteration=10)
    return tmp_path / "outputs"


@contextlib.contextmanager
def cut(trace: Path) -> Iterator[None]:
    """Leave half of a trace, as while it is written."""
    whole = trace.read_bytes()
    trace.write_bytes(whole[: len(whole) // 2])
    yield
    trace.write_bytes(whole)


def test_a_window_is_measured_once_with_the_numbers_it_was_made_with(root: Path) -> None:
    seen = Seen(root)
    assert seen.look() == ["iteration_10"]
    found = {result.metric: result.value for result in seen.windows[0].values}
    assert found == {name: pytest.approx(EXPECTED[name]) for name in ("coll_call_num", "gpu_busy")}
    assert (seen.windows[0].step, seen.windows[0].ranks) == (10, [0, 1])
    assert seen.look() == []
    write_run(PLAN, root, iteration=20)
    write_run(PLAN, root, iteration=30)
    assert seen.look() == ["iteration_20", "iteration_30"]


def test_a_file_that_is_being_written_is_not_measured(root: Path) -> None:
    seen = Seen(root)
    with cut(root / TRACE):
        assert seen.look() == []
        assert "rank1_trace.json" in seen.remarks[0]
        assert (seen.look(), len(seen.remarks)) == ([], 1)
    assert seen.look() == ["iteration_10"]
    assert not seen.windows[0].findings


def test_a_file_that_is_still_empty_is_not_measured(root: Path) -> None:
    whole = (root / TRACE).read_bytes()
    (root / TRACE).write_bytes(b"")
    seen = Seen(root)
    assert seen.look() == []
    (root / TRACE).write_bytes(whole)
    assert seen.look() == ["iteration_10"]


def test_a_file_that_never_completes_is_measured_as_it_is_after_some_time(root: Path) -> None:
    with cut(root / TRACE):
        seen = Seen(root, patience_s=0.0)
        assert seen.look() == ["iteration_10"]
        assert "file-truncated" in {finding.code for finding in seen.windows[0].findings}
        assert json.loads(seen.windows[0].line())["findings"]


def test_a_window_waits_for_its_ranks_unless_the_last_one_had_no_more(root: Path) -> None:
    (root / TRACE).unlink()
    seen = Seen(root)
    assert seen.look() == []
    assert seen.remarks == ["iteration_10 is not measured yet: 1 of 2 ranks have no trace"]
    seen = Seen(root, patience_s=0.0)
    assert seen.look() == ["iteration_10"]
    assert "ranks-missing" in {finding.code for finding in seen.windows[0].findings}
    patient = WatchOptions(root, "plain", NAMES, 0.0, 1e6)
    seen.watcher._how = patient
    seen.watcher._settling = WindowTracker(0.0, 1e6)
    write_run(PLAN, root, iteration=20)
    (root / "profile_trace" / "iteration_20" / "rank1_trace.json").unlink()
    assert seen.look() == ["iteration_20"]


def test_a_file_has_settled_when_it_did_not_change_for_the_time_that_is_asked(root: Path) -> None:
    (window,) = WatchedFolder(root).look().windows
    changed_s = max(file.changed_ns for file in window.files) / 1e9
    settling = WindowTracker(10.0, 60.0)
    settling.update([window], 100.0, changed_s + 4)
    assert [settling.is_written(window, now) for now in (100.0, 105.9, 106.1)] == [False, False, True]
    grown = Window(window.name, window.number, window.files[:1])
    settling.update([grown], 107.0, changed_s + 11)
    assert [settling.is_written(grown, now) for now in (116.9, 117.1)] == [False, True]
    settling.refuse(grown)
    assert [settling.is_written(grown, now) for now in (118.0, 166.9, 167.1)] == [False, False, True]
    settling = WindowTracker(10.0, 60.0)
    settling.update([window], 100.0, changed_s - 5_000)  # a clock that is behind
    assert [settling.is_written(window, now) for now in (100.0, 110.1)] == [False, True]


def test_what_was_measured_by_an_earlier_call_is_not_measured_again(root: Path, tmp_path: Path) -> None:
    command = ["ccl-bench", "watch", str(root), "--once", "--settle", "0", "-o", str(tmp_path / "kept")]
    command += ["-m", "coll_call_num", "-m", "iteration_wall_clock_time"]
    first, second = invoke(command), invoke(command)
    assert (first.returncode, second.returncode) == (0, 0)
    assert json.loads(first.stdout)["results"] == "iteration_10.json"
    assert (second.stdout, second.stderr) == ("", "")
    shutil.copytree(root / TRACE.parent, root / TRACE.parents[1] / "iteration_20")
    assert json.loads(invoke(command).stdout)["window"] == "iteration_20"
    windows = [str(tmp_path / "kept" / f"iteration_{n}.json") for n in (10, 20)]
    compared = invoke(["ccl-bench", "compare", *windows, "--fail-on", "1%"])
    assert (compared.returncode, compared.stderr) == (0, "")
    assert "comparable: they did the same work" in compared.stdout


def test_a_window_that_is_written_again_is_measured_again_and_nothing_is_overwritten(
    root: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "iteration_10.json").write_text("mine")
    (kept / "windows.jsonl").write_text('{"window": "iteration_10", "signa')
    seen = Seen(root, kept)
    assert seen.look() == ["iteration_10"]
    write_run(Plan(dp_shard=2, steps=3), root, iteration=10)
    assert seen.look() == ["iteration_10"]
    assert (kept / "iteration_10.json").read_text() == "mine"
    lines = (kept / "windows.jsonl").read_text().splitlines()
    assert [json.loads(line)["results"] for line in lines[1:]] == [
        "iteration_10.2.json",
        "iteration_10.3.json",
    ]
    with pytest.raises(UsageError, match="another ccl-bench watch writes into"):
        StoredResults(kept)
    seen.kept.close()


def test_results_inside_the_watched_directory_are_no_window(root: Path) -> None:
    seen = Seen(root, root / "iteration_7")
    assert (seen.look(), seen.look()) == (["iteration_10"], [])
    seen.kept.close()


def test_files_named_by_time_are_windows_where_a_process_writes_again(root: Path) -> None:
    for rank in (0, 1):
        for window, second in enumerate((1_732_312_000, 1_732_312_100)):
            name = f"node_{40 + rank}.{second + rank}000.pt.trace.json"
            shutil.copy(root / TRACE.parent / f"rank{rank}_trace.json", root / name)
            assert window in (0, 1)
    shutil.rmtree(root / "profile_trace")
    seen = Seen(root)
    assert seen.look() == ["at_20241122T214640.000Z", "at_20241122T214820.000Z"]
    assert {tuple(measured.ranks) for measured in seen.windows} == {(0, 1)}
    assert {measured.step for measured in seen.windows} == {PLAN.steps}


def test_traces_that_are_overwritten_in_place_are_one_window_each_time(root: Path) -> None:
    for trace in (root / TRACE.parent).iterdir():
        trace.rename(root / trace.name)
    shutil.rmtree(root / "profile_trace")
    seen = Seen(root)
    assert seen.look() == ["run"]
    write_run(Plan(dp_shard=2, steps=3), root)
    assert (seen.look(), seen.look()) == (["run"], [])
    assert [measured.step for measured in seen.windows] == [2, 3]


def test_a_file_that_is_written_again_with_as_many_bytes_is_measured_again(root: Path) -> None:
    seen = Seen(root)
    assert seen.look() == ["iteration_10"]
    os.utime(root / TRACE, ns=(1, 2))
    assert seen.look() == ["iteration_10"]


def test_a_file_that_changes_while_it_is_read_is_not_measured(root: Path) -> None:
    seen = Seen(root)
    (window,) = WatchedFolder(root).look().windows
    os.utime(root / TRACE, ns=(1, 2))
    measured, lacks = seen.watcher._measure(window, [], given_up=True)
    assert (measured, lacks) == (None, f"{TRACE.as_posix()} changed while it was read")


def test_step_times_of_the_whole_run_are_no_number_of_a_window(root: Path) -> None:
    (root / "step_times.json").write_text("[9.0, 9.0]")
    assert "step_times.json" not in WatchedFolder(root).look().shared
    assert {"workload_card.yaml", "run_metadata.json"} <= {*WatchedFolder(root).look().shared}


def test_checkpoints_and_logs_beside_the_traces_are_no_windows(root: Path) -> None:
    for name in (
        "checkpoint/step-10/__0_0.distcp",
        "checkpoint/step-20/.metadata",
        "tb/events.out",
        "train.log",
        "logs/iteration_10/train.log",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    seen = WatchedFolder(root).look()
    assert [(window.name, len(window.files)) for window in seen.windows] == [("iteration_10", 2)]
    assert {*seen.shared} == {"workload_card.yaml", "run_metadata.json"}


def test_a_trace_that_disappears_is_a_remark_and_no_end(root: Path) -> None:
    seen = Seen(root, patience_s=0.0)
    (window,) = WatchedFolder(root).look().windows
    seen.watcher._settling.update([window], 1.0, 1e12)
    shutil.rmtree(root / "profile_trace")
    assert seen.watcher._is_done(window, [], 2.0)
    assert "iteration_10 cannot be measured" in seen.remarks[0]
    assert seen.look() == []


def test_a_directory_that_is_renamed_ends_the_watch(root: Path) -> None:
    seen = Seen(root)
    root.rename(root.with_name("elsewhere"))
    with pytest.raises(InputError, match="the watched directory no longer exists"):
        seen.look()


def test_odd_names_of_folders_become_plain_names_of_windows(root: Path) -> None:
    (root / TRACE.parent).rename(root / "profile_trace" / "a\n\x1b[31miteration_10; rm")
    assert Seen(root).look() == ["window_10"]


def test_a_metric_without_a_value_is_absent_and_units_are_base_units() -> None:
    results = [
        Result("iteration_wall_clock_time", "ok", "s", "lower", 0.25),
        Result("gpu_busy", "ok", "%", "higher", 50.0),
        Result("collective_volume_allgather", "ok", "GB", "neither", 2.0),
        Result("TPOT", "not_applicable", "s", "lower"),
        Result("of_a_plugin", "ok", "µm/Day", "lower", 1.0),
    ]
    findings = [ResultFinding("ranks-missing", "warning", text) for text in ("a", "b")]
    window = MeasuredWindow('a"\n\x1b[31mb' + "x" * 4_000, "w", None, 1, [0], results, findings, "", "")
    found = {gauge.name: gauge.value for gauge in gauges(window)}
    assert found == {
        "ccl_bench_iteration_wall_clock_time_seconds": 0.25,
        "ccl_bench_gpu_busy_ratio": 0.5,
        "ccl_bench_collective_volume_allgather_bytes": 2e9,
        "ccl_bench_of_a_plugin_m_day": 1.0,
    }
    page = PrometheusPage("0")
    try:
        with urllib.request.urlopen(page.address) as answer:
            assert answer.read() == b""
        page.show(window)
        scraped = _scraped(page.address)
    finally:
        page.close()
    assert {name: value for name, value in scraped.items() if name in found} == found
    assert scraped["ccl_bench_findings"] == 2
    assert "ccl_bench_last_step" not in scraped


def _scraped(address: str) -> dict[str, float]:
    """Return the samples of a page as Prometheus' own parser reads them."""
    with urllib.request.urlopen(address) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert all(re.fullmatch(r"ccl_bench_[a-z0-9_]+", sample.name) for sample in samples)
    assert all(len(sample.labels["run"]) <= 200 and "\x1b" not in sample.labels["run"] for sample in samples)
    return {sample.name: sample.value for sample in samples}


class _Collector(BaseHTTPRequestHandler):
    """A collector that decodes what it gets."""

    got: list[ExportMetricsServiceRequest]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == "/v1/metrics"
        self.got.append(ExportMetricsServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportMetricsServiceRequest]]]:
    """Return the address of a collector and what it gets."""
    got: list[ExportMetricsServiceRequest] = []
    handler = type("Collector", (_Collector,), {"got": got})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()
        thread.join()


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_dashboard_sees_windows_as_they_come_until_ctrl_c(
    root: Path, tmp_path: Path, collector: tuple[str, list[ExportMetricsServiceRequest]]
) -> None:
    address, got = collector
    command = [str(Path(sys.executable).parent / "ccl-bench"), "watch", str(root), "--settle", "0.1"]
    command += ["--listen", "127.0.0.1:0", "--otlp", address, "-o", str(tmp_path / "kept"), "--run", "seven"]
    command += [word for name in NAMES for word in ("-m", name)]
    with (tmp_path / "remarks").open("w") as remarks:
        watch = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=remarks, text=True, env={**os.environ}
        )
    assert watch.stdout is not None
    assert json.loads(watch.stdout.readline())["window"] == "iteration_10"
    for number in (20, 30):  # two at once
        shutil.copytree(root / TRACE.parent, root / TRACE.parents[1] / f"iteration_{number}")
    assert [json.loads(watch.stdout.readline())["step"] for _ in range(2)] == [20, 30]
    _wait(lambda: len(got) == 3, "three pushes")
    page = re.search(r"http://\S+", (tmp_path / "remarks").read_text())
    assert page
    _wait(lambda: _scraped(page[0])["ccl_bench_windows_total"] == 3, "three windows on the page")
    scraped = _scraped(page[0])
    assert scraped["ccl_bench_coll_call_num_calls"] == EXPECTED["coll_call_num"]
    assert scraped["ccl_bench_gpu_busy_ratio"] == pytest.approx(EXPECTED["gpu_busy"] / 100)
    assert scraped["ccl_bench_last_step"] == 30
    assert not [name for name in scraped if "ttft" in name]
    watch.send_signal(signal.SIGINT)
    assert watch.wait(60) == 0
    watch.stdout.close()
    assert "Traceback" not in (tmp_path / "remarks").read_text()
    (metrics,) = (s for s in got[2].resource_metrics[0].scope_metrics if s.scope.name == "ccl_bench")
    pushed = {metric.name: metric for metric in metrics.metrics}
    (point,) = pushed["ccl_bench.gpu_busy"].gauge.data_points
    assert (pushed["ccl_bench.gpu_busy"].unit, point.as_double) == (
        "1",
        pytest.approx(EXPECTED["gpu_busy"] / 100),
    )
    assert {each.key: each.value.string_value for each in point.attributes} == {"run": "seven"}
    assert pushed["ccl_bench.last_step"].gauge.data_points[0].as_int == 30
    assert "ccl_bench.ttft" not in pushed


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["/no/such/folder"], 4, "/no/such/folder: does not exist"),
        ([__file__], 4, "is no directory"),
        (["s3://bucket/run"], 2, "cannot be watched"),
        ([".", "--listen", "here"], 2, "'here' is not an address to listen on"),
        ([".", "--otlp", "collector"], 2, "'collector' is not the address of a collector"),
        ([".", "-o", "."], 2, "results cannot be kept among the traces"),
        ([".", "-m", "gpu_bsy"], 2, "did you mean gpu_busy"),
        ([".", "--settle", "-1"], 2, "must be 0 or more"),
    ],
)
def test_what_cannot_be_watched_says_why(arguments: list[str], status: int, said: str) -> None:
    done = invoke(["ccl-bench", "watch", *arguments])
    assert done.returncode == status
    assert said in done.stderr


@pytest.mark.parametrize(
    ("package", "options"),
    [
        ("watchfiles", []),
        ("prometheus_client", ["--listen", "0"]),
        ("opentelemetry.sdk.metrics", ["--otlp", "http://localhost"]),
    ],
)
def test_without_a_package_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, options: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    done = invoke(["ccl-bench", "watch", str(tmp_path), *options])
    assert done.returncode == 2
    assert "pip install 'ccl-bench[watch]'" in done.stderr
