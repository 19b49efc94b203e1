"""The memory that one trace may take: small files that stand for much, and the refusal that names it."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ccl_bench import engine
from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.cli import metrics
from ccl_bench.cli.runner import announce_large
from ccl_bench.run import open_run
from ccl_bench.trace import memory
from ccl_bench.trace.cache import read_content
from ccl_bench.trace.formats.kineto import reader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ccl_bench.trace.formats import TraceFile

SMALL = 5_000_000
"""A bound that a trace of 25,000 rows exceeds, bytes."""


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GB", 8e9),
        ("8g", 8e9),
        ("1.5 GB", 1.5e9),
        ("500M", 5e8),
        ("2048", 2048),
        ("1e9", 1e9),
        ("3TB", 3e12),
    ],
)
def test_an_amount_of_memory_is_read(text: str, size: float) -> None:
    assert memory.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "much", "-1GB", "0", "nan", "inf", "1e999", "8 GiB of it"])
def test_what_is_no_amount_of_memory_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match="is not an amount of memory"):
        memory.parse_size(text)


def kineto(events: list[dict[str, object]]) -> bytes:
    """Return a trace of these events."""
    return json.dumps({"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events}).encode()


def kernels(count: int) -> list[dict[str, object]]:
    """Return so many kernels, one after the other."""
    common: dict[str, object] = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "dur": 1}
    return [common | {"ts": 1000 + 2 * place, "args": {"correlation": place}} for place in range(count)]


def only_trace(folder: Path, name: str, content: bytes) -> TraceFile:
    """Return the trace that a run of this one file holds."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    (trace,) = open_run(folder).traces
    return trace


@pytest.mark.parametrize("natively", [True, False])
def test_dense_kernels_are_refused_where_their_rows_exceed_the_bound(
    tmp_path: Path, *, natively: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not natively:
        monkeypatch.setattr(reader, "native_rows", lambda: None)
    trace = only_trace(tmp_path / "run", "rank0_trace.json.gz", gzip.compress(kineto(kernels(25_000))))
    with memory.use_memory(SMALL), pytest.raises(InputError, match=r"more than 5 MB .*--memory raises"):
        read_content(trace, ["kernels"], use_cache=False)
    with memory.use_memory(5 * SMALL):
        content, _ = read_content(trace, ["kernels"], use_cache=False)
    assert content.height("kernels") == 25_000


def snapshot(inside: object) -> bytes:
    """Return a memory snapshot whose segments are something else."""
    return pickle.dumps({"segments": [], "device_traces": [], "more": inside}, protocol=2)


def vllm(count: int) -> bytes:
    """Return a result of so many requests."""
    lists = {name: [0.1] * count for name in ("ttfts", "itls", "input_lens", "output_lens")}
    said = {"backend": "vllm", "model_id": "m", "num_prompts": count, "duration": 1.0, "completed": count}
    return json.dumps(said | lists).encode()


def vllm_with_lists(count: int) -> bytes:
    """Return a result of one request, and so many empty lists that nobody reads."""
    return vllm(1)[:-1] + b', "more": [' + b"[]," * count + b"[]]}"


def aiperf_with_lists(count: int) -> bytes:
    """Return a record of AIPerf with so many empty lists that nobody reads."""
    return b'{"metadata": {"x_request_id": "r"}, "metrics": {}, "more": [' + b"[]," * count + b"[]]}\n\n"


def llmperf_with_lists(count: int) -> bytes:
    """Return a request of LLMPerf with so many empty lists that nobody reads."""
    said = b'"ttft_s": 0.1, "inter_token_latency_s": 0.1, "end_to_end_latency_s": 0.2, "error_code": null'
    return b"[{" + said + b', "more": [' + b"[]," * count + b"[]]}]"


def node(number: int) -> dict[str, object]:
    """Return a node of an Execution Trace, as small as can be."""
    return {"id": number, "name": "n", "ctrl_deps": 1, "attrs": []}


def execution_trace(count: int) -> bytes:
    """Return an Execution Trace of so many nodes."""
    said = {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "2025-01-01 00:00:00", "start_ts": 1}
    return json.dumps(said | {"nodes": [node(number) for number in range(count)]}).encode()


def flight_recorder(count: int) -> bytes:
    """Return a dump of the Flight Recorder with so many empty calls."""
    return json.dumps({"version": "2.10", "pg_config": {}, "entries": [{}] * count}).encode()


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("rank0_memory_snapshot.pickle", lambda: snapshot([[] for _ in range(100_000)])),
        ("rank0_memory_snapshot.pickle", lambda: snapshot([{} for _ in range(100_000)])),
        ("rank0_memory_snapshot.pickle", lambda: snapshot([() for _ in range(140_000)])),
        ("vllm_result.json", lambda: vllm(50_000)),
        ("vllm_result.json", lambda: vllm_with_lists(250_000)),
        ("profile_export.jsonl", lambda: aiperf_with_lists(250_000)),
        ("llmperf_individual.json", lambda: llmperf_with_lists(250_000)),
        ("rank0_et.json", lambda: execution_trace(50_000)),
    ],
    ids=["lists", "dictionaries", "tuples", "requests", "lists in JSON", "in a line", "in a list", "nodes"],
)
def test_what_stands_for_more_than_the_bound_is_refused_and_read_with_a_larger_one(
    tmp_path: Path, name: str, write: Callable[[], bytes]
) -> None:
    trace = only_trace(tmp_path / "run", name, write())
    with (
        pytest.raises(InputError, match=r"what it holds would take more than"),
        memory.use_memory(15_000_000),
    ):
        read_content(trace, trace.form.tables, use_cache=False)
    with memory.use_memory(1_000_000_000):
        read_content(trace, trace.form.tables, use_cache=False)


