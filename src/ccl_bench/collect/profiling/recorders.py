"""Recorders of steps: torch's profiler and its export, Execution Trace, memory, experts, NVTX ranges."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ccl_bench.base.errors import UsageError
from ccl_bench.collect.profiling.schedule import StepPhase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.collect.profiling.options import Options
    from ccl_bench.collect.profiling.schedule import Schedule, ScheduledStep

FileOf = Callable[[str, StepPhase, str], Path]
"""Kind of trace, the phase with which its window ends, ending of the name -> the file of this rank."""

Together = Callable[[Callable[[], str]], None]
"""Calls the writer of a trace after all ranks have stopped recording; it returns problems of the file."""

MEMORY_EVENTS = 100_000
"""Number of allocations and frees in the memory history, as in torchtitan."""


class Recorder(Protocol):
    """Something that records steps of a loop."""

    def enter(self, step: ScheduledStep) -> None:
        """Handle the start of a step."""

    def leave(self, step: ScheduledStep) -> None:
        """Handle the end of a step."""

    def close(self) -> None:
        """Handle the end of this recorder's window, or of the loop."""


class TorchProfiler:
    """`torch.profiler` over the active steps, with an Execution Trace if asked."""

    def __init__(
        self,
        torch: Any,
        schedule: Schedule,
        export: Callable[[Any, int | None], None],
        execution_trace: Callable[[], Path] | None = None,
    ) -> None:
        """`export` receives the profiler, and the number of an unfinished step, if any."""
        self._step = 0
        self._cut: int | None = None
        self._file = execution_trace
        self._observer = torch.profiler.ExecutionTraceObserver() if execution_trace else None
        kinds, actions = torch.profiler.ProfilerActivity, torch.profiler.ProfilerAction

        def action(number: int) -> Any:
            step = schedule.step(number)
            if step.phase is StepPhase.WARMUP and schedule.active:
                return actions.WARMUP
            if step.phase is StepPhase.ACTIVE:
                return actions.RECORD_AND_SAVE if step.is_last else actions.RECORD
            return actions.NONE

        self._profiler = torch.profiler.profile(
            activities=[kinds.CPU, *([kinds.CUDA] if torch.cuda.is_available() else [])],
            schedule=action,
            on_trace_ready=lambda profiler: export(profiler, self._cut),
            record_shapes=True,
            execution_trace_observer=self._observer,
        )

    def enter(self, step: ScheduledStep) -> None:
        """Start before the first step."""
        self._step = step.number
        if step.number == 0:
            self._profiler.start()

    def leave(self, step: ScheduledStep) -> None:
        """Advance to the next step; after the last active one the trace is exported."""
        if step.phase is StepPhase.AFTER:
            return
        if self._observer and self._file and step.is_last and step.following is StepPhase.ACTIVE:
            # The profiler starts the observer in its step(), and the observer needs its file by then.
            self._observer.register_callback(_make_parent(self._file()))
        self._profiler.step()

    def close(self) -> None:
        """Stop; if the loop ended inside the active steps, export them."""
        self._cut = self._step
        self._profiler.stop()
        if self._observer:
            self._observer.cleanup()


class ExecutionTrace:
    """Execution Trace over the observed steps, without the profiler: its observer makes steps longer."""

    def __init__(self, torch: Any, file: Callable[[], Path]) -> None:
        self._file = file
        self._observer = torch.profiler.ExecutionTraceObserver()

    def enter(self, step: ScheduledStep) -> None:
        """Start with the first observed step."""
        if step.phase is StepPhase.OBSERVED and not self._observer.is_registered:
            self._observer.register_callback(_make_parent(self._file()))
            self._observer.start()

    def leave(self, step: ScheduledStep) -> None:
        """Do nothing between observed steps."""

    def close(self) -> None:
        """Finish the file."""
        if self._observer.is_registered:
            self._observer.stop()
            self._observer.cleanup()


