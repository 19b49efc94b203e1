"""Measure whole commands, from start to end: start-up, first and later commands, large files."""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from printing import MEGA, aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inputs import Input

PROGRAMS = Path(sys.executable).parent
_LOOK_S = 0.01
_CACHE = "CCL_BENCH_CACHE"
_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"


@dataclass(slots=True)
class Timed:
    """The cost of a command, run once or several times."""

    name: str
    wall: list[float] = field(default_factory=list)
    """Wall time of each, s."""
    cpu: list[float] = field(default_factory=list)
    """CPU time of each, s."""
    peak_bytes: int = 0
    """Largest resident memory of the process."""

    @property
    def wall_s(self) -> float:
        """Median wall time, s."""
        return statistics.median(self.wall)

    @property
    def cpu_s(self) -> float:
        """Median CPU time, s."""
        return statistics.median(self.cpu)


def measure(timed: Timed, command: Sequence[str], cache: Path | None = None) -> None:
    """Run a command once and add its cost; RuntimeError with its message if it fails."""
    environment = os.environ | ({_CACHE: str(cache)} if cache else {})
    environment.pop(_NO_BYTECODE, None)  # installed programs have their byte code
    before, began = _children_s(), time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    )
    watching = threading.Thread(target=_watch, args=(process.pid, timed))
    watching.start()
    _, stderr = process.communicate()
    timed.wall.append(time.perf_counter() - began)
    after = _children_s()
    watching.join()
    if process.returncode:
        raise RuntimeError(stderr.decode(errors="replace"))
    timed.cpu.append(after - before)


def _children_s() -> float:
    """Return the CPU time of all processes that this one started and that have ended, s."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _watch(process: int, timed: Timed) -> None:
    """Note the largest resident memory of a process until it ends."""
    status = Path(f"/proc/{process}/status")
    with contextlib.suppress(OSError, StopIteration):
        while True:
            lines = status.read_text().splitlines()
            resident_kib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
            timed.peak_bytes = max(timed.peak_bytes, resident_kib << 10)
            time.sleep(_LOOK_S)


def _metric(name: str, place: Path) -> list[str]:
    return [str(PROGRAMS / "ccl-metrics"), "--trace", str(place), "--metric", name]


NOTHING, FIRST, AGAIN, SECOND = "python -c pass", "first metric of a run", "the same again", "second metric"
HELP = "ccl-bench --help"


def whole(file: Path, rounds: int) -> dict[str, Timed]:
    """Return the cost of commands: an empty program, the help, a metric, the same again, another one."""
    costs = {name: Timed(name) for name in (NOTHING, HELP, FIRST, AGAIN, SECOND)}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            cache = Path(folder, str(number))
            measure(costs[NOTHING], [sys.executable, "-c", "pass"])
            measure(costs[HELP], [str(PROGRAMS / "ccl-bench"), "--help"])
            measure(costs[FIRST], _metric("coll_call_num", file), cache)
            measure(costs[AGAIN], _metric("coll_call_num", file), cache)
            measure(costs[SECOND], _metric("comm_comp_overlap", file), cache)
    return costs


COLD, WARM, REPORT = "--all, nothing kept", "--all, again", "report, HTML"


def every_metric(run: Path, rounds: int) -> dict[str, Timed]:
    """Return the cost of every metric of a run with an empty cache, of the same again, and of its report."""
    costs = {name: Timed(name) for name in (COLD, WARM, REPORT)}
    every = [str(PROGRAMS / "ccl-metrics"), str(run), "--all", "--jobs", "1", "--format", "json"]
    with tempfile.TemporaryDirectory() as folder:
        report = [str(PROGRAMS / "ccl-bench"), "report", str(run), "--jobs", "1", "--force"]
        report += ["--output", str(Path(folder, "report.html"))]
        for number in range(rounds):
            cache = Path(folder, str(number))
            measure(costs[COLD], every, cache)
            measure(Timed(""), report, cache)
            measure(costs[WARM], every, cache)
            measure(costs[REPORT], report, cache)
    return costs


def inspections(runs: Sequence[Path]) -> dict[str, Timed]:
    """Return the cost of `inspect` into a pipe for each run, by its folder."""
    costs = {}
    for run in runs:
        costs[run.name] = Timed(run.name)
        measure(
            costs[run.name], [str(PROGRAMS / "ccl-bench"), "inspect", str(run), "--jobs", "1", "--no-cache"]
        )
    return costs


def by_size(files: Sequence[Input], options: Sequence[str]) -> dict[str, Timed]:
    """Return the cost of measuring one rank's trace, without the cache, by the size of its file."""
    costs = {}
    for one in files:
        timed = costs[one.name] = Timed(one.name)
        command = [str(PROGRAMS / "ccl-metrics"), "--trace", str(one.files[0]), "--no-cache", *options]
        measure(timed, command)
    return costs


def timed_table(title: str, costs: dict[str, Timed]) -> str:
    """Return the cost of whole commands as text."""
    rows = [
        (name, f"{timed.wall_s:.3f}", f"{timed.cpu_s:.3f}", f"{timed.peak_bytes / MEGA:.0f}")
        for name, timed in costs.items()
    ]
    return f"{title}\n{aligned([('', 'wall s', 'CPU s', 'peak MB'), *rows])}"


def size_table(files: Sequence[Input], costs: dict[str, Timed], kind: str) -> str:
    """Return the cost of files of several sizes as text."""
    head = ("", "MB", "wall s", "CPU s", "CPU ms a MB", "peak MB")
    rows = []
    for one in files:
        timed, megabytes = costs[one.name], one.size / MEGA
        per_megabyte, peak = timed.cpu_s / megabytes * 1e3, timed.peak_bytes / MEGA
        figures = (timed.wall_s, timed.cpu_s, per_megabyte)
        rows.append((one.name, f"{megabytes:,.0f}", *(f"{figure:.2f}" for figure in figures), f"{peak:,.0f}"))
    return f"{kind} of one rank, whole process, without the cache\n{aligned([head, *rows])}"
