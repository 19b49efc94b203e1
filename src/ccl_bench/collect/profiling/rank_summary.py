"""Summaries of ranks, and their merge into the small files of a run.

A rank saves its summary in `ranks/` as soon as its steps are timed, so that it survives later failures. The
first rank, or `ccl-bench collect` after a killed job, merges them into files for the whole run.
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
from ccl_bench.storage.files import read_object, replace_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from ccl_bench.collect.profiling.clock import Clock
    from ccl_bench.collect.profiling.frameworks import RecordedFramework
    from ccl_bench.collect.profiling.options import Options
    from ccl_bench.collect.profiling.schedule import Schedule

FOLDER = "ranks"
STEP_TIMES, METRICS = "step_times_per_rank.json", "training_metrics.json"
METADATA, MEMORY = "run_metadata.json", "memory_stats.json"

_CLAIM = ".claim"
"""Suffix of the files by which unchanged processes agree on which of them records a rank."""

_RECORDED_PHASES = ("active", "observed")
"""Phases whose steps are compared with the timed ones."""


@dataclass(slots=True)
class RankSummary:
    """The report of one rank on a recording."""

    rank: int
    world_size: int
    seconds: dict[str, dict[int, float]] = field(default_factory=dict)
    """Phase -> step -> length, s."""
    loss: dict[int, float] = field(default_factory=dict)
    """Step -> loss, if this rank computed one."""
    tokens_per_step: int | None = None
    metadata: dict[str, float] = field(default_factory=dict)
    """Numbers that the program gave, named as in `run_metadata.json`."""
    memory: dict[str, int] = field(default_factory=dict)
    """Peaks of the allocator, bytes."""
    process: dict[str, Any] = field(default_factory=dict)
    """Host, number of the node in the job, process id."""
    recording: dict[str, Any] = field(default_factory=dict)
    """Schedule, clock, profiler, remarks."""
    device_ranks: list[int] = field(default_factory=list)
    """Ranks of the devices of the process, if each is a rank; then `rank` is the number of the process."""
    devices: int | None = None
    """Number of devices of the job, if each is a rank."""

    @property
    def ranks(self) -> list[int]:
        """The ranks that this summary is of."""
        return self.device_ranks or [self.rank]


def save_summary(folder: Path, summary: RankSummary) -> None:
    """Write the summary of a rank into the folder of all ranks."""
    replace_text(_summary_path(folder, summary.rank), to_json(summary))


def remove_summary(folder: Path, rank: int) -> None:
    """Remove a summary that the files of the run contain, and the folder after the last one."""
    with contextlib.suppress(OSError):
        _summary_path(folder, rank).unlink(missing_ok=True)
        (folder / FOLDER).rmdir()


def claim_rank(folder: Path, rank: int) -> bool:
    """Whether this process is the first of the job that records a rank; a restart resets this."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    claim = folder / FOLDER / f"rank{rank}_attempt{attempt}{_CLAIM}"
    claim.parent.mkdir(parents=True, exist_ok=True)
    try:
        claim.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def to_json(summary: RankSummary) -> str:
    """Return a summary as JSON."""
    return json.dumps(asdict(summary))


def from_json(text: str) -> RankSummary:
    """Return the summary in a JSON text; raise ValueError if there is none."""
    try:
        summary = RankSummary(**json.loads(text))
    except TypeError as error:
        raise ValueError(f"is not the summary of a rank: {error}") from error
    summary.seconds = {
        phase: {int(step): seconds for step, seconds in steps.items()}
        for phase, steps in summary.seconds.items()
    }
    summary.loss = {int(step): loss for step, loss in summary.loss.items()}
    return summary


