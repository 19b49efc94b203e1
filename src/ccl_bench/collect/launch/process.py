"""The process of a command: forward and log its output, forward signals to all its descendants."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ccl_bench.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import FrameType

_PROC = Path("/proc")


def descendants(pid: int) -> list[int]:
    """Return the descendants of process `pid`, parents before children.

    They are found in /proc, since launchers put workers into their own sessions.
    """
    children: defaultdict[int, list[int]] = defaultdict(list)
    for stat in _PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in parentheses may hold spaces and parentheses itself.
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            children[int(fields[1])].append(int(stat.parent.name))
    pids: list[int] = []
    pending = [pid]
    while pending:
        below = children[pending.pop(0)]
        pids += below
        pending += below
    return pids


def kill_processes(pids: Iterable[int]) -> None:
    """Kill processes; ignore those that have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


GRACE_S = 20.0
"""Time to end after a forwarded signal; Slurm kills remaining processes after 30 s (KillWait)."""

_TAIL_BYTES = 64 << 10
_CHUNK_BYTES = 64 << 10
_DRAIN_S = 10.0
"""Longest wait for processes that outlive the command and keep its output open."""

_FIX = "check the spelling, and that its environment is active"

_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP")
_FORWARDED_SIGNALS = tuple(getattr(signal, name) for name in _SIGNALS if hasattr(signal, name))


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended."""

    status: int
    """Exit status; negative is the signal that ended it."""
    tail: str
    """The end of its output."""
    seconds: float
    received: signal.Signals | None = None
    """Signal that we received and forwarded."""
    log_error: str = ""
    """Why its log is incomplete, if it is."""

    @property
    def failed(self) -> bool:
        """Whether the command failed or was stopped."""
        return self.status != 0 or self.received is not None


def run_command(
    command: Sequence[str], *, folder: Path, environment: Mapping[str, str], log: Path
) -> CommandResult:
    """Run a command and return how it ended; its output goes to ours and into `log`."""
    began = time.monotonic()
    require_program(command, environment)
    try:
        child = subprocess.Popen(  # noqa: S603 (running what the user asked for is the purpose)
            list(command),
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
    except OSError as error:
        raise InputError(f"cannot be started: {error.strerror}", where=command[0], fix=_FIX) from error
    output = _Output(log)
    with child, output, _forward_signals(child) as received:
        output.follow(child)
        deadline = None  # after a signal the command has a grace period
        while child.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=0.5)
                break
            if received and deadline is None:
                deadline = time.monotonic() + GRACE_S
            if deadline is not None and time.monotonic() > deadline:
                kill_processes([child.pid, *descendants(child.pid)])
        output.drain()
    status = child.returncode
    return CommandResult(
        status,
        output.tail(),
        time.monotonic() - began,
        received[0] if received else None,
        output.error,
    )


def require_program(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise InputError if the program of a command does not exist."""
    if shutil.which(command[0], path=environment.get("PATH")) is None:
        raise InputError("the program does not exist", where=command[0], fix=_FIX)


@contextlib.contextmanager
def _forward_signals(child: subprocess.Popen[bytes]) -> Iterator[list[signal.Signals]]:
    """Forward signals to the process group of the command, and list those received."""
    received: list[signal.Signals] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        received.append(signal.Signals(number))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)

    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, forward) for number in _FORWARDED_SIGNALS} if is_main else {}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Output:
    """The output of a command: forwarded at once, logged to a file, its end kept in memory.

    A full disk stops only the log.
    """

    def __init__(self, log: Path) -> None:
        self.log = log
        self.error = ""
        self._file: IO[bytes] | None = None
        self._last: deque[bytes] = deque()
        self._size = 0
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> _Output:
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.log.open("wb", buffering=0)
        except OSError as error:
            self.error = error.strerror or str(error)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            with contextlib.suppress(OSError):
                self._file.close()

    def follow(self, child: subprocess.Popen[bytes]) -> None:
        """Read both streams of the command until they end."""
        for source, target in ((child.stdout, sys.stdout), (child.stderr, sys.stderr)):
            thread = threading.Thread(target=self._copy, args=(source, target.buffer), daemon=True)
            thread.start()
            self._threads.append(thread)

    def drain(self) -> None:
        """Wait for the rest of the output."""
        deadline = time.monotonic() + _DRAIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def tail(self) -> str:
        """Return the end of the output."""
        with self._lock:
            return b"".join(self._last).decode(errors="replace")

    def _copy(self, source: IO[bytes], target: IO[bytes]) -> None:
        with contextlib.suppress(ValueError, OSError):
            while chunk := os.read(source.fileno(), _CHUNK_BYTES):
                self._write_log(chunk)
                with contextlib.suppress(BrokenPipeError):
                    target.write(chunk)
                    target.flush()

    def _write_log(self, chunk: bytes) -> None:
        with self._lock:
            self._last.append(chunk)
            self._size += len(chunk)
            while self._size - len(self._last[0]) >= _TAIL_BYTES:
                self._size -= len(self._last.popleft())
            if self._file and not self.error:
                try:
                    self._file.write(chunk)
                except OSError as error:
                    self.error = error.strerror or str(error)