class MemoryHistory:
    """CUDA's memory history over the observed steps, as a snapshot in a file."""

    def __init__(self, torch: Any, file: Callable[[], Path]) -> None:
        self._memory, self._file, self._is_on = torch.cuda.memory, file, False

    def enter(self, step: ScheduledStep) -> None:
        """Start with the first observed step."""
        if step.phase is StepPhase.OBSERVED and not self._is_on:
            self._memory._record_memory_history(max_entries=MEMORY_EVENTS)
            self._is_on = True

    def leave(self, step: ScheduledStep) -> None:
        """Do nothing between observed steps."""

    def close(self) -> None:
        """Write the snapshot and stop."""
        if self._is_on:
            self._is_on = False
            self._memory._dump_snapshot(_make_parent(self._file()))
            self._memory._record_memory_history(enabled=None)


class NsightRanges:
    """NVTX ranges with the numbers of the active steps, and CUDA's capture range."""

    def __init__(self, torch: Any) -> None:
        """Use torch's NVTX, or the package `nvtx` with a CPU build of torch."""
        self._is_open = False
        self._capture: Any = None
        if torch.cuda.is_available():
            self._capture = torch.cuda.profiler
            self._push, self._pop = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
        else:
            nvtx: Any = importlib.import_module("nvtx")
            self._push, self._pop = nvtx.push_range, nvtx.pop_range

    def enter(self, step: ScheduledStep) -> None:
        """Open the range of an active step, and before the first one the capture range."""
        if step.phase is StepPhase.ACTIVE:
            if self._capture and not self._is_open:
                self._capture.start()
            self._push(f"step {step.number}")
            self._is_open = True

    def leave(self, step: ScheduledStep) -> None:
        """Close the range, and after the last active step the capture range."""
        if step.phase is StepPhase.ACTIVE:
            self._pop()
            if step.is_last:
                self._end_capture()

    def close(self) -> None:
        """Close an open range."""
        if self._is_open:
            self._pop()
            self._end_capture()

    def _end_capture(self) -> None:
        self._is_open = False
        if self._capture:
            self._capture.stop()


def _make_parent(file: Path) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    return str(file)


class ExpertCounts:
    """Tokens of each expert by layer, summed over the observed steps."""

    def __init__(self) -> None:
        self.is_on = False
        self._tokens: dict[str, Any] = {}

    def watch(
        self,
        router: Any,
        *,
        layer: int | str,
        experts: int,
        chosen: Callable[[Any], Any] | None = None,
    ) -> None:
        """Count the choices of a router module: `chosen` returns the tensor of expert numbers in its output.

        By default it is the only integer tensor of the output.
        """
        take = chosen or _integer_tensor

        def count(_module: Any, _inputs: Any, output: Any) -> None:
            if self.is_on:  # counts are added on the device, without waiting for it
                flat = take(output).detach().reshape(-1).long()
                if str(layer) not in self._tokens:
                    self._tokens[str(layer)] = flat.new_zeros(experts)
                self._tokens[str(layer)].scatter_add_(0, flat, flat.new_ones(()).expand_as(flat))

        router.register_forward_hook(count)

    def write(self, file: Path, rank: int) -> None:
        """Write the `moe_assignments` of one rank, if there are any counts."""
        if self._tokens:
            layers = {layer: counts.tolist() for layer, counts in self._tokens.items()}
            file.write_text(json.dumps({"rank": rank, "layers": layers}) + "\n", encoding="utf-8")


def _integer_tensor(output: Any) -> Any:
    """Return the only integer tensor in a router's output."""
    outputs = output if isinstance(output, tuple | list) else [output]
    tensors = [p for p in outputs if hasattr(p, "is_floating_point") and not p.is_floating_point()]
    if len(tensors) != 1:
        raise UsageError(
            f"a router returned {len(tensors)} integer tensors; one is needed to identify the experts",
            fix="name the tensor, for example chosen=lambda output: output[1]",
        )
    return tensors[0]


_ET, _SNAPSHOT = "et.json", "memory_snapshot.pickle"


