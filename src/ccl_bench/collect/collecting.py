"""From a command, or from what one left, to a run directory that can be measured: `ccl-bench collect`."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccl_bench.card.metadata import FILE_NAME as METADATA
from ccl_bench.collect import environment, target
from ccl_bench.collect.describe import as_run, carding, metadata, training_log
from ccl_bench.collect.describe.configuration import configuration_of
from ccl_bench.collect.describe.observing import observed
from ccl_bench.collect.gather import copying, finding, linking, ranking, unfinished
from ccl_bench.collect.launch import process
from ccl_bench.collect.launch.failing import Failure, failure_of
from ccl_bench.collect.launch.nsys import NsysProgram
from ccl_bench.collect.profiling import parts
from ccl_bench.run import ENVIRONMENT
from ccl_bench.storage import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.collect.describe.observing import Observed
    from ccl_bench.collect.gather.finding import State
    from ccl_bench.collect.launch.process import Ended

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
        is_complete = not self.command and target.holds_run(self.output)
        return [] if is_complete else [self.folder / DEFAULT_SOURCE]


@dataclass(slots=True)
class Collected:
    """What collecting came to."""

    output: Path
    ended: Ended | None = None
    failure: Failure | None = None
    copied: copying.Copied = field(default_factory=copying.Copied)
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


def collect(request: Request) -> Collected:
    """Run the command, if there is one, gather what it left, and describe it.

    A command that fails is no error here: what it left is gathered all the same.
    """
    done = Collected(request.output)
    if not request.command:
        if request.sources:
            target.prepared(request.output, force=request.force)
        request.output.mkdir(parents=True, exist_ok=True)
        with _going_on(done):
            _gather(request, done, {})
    else:
        _record(request, done)
    with _going_on(done):
        _describe(request, done)
    done.remarks = list(dict.fromkeys(done.remarks))
    return done


def _record(request: Request, done: Collected) -> None:
    """Run the command once for each profiler, since two at once would disturb each other.

    CUDA's profiling interface admits one subscriber: under Nsight Systems torch's profiler sees no kernels.
    """
    modes = ("torch", "nsys") if request.profile_mode == "both" else (request.profile_mode,)
    process.need_program(request.command, os.environ)
    nsys = NsysProgram(os.environ, request.nsys_options) if "nsys" in modes else None
    target.prepared(request.output, force=request.force)
    _write_json(
        request.output / ENVIRONMENT,
        environment.captured(request.command, request.folder, os.environ),
    )
    for mode in modes:
        before = finding.state_of(request.places)
        with tempfile.TemporaryDirectory(prefix="ccl-bench-") as aside:
            output = Path(aside) if mode == "nsys" and len(modes) > 1 else request.output
            done.ended = _ran(request, mode, output, nsys if mode == "nsys" else None)
            if mode == "nsys":
                with _going_on(done):
                    _tell_ranks(request, done, output)
        if mode == modes[0]:
            with _going_on(done):
                _gather(request, done, before)
        if done.ended.log_error:
            done.remarks.append(f"the output of the command could not be kept: {done.ended.log_error}")
        if done.ended.failed:
            done.failure = failure_of(done.ended)
            return


def _ran(request: Request, mode: str, output: Path, nsys: NsysProgram | None) -> Ended:
    logs = (request.output / target.LOGS).resolve()
    command = nsys.wrapped(request.command, request.output) if nsys else request.command
    variables = {
        # torchrun takes defaults of its options from PET_*: a log for each rank, and whose each line is.
        "PET_LOG_DIR": str(logs),
        "PET_TEE": _TEE_BOTH_STREAMS,
        **os.environ,
        OUTPUT_VARIABLE: str(output.resolve()),
        MODE_VARIABLE: mode,
    }
    ended = process.run(command, folder=request.folder, environment=variables, log=logs / f"{mode}.log")
    if nsys and ended.failed:
        nsys.shut_down()
    return ended


@contextlib.contextmanager
def _going_on(done: Collected) -> Iterator[None]:
    """Go on where nothing can be written any more: what was recorded is looked at all the same."""
    try:
        yield
    except OSError as error:
        done.unwritten = error.strerror or str(error)


def _tell_ranks(request: Request, done: Collected, output: Path) -> None:
    """Say which process of a report is which rank, from what they recorded of themselves in `output`."""
    done.remarks += parts.merged(output)
    told = _recording(output)
    done.remarks += told.get("remarks", [])
    done.remarks += ranking.ranked(request.output, told.get("processes", []))


def _gather(request: Request, done: Collected, before: State) -> None:
    """Bring what was left into the run directory."""
    done.remarks += unfinished.named(request.output)
    for root in request.places:
        left = finding.left_at(root, before)
        found = copying.copied(left, request.output)
        done.copied.files += found.files
        done.copied.linked += found.linked
        done.copied.in_place += found.in_place
        done.cards += sorted(left.cards, key=lambda card: (len(card.parts), card))
        done.remarks += [*found.problems, *left.unreadable]
        if not root.exists() and request.sources:
            done.remarks.append(f"{root}: there is no such directory")
    done.remarks += parts.merged(request.output)


def _describe(request: Request, done: Collected) -> None:
    """Make links, fill metadata and card."""
    output = request.output
    done.links = linking.linked(output)
    known = _read_json(output / ENVIRONMENT)
    if not known:
        done.remarks.append(f"{ENVIRONMENT}: the run left none, so what it ran on is not known")
    left = finding.left_at(output, {})
    configuration = configuration_of(known.get("command", ()), request.folder, left.configurations)
    seen = observed(output, known, _read_json(output / METADATA), configuration)
    if configuration and not configuration.path.resolve().is_relative_to(output.resolve()):
        as_run.kept(configuration, output)
    done.remarks += (seen.recording or {}).get("remarks", [])
    done.overhead = _overhead(seen, output / target.LOGS / "torch.log")
    done.remarks += metadata.completed(output, seen)
    card = carding.placed(output, request.card, [*left.cards, *done.cards])
    done.filled, disagreeing = carding.filled(card, seen)
    done.remarks += disagreeing


def _overhead(seen: Observed, log: Path) -> dict[str, float]:
    """Return by how much recording made steps longer: as the library measured, else from torchtitan's log."""
    if seen.recording:
        return dict(seen.recording.get("overhead", {}))
    configuration = seen.configuration
    return training_log.overhead(log, configuration.settings.profiling) if configuration else {}


def _recording(output: Path) -> dict[str, Any]:
    """Return what processes that recorded themselves into a directory tell of it."""
    told = _read_json(output / METADATA).get("recording")
    return told if isinstance(told, dict) else {}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        temporary.chmod(0o644)


def _read_json(path: Path) -> dict[str, Any]:
    """Return what a file holds, nothing where it holds no mapping."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
