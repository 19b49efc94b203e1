"""Write runs of many ranks, and measure a command that reads one with all processes that it starts."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench.testing import Expected, Message, Plan, timeline, values, write_run

if TYPE_CHECKING:
    from collections.abc import Sequence

TP = 8
EXPECTED = "expected.txt"
"""What metrics must give for a run; lies beside the traces as a file that is not understood."""

_LOOK_S = 0.1
_PAGE = os.sysconf("SC_PAGE_SIZE")


def plan_of(ranks: int) -> Plan:
    """Return a run with one collective of all ranks per step, and more of groups along both axes of the mesh.

    Each rank has 87 calls in three steps, about as many for its bytes as real traces of training have.
    """
    return Plan(
        dp_shard=ranks // TP,
        tp=TP,
        layers=4,
        jitter_ns=5_000,
        gradient_norm=Message(1, 15_000, "Float"),
        clock_offsets_ns={rank: 1_000 * rank for rank in range(ranks)},
    )


def written(folder: Path, ranks: int, trace_bytes: int) -> tuple[Path, dict[str, float]]:
    """Return a run of this many ranks and bytes per rank, written unless it exists, and its answers."""
    place = folder / f"{ranks}-ranks-of-{trace_bytes / 1e6:g}-MB"
    answers = place / EXPECTED
    if not answers.exists():
        shutil.rmtree(place, ignore_errors=True)
        plan = plan_of(ranks)
        write_run(plan, place, filler_bytes=max(0, trace_bytes - _own_bytes(plan, folder)))
        answers.write_text(json.dumps(values(Expected(timeline(plan)))))
    expected_values: dict[str, float] = json.loads(answers.read_text())
    return place, expected_values


def _own_bytes(plan: Plan, folder: Path) -> int:
    """Return the size of a rank's trace without operators that fill it up."""
    from ccl_bench.testing import write_rank

    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "one.json"
    size = write_rank(timeline(plan), 0, file)
    file.unlink()
    return size


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a command, with all processes that it started."""

    output: bytes
    wall_s: float
    cpu_s: float
    peak_bytes: int
    """Largest memory that all of them held at once, except what they only map from files."""


def cost_of(command: Sequence[str]) -> Cost:
    """Run a command and return its cost; RuntimeError with its message if it fails."""
    before = os.times()
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, process_group=0
    )
    peak = [0]
    watching = threading.Thread(target=_watch, args=(process, peak))
    watching.start()
    output, stderr = process.communicate()
    watching.join()
    if process.returncode:
        raise RuntimeError(stderr.decode(errors="replace"))
    after = os.times()
    cpu_s = sum(after[2:4]) - sum(before[2:4])
    return Cost(output, time.perf_counter() - began, cpu_s, peak[0])


def _watch(process: subprocess.Popen[bytes], peak: list[int]) -> None:
    while process.poll() is None:
        peak[0] = max(peak[0], held_bytes(process.pid))
        time.sleep(_LOOK_S)


def held_bytes(group: int) -> int:
    """Return the memory of the processes of a group, without pages of files, bytes."""
    return sum(_resident_bytes(pid) for pid in _members(group))


def _members(group: int) -> list[int]:
    members = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if os.getpgid(int(path.name)) == group:
                members.append(int(path.name))
    return members


def _resident_bytes(pid: int) -> int:
    """Return resident pages less those shared with files or forked parents, bytes."""
    with contextlib.suppress(OSError, ValueError):
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
        return (resident - shared) * _PAGE
    return 0
