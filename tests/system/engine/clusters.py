"""Dask clusters of real processes: a scheduler, workers, and what happens to them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from forked_programs import MEASURING, Forked

HERE = Path(__file__).parent

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)

DASK = (*MEASURING, "distributed.cli.dask_scheduler", "distributed.cli.dask_worker", "distributed.http")
"""What schedulers and workers import."""

SETTINGS = {
    "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "11s",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "5s",
}
"""Patience of seconds, where Dask's own is minutes; it takes no TCP timeout below 11 s."""


class Cluster:
    """A scheduler in a process of its own, and the workers that were started for it."""

    def __init__(self, folder: Path, *, host: str = "127.0.0.1") -> None:
        self.folder = folder
        self.host = host
        self.processes: list[Forked | subprocess.Popen[bytes]] = []
        file = folder / "scheduler.json"
        command = [
            "dask_scheduler",
            "--port",
            "0",
            "--dashboard-address",
            ":0",
            "--host",
            host,
            "--scheduler-file",
            file,
        ]
        self.scheduler = self._started(command)
        until(lambda: file.exists() and b'"address"' in file.read_bytes(), "the scheduler", self)
        self.port = int(file.read_text().partition('"address": "')[2].partition('"')[0].rpartition(":")[2])

    @property
    def address(self) -> str:
        """Address as `--engine` takes it."""
        return f"dask://{self.host}:{self.port}"

    def worker(
        self,
        *arguments: str,
        at: str = "",
        inside: tuple[str, ...] = (),
        nanny: bool = False,
        **environment: str,
    ):
        """Start a worker with one thread, `inside` another command such as `ip netns exec`.

        With a nanny, which is a process of its own, it is started again when it dies.
        """
        address = at or f"tcp://{self.host}:{self.port}"
        options = ["--nthreads", "1", "--no-dashboard", "--preload", "poison_format"]
        options += [] if nanny else ["--no-nanny"]
        options += ["--local-directory", str(self.folder)]
        return self._started(["dask_worker", address, *options, *arguments], inside, environment)

    def _started(self, command, inside=(), environment=None) -> Forked | subprocess.Popen[bytes]:
        name, *arguments = map(str, command)
        variables = {**os.environ, **SETTINGS, "PYTHONPATH": str(HERE), **(environment or {})}
        place = find_spec(f"distributed.cli.{name}").origin
        log_file = self.folder / f"log{len(self.processes)}"
        with log_file.open("wb") as log, Path(os.devnull).open("rb") as nothing:
            if inside:
                process = subprocess.Popen(
                    [*inside, sys.executable, place, *arguments],
                    env=variables,
                    cwd=self.folder,
                    stdout=log,
                    stderr=log,
                    stdin=nothing,
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )
            else:
                process = Forked(
                    [place, *arguments],
                    (nothing, log, log),
                    self.folder,
                    variables,
                    DASK,
                    tuple(SETTINGS.items()),
                )
        self.processes.append(process)
        return process

    def has_workers(self, count: int) -> None:
        """Wait until so many workers have joined."""
        from distributed import Client

        with Client(f"tcp://{self.host}:{self.port}", set_as_default=False) as client:
            client.wait_for_workers(count, timeout=300)

    def end_workers(self) -> None:
        """End every worker, and wait until the scheduler has noticed."""
        from distributed import Client

        for process in self.processes[1:]:
            end(process)
        del self.processes[1:]
        with Client(f"tcp://{self.host}:{self.port}", set_as_default=False) as client:
            until(lambda: not client.sync(client.scheduler.identity)["workers"], "no worker", self)

    def logs(self) -> str:
        """Return the end of what each process wrote."""
        return "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("log*")))

    def stop(self) -> None:
        """End every process of every session that was started."""
        for process in self.processes:
            end(process)


def _end_with_parent() -> None:
    """Have the kernel end this process when that of the tests is killed, which then ends no cluster."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def one_cluster(folder: Path, **how):
    """Give a cluster without workers, and end all of its processes."""
    pytest.importorskip("distributed", reason="the extra `cluster` is not installed: make test")
    folder.mkdir(exist_ok=True)
    made = Cluster(folder, **how)
    try:
        yield made
    finally:
        made.stop()


def end(process: Forked | subprocess.Popen[bytes]) -> None:
    """Kill a process and those that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(300)


def until(holds, what: str, cluster: Cluster | None = None, within_s: float = 300) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {within_s} s for {what}\n{cluster.logs() if cluster else ''}")
        time.sleep(0.05)
