"""The installed commands: run as a user runs them, or called in this process where no process is tested."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, TextIO
from unittest import mock

from forked_programs import Forked

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "runs" / "llama-tiny-fsdp2-tp2-gloo"

ENTRY_POINTS = {
    "ccl-bench": "ccl_bench.cli.bench",
    "ccl-metrics": "ccl_bench.cli.metrics",
    "tools/main.py": "tools.main",
}
"""The module of each command, whose `main` the installed script calls."""

READ_BEFORE = {"POLARS_MAX_THREADS", "PYTHONIOENCODING"}
"""Variables that are read before a command or while polars is imported."""

_PLAIN = {"COLUMNS": "100", "NO_COLOR": "1"}


def recorded_by(ranks: tuple[int, ...], run: Path) -> Path:
    """Copy the example run as these of its four ranks recorded it: fewer are measured sooner."""
    others = {f"kineto_trace_{rank}.json.gz" for rank in {0, 1, 2, 3} - {*ranks}}
    return shutil.copytree(EXAMPLE, run, ignore=lambda *_: others)


def ran(
    command: str | list[str], *, within: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command from the repository root with 100 columns and no terminal, and return its outcome.

    Programs are taken from the environment that the tests run in; `within` runs them, such as setpriv.
    """
    words = _words(command)
    variables = {**os.environ, **_PLAIN, **environment}
    program = Path(sys.executable).parent / words[0]
    if words[0] in ENTRY_POINTS and not environment.keys() & READ_BEFORE:
        return forked([program, *words[1:]], variables, within)
    return subprocess.run(
        [*within, str(program) if program.exists() else words[0], *words[1:]],
        cwd=ROOT,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def forked(
    words: list[str | Path], variables: dict[str, str], within: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    """Run a program of Python as a process that imports little, and return its outcome."""
    with Path(os.devnull).open("rb") as nothing, TemporaryFile() as out, TemporaryFile() as err:
        status = Forked(words, (nothing, out, err), ROOT, variables, within=within).wait()
        return subprocess.CompletedProcess(words, status, _read(out), _read(err))


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def invoke(
    command: str | list[str], *, folder: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Call `ccl-bench` or `ccl-metrics` in this process, under the conditions of `ran`, or in another folder.

    It costs no start of an interpreter and no imports. What other processes write is not in the outcome.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    words, status = _called(command, out, err, folder, environment)
    return subprocess.CompletedProcess(words, status, _written(out), _written(err))


def piped(command: str, folder: Path = ROOT) -> str:
    """Return what a command that is called in this process writes into one pipe, remarks included.

    As a process's, what it prints is buffered, and what it remarks is not.
    """
    pipe = io.BytesIO()
    out = io.TextIOWrapper(io.BufferedWriter(pipe), encoding="utf-8")
    err = io.TextIOWrapper(pipe, encoding="utf-8", write_through=True)
    _called(command, out, err, folder, {})
    out.flush()
    return pipe.getvalue().decode()


def _called(
    command: str | list[str], out: TextIO, err: TextIO, folder: Path, environment: dict[str, str]
) -> tuple[list[str], int]:
    """Call a command whose output goes to these streams, and return its words and its exit status."""
    name, *arguments = _words(command)
    main = import_module(ENTRY_POINTS[name]).main
    with (
        mock.patch.dict(os.environ, {**_PLAIN, **environment}),
        mock.patch.object(sys, "stdin", io.StringIO()),
        contextlib.chdir(folder),
        _own_signals(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        return [name, *arguments], main(arguments)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Give this process back the handlers of signals that a command sets."""
    kept = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in kept.items():
            signal.signal(each, handler)


def cpu_seconds(command: list[str]) -> float:
    """Return the least processor time of two runs of a command: other work only adds to it."""
    found = []
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=600)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def _words(command: str | list[str]) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else command


def _written(stream: io.TextIOWrapper) -> str:
    binary = stream.buffer
    assert isinstance(binary, io.BytesIO)
    return binary.getvalue().decode()
