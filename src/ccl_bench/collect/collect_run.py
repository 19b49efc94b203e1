"""Record a command, or gather what one left, into a run directory: `ccl-bench collect`."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccl_bench.collect import gather, layout
from ccl_bench.collect.describe import fill_card, torchtitan
from ccl_bench.collect.describe.observations import observe
from ccl_bench.collect.describe.torchtitan import effective_config
from ccl_bench.collect.environment import capture
from ccl_bench.collect.launch import nsys, process
from ccl_bench.collect.launch.failures import Failure, diagnose_failure
from ccl_bench.collect.launch.nsys import NsysProgram
from ccl_bench.collect.profiling import rank_summary
from ccl_bench.run import ENVIRONMENT
from ccl_bench.side_files.metadata import FILE_NAME as METADATA
from ccl_bench.storage import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.collect.describe.observations import Observations
    from ccl_bench.collect.gather import FileStates
    from ccl_bench.collect.launch.process import CommandResult

MODES = ("torch", "nsys", "both")

OUTPUT_VARIABLE = "CCL_BENCH_OUTPUT"
MODE_VARIABLE = "CCL_BENCH_PROFILE_MODE"

DEFAULT_SOURCE = "outputs"
"""Folder in the working directory where torchtitan writes unless told otherwise."""

_TEE_BOTH_STREAMS = "3"


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be collected."""

    output: Path
    command: tuple[str, ...] = ()
    """What to run; nothing where a run is only gathered."""
    sources: tuple[Path, ...] = ()
    card: Path | None = None
    profile_mode: str = "torch"
    nsys_options: tuple[str, ...] = ()
    force: bool = False
    folder: Path = field(default_factory=Path.cwd)
    """Working directory of the command."""

    @property
    def places(self) -> list[Path]:
        """Places beside the run directory where traces may lie.

        What lies in a directory with a run is not mixed with what some other run left in the default place.
        """
        if self.sources:
            return list(self.sources)
        is_complete = not self.command and layout.holds_run(self.output)
        return [] if is_complete else [self.folder / DEFAULT_SOURCE]


@dataclass(slots=True)
class Collected:
    """What collecting came to."""

    output: Path
    ended: CommandResult | None = None
    failure: Failure | None = None
    copied: gather.CopyResult = field(default_factory=gather.CopyResult)
    cards: list[Path] = field(default_factory=list)
    """Workload cards that lay beside the traces, those at the top first."""
    links: list[str] = field(default_factory=list)
    filled: list[str] = field(default_factory=list)
    """Fields of the card that were filled."""
    overhead: dict[str, float] = field(default_factory=dict)
    """Phase of a recording -> by which share its steps were longer than those without a profiler."""
    remarks: list[str] = field(default_factory=list)
    """What contradicts, is absent or went wrong on the way."""
    unwritten: str = ""
    """Why the run could not be put together, where it could not."""


def collect_run(request: Request) -> Collected:
    """Run the command, if there is one, gather what it left, and describe it.

    A command that fails is no error here: what it left is gathered all the same.
    """
    done = Collected(request.output)
    if not request.command:
        if request.sources:
            layout.prepare_run_directory(request.output, force=request.force)
        request.output.mkdir(parents=True, exist_ok=True)
        with _report_disk_errors(done):
            _gather(request, done, {})
    else:
        _record(request, done)
    with _report_disk_errors(done):
        _describe(request, done)
    done.remarks = list(dict.fromkeys(done.remarks))
    return done


def _record(request: Request, done: Collected) -> None:
    """Run the command once for each profiler, since two at once would disturb each other.

    CUDA's profiling interface admits one subscriber: under Nsight Systems torch's profiler sees no kernels.
    """
    modes = ("torch", "nsys") if request.profile_mode == "both" else (request.profile_mode,)
    process.require_program(request.command, os.environ)
    nsys = NsysProgram(os.environ, request.nsys_options) if "nsys" in modes else None
    layout.prepare_run_directory(request.output, force=request.force)
    _write_json(
        request.output / ENVIRONMENT,
        capture.capture_environment(request.command, request.folder, os.environ),
    )
    for mode in modes:
        before = gather.file_states(request.places)
        with tempfile.TemporaryDirectory(prefix="ccl-bench-") as aside:
            output = Path(aside) if mode == "nsys" and len(modes) > 1 else request.output
            done.ended = _run_command(request, mode, output, nsys if mode == "nsys" else None)
            if mode == "nsys":
                with _report_disk_errors(done):
                    _map_ranks(request, done, output)
        if mode == modes[0]:
            with _report_disk_errors(done):
                _gather(request, done, before)
        if done.ended.log_error:
            done.remarks.append(f"the output of the command could not be kept: {done.ended.log_error}")
        if done.ended.failed:
            done.failure = diagnose_failure(done.ended)
            return


