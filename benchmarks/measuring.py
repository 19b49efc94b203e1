"""Run contestants in separate processes, one after another, and sum up what they measured."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from inputs import Input

_SCRIPT = Path(__file__).with_name("contestants.py")
_THREADS = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_LONGEST_S = 1800


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to load files, the Python it runs in and the cores it may use."""

    name: str
    python: Path
    cpus: tuple[int, ...]


@dataclass(slots=True)
class Figures:
    """The figures of one contestant on one input."""

    wall: list[float] = field(default_factory=list)
    """Wall time of each load, s."""
    cpu: list[float] = field(default_factory=list)
    """CPU time of each load, s."""
    peak_bytes: int = 0
    """Largest resident memory of any of its processes after one load."""
    idle_bytes: int = 0
    """The same before that load, with everything imported."""
    error: str = ""
    """Why it could not load the files, if it could not."""

    @property
    def wall_s(self) -> float:
        """Median wall time of a load, s."""
        return statistics.median(self.wall)

    @property
    def cpu_s(self) -> float:
        """Median CPU time of a load, s."""
        return statistics.median(self.cpu)

    def add(self, output: dict[str, object]) -> None:
        """Add what one process of the contestant printed."""
        if isinstance(output.get("error"), str):
            self.error = str(output["error"])
            return
        for series, name in ((self.wall, "wall_s"), (self.cpu, "cpu_s")):
            values = output[name]
            series += [float(value) for value in values] if isinstance(values, list) else []
        self.peak_bytes = max(self.peak_bytes, int(str(output["peak_bytes"])))
        self.idle_bytes = max(self.idle_bytes, int(str(output["idle_bytes"])))


def _run(contestant: Contestant, measured: Input, warm_up: Path) -> dict[str, object]:
    """Return the figures that a new process of `contestant` prints for `measured`."""
    environment = os.environ | dict.fromkeys(_THREADS, str(len(contestant.cpus)))
    cpus = ",".join(map(str, contestant.cpus))
    process = subprocess.run(
        [
            *(str(contestant.python), str(_SCRIPT), contestant.name),
            *("--cpus", cpus, "--warm-up", str(warm_up), *map(str, measured.files)),
        ],
        capture_output=True,
        text=True,
        env=environment,
        timeout=_LONGEST_S,
        check=False,
    )
    if process.returncode:
        lines = process.stderr.strip().splitlines()
        return {"error": f"exit status {process.returncode}: {lines[-1] if lines else 'no message'}"}
    figures: dict[str, object] = json.loads(process.stdout)
    return figures


def interleaved(
    contestants: Sequence[Contestant], measured: Input, warm_up: Path, *, rounds: int
) -> dict[str, Figures]:
    """Return the figures of every contestant on one input, each having run once a round.

    They alternate, so that the drift of a shared machine affects all of them equally.
    """
    figures = {contestant.name: Figures() for contestant in contestants}
    for file in measured.files:
        file.read_bytes()  # into the page cache
    for contestant in _turns(contestants, rounds):
        if not figures[contestant.name].error:
            figures[contestant.name].add(_run(contestant, measured, warm_up))
    return figures


def _turns(contestants: Sequence[Contestant], rounds: int) -> Iterator[Contestant]:
    for _ in range(rounds):
        yield from contestants
