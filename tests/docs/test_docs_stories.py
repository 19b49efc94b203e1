"""The commands of a page run one after another, as a reader types them.

A block marked `sh` is run with its page's other blocks, in order, in a scratch copy of what a reader has:
the repository, a run and a second one, a training script, what a job left. A server is started on a free
port and stopped at the end of the page. Lines for a cluster, a package index, a container or an object store
are left out.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import ROOT, invoke, recorded_by
from launchers import FORKING, LOADED_FOR
from pages import PAGES, blocks, is_of_this_package

if TYPE_CHECKING:
    from collections.abc import Iterator

ELSEWHERE = re.compile(
    r"make |pip |pipx |uvx |docker |man |python3 -m venv|source |export |.*s3://|git clone|apt-get"
    r"|python benchmarks/|python tests/"
    r"|sbatch|squeue|scancel|sacct|salloc|srun|ssh |rsync|.*--engine (?:dask|slurm)"
    r"|psql|createuser|createdb|pg_dump"
)
PORT = "8000"


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


OF_CLUSTERS = {"perlmutter", "trace_collection"}
"""Their pages need a cluster; `workloads` and `slurm` of `tests/system` run it on one made here."""

STORIES = {
    page: [block for block in blocks(page) if block.language == "sh"]
    for page in PAGES
    if page.parent.name not in OF_CLUSTERS
}


def _lines(body: str) -> list[str]:
    """Return the command lines of a block, each whole, without comments."""
    joined = body.replace("\\\n", " ")
    lines = (re.sub(r"\s+#.*$", "", line).strip() for line in joined.splitlines())
    return [line.removeprefix(".venv/bin/") for line in lines if line and not line.startswith("#")]


def _story(page: Path) -> list[str]:
    lines = [line for block in STORIES[page] for line in _lines(block.body)]
    return [line for line in lines if not ELSEWHERE.match(line)]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what the pages suppose their reader to have."""
    folder = tmp_path_factory.mktemp("reader")
    for entry in ROOT.iterdir():
        if not entry.name.startswith(".") and entry.name not in {"build", "dist", "site"}:
            (folder / entry.name).symlink_to(entry)
    for name in ("RUN", "my-run", "BASELINE"):
        recorded_by((0, 1), folder / name)
    shutil.copy(ROOT / "trace_gen" / "pytorch" / "train.py", folder / "train.py")
    recorded_by((0, 1), folder / "outputs")
    return folder


@pytest.fixture
def reader(scratch: Path) -> Iterator[Path]:
    """Return that folder, as each page finds it: its runs stay, whose tables are kept by their paths."""
    before = {*scratch.iterdir()}
    yield scratch
    for entry in {*scratch.iterdir()} - before:
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@contextmanager
def _running(line: str, reader: Path, environment: dict[str, str]) -> Iterator[None]:
    """Run what serves until it is stopped, from the moment it answers."""
    server = subprocess.Popen(["bash", "-c", f"exec {line}"], cwd=reader, env=environment)
    port = int(environment["PORT"])
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    try:
        assert server.poll() is None, f"{line} ended"
        yield
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0, line


def _ended(line: str, reader: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Return what a line came to: a command of this package is called in this process."""
    command, _, file = line.partition(" > ")
    if is_of_this_package(command):
        done = invoke(command, folder=reader, **environment)
        if file:
            (reader / file).write_text(done.stdout, encoding="utf-8")
        return done
    return subprocess.run(
        ["bash", "-c", line], cwd=reader, env=environment, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, check=False, timeout=240,
    )  # fmt: skip


@pytest.mark.parametrize("page", [page for page in STORIES if _story(page)], ids=_name)
def test_the_commands_of_a_page_run_one_after_another(page: Path, reader: Path) -> None:
    port = str(_free_port())
    path = f"{FORKING}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "NO_COLOR": "1", "PORT": port, "PYTHON": sys.executable}
    environment |= {"OMP_NUM_THREADS": "1", **LOADED_FOR}
    for who in ("AUTHOR", "COMMITTER"):  # git has a name for a commit
        environment |= {f"GIT_{who}_NAME": "Ada", f"GIT_{who}_EMAIL": "ada@example.org"}
    with ExitStack() as open_ones:
        for line in _story(page):
            here = line.replace(f":{PORT}", f":{port}").replace(f"--port {PORT}", f"--port {port}")
            here = here.replace("--nproc-per-node 4", "--nproc-per-node 2")  # half the work
            if here.startswith("ccl-bench serve"):
                here = here if "--port" in here else f"{here} --port {port}"
                open_ones.enter_context(_running(here, reader, environment))
                continue
            done = _ended(here, reader, environment)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
