"""Files that change, lie, lead in circles, or were made to fill memory or to run."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import pickle
import random
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from faulty import EXPECTED_ENDS, METRIC, NAMED, small_run
from faulty import metrics as metrics_of

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.cli import bench, metrics
from ccl_bench.storage import gzip_file
from ccl_bench.trace import discovery, json_array
from ccl_bench.trace.formats.kineto.reader import read_kineto

if TYPE_CHECKING:
    from collections.abc import Callable

SPARSE_BYTES = 100 << 30

Said = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return small_run(tmp_path / "run")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """Return metric -> result of such a run."""
    done = metrics_of(small_run(tmp_path_factory.mktemp("whole")), "--no-cache")
    return {found["metric"]: found for found in json.loads(done.stdout)}


def measured(capsys: Said, folder: Path) -> dict[str, dict]:
    """Return metric -> result of a run, measured in this process without the cache."""
    words = ["--trace", str(folder), *NAMED, "--format", "json", "--no-cache", "--jobs", "1"]
    assert metrics.main(words) in EXPECTED_ENDS
    printed = capsys.readouterr().out
    return {found["metric"]: found for found in json.loads(printed)} if printed else {}


def codes(results: dict[str, dict]) -> set[str]:
    return {finding["code"] for found in results.values() for finding in found["findings"]}


def refused(capsys: Said, place: Path) -> str:
    """Return what stderr says of a place that holds no run."""
    assert metrics.main(["--trace", str(place), "--metric", METRIC]) == 4
    said = capsys.readouterr().err
    assert "\n  fix: " in said
    return said


def cut(path: Path, content: bytes, chance: random.Random) -> None:
    path.write_bytes(content[: chance.randrange(len(content))])


def emptied(path: Path, content: bytes, chance: random.Random) -> None:
    path.write_bytes(b"")


def replaced(path: Path, content: bytes, chance: random.Random) -> None:
    other = path.with_name("other")
    other.write_bytes(content)
    other.replace(path)


def removed(path: Path, content: bytes, chance: random.Random) -> None:
    path.unlink(missing_ok=True)


@pytest.mark.parametrize("change", [cut, emptied, replaced, removed])
def test_a_file_that_changes_while_it_is_read_ends_in_words_and_is_right_again_after(
    run: Path,
    capsys: Said,
    whole: dict[str, dict],
    change: Callable[[Path, bytes, random.Random], None],
) -> None:
    path, chance, over = run / "rank0_trace.json", random.Random(1), threading.Event()
    content = path.read_bytes()

    def change_on() -> None:
        while not over.is_set():
            change(path, content, chance)
            over.wait(0.002)
            path.write_bytes(content)
            over.wait(0.002)

    writer = threading.Thread(target=change_on)
    writer.start()
    try:
        for _ in range(2):
            words = ["--trace", str(run), "--metric", METRIC, "--jobs", "1"]
            assert metrics.main(words) in EXPECTED_ENDS
    finally:
        over.set()
        writer.join()
    capsys.readouterr()
    path.write_bytes(content)
    assert measured(capsys, run)[METRIC]["value"] == whole[METRIC]["value"]


def test_a_rank_of_which_the_file_is_anothers_is_reported(run: Path, capsys: Said) -> None:
    content = (run / "rank0_trace.json").read_bytes()
    (run / "rank1_trace.json").write_bytes(content)
    assert "trace-overwritten" in codes(measured(capsys, run))


def test_what_two_writers_left_of_one_file_is_reported(
    run: Path, capsys: Said, whole: dict[str, dict]
) -> None:
    one, other = ((run / f"rank{rank}_trace.json").read_bytes() for rank in (0, 1))
    blocks = range(0, len(one), 4096)
    in_turn = b"".join(one[at : at + 4096] + other[at : at + 4096] for at in blocks)
    (run / "rank0_trace.json").write_bytes(in_turn)
    after = measured(capsys, run)
    assert codes(whole) == set()
    assert "trace-unreadable" in codes(after)


@pytest.mark.parametrize(
    "start", [b'{"ph":"X","name":"', b'{"ph":"X","cat":"kernel","args":{"a":"', b'"', b" "]
)
def test_an_event_without_end_is_given_up_in_time_that_its_length_bounds(
    start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_array, "OBJECT_LIMIT", 16 << 20)
    mib = b"x" * (1 << 20) if start != b" " else b" " * (1 << 20)
    stream = io.BytesIO(b'{"traceEvents":[' + start + mib * (json_array.OBJECT_LIMIT >> 20))
    began = time.process_time()
    content = read_kineto(stream, "rank0.json")
    assert time.process_time() - began < 10
    assert {finding.code for finding in content.findings} >= {"no-events"}


def test_a_small_file_that_would_fill_memory_is_read_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gzip_file, "FREE_BYTES", 4 << 20)
    event = b'{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1,"args":{"stream":7}},'
    packed = gzip.compress(b'{"traceEvents":[' + event * 300_000 + b"{}]}")
    assert len(packed) * gzip_file.MOST_RATIO < len(event) * 300_000
    content = read_kineto(gzip_file.GzipFile(io.BytesIO(packed)), "rank0.json.gz")
    (reported,) = (finding for finding in content.findings if finding.code == "file-broken-off")
    assert "decompresses to more than 64 times its size" in reported.message
    assert reported.severity == "error"


@pytest.mark.parametrize("kept", ["half", "all"])
def test_a_file_that_was_reserved_and_not_filled_is_refused_after_little_of_it(
    run: Path, capsys: Said, kept: str
) -> None:
    path = run / "rank1_trace.json"
    size = path.stat().st_size
    if kept == "half":
        os.truncate(path, size // 2)
    os.truncate(path, SPARSE_BYTES)
    began = time.process_time()
    found = measured(capsys, run)
    assert time.process_time() - began < 60  # to hash it takes as long for each 30 GB
    reasons = {finding["message"] for result in found.values() for finding in result["findings"]}
    assert any("only zeros" in reason and "is incomplete" in reason for reason in reasons)
    assert "trace-unreadable" in codes(found)


def test_a_large_file_that_is_like_a_trace_is_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gzip_file, "FREE_BYTES", 1 << 10)
    folder = small_run(tmp_path / "packed", compresses=True)
    content = read_kineto(gzip_file.GzipFile(io.BytesIO((folder / "rank0_trace.json.gz").read_bytes())), "x")
    assert "file-broken-off" not in {finding.code for finding in content.findings}


def test_links_that_go_in_circles_end(run: Path, capsys: Said, whole: dict[str, dict]) -> None:
    for name, to in (("self", "self"), ("here", "."), ("above", ".."), ("one", "two"), ("two", "one")):
        (run / name).symlink_to(to)
    assert measured(capsys, run)[METRIC]["value"] == whole[METRIC]["value"]


def test_what_lies_outside_of_the_run_is_read_and_reported(
    run: Path, capsys: Said, whole: dict[str, dict]
) -> None:
    outside = run.with_name("elsewhere.json")
    (run / "rank1_trace.json").rename(outside)
    (run / "rank1_trace.json").symlink_to(outside)
    assert measured(capsys, run)[METRIC]["value"] == whole[METRIC]["value"]
    assert bench.main(["inspect", str(run)]) == 0
    said = capsys.readouterr().out
    assert "rank1_trace.json" in said
    assert "1 file is a link that leads out of the run: rank1_trace.json" in " ".join(said.split())


def test_a_link_to_nothing_but_itself_is_refused(tmp_path: Path, capsys: Said) -> None:
    (tmp_path / "self").symlink_to("self")
    refused(capsys, tmp_path / "self")


def test_a_directory_of_far_too_many_files_is_refused(
    tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "MOST_FILES", 1000)
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in range(600):
            (folder / f"{name}.json").touch()
    assert "more than 1,000 files" in refused(capsys, tmp_path)


@pytest.mark.parametrize("place", ["/etc", "/proc", "/dev/null", "/dev/zero", "/nowhere"])
def test_a_place_of_the_system_is_refused_within_seconds(place: str, capsys: Said) -> None:
    began = time.process_time()
    refused(capsys, Path(place))
    assert time.process_time() - began < 10


class _Program:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple:
        return os.system, (self.command,)


CARD = """
description: !!python/object/apply:os.system ["touch {mark}"]
workload:
  model: !!python/name:os.system