def merge_saved_summaries(folder: Path) -> list[str]:
    """Merge the saved summaries into the files of a run and remove them; return remarks on missing ones."""
    for claim in (folder / FOLDER).glob(f"*{_CLAIM}"):
        claim.unlink(missing_ok=True)
    summaries, remarks = [], []
    for path in sorted((folder / FOLDER).glob("rank*.json")):
        try:
            summaries.append(from_json(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            remarks.append(f"{path}: {error}")
    if not summaries:
        return remarks
    write_run_files(folder, summaries)
    for summary in summaries:
        remove_summary(folder, summary.rank)
    missing = summaries[0].world_size - len(summaries)
    if missing > 0:
        remarks.append(
            f"{missing} of {summaries[0].world_size} ranks saved no step times: they ended too early"
        )
    return remarks


def write_run_files(folder: Path, summaries: Sequence[RankSummary]) -> None:
    """Write the files of the run."""
    by_rank = sorted(summaries, key=lambda summary: summary.rank)
    step_times = {
        str(rank): summary.seconds["timed"]
        for summary in by_rank
        if summary.seconds.get("timed")
        for rank in summary.ranks
    }
    if step_times:
        write_lines(folder / STEP_TIMES, step_times)
    if losses := mean_losses(by_rank):
        write_lines(folder / METRICS, {"step": list(losses), "loss": list(losses.values())})
    peaks = {str(rank): summary.memory for summary in by_rank if summary.memory for rank in summary.ranks}
    if peaks:
        write_lines(folder / MEMORY, peaks)
    write_lines(folder / METADATA, {**read_object(folder / METADATA), **run_metadata(by_rank)})


def write_lines(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object with one line for each key."""
    lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    replace_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def mean_losses(summaries: Iterable[RankSummary]) -> dict[int, float]:
    """Return the mean loss of each step over the ranks that computed one."""
    by_step: dict[int, list[float]] = {}
    for summary in summaries:
        for step, loss in summary.loss.items():
            if math.isfinite(loss):
                by_step.setdefault(step, []).append(loss)
    return {step: fmean(by_step[step]) for step in sorted(by_step)}


def run_metadata(summaries: Sequence[RankSummary]) -> dict[str, Any]:
    """Return the metadata of the run: sizes, how it was recorded, and the overhead."""
    first = summaries[0]
    sizes = {
        "world_size": first.devices or first.world_size,
        "tokens_per_step": first.tokens_per_step,
        **first.metadata,
    }
    step_s = {
        phase: mean for phase in first.seconds if (mean := mean_step_seconds(summaries, phase)) is not None
    }
    # Nsight Systems records the timed steps too, so that no step is free of overhead.
    plain = step_s.get("timed") if first.recording.get("profiler") != "nsys" else None
    overhead = {phase: step_s[phase] / plain - 1 for phase in _RECORDED_PHASES if plain and phase in step_s}
    recording = {
        **first.recording,
        "remarks": combined_remarks(summaries),
        "ranks": len(summaries),
        "mean_step_s": step_s,
        "overhead": overhead,
        "processes": [{"rank": summary.rank, **summary.process} for summary in summaries],
    }
    return {**{name: value for name, value in sizes.items() if value is not None}, "recording": recording}


def combined_remarks(summaries: Sequence[RankSummary]) -> list[str]:
    """Return the remarks of all ranks, each once, and with the ranks if not all made it."""
    ranks_of: dict[str, list[str]] = {}
    for summary in summaries:
        for text in summary.recording.get("remarks", []):
            ranks_of.setdefault(text, []).append(str(summary.rank))
    return [
        text if len(ranks) == len(summaries) else f"rank {', '.join(ranks)}: {text}"
        for text, ranks in ranks_of.items()
    ]


def mean_step_seconds(summaries: Iterable[RankSummary], phase: str) -> float | None:
    """Return the mean step time of a phase in seconds, each step on its slowest rank."""
    slowest: dict[int, float] = {}
    for summary in summaries:
        for step, seconds in summary.seconds.get(phase, {}).items():
            slowest[step] = max(seconds, slowest.get(step, 0.0))
    return fmean(slowest.values()) if slowest else None


def _summary_path(folder: Path, rank: int) -> Path:
    return folder / FOLDER / f"rank{rank}.json"


_LOG = logging.getLogger("ccl_bench.collect")
"""Writes to stderr unless the training program configures logging."""


def summarise_rank(
    process: ranks.ProcessRank,
    options: Options,
    clock: Clock,
    framework: RecordedFramework,
    *,
    steps: int | None,
    losses: Mapping[int, Any],
    tokens: int | None,
    remarks: Iterable[str],
    step_end: str,
) -> RankSummary:
    """Return the summary of a rank; wait for the device if it measures steps.

    `steps` is the number of steps of the loop, None if it may continue.
    """
    seconds: dict[str, dict[int, float]] = {}
    for step, length in clock.seconds().items():
        seconds.setdefault(str(options.schedule.phase(step)), {})[step] = length
    loss_of_step: dict[int, float] = {}
    for step, loss in losses.items():
        # The local part of a distributed loss, so that no collective starts.
        if hasattr(loss, "addressable_data"):
            loss_of_step[step] = float(loss.addressable_data(0))
        else:
            loss_of_step[step] = float(loss.to_local() if hasattr(loss, "to_local") else loss)
    return RankSummary(
        process.rank,
        process.world_size,
        seconds,
        loss_of_step,
        tokens,
        dict(options.metadata),
        framework.memory_peaks(),
        ranks.process_identity(),
        {
            "schedule": options.schedule.as_numbers(),
            "profiler": framework.name if options.profile_mode == "torch" else options.profile_mode,
            "execution_trace": options.execution_trace,
            "clock": clock.name,
            **framework.about(),
            "steps": steps,
            "step_end": step_end,
            "remarks": list(remarks),
        },
        framework.ranks(),
        framework.world_size(),
    )


def short_loop_remark(steps: int, schedule: Schedule) -> str:
    """Return the remark on a loop that ended before its recording."""
    begins = schedule.skip + schedule.timed + schedule.warmup
    outcome = "nothing was recorded" if steps <= begins else "the recording is incomplete"
    return (
        f"the loop ended after {steps} of {schedule.length} steps: {outcome}; "
        f"run at least {schedule.length} steps, or record earlier ones: ccl-bench collect --steps, "
        "or a shorter Schedule in profile()"
    )


def log_warnings(texts: Iterable[str]) -> None:
    """Log warnings; training continues."""
    for text in texts:
        _LOG.warning("ccl-bench: %s", text)
