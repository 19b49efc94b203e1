"""What each rank knows of a recording, and putting it together into the small files of a run.

A rank leaves its part in `ranks/` as soon as its steps are timed, so that it survives what comes after. The
first rank, or `ccl-bench collect` after a job that was killed, makes files for the whole run of them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

FOLDER = "ranks"
STEP_TIMES, METRICS = "step_times_per_rank.json", "training_metrics.json"
METADATA, MEMORY = "run_metadata.json", "memory_stats.json"

_COSTLY = ("active", "observed")
"""Phases whose steps are held against the timed ones."""


@dataclass(slots=True)
class Part:
    """What one rank knows."""

    rank: int
    world_size: int
    seconds: dict[str, dict[int, float]] = field(default_factory=dict)
    """Phase -> step -> length, s."""
    loss: dict[int, float] = field(default_factory=dict)
    """Step -> loss, where this rank computed one."""
    tokens_per_step: int | None = None
    metadata: dict[str, float] = field(default_factory=dict)
    """What the program said of the run, in the words of `run_metadata.json`."""
    memory: dict[str, int] = field(default_factory=dict)
    """Peaks of the allocator, bytes."""
    process: dict[str, Any] = field(default_factory=dict)
    """Host, number of the node in the job, process id."""
    recording: dict[str, Any] = field(default_factory=dict)
    """Schedule, clock, profiler, remarks."""


def leave(folder: Path, part: Part) -> None:
    """Write a part beside those of other ranks."""
    path = _path(folder, part.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, as_text(part))


def withdraw(folder: Path, rank: int) -> None:
    """Remove a part that is contained in the files of the run, and the folder after the last one."""
    with contextlib.suppress(OSError):
        _path(folder, rank).unlink(missing_ok=True)
        (folder / FOLDER).rmdir()


def as_text(part: Part) -> str:
    """Return a part as JSON."""
    return json.dumps(asdict(part))


def from_text(text: str) -> Part:
    """Return the part that JSON holds; ValueError where it holds none."""
    try:
        part = Part(**json.loads(text))
    except TypeError as error:
        raise ValueError(f"is no part of a recording: {error}") from error
    part.seconds = {
        phase: {int(step): seconds for step, seconds in steps.items()}
        for phase, steps in part.seconds.items()
    }
    part.loss = {int(step): loss for step, loss in part.loss.items()}
    return part


def merged(folder: Path) -> list[str]:
    """Make the files of a run of the parts that ranks left, and remove those; return what was missing."""
    found, remarks = [], []
    for path in sorted((folder / FOLDER).glob("rank*.json")):
        try:
            found.append(from_text(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            remarks.append(f"{path}: {error}")
    if not found:
        return remarks
    write(folder, found)
    for part in found:
        withdraw(folder, part.rank)
    missing = found[0].world_size - len(found)
    if missing > 0:
        remarks.append(f"{missing} of {found[0].world_size} ranks left no step times: they ended too early")
    return remarks


def write(folder: Path, parts: Sequence[Part]) -> None:
    """Write the files of the run."""
    ordered = sorted(parts, key=lambda part: part.rank)
    timed = {str(part.rank): part.seconds["timed"] for part in ordered if part.seconds.get("timed")}
    if timed:
        _write(folder / STEP_TIMES, timed)
    if losses := mean_losses(ordered):
        _write(folder / METRICS, {"step": list(losses), "loss": list(losses.values())})
    if peaks := {str(part.rank): part.memory for part in ordered if part.memory}:
        _write(folder / MEMORY, peaks)
    _write(folder / METADATA, {**_existing(folder / METADATA), **run_metadata(ordered)})


def mean_losses(parts: Iterable[Part]) -> dict[int, float]:
    """Return the mean loss of each step over the ranks that computed one."""
    by_step: dict[int, list[float]] = {}
    for part in parts:
        for step, loss in part.loss.items():
            if math.isfinite(loss):
                by_step.setdefault(step, []).append(loss)
    return {step: fmean(by_step[step]) for step in sorted(by_step)}


def run_metadata(parts: Sequence[Part]) -> dict[str, Any]:
    """Return what the run says of itself: sizes, and how it was recorded and at which cost."""
    first = parts[0]
    said = {"world_size": first.world_size, "tokens_per_step": first.tokens_per_step, **first.metadata}
    step_s = {phase: mean for phase in first.seconds if (mean := mean_step(parts, phase)) is not None}
    # Nsight Systems watches the timed steps too, so that there is nothing to hold the others against.
    plain = step_s.get("timed") if first.recording.get("profiler") == "torch" else None
    overhead = {phase: step_s[phase] / plain - 1 for phase in _COSTLY if plain and phase in step_s}
    recording = {
        **first.recording,
        "remarks": remarks_of(parts),
        "ranks": len(parts),
        "mean_step_s": step_s,
        "overhead": overhead,
        "processes": [{"rank": part.rank, **part.process} for part in parts],
    }
    return {**{name: value for name, value in said.items() if value is not None}, "recording": recording}


def remarks_of(parts: Sequence[Part]) -> list[str]:
    """Return what ranks remarked, each once, and with the ranks where not all of them did."""
    said: dict[str, list[str]] = {}
    for part in parts:
        for text in part.recording.get("remarks", []):
            said.setdefault(text, []).append(str(part.rank))
    return [
        text if len(ranks) == len(parts) else f"rank {', '.join(ranks)}: {text}"
        for text, ranks in said.items()
    ]


def mean_step(parts: Iterable[Part], phase: str) -> float | None:
    """Return the mean length of the steps of a phase, each on its slowest rank, s."""
    slowest: dict[int, float] = {}
    for part in parts:
        for step, seconds in part.seconds.get(phase, {}).items():
            slowest[step] = max(seconds, slowest.get(step, 0.0))
    return fmean(slowest.values()) if slowest else None


def _path(folder: Path, rank: int) -> Path:
    return folder / FOLDER / f"rank{rank}.json"


def _existing(path: Path) -> dict[str, Any]:
    """Return what stands in a file already: a person may have written sizes before the run."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write a file with a line for each key."""
    lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    _replace(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _replace(path: Path, text: str) -> None:
    """Write beside the file and rename; what cannot be written leaves nothing behind."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
