"""Programs of Python as processes that import nothing anew: children of one that has imported it for all."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO

SERVER = Path(__file__).resolve().parent / "forking" / "forked.py"
NUMBER = struct.Struct("q")
PATIENCE_S = 300.0

MEASURING = (
    "ccl_bench.api",
    "ccl_bench.card",
    "ccl_bench.cli.bench",
    "ccl_bench.cli.measure.metrics",
    "ccl_bench.cli.metrics",
    "ccl_bench.evaluate.compute",
    "ccl_bench.report.results",
    "isal.igzip",
    "polars",
    "pydantic.type_adapter",
    "ruamel.yaml",
    "zoneinfo",
)
"""What most commands import; no registry, whose plug-ins each process finds for itself."""


class Forked:
    """A program that was started; its streams are files, such as those of `os.pipe`."""

    def __init__(
        self,
        words: Sequence[str | Path],
        streams: tuple[IO[bytes], IO[bytes], IO[bytes]],
        folder: Path,
        environment: Mapping[str, str],
        modules: tuple[str, ...] = MEASURING,
        settings: tuple[tuple[str, str], ...] = (),
        within: tuple[str, ...] = (),
    ) -> None:
        """Start the program whose words would follow `python`, in a process that has these modules.

        Some read variables when they are imported: those are to be among the settings, too. That process is
        run within another command, such as one that takes rights away.
        """
        wanted = json.dumps([[*map(str, words)], dict(environment), str(folder)]).encode()
        self._end, there = socket.socketpair()
        self._end.settimeout(PATIENCE_S)
        with there:
            descriptors = [*(each.fileno() for each in streams), there.fileno()]
            socket.send_fds(_server(modules, settings, within), [wanted], descriptors)
        self.pid = self._number()
        self.returncode: int | None = None

    def _number(self) -> int:
        (number,) = NUMBER.unpack(self._end.recv(NUMBER.size))
        return int(number)

    def wait(self, seconds: float = PATIENCE_S) -> int:
        """Wait for the end and return the exit status, or the negative number of a signal."""
        if self.returncode is None:
            self._end.settimeout(seconds)
            try:
                self.returncode = self._number()
            except TimeoutError:
                os.kill(self.pid, signal.SIGKILL)
                raise
            self._end.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return how the program ended, None while it runs."""
        if self.returncode is None and select.select([self._end], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; nobody else can have the process's number before `wait` returns."""
        if self.returncode is None:
            os.kill(self.pid, number)


@cache
def _server(
    modules: tuple[str, ...], settings: tuple[tuple[str, str], ...], within: tuple[str, ...]
) -> socket.socket:
    """Return the socket of a process that has imported modules, which ends with this one."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        process = subprocess.Popen(
            [*within, sys.executable, str(SERVER), str(there.fileno()), *modules],
            env={**os.environ, **dict(settings)},
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end() -> None:
        here.close()
        process.wait()

    atexit.register(end)
    return here
