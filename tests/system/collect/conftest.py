"""Recordings that several tests look at; each is made once, also where tests run in several processes."""

from __future__ import annotations

import importlib.util
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest
from collected import ENVIRONMENT, FORKED, LOOP, PLAIN, collect, small_disk, torchrun
from shared import made_once, shared_cache_folder

from ccl_bench.testing import Plan, Style, write_run

if TYPE_CHECKING:
    from pathlib import Path


ATTEMPTS = 2
"""On a busy machine torch 2.13 sometimes aborts when everything is done, and its threads are being ended."""


class Recorded(NamedTuple):
    """A run directory, where its loop's own clock lies, and what the command said."""

    run: Path
    folder: Path
    ended: subprocess.CompletedProcess[str]


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """Keep tables and the script of pages for all recordings, apart from the user's."""
    ENVIRONMENT["CCL_BENCH_CACHE"] = str(shared_cache_folder(tmp_path_factory))


@pytest.fixture(scope="session")
def torch_installed():
    """Skip where there is no torch."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: make test")


@pytest.fixture(scope="session")
def once(tmp_path_factory, torch_installed):
    """Return what makes a recording under a name, or returns the one of that name with its folder."""

    def made(name, make):
        def said(folder):
            ended = make(folder)
            return [ended.args, ended.returncode, ended.stdout, ended.stderr]

        folder, ended = made_once(tmp_path_factory, name, said)
        return Recorded(folder / "run", folder, subprocess.CompletedProcess(*ended))

    return made


@pytest.fixture(scope="session")
def record(once):
    """Return what records the training loop under a name, or returns the recording of that name."""

    def recorded(name, *arguments, profile_mode="torch", attempts=1, launcher=(FORKED,)):
        def make(folder):
            wishes = ("--output", folder / "run", "--profile-mode", profile_mode, "--force")
            command = torchrun(LOOP, folder / "own", *arguments, launcher=launcher)
            for _ in range(attempts):
                ended = collect(folder, *wishes, "--", *command, NCCL_DEBUG="WARN", HF_TOKEN="x")
                if ended.returncode == 0:
                    break
            return ended

        return once(name, make)

    return recorded


@pytest.fixture(scope="session")
def apart(record):
    """Two ranks; the Execution Trace in steps of its own."""
    return record("apart", attempts=ATTEMPTS)


@pytest.fixture(scope="session")
def together(record):
    """Two ranks; the Execution Trace of the profiled steps, traces packed."""
    return record("together", "together", attempts=ATTEMPTS)


@pytest.fixture(scope="session")
def failed(record):
    """Two ranks of a plain torchrun; the second fails in the second recorded step: 2 + 4 + 1 + 1 = step 8."""
    return record("failed", "apart", 8, launcher=PLAIN)


@pytest.fixture(scope="session")
def kineto_text(tmp_path_factory):
    """Return a Kineto trace of one rank as text."""
    folder = tmp_path_factory.mktemp("kineto")
    write_run(Plan(dp_shard=2), folder, style=Style())
    return (folder / "rank0_trace.json").read_text()


@pytest.fixture
def full_disk(tmp_path):
    """Return a folder on a file system of 300 kB, of which 50 kB are free."""
    with small_disk(tmp_path / "small") as folder:
        yield folder