def _run_command(request: Request, mode: str, output: Path, nsys: NsysProgram | None) -> CommandResult:
    logs = (request.output / layout.LOGS).resolve()
    command = nsys.wrapped(request.command, request.output) if nsys else request.command
    variables = {
        # torchrun takes defaults of its options from PET_*: a log for each rank, and whose each line is.
        "PET_LOG_DIR": str(logs),
        "PET_TEE": _TEE_BOTH_STREAMS,
        **os.environ,
        OUTPUT_VARIABLE: str(output.resolve()),
        MODE_VARIABLE: mode,
    }
    ended = process.run_command(
        command, folder=request.folder, environment=variables, log=logs / f"{mode}.log"
    )
    if nsys and ended.failed:
        nsys.shut_down()
    return ended


@contextlib.contextmanager
def _report_disk_errors(done: Collected) -> Iterator[None]:
    """Go on where nothing can be written any more: what was recorded is looked at all the same."""
    try:
        yield
    except OSError as error:
        done.unwritten = error.strerror or str(error)


def _map_ranks(request: Request, done: Collected, output: Path) -> None:
    """Say which process of a report is which rank, from what they recorded of themselves in `output`."""
    done.remarks += rank_summary.merge_saved_summaries(output)
    told = _recording_metadata(output)
    done.remarks += told.get("remarks", [])
    done.remarks += nsys.write_rank_map(request.output, told.get("processes", []))


def _gather(request: Request, done: Collected, before: FileStates) -> None:
    """Bring what was left into the run directory."""
    done.remarks += gather.rename_unfinished_traces(request.output)
    for root in request.places:
        left = gather.discover(root, before)
        found = gather.copy_files(left, request.output)
        done.copied.files += found.files
        done.copied.linked += found.linked
        done.copied.in_place += found.in_place
        done.cards += sorted(left.cards, key=lambda card: (len(card.parts), card))
        done.remarks += [*found.problems, *left.unreadable]
        if not root.exists() and request.sources:
            done.remarks.append(f"{root}: there is no such directory")
    done.remarks += rank_summary.merge_saved_summaries(request.output)


def _describe(request: Request, done: Collected) -> None:
    """Make links, fill metadata and card."""
    output = request.output
    done.links = layout.make_links(output)
    known = _read_json(output / ENVIRONMENT)
    if not known:
        done.remarks.append(f"{ENVIRONMENT}: the run left none, so what it ran on is not known")
    left = gather.discover(output, {})
    configuration = effective_config(known.get("command", ()), request.folder, left.configurations)
    seen = observe(output, known, _read_json(output / METADATA), configuration)
    if configuration and not configuration.path.resolve().is_relative_to(output.resolve()):
        torchtitan.save_config(configuration, output)
    done.remarks += (seen.recording or {}).get("remarks", [])
    done.overhead = _overhead(seen, output / layout.LOGS / "torch.log")
    done.remarks += fill_card.fill_metadata(output, seen)
    card = fill_card.place_card(output, request.card, [*left.cards, *done.cards])
    done.filled, disagreeing = fill_card.fill_card(card, seen)
    done.remarks += disagreeing


def _overhead(seen: Observations, log: Path) -> dict[str, float]:
    """Return by how much recording made steps longer: as the library measured, else from torchtitan's log."""
    if seen.recording:
        return dict(seen.recording.get("overhead", {}))
    configuration = seen.configuration
    return torchtitan.logged_overhead(log, configuration.settings.profiling) if configuration else {}


def _recording_metadata(output: Path) -> dict[str, Any]:
    """Return what processes that recorded themselves into a directory tell of it."""
    told = _read_json(output / METADATA).get("recording")
    return told if isinstance(told, dict) else {}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with write_atomically(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        temporary.chmod(0o644)


def _read_json(path: Path) -> dict[str, Any]:
    """Return what a file holds, nothing where it holds no mapping."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