def test_characters_of_a_long_text_are_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b'{"a": [[1, 2], [3]], "b": {}}' * 50
    held: list[int] = []
    monkeypatch.setattr(memory, "hold", held.append)
    memory.hold_json(text)
    for size in (1, 7, 1000, len(text)):
        monkeypatch.setattr(memory, "_COUNTED_BYTES", size)
        memory.hold_json(bytearray(text))
    assert {sum(held[place : place + 2]) for place in range(0, len(held), 2)} == {sum(held[:2])}
    assert sum(held[:2]) == len(text) + 50 * (5 * 64 + 3 * 40)


def test_rows_of_a_database_count(tmp_path: Path) -> None:
    path = tmp_path / "run" / "rank0.sqlite"
    path.parent.mkdir()
    kernel = "CUPTI_ACTIVITY_KIND_KERNEL"
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE {kernel} (start, end, globalPid, deviceId, streamId, correlationId)")
        database.execute("CREATE TABLE StringIds (id, value)")
        row = (1, 2, 0, 0, 7, 1)
        database.executemany(f"INSERT INTO {kernel} VALUES (?, ?, ?, ?, ?, ?)", [row] * 25_000)
    database.close()
    (trace,) = open_run(path.parent).traces
    with memory.use_memory(SMALL), pytest.raises(InputError, match="what it holds would take more than"):
        read_content(trace, ["kernels"], use_cache=False)


def test_a_file_whose_size_alone_is_too_much_is_refused_before_it_is_read(tmp_path: Path) -> None:
    trace = only_trace(tmp_path / "run", "rank0_trace.json", kineto(kernels(1000)))
    needed = memory.needed_bytes(trace)
    with (
        memory.use_memory(needed - 1),
        pytest.raises(InputError, match=r"is not read: .* --memory") as refused,
    ):
        read_content(trace, ["kernels"], use_cache=False)
    assert refused.value.where == "rank0_trace.json"
    shown: list[float] = []
    with memory.use_memory(needed - 1), memory.watch_reading(shown.append), pytest.raises(InputError):
        read_content(trace, ["kernels"], use_cache=False)
    assert not shown


def test_decompressed_bytes_count_and_not_only_those_on_disk(tmp_path: Path) -> None:
    padded = kineto(kernels(10)) + b" " * 30_000_000
    trace = only_trace(
        tmp_path / "run", "rank0_trace.json.gz", gzip.compress(padded) + gzip.compress(b" " * 10)
    )
    assert memory.needed_bytes(trace) < 1_000_000  # the end of the file states the size of its last part
    with (
        memory.use_memory(20_000_000),
        pytest.raises(InputError, match=r"its first .* MB alone would take more than 20 MB"),
    ):
        read_content(trace, ["kernels"], use_cache=False)


def test_a_format_may_read_line_by_line_and_its_lines_count(tmp_path: Path) -> None:
    lines = kineto(kernels(10)) + b"\n" + 30 * (b" " * 1_000_000 + b"\n")
    trace = only_trace(tmp_path / "run", "rank0_trace.json.gz", gzip.compress(lines) + gzip.compress(b"\n"))
    with memory.bounded(trace), memory.open_trace(trace.path) as stream:
        assert b"".join(stream) == lines + b"\n"
    with (
        memory.use_memory(20_000_000),
        memory.bounded(trace),
        memory.open_trace(trace.path) as stream,
        pytest.raises(InputError, match=r"its first .* MB alone would take more than 20 MB"),
    ):
        list(stream)


def test_a_small_file_may_take_a_gigabyte_and_a_large_one_half_more_than_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemAvailable: {100_000_000} kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", meminfo)
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "none")
    trace = only_trace(tmp_path / "run", "rank0_trace.json", kineto(kernels(10)))
    assert memory.memory_bound(trace) == 1_000_000_000
    os.truncate(trace.path, 2_400_000_000)
    (large,) = open_run(trace.path.parent).traces
    assert memory.needed_bytes(large) == 1_000_000_000
    assert memory.memory_bound(large) == 1_500_000_000
    meminfo.write_text(f"MemAvailable: {1_500_000} kB\n")
    assert memory.memory_bound(large) == int(0.8 * 1_500_000 * 1024)
    meminfo.write_text("MemAvailable: 10 kB\n")
    assert memory.memory_bound(large) == 1_000_000_000


