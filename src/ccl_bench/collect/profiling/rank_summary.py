"""The summary of each rank, and merging summaries into the small files of a run.

A rank saves its summary in `ranks/` as soon as its steps are timed, so that it survives what comes after. The
first rank, or `ccl-bench collect` after a job that was killed, merges them into files for the whole run.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ccl_bench.collect.profiling import ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from ccl_bench.collect.profiling.clock import Clock
    from ccl_bench.collect.profiling.recording import Options
    from ccl_bench.collect.profiling.schedule import Schedule

FOLDER = "ranks"
STEP_TIMES, METRICS = "step_times_per_rank.json", "training_metrics.json"
METADATA, MEMORY = "run_metadata.json", "memory_stats.json"

_RECORDED_PHASES = ("active", "observed")
"""Phases whose steps are held against the timed ones."""


@dataclass(slots=True)
class RankSummary:
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


def save_summary(folder: Path, part: RankSummary) -> None:
    """Write a part beside those of other ranks."""
    path = _summary_path(folder, part.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_text(path, to_json(part))


def remove_summary(folder: Path, rank: int) -> None:
    """Remove a part that is contained in the files of the run, and the folder after the last one."""
    with contextlib.suppress(OSError):
        _summary_path(folder, rank).unlink(missing_ok=True)
        (folder / FOLDER).rmdir()


def to_json(part: RankSummary) -> str:
    """Return a part as JSON."""
    return json.dumps(asdict(part))


def from_json(text: str) -> RankSummary:
    """Return the part that JSON holds; ValueError where it holds none."""
    try:
        part = RankSummary(**json.loads(text))
    except TypeError as error:
        raise ValueError(f"is no part of a recording: {error}") from error
    part.seconds = {
        phase: {int(step): seconds for step, seconds in steps.items()}
        for phase, steps in part.seconds.items()
    }
    part.loss = {int(step): loss for step, loss in part.loss.items()}
    return part


def merge_saved_summaries(folder: Path) -> list[str]:
    """Make the files of a run of the parts that ranks left, and remove those; return what was missing."""
    found, remarks = [], []
    for path in sorted((folder / FOLDER).glob("rank*.json")):
        try:
            found.append(from_json(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            remarks.append(f"{path}: {error}")
    if not found:
        return remarks
    write_run_files(folder, found)
    for part in found:
        remove_summary(folder, part.rank)
    missing = found[0].world_size - len(found)
    if missing > 0:
        remarks.append(f"{missing} of {found[0].world_size} ranks left no step times: they ended too early")
    return remarks


def write_run_files(folder: Path, parts: Sequence[RankSummary]) -> None:
    """Write the files of the run."""
    ordered = sorted(parts, key=lambda part: part.rank)
    timed = {str(part.rank): part.seconds["timed"] for part in ordered if part.seconds.get("timed")}
    if timed:
        _write_object(folder / STEP_TIMES, timed)
    if losses := mean_losses(ordered):
        _write_object(folder / METRICS, {"step": list(losses), "loss": list(losses.values())})
    if peaks := {str(part.rank): part.memory for part in ordered if part.memory}:
        _write_object(folder / MEMORY, peaks)
    _write_object(folder / METADATA, {**_read_object(folder / METADATA), **run_metadata(ordered)})


def mean_losses(parts: Iterable[RankSummary]) -> dict[int, float]:
    """Return the mean loss of each step over the ranks that computed one."""
    by_step: dict[int, list[float]] = {}
    for part in parts:
        for step, loss in part.loss.items():
            if math.isfinite(loss):
                by_step.setdefault(step, []).append(loss)
    return {step: fmean(by_step[step]) for step in sorted(by_step)}


def run_metadata(parts: Sequence[RankSummary]) -> dict[str, Any]:
    """Return what the run says of itself: sizes, and how it was recorded and at which cost."""
    first = parts[0]
    said = {"world_size": first.world_size, "tokens_per_step": first.tokens_per_step, **first.metadata}
    step_s = {phase: mean for phase in first.seconds if (mean := mean_step_seconds(parts, phase)) is not None}
    # Nsight Systems watches the timed steps too, so that there is nothing to hold the others against.
    plain = step_s.get("timed") if first.recording.get("profiler") == "torch" else None
    overhead = {phase: step_s[phase] / plain - 1 for phase in _RECORDED_PHASES if plain and phase in step_s}
    recording = {
        **first.recording,
        "remarks": combined_remarks(parts),
        "ranks": len(parts),
        "mean_step_s": step_s,
        "overhead": overhead,
        "processes": [{"rank": part.rank, **part.process} for part in parts],
    }
    return {**{name: value for name, value in said.items() if value is not None}, "recording": recording}


def combined_remarks(parts: Sequence[RankSummary]) -> list[str]:
    """Return what ranks remarked, each once, and with the ranks where not all of them did."""
    said: dict[str, list[str]] = {}
    for part in parts:
        for text in part.recording.get("remarks", []):
            said.setdefault(text, []).append(str(part.rank))
    return [
        text if len(ranks) == len(parts) else f"rank {', '.join(ranks)}: {text}"
        for text, ranks in said.items()
    ]


def mean_step_seconds(parts: Iterable[RankSummary], phase: str) -> float | None:
    """Return the mean length of the steps of a phase, each on its slowest rank, s."""
    slowest: dict[int, float] = {}
    for part in parts:
        for step, seconds in part.seconds.get(phase, {}).items():
            slowest[step] = max(seconds, slowest.get(step, 0.0))
    return fmean(slowest.values()) if slowest else None


def _summary_path(folder: Path, rank: int) -> Path:
    return folder / FOLDER / f"rank{rank}.json"


def _read_object(path: Path) -> dict[str, Any]:
    """Return what stands in a file already: a person may have written sizes before the run."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _write_object(path: Path, content: dict[str, Any]) -> None:
    """Write a file with a line for each key."""
    lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    _write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _write_text(path: Path, text: str) -> None:
    """Write beside the file and rename; what cannot be written leaves nothing behind."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


_LOG = logging.getLogger("ccl_bench.collect")
"""Goes to stderr as it is, unless the training says where its logging goes."""


def summarise_rank(
    here: ranks.ProcessRank,
    options: Options,
    clock: Clock,
    *,
    steps: int,
    losses: Mapping[int, Any],
    tokens: int | None,
    memory: dict[str, int],
    remarks: Iterable[str],
) -> RankSummary:
    """Return the account of a rank; waits for the device where steps are measured on it."""
    seconds: dict[str, dict[int, float]] = {}
    for step, length in clock.seconds().items():
        seconds.setdefault(str(options.schedule.phase(step)), {})[step] = length
    return RankSummary(
        here.rank,
        here.world_size,
        seconds,
        {step: _loss_value(loss) for step, loss in losses.items()},
        tokens,
        dict(options.metadata),
        memory,
        ranks.process_identity(),
        {
            "schedule": options.schedule.as_numbers(),
            "profiler": options.profile_mode,
            "execution_trace": options.execution_trace,
            "clock": clock.name,
            "steps": steps,
            "remarks": list(remarks),
        },
    )


def _loss_value(loss: Any) -> float:
    """Return a loss as a number; of a distributed tensor the local part, so that no collective starts."""
    return float(loss.to_local() if hasattr(loss, "to_local") else loss)


def memory_peaks(torch: Any) -> dict[str, int]:
    """Return the peaks of the allocator, empty where nothing was allocated on a device."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return {}
    return {
        "allocated_bytes.all.peak": torch.cuda.max_memory_allocated(),
        "reserved_bytes.all.peak": torch.cuda.max_memory_reserved(),
    }


def short_loop_remark(steps: int, schedule: Schedule) -> str:
    """Return what is said of a loop that ended before its recording."""
    begins = schedule.skip + schedule.timed + schedule.warmup
    what = "nothing was recorded" if steps <= begins else "the recording is not complete"
    return (
        f"the loop ended after {steps} steps of {schedule.length}, so that {what}; "
        f"run at least {schedule.length} steps, or give profile() a shorter Schedule"
    )


def log_warnings(texts: Iterable[str]) -> None:
    """Say what went wrong, without ending a training."""
    for text in texts:
        _LOG.warning("ccl-bench: %s", text)
