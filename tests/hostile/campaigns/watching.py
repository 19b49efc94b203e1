"""Keep a process that answers cases, within a time and a memory bound."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

SECONDS = 20.0
"""Time on a processor that one case may take; nearly all take less than two."""

WAIT = 120.0
"""What one case may take by the clock, which runs on while other programs have the processors."""

_LOOK = 0.5
"""Seconds between looks at a process that has not answered."""

MEMORY = 1 << 30
"""Bytes of resident memory that one case may take; the undamaged runs take up to 450 MiB."""

RENEWED_AFTER = 400
"""Cases after which the process is replaced, so that what it keeps does not count against a case."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command came to."""

    status: int
    out: str
    err: str
    seconds: float
    peak: int
    """Bytes of resident memory at most."""
    end: str = ""
    """Why there is no status: `hang` or `death`; empty where there is one."""


class Watched:
    """One process at a time that answers cases."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._answered = 0

    def answer(self, command: list[str]) -> Answer:
        """Return what a command comes to; a process that hangs or dies is replaced."""
        process = self._started()
        assert process.stdin
        assert process.stdout
        self._answered += 1
        used = _used(process)
        process.stdin.write(json.dumps({"command": command}).encode() + b"\n")
        process.stdin.flush()
        began = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not selector.select(_LOOK):
                waited = time.monotonic() - began
                if _used(process) - used > SECONDS or waited > WAIT:
                    return self._ended("hang", waited)
        line = process.stdout.readline()
        return Answer(**json.loads(line)) if line.endswith(b"\n") else self._ended("death", 0.0)

    def close(self) -> None:
        """End the process."""
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._answered >= RENEWED_AFTER:
            self.close()
        if self._process is None:
            worker = Path(__file__).with_name("answering_worker.py")
            self._answered = 0
            self._process = subprocess.Popen(
                [sys.executable, str(worker)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"COLUMNS": "200", "POLARS_MAX_THREADS": "1"},
            )
        return self._process

    def _ended(self, how: str, seconds: float) -> Answer:
        self.close()
        return Answer(1, "", "", seconds, 0, how)


def _used(process: subprocess.Popen[bytes]) -> float:
    """Return the time that a process had on processors, seconds (proc(5), stat); 0 where it is gone."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