def test_a_claim_at_the_end_of_a_compressed_file_counts_for_no_more_than_traces_compress(
    tmp_path: Path,
) -> None:
    claimed = gzip.compress(kineto(kernels(1000)))[:-4] + (4_000_000_000).to_bytes(4, "little")
    trace = only_trace(tmp_path / "run", "rank0_trace.json.gz", claimed)
    assert memory.inflated_bytes(trace) == 24 * trace.size
    assert memory.memory_bound(trace) == 1_000_000_000
    content, _ = read_content(trace, ["kernels"], use_cache=False)
    assert content.height("kernels") == 1000


@pytest.mark.parametrize("name", ["auto", "processes"])
def test_the_bound_goes_with_the_task_into_whatever_reads_it(tmp_path: Path, name: str) -> None:
    trace = only_trace(tmp_path / "run", "rank0_trace.json", kineto(kernels(25_000)))
    with engine.use_engine(name), memory.use_memory(SMALL):
        (read,) = engine.read_traces([engine.Task(trace, ("kernels",), use_cache=False)])
    assert [finding.code for finding in read.findings] == ["trace-unreadable"]
    assert "--memory" in read.findings[0].message


def test_the_command_takes_a_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only_trace(tmp_path / "run", "rank0_trace.json", kineto(kernels(1000)))
    arguments = ["--trace", str(tmp_path / "run"), "--metric", "total_kernel_time"]
    assert metrics.main([*arguments, "--memory", "100KB"]) == 4
    assert "--memory" in capsys.readouterr().err
    assert metrics.main([*arguments, "--memory", "1GB"]) == 0


def test_reading_in_this_thread_shows_how_far_it_is(tmp_path: Path) -> None:
    trace = only_trace(tmp_path / "run", "rank0_trace.json", kineto(kernels(20_000)))
    seen: list[tuple[float, int]] = []
    tasks = [engine.Task(trace, ("kernels",), use_cache=False)]
    with engine.use_engine("local"):
        engine.read_traces(tasks, progress=lambda done, total: seen.append((done, total)))
    shares = [done for done, _ in seen]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert sum(0 < share < 1 for share in shares) >= 3
    assert {total for _, total in seen} == {1}


def test_a_trace_larger_than_memory_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = only_trace(tmp_path / "run", "rank0_trace.json", kineto(kernels(10)))
    os.truncate(trace.path, 2_000_000_000)
    (large,) = open_run(trace.path.parent).traces
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "none")
    (tmp_path / "meminfo").write_text("MemAvailable: 1800000 kB\n")
    announce_large([large])
    said = capsys.readouterr().err
    assert said.startswith("rank0_trace.json: 2 GB of events, more than the free memory")
    assert "needs about 880 MB" in said
    (tmp_path / "meminfo").write_text("MemAvailable: 4000000 kB\n")
    announce_large([large])
    assert not capsys.readouterr().err


MEASURING = """
import sys
from pathlib import Path
from ccl_bench.cli import metrics
code = metrics.main(["--all", "--no-cache", "--memory", "100MB", sys.argv[1]])
line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
print("most", int(line.split()[1]) * 1024, code)
"""


def peak_bytes(run: Path) -> tuple[int, str]:
    """Return the most memory that measuring a run takes in one process, bytes, and its exit status."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURING, str(run)], capture_output=True, text=True, check=False, timeout=300
    )
    _, peak, code = next(line for line in done.stdout.splitlines() if line.startswith("most ")).split()
    return int(peak), code


USUAL = 250_000_000
"""More than the program takes without a trace, bytes."""


def bomb_of_kernels(folder: Path) -> None:
    """Write a million kernels into 4 MB."""
    with gzip.open(folder / "rank0_trace.json.gz", "wb", 1) as stream:
        stream.write(b'{"distributedInfo":{"rank":0,"world_size":1},"traceEvents":[')
        text = b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":%d,"dur":1}'
        for first in range(0, 1_000_000, 50_000):
            stream.write(b",".join(text % (2 * place) for place in range(first, first + 50_000)))
            stream.write(b"," if first + 50_000 < 1_000_000 else b"]}")


def bomb_of_lists(folder: Path) -> None:
    """Write 5 million lists into 5 MB."""
    head = b"\x80\x02}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces("
    (folder / "rank0_memory_snapshot.pickle").write_bytes(head + b"]" * 5_000_000 + b"lu.")


@pytest.mark.parametrize("write", [bomb_of_kernels, bomb_of_lists])
def test_a_small_file_takes_little_more_than_the_bound(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path)
    peak, code = peak_bytes(tmp_path)
    assert peak < 100_000_000 + USUAL
    assert code == "4"
