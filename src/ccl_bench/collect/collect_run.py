"""The command `ccl-bench collect`: record a command, or gather the files of an earlier one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench.base.errors import UsageError
from ccl_bench.collect import gather, injection, layout
from ccl_bench.collect.describe import fill_card, torchtitan
from ccl_bench.collect.describe.observations import observe
from ccl_bench.collect.describe.torchtitan import effective_config
from ccl_bench.collect.environment import machine
from ccl_bench.collect.launch import process
from ccl_bench.collect.launch.failures import Failure, diagnose_failure
from ccl_bench.collect.launch.nsys import NsysProgram, write_rank_map
from ccl_bench.collect.profiling import rank_summary
from ccl_bench.collect.profiling.options import (
    MODE_VARIABLE,
    OUTPUT_VARIABLE,
    RANKS_VARIABLE,
    STEPS_VARIABLE,
)
from ccl_bench.run import ENVIRONMENT
from ccl_bench.side_files.metadata import FILE_NAME as METADATA
from ccl_bench.storage.files import read_object, replace_object

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.collect.gather import FileStates
    from ccl_bench.collect.launch.process import CommandResult

DEFAULT_SOURCE = "outputs"
"""Folder in the working directory where torchtitan writes by default."""

_TEE_BOTH_STREAMS = "3"
_RECORDED_CALLS = "2000"
"""Number of communication calls per rank in the buffer of torch's Flight Recorder."""
_PROFILERS = ("torch", "nsys")
"""In the order of recording; each has a log of its name."""


@dataclass(frozen=True, slots=True)
class CollectRequest:
    """Options of collecting a run."""

    output: Path
    command: tuple[str, ...] = ()
    """The command; empty to gather an earlier run."""
    sources: tuple[Path, ...] = ()
    card: Path | None = None
    profile_mode: str = "torch"
    nsys_options: tuple[str, ...] = ()
    force: bool = False
    steps: str = ""
    """Steps to record, such as `15-19`; empty for those of the program, or of the default schedule."""
    ranks: str = ""
    """Ranks that write traces, such as `0,8,16`; empty for all."""
    is_injected: bool = True
    """Whether to record a program that does not record itself."""
    folder: Path = field(default_factory=Path.cwd)
    """Working directory of the command."""

    @property
    def source_folders(self) -> list[Path]:
        """Folders other than the run directory where traces may be.

        A directory with a run excludes the default folder, which may hold files of another run.
        """
        if self.sources:
            return list(self.sources)
        is_complete = not self.command and layout.holds_run(self.output)
        return [] if is_complete else [self.folder / DEFAULT_SOURCE]


@dataclass(slots=True)
class CollectedRun:
    """The outcome of collecting a run."""

    output: Path
    command: CommandResult | None = None
    failure: Failure | None = None
    copied: gather.CopyResult = field(default_factory=gather.CopyResult)
    cards: list[Path] = field(default_factory=list)
    """Workload cards beside the traces, those at the top first."""
    links: list[str] = field(default_factory=list)
    filled: list[str] = field(default_factory=list)
    """Fields of the card that were filled."""
    is_watched: bool = False
    """Whether ccl-bench watched the command for steps of PyTorch's optimizers."""
    step_end: str = ""
    """The call that ended a step of the program, if its steps were recorded."""
    overhead: dict[str, float] = field(default_factory=dict)
    """Phase of a recording -> share by which its steps were longer than those without a profiler."""
    remarks: list[str] = field(default_factory=list)
    """Contradictions, missing files and errors."""
    disk_error: str = ""
    """Why the run directory is not complete, if it is not."""


def collect_run(request: CollectRequest) -> CollectedRun:
    """Run the command, if there is one, gather its files, and describe the run.

    A failed command raises nothing: its files are still gathered.
    """
    collected = CollectedRun(request.output)
    if not request.command:
        if request.sources:
            layout.prepare_run_directory(request.output, force=request.force)
        request.output.mkdir(parents=True, exist_ok=True)
        with _keep_disk_error(collected):
            _gather(request, collected, {})
    else:
        _record(request, collected)
    with _keep_disk_error(collected):
        _describe(request, collected)
    collected.remarks = list(dict.fromkeys(collected.remarks))
    return collected


