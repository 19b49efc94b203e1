"""Forks: actions that run in copies of this process, a few at a time."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WAITING = 20
"""Actions may wait so many times as long as they may compute: others use the machine too."""


@dataclass
class Fork:
    """An action that runs in a fork of this process and leaves its answer in a file."""

    action: Callable[[], dict[str, Any]]
    limit_s: float = 0.0
    """Of computing; 0 for none."""
    answer: dict[str, Any] | None = None
    """None where the process was ended: it took too long, or crashed."""

    def start(self, file: Path) -> int:
        """Start it and return the number of its process."""
        self._file, self._files = file, file.with_suffix("")
        sys.stdout.flush()
        if process := os.fork():
            return process
        os.setsid()
        signal.setitimer(signal.ITIMER_PROF, self.limit_s)
        signal.setitimer(signal.ITIMER_REAL, WAITING * self.limit_s)
        silent = os.open(file.with_suffix(".log"), os.O_WRONLY | os.O_CREAT)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        self._files.mkdir()
        tempfile.tempdir = str(self._files)
        try:
            file.write_text(json.dumps(self.action()))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def end(self, process: int, status: int) -> None:
        """Take the answer of the process that has ended, and end those that it left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        shutil.rmtree(self._files, ignore_errors=True)
        if os.WIFEXITED(status):
            if os.WEXITSTATUS(status):
                sys.exit(f"tests could not be run:\n{self._file.with_suffix('.log').read_text()}")
            self.answer = json.loads(self._file.read_text())


def run_forks(forks: Sequence[Fork], processes: int, ended: Callable[[int], None] = lambda _: None) -> None:
    """Run forks, so many at a time; `ended` gets the place of each that ends."""
    folder = Path(tempfile.mkdtemp())
    running: dict[int, int] = {}
    waiting = list(range(len(forks)))[::-1]
    while waiting or running:
        while waiting and len(running) < processes:
            place = waiting.pop()
            running[forks[place].start(folder / f"{place}.json")] = place
        process, status = os.wait()
        if process in running:
            place = running.pop(process)
            forks[place].end(process, status)
            ended(place)
    shutil.rmtree(folder)
