"""What is no trace and is known is reported by its name, with what to give in its place."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from ccl_bench.base.errors import InputError
from ccl_bench.catalog import load_data
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

NCCL_TESTS = """# nccl-tests version 2.18.3
#       size         count      type   redop    root     time   algbw   busbw  #wrong
           8             2     float     sum      -1    22.72    0.00    0.00       0
"""


@pytest.mark.parametrize("folder", [True, False])
def test_the_output_of_nccl_tests_is_recognised_by_name(tmp_path: Path, folder: bool) -> None:
    file = tmp_path / "all_reduce.txt"
    file.write_text(NCCL_TESTS, encoding="utf-8")
    with pytest.raises(InputError, match="is the output of nccl-tests") as refused:
        open_run(tmp_path if folder else file)
    assert refused.value.where == str(file)
    assert "busbw" in refused.value.fix


def test_real_output_of_nccl_tests_is_recognised_by_name(corpus: Path) -> None:
    for place in (corpus / "nccl-tests" / "results", corpus / "nccl-tests" / "results" / "all_reduce.txt"):
        with pytest.raises(InputError, match="is the output of nccl-tests"):
            open_run(place)


NCCL_EXAMPLE = """[
{"name": "Group", "cat": "GROUP", "ph": "b", "id": 0, "pid": 9, "tid": 1, "ts": 1.5, "args": {"groupId": 0}},
{"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 0, "ts": 2.0, "args": {"SeqNum": 1, "CommHash": 12}},
"""
PROMETHEUS = 'nccl_bus_bandwidth_gbs{comm_id="0xd1",collective="AllReduce",rank="4",n_ranks="8"} 485.1\n'


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("ncclProfiler-9.json", NCCL_EXAMPLE, "example profiler plug-in"),
        ("nccl_inspector.prom", PROMETHEUS, "the NCCL Inspector for Prometheus"),
    ],
)
def test_what_other_profilers_of_nccl_write_is_refused_by_name(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=says):
        open_run(tmp_path)


def test_a_file_that_nobody_knows_is_recognised_by_what_it_is_not(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing", encoding="utf-8")
    with pytest.raises(InputError, match=r"it only has files such as notes\.txt"):
        open_run(tmp_path)


def test_every_known_file_has_a_source() -> None:
    known = load_data("other_files")
    for row in known["file"]:
        assert known["sources"][row["source"]]["document"].startswith("https://")


OF_OTHER_PROFILERS = {
    "70_kernel_trace.csv": (
        '"Kind","Agent_Id","Queue_Id","Kernel_Name","Start_Timestamp","End_Timestamp"\n',
        "list of kernels that rocprofv3 wrote as CSV",
        "--output-format json",
    ),
    "70_rccl_api_trace.csv": (
        '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n',
        "list of calls or ranges that rocprofv3 wrote as CSV",
        "--output-format json",
    ),
    "70_results.pftrace": (
        "\n\x0ehip\x12begin_ns\x12end_ns\x12delta_ns\x12corr_id",
        "a Perfetto trace of rocprofv3",
        "--output-format json",
    ),
    "kernel_details.csv": (
        "Device_id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Num\n",
        "the list of kernels of Ascend's profiler",
        "trace_view.json",
    ),
    "ascend_pytorch_profiler_0.db": (
        "SQLite format 3\0CREATE TABLE COMPUTE_TASK_INFO",
        "a database of Ascend's profiler",
        "trace_view.json",
    ),
}


SNAPSHOT_DATABASES = {
    "torch": (
        "CREATE TABLE device_traces (id INTEGER PRIMARY KEY, time_us, action, addr, size, frames)",
        "CREATE TABLE segments (segment_id INTEGER PRIMARY KEY, address, total_size)",
        "CREATE TABLE blocks (segment_id, addr, size, state)",
    ),
    "memsnapdump": (
        "CREATE TABLE dictionary (`table` TEXT, `column` TEXT, `key` TEXT, `value` TEXT)",
        "CREATE TABLE trace_entry_0 (id INTEGER PRIMARY KEY, action INTEGER, address INTEGER, callstack)",
        "CREATE TABLE block_0 (id INTEGER PRIMARY KEY, address INTEGER, state INTEGER)",
    ),
}


@pytest.mark.parametrize("kind", SNAPSHOT_DATABASES)
@pytest.mark.parametrize("name", ["snapshot.db", "rank0_memory_snapshot.sqlite", "snapshot.pickle.db"])
def test_a_memory_snapshot_in_a_database_is_refused_by_name(tmp_path: Path, kind: str, name: str) -> None:
    with closing(sqlite3.connect(tmp_path / name)) as database:
        for script in SNAPSHOT_DATABASES[kind]:
            database.execute(script)
    for place in (tmp_path, tmp_path / name):
        with pytest.raises(InputError, match="memory snapshot") as refused:
            open_run(place)
        assert "pickle" in refused.value.fix


@pytest.mark.parametrize("name", OF_OTHER_PROFILERS)
def test_what_other_profilers_write_is_refused_by_name(tmp_path: Path, name: str) -> None:
    content, named, fix = OF_OTHER_PROFILERS[name]
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=named) as refused:
        open_run(tmp_path)
    assert fix in refused.value.fix