def _record(request: CollectRequest, collected: CollectedRun) -> None:
    """Run the command once for each profiler, because concurrent profilers disturb each other.

    CUDA's profiling interface allows one subscriber: under Nsight Systems torch's profiler sees no kernels.
    """
    modes = _PROFILERS if request.profile_mode == "both" else (request.profile_mode,)
    if os.name == "nt":
        raise UsageError(
            "a command cannot be recorded on Windows: its processes are stopped by signals",
            fix="record with torch.profiler, and gather its files: ccl-bench collect --source DIR -o DIR",
        )
    process.require_program(request.command, os.environ)
    collected.is_watched = request.is_injected
    if request.is_injected and (reason := injection.deaf_python(request.command)):
        collected.remarks.append(reason)
    nsys = NsysProgram(os.environ, request.nsys_options) if "nsys" in modes else None
    layout.prepare_run_directory(request.output, force=request.force)
    environment = machine.capture_environment(request.command, request.folder, os.environ)
    replace_object(request.output / ENVIRONMENT, environment)
    for mode in modes:
        before = gather.file_states(request.source_folders)
        with tempfile.TemporaryDirectory(prefix="ccl-bench-") as scratch:
            output = Path(scratch) if mode == "nsys" and len(modes) > 1 else request.output
            result = _run_command(request, mode, output, nsys if mode == "nsys" else None)
            collected.command = result
            if mode == "nsys":  # a report names processes, and their own records the ranks
                with _keep_disk_error(collected):
                    collected.remarks += rank_summary.merge_saved_summaries(output)
                    recording = read_object(output / METADATA).get("recording")
                    recording = recording if isinstance(recording, dict) else {}
                    collected.remarks += recording.get("remarks", [])
                    collected.remarks += write_rank_map(request.output, recording.get("processes", []))
        if mode == modes[0]:
            with _keep_disk_error(collected):
                _gather(request, collected, before)
        if result.log_error:
            collected.remarks.append(f"cannot write the log of the command: {result.log_error}")
        if result.failed:
            collected.failure = diagnose_failure(result)
            return


def _run_command(request: CollectRequest, mode: str, output: Path, nsys: NsysProgram | None) -> CommandResult:
    logs = (request.output / layout.LOGS).resolve()
    command = nsys.wrap(request.command, request.output) if nsys else request.command
    # With these a job that hangs writes its last calls into the run directory.
    flight_recorder = {"TORCH_FR_BUFFER_SIZE": _RECORDED_CALLS, "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    if "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" not in os.environ:  # its former name, which would be overruled
        place = request.output.resolve() / layout.FLIGHT_RECORDER_PREFIX
        flight_recorder["TORCH_FR_DUMP_TEMP_FILE"] = str(place)
    variables = {
        # torchrun reads defaults of its options from PET_*: one log a rank, and the rank before each line.
        "PET_LOG_DIR": str(logs),
        "PET_TEE": _TEE_BOTH_STREAMS,
        **flight_recorder,
        **os.environ,
        OUTPUT_VARIABLE: str(output.resolve()),
        MODE_VARIABLE: mode,
    }
    for name, value in ((STEPS_VARIABLE, request.steps), (RANKS_VARIABLE, request.ranks)):
        if value:
            variables[name] = value
    if request.is_injected:
        variables |= injection.startup_variables(os.environ)
    log = logs / f"{mode}.log"
    result = process.run_command(command, folder=request.folder, environment=variables, log=log)
    if nsys and result.failed:
        nsys.shut_down()
    return result


@contextlib.contextmanager
def _keep_disk_error(collected: CollectedRun) -> Iterator[None]:
    """Store a disk error and continue: the recorded traces can still be inspected."""
    try:
        yield
    except OSError as error:
        collected.disk_error = error.strerror or str(error)


def _gather(request: CollectRequest, collected: CollectedRun, before: FileStates) -> None:
    """Copy the files of the run into the run directory."""
    collected.remarks += gather.rename_unfinished_traces(request.output)
    for root in request.source_folders:
        files = gather.discover(root, before)
        copied = gather.copy_files(files, request.output)
        collected.copied.files += copied.files
        collected.copied.linked += copied.linked
        collected.cards += sorted(files.cards, key=lambda card: (len(card.parts), card))
        collected.remarks += [*copied.problems, *files.unreadable]
        if not root.exists() and request.sources:
            collected.remarks.append(f"{root}: there is no such directory")
    collected.remarks += rank_summary.merge_saved_summaries(request.output)


def _describe(request: CollectRequest, collected: CollectedRun) -> None:
    """Make links, fill metadata and card."""
    output = request.output
    collected.links = layout.make_links(output)
    environment = read_object(output / ENVIRONMENT)
    if not environment:
        collected.remarks.append(f"{ENVIRONMENT} is missing: hardware and software of the run are unknown")
    files = gather.discover(output, {})
    config = effective_config(environment.get("command", ()), request.folder, files.configurations)
    observations = observe(output, environment, read_object(output / METADATA), config)
    if config and not config.path.resolve().is_relative_to(output.resolve()):
        torchtitan.save_config(config, output)
    for mode in _PROFILERS:
        torchtitan.save_losses(output / layout.LOGS / f"{mode}.log", output)
    recording = observations.recording or {}
    collected.remarks += recording.get("remarks", [])
    collected.step_end = str(recording.get("step_end", ""))
    if recording:
        collected.overhead = dict(recording.get("overhead", {}))
    elif config:
        log = output / layout.LOGS / "torch.log"
        collected.overhead = torchtitan.logged_overhead(log, config.settings.profiling)
    collected.remarks += fill_card.fill_metadata(output, observations)
    card = fill_card.place_card(output, request.card, [*files.cards, *collected.cards])
    collected.filled, contradictions = fill_card.fill_card(card, observations)
    collected.remarks += contradictions