def choose_recorders(
    torch: Any, options: Options, file_of: FileOf, export: Callable[..., None]
) -> tuple[list[Recorder], list[str]]:
    """Return the recorders for these options and this build of torch, and remarks on what is not possible.

    Under Nsight Systems torch's own profiler stays off: CUDA's profiling interface allows only one.
    """
    if options.profile_mode == "nsys":
        try:
            return [NsightRanges(torch)], []
        except ImportError:
            return [], [
                "steps are not marked for Nsight Systems: this torch has no CUDA, and nvtx is not installed"
            ]
    recorders: list[Recorder] = []
    schedule = options.schedule
    is_together = options.execution_trace == "together"
    if schedule.active:
        file = partial(file_of, "execution_trace", StepPhase.ACTIVE, _ET) if is_together else None
        recorders.append(TorchProfiler(torch, schedule, export, file))
    if not schedule.observed:
        return recorders, []
    if options.execution_trace == "apart":
        recorders.append(ExecutionTrace(torch, partial(file_of, "execution_trace", StepPhase.OBSERVED, _ET)))
    has_device = torch.cuda.is_available()
    if has_device and options.memory is not False:
        recorders.append(
            MemoryHistory(torch, partial(file_of, "memory_snapshot", StepPhase.OBSERVED, _SNAPSHOT))
        )
    refused = options.memory and not has_device
    return recorders, ["memory was not recorded: there is no CUDA device"] if refused else []


@contextlib.contextmanager
def write_slot(local_rank: int, writers: int) -> Iterator[None]:
    """Hold one of the write slots of a node; the system frees it when a process dies.

    If no slot can be held, as with a read-only temporary folder or on Windows, every rank writes at once.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ImportError):
            import fcntl

            folder = Path(tempfile.gettempdir()) / f"ccl-bench-turns-{os.getuid()}"
            folder.mkdir(mode=0o700, exist_ok=True)
            # Another user may have made it to have a file of ours overwritten.
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                raise PermissionError(folder)
            slot = stack.enter_context((folder / str(local_rank % writers)).open("w"))
            fcntl.flock(slot, fcntl.LOCK_EX)
        yield


_CHUNK_BYTES = 1 << 20
_GZIP_LEVEL = 1
"""Compression level: on traces level 9 takes five times as long and saves a fifth of the size."""


def export_trace(profiler: Any, file: Path, *, compress: bool, cut_step: int | None) -> str:
    """Write the trace of a profiler, and return the problem of the file, if any.

    `cut_step` is the number of a step that the loop did not finish.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(file))
    # The profiler reports no error when the disk is full.
    end = b""
    if file.exists():
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - 64))
            end = stream.read().rstrip()
    if not end.endswith(b"}"):
        free = shutil.disk_usage(file.parent).free
        return f"the trace is incomplete: its disk has {free / 1e6:.0f} MB free"
    if cut_step is not None:
        _rename_step(file, cut_step)
    if not compress:
        return ""
    try:
        with _temporary_file(file) as temporary:
            with file.open("rb") as source, gzip.open(temporary, "wb", compresslevel=_GZIP_LEVEL) as target:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)
            temporary.replace(file.with_name(f"{file.name}.gz"))
    except OSError as error:
        return f"the trace is not compressed: {error.strerror}"
    file.unlink()
    return ""


def _rename_step(file: Path, step: int) -> None:
    """Remove the number from the range of an unfinished step: its length is not that of a step."""
    before, after = b'"ProfilerStep#%d"' % step, b'"unfinished ProfilerStep"'
    overlap = len(before) - 1  # the text may lie across two chunks
    with _temporary_file(file) as temporary:
        with file.open("rb") as source, temporary.open("wb") as target:
            remainder = b""
            while chunk := source.read(_CHUNK_BYTES):
                text = (remainder + chunk).replace(before, after)
                target.write(text[:-overlap])
                remainder = text[-overlap:]
            target.write(remainder)
        temporary.replace(file)


@contextlib.contextmanager
def _temporary_file(file: Path) -> Iterator[Path]:
    """Yield a hidden path beside this one, and remove it afterwards unless it was renamed."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