"""


@pytest.mark.usefixtures("shared_cache")
def test_nothing_in_a_run_is_executed(run: Path, tmp_path: Path, capsys: Said) -> None:
    mark = tmp_path / "it ran"
    (run / "rank0_memory_snapshot.pickle").write_bytes(pickle.dumps(_Program(f"touch '{mark}'")))
    (run / "more.yaml").write_text(CARD.format(mark=mark))
    (run / "workload_card.yaml").write_text(CARD.format(mark=mark))
    for name in ("sitecustomize.py", "conftest.py", "ccl_bench.py", "setup.sh"):
        (run / name).write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch()")
    report = tmp_path / "report.html"
    measured(capsys, run)
    for words in (["inspect", str(run)], ["validate", str(run)], ["report", str(run), "-o", str(report)]):
        assert bench.main(words) in EXPECTED_ENDS
    assert not mark.exists()


def test_a_script_in_a_name_is_text_in_the_report(tmp_path: Path) -> None:
    script = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    run = small_run(tmp_path / "run")
    path = run / "rank0_trace.json"
    content = path.read_text()
    assert "gemm" in content
    path.write_text(content.replace("gemm", script))
    report = tmp_path / "report.html"
    assert bench.main(["report", str(run), "-o", str(report)]) == 0
    assert script not in report.read_text()


def test_control_characters_in_a_name_do_not_reach_the_terminal(run: Path, capsys: Said) -> None:
    (run / "\x1b[2Jrank9_trace.json").write_bytes(b'{"traceEvents":[')
    assert bench.main(["inspect", str(run)]) == 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err


def test_a_file_whose_holes_nobody_knows_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.write_bytes(b"{")
    os.truncate(path, SPARSE_BYTES)
    with pytest.raises(InputError, match="holds only zeros"):
        storage.refuse_holes(path)

    def unknown(*_: object) -> int:
        raise OSError(errno.EINVAL, "this file system has no such call")

    monkeypatch.setattr(os, "lseek", unknown)
    storage.refuse_holes(path)


def test_an_empty_file_has_no_hole(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    storage.refuse_holes(path)
