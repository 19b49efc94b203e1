"""A command that is interrupted while it reads stops at once and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import poison_format
import pytest
from clusters import HERE, until

from ccl_bench.engine import engines, use_engine
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from clusters import Cluster

    from ccl_bench.trace.formats import Format

PATIENCE_S = 300.0
"""It takes a third of a second on a machine that does nothing else, and the readers would wait longer."""


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Return a run of two ranks that keep whoever reads them; it holds its own folder of readers."""
    (tmp_path / "readers").mkdir()
    run = tmp_path / "run"
    run.mkdir()
    for rank in range(2):
        text = json.dumps({"poison": "keep", "rank": rank, "folder": str(tmp_path / "readers")})
        (run / f"rank{rank}_trace.json").write_text(text.ljust(engines.POOL_WORTH_BYTES // 2))
    return run


def started(run: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start `ccl-metrics` in a session of its own, as a terminal does."""
    program = "import poison_format, sys; sys.exit(poison_format.main())"
    return subprocess.Popen(
        [sys.executable, "-c", program, "--trace", str(run), "--all", *words],
        env={**os.environ, "PYTHONPATH": str(HERE)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def have_begun(run: Path, command: subprocess.Popen[bytes], count: int) -> None:
    """Wait until so many processes read."""
    readers = run.parent / "readers"
    until(lambda: command.poll() is not None or len(poison_format.readers(readers)) == count, "readers")
    assert command.poll() is None, command.stderr and command.stderr.read()


def session(leader: int) -> list[int]:
    """Return the living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, number, *_ = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(number) == leader and state != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize(
    ("words", "processes", "to"),
    [
        ("auto", 1, "the command alone"),
        ("local --jobs 1", 1, "the command alone"),
        ("processes", 2, "the command alone"),
        ("processes", 2, "the terminal's processes"),
    ],
)
def test_ctrl_c_stops_reading(words: str, processes: int, to: str, kept: Path, own_cache: Path) -> None:
    with started(kept, "--engine", *words.split()) as command:
        have_begun(kept, command, processes)
        (os.kill if to == "the command alone" else os.killpg)(command.pid, signal.SIGINT)
        out, err = command.communicate(timeout=PATIENCE_S)

    assert (command.returncode, out, err) == (130, b"", b"")
    until(lambda: not session(command.pid), "its processes to end")
    assert [path for path in own_cache.rglob("*") if path.is_file()] == []


def test_workers_end_with_a_command_that_is_killed(kept: Path) -> None:
    with started(kept, "--engine", "processes") as command:
        have_begun(kept, command, 2)
        command.kill()
        command.communicate(timeout=PATIENCE_S)

    until(lambda: not session(command.pid), "its processes to end", within_s=PATIENCE_S)


def test_a_cluster_is_left_in_order(kept: Path, own_cluster: Cluster, poison: Format) -> None:
    own_cluster.worker()
    own_cluster.has_workers(1)
    with started(kept, "--engine", own_cluster.address) as command:
        have_begun(kept, command, 1)
        command.send_signal(signal.SIGINT)
        out, err = command.communicate(timeout=PATIENCE_S)

    assert (command.returncode, out, err) == (130, b"", b"")
    (kept.parent / "readers" / "go").touch()
    with use_engine(own_cluster.address):
        (result,) = evaluate(open_run(kept), ["coll_call_num"], use_cache=False)
    assert [trace.rank for trace in result.provenance.traces] == [0, 1]
