"""A trace took over the process that measures it: what the process then does costs the worker little."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ccl_bench.base.errors import InputError
from ccl_bench.leaderboard.publishing import recompute
from ccl_bench.leaderboard.publishing.ingest import remove_dead_uploads, upload_folder
from ccl_bench.leaderboard.publishing.recompute import recompute_run
from ccl_bench.leaderboard.publishing.settings import Settings
from ccl_bench.storage import disk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ccl_bench.leaderboard.bundle.upload import Upload

BEFORE = """
import os, sys, threading, time
from pathlib import Path
answer = Path(sys.argv[2])
place = answer.parent
def deeper(levels, name="d"):
    folder = os.open(place, os.O_RDONLY)
    for level in range(levels):
        os.mkdir(name, dir_fd=folder)
        inner = os.open(name, os.O_PATH, dir_fd=folder)
        os.close(folder)
        folder = inner
def wait():
    time.sleep(60)
"""
FEW = Settings(text_bytes=100_000, files=50)


@pytest.fixture
def taken_over(monkeypatch: pytest.MonkeyPatch, parcel: Upload, tmp_path: Path) -> Callable[[str], str]:
    """Return a function that lets Python code measure, and returns what the worker makes of it."""

    def measure(code: str) -> str:
        monkeypatch.setattr(recompute, "_SANDBOX", ("-c", BEFORE + code))
        with upload_folder(tmp_path) as folder:
            (folder / "scratch").mkdir()
            try:
                made = recompute_run(parcel.bundle, tmp_path, folder / "scratch", FEW, lambda: True)
            except InputError as error:
                return error.message
        assert not folder.exists()
        return made.error

    return measure


BOUNDS = {
    "an answer without end": (
        "os.truncate(os.open(answer, os.O_CREAT | os.O_RDWR), 1 << 30)",
        "recomputing takes more than 200,000 bytes for its answer",
    ),
    "an answer nested without end": (
        """answer.write_text('{"a":' + '[' * 90_000 + ']' * 90_000 + '}')""",
        "measuring ended with status 0 and no answer",
    ),
    "an answer that is a folder": ("answer.mkdir()", "measuring ended with status 0 and no answer"),
    "an error without end": ("""answer.write_text('{"error": "' + 'a' * 90_000 + '"}')""", "a" * 2_000),
    "files without end": (
        "[(place / f'{number}').touch() for number in range(60)]; wait()",
        "recomputing takes more than 50 files",
    ),
    "folders without end": (
        "[(place / f'{number}').mkdir() for number in range(60)]; wait()",
        "recomputing takes more than 50 files",
    ),
    "folders in folders without end": (
        "deeper(100, 'd' * 99); wait()",
        "measuring left a folder that cannot be read",
    ),
}


@pytest.mark.parametrize(("code", "message"), BOUNDS.values(), ids=BOUNDS)
def test_what_it_leaves_is_bounded(code: str, message: str, taken_over: Callable[[str], str]) -> None:
    assert taken_over(code) == message


def test_files_that_it_hides_do_not_fill_the_disk(
    taken_over: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever hides them: here the disk has less left than it must have."""
    monkeypatch.setattr(disk, "KEPT_FREE_BYTES", shutil.disk_usage(tmp_path).free * 2)
    assert taken_over("wait()") == "the disk of this server is full"


def test_it_has_not_threads_without_end(
    taken_over: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recompute, "_MAX_THREADS", 20)
    started = "[threading.Thread(target=wait).start() for _ in range({})]; {}"
    assert taken_over(started.format(20, "wait()")) == "recomputing takes more than 20 threads"
    enough = "answer.write_text('{}'); os._exit(0)"
    assert taken_over(started.format(19, f"time.sleep(0.5); {enough}")) == ""


def test_it_ends_where_the_worker_died_before(taken_over: Callable[[str], str]) -> None:
    """The kernel ends it with its parent, but the parent may be gone before it asks for that."""
    orphaned = """
request = Path(sys.argv[1])
request.write_bytes(request.read_bytes().replace(b'"worker":%d' % os.getppid(), b'"worker":1'))
from ccl_bench.leaderboard.publishing import sandbox
sandbox.main(request, answer)
"""
    assert taken_over(orphaned) == "measuring ended with status 0 and no answer"


def test_folders_of_a_dead_worker_are_removed_whatever_is_in_them(tmp_path: Path) -> None:
    with upload_folder(tmp_path) as folder:
        subprocess.run([sys.executable, "-c", f"{BEFORE}deeper(1_100)", "", folder / "left"], check=True)
        (folder / ".alive").rename(folder / "renamed")
        assert remove_dead_uploads(tmp_path) == 1
        assert not folder.exists()
