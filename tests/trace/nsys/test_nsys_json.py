"""The JSON export of a report gives the same tables as its SQLite export."""

import gzip
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run
from ccl_bench.trace import formats
from ccl_bench.trace.formats.nsys.reader import read_nsys

TEXTS = ["[Unknown]", "gemm(float*)", "gemm", "cudaLaunchKernel", "step 1"]
THREAD = 5 << 24 | 7
"""The number that a report gives thread 7 of process 5."""


def work(kind: str, start: int, end: int, number: int, **more: object) -> dict[str, object]:
    place = {"deviceId": 0, "streamId": "7", "correlationId": number, "globalPid": str(5 << 24)}
    return {"Type": 79, "CudaEvent": {"startNs": str(start), "endNs": str(end), **place, kind: more}}


EVENTS = [
    {"Type": 48, "TraceProcessEvent": {"eventClass": 3, "name": "0", "startNs": "1", "endNs": "2"}},
    {
        "Type": 48,
        "TraceProcessEvent": {
            "startNs": "100",
            "endNs": "110",
            "correlationId": 1,
            "eventClass": 0,
            "name": "3",
            "globalTid": str(THREAD),
        },
    },
    {
        "Type": 59,
        "NvtxEvent": {
            "Type": 59,
            "Timestamp": "90",
            "EndTimestamp": "900",
            "TextId": 4,
            "GlobalTid": str(THREAD),
            "DomainId": "0",
        },
    },
    work("kernel", 200, 300, 1, demangledName="1", shortName="2", gridX=4, gridY=1, gridZ=1),
    work("memcpy", 300, 350, 2, sizebytes="64", copyKind="8"),
    work("memset", 350, 360, 3, sizebytes="32", value=0),
    {"Type": 41, "SchedEvent": {"Timestamp": "3", "Cpu": 75}},
]


def written(path: Path, *lines: object, texts: object = TEXTS, end: str = "") -> Path:
    made = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in ({"data": texts}, *lines))
    data = (made + end).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["rank1.json", "rank1.json.gz"])
def test_events_become_rows_with_the_texts_that_they_name(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, *EVENTS)
    content = read_nsys(path, name)
    kernels = content.table("kernels").select("name", "start_ns", "end_ns", "grid_blocks").rows()
    assert kernels == [("gemm(float*)", 200, 300, 4)]
    assert content.table("memcpy").select("kind", "start_ns", "end_ns", "bytes").rows() == [
        ("DtoD", 300, 350, 64),
        ("memset", 350, 360, 32),
    ]
    launches = content.table("launches").select("name", "start_ns", "correlation").rows()
    assert launches == [("cudaLaunchKernel", 100, 1)]
    assert content.table("annotations").select("name", "start_ns", "end_ns").rows() == [("step 1", 90, 900)]
    assert [finding.code for finding in content.findings] == ["clock-unanchored"]
    (trace,) = open_run(tmp_path).traces
    assert (trace.form.name, trace.rank) == ("nsys", 1)


@pytest.mark.parametrize(
    ("lines", "lost"),
    [
        ([work("kernel", 1 << 70, 300, 1)], 1),
        ([{"CudaEvent": {"startNs": [1]}}, {"NvtxEvent": "x"}], 2),
        ([{"data": {"a": 1}}], 1),
    ],
)
def test_lines_that_hold_no_such_event_are_counted(tmp_path: Path, lines: list[object], lost: int) -> None:
    content = read_nsys(written(tmp_path / "a.json", *EVENTS, *lines), "a.json")
    assert content.table("kernels").height == 1
    assert [(f.code, f.count) for f in content.findings if f.code == "events-lost"] == [("events-lost", lost)]


@pytest.mark.parametrize("end", ['{"Type":79,"CudaEvent":{"startNs":"1', '{"Type":31,"CompositeEv'])
def test_a_line_that_is_cut_is_lost_and_the_rest_is_read(tmp_path: Path, end: str) -> None:
    content = read_nsys(written(tmp_path / "a.json", *EVENTS, end=end), "a.json")
    assert content.table("kernels").height == 1
    assert [f.count for f in content.findings if f.code == "events-lost"] == [1]


def test_other_json_is_no_export() -> None:
    for head in (b'{"data":[1, 2]}', b'{"Type":1,"Event":{}}', b'[{"CudaEvent":{}}]', b'{"data":["text"]}'):
        assert formats.recognised(head) is None


@pytest.mark.skipif(not shutil.which("nsys"), reason="no nsys: 'make services' installs it")
def test_a_real_report_gives_the_same_numbers_as_its_sqlite_export(tmp_path: Path, corpus: Path) -> None:
    """The database was exported by another version of Nsight Systems from the same report."""
    folder = corpus / "nsys" / "jacobi-mpi"
    there, here = tmp_path / "sqlite", tmp_path / "json"
    for made in (there, here):
        made.mkdir()
    shutil.copy(folder / "rank3_report1.sqlite.gz", there)
    export = ["nsys", "export", "--quiet=true", "--type", "json", "-o", str(here / "rank3.json")]
    subprocess.run([*export, str(folder / "rank3_report1.qdrep")], check=True, capture_output=True)
    names = ["total_kernel_time", "gpu_busy", "average_memory_bandwidth", "launch_overhead"]
    expected, found = (evaluate(open_run(made), names) for made in (there, here))
    assert [result.value for result in found] == [result.value for result in expected]
    assert None not in [result.value for result in found]
    assert {result.details["per_rank_s"].keys() and (*result.ranks,) for result in found[:1]} == {(3,)}
