"""Recorders of steps: torch's profiler and its export, Execution Trace, memory, experts, NVTX ranges."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import importlib
import json
import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Protocol

from ccl_bench.base.errors import UsageError
from ccl_bench.collect.profiling.schedule import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ccl_bench.collect.profiling.recording import Options
    from ccl_bench.collect.profiling.schedule import Schedule, Step

MEMORY_EVENTS = 100_000
"""Number of allocations and frees in the memory history, as in torchtitan."""


class Recorder(Protocol):
    """Something that records steps of a loop."""

    def enter(self, step: Step) -> None:
        """Handle the start of a step."""

    def leave(self, step: Step) -> None:
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
        self._export = export
        self._step = 0
        self._cut: int | None = None
        self._file = execution_trace
        self._observer = torch.profiler.ExecutionTraceObserver() if execution_trace else None
        kinds = torch.profiler.ProfilerActivity
        self._profiler = torch.profiler.profile(
            activities=[kinds.CPU, *([kinds.CUDA] if torch.cuda.is_available() else [])],
            schedule=_actions(torch.profiler.ProfilerAction, schedule),
            on_trace_ready=self._ready,
            record_shapes=True,
            execution_trace_observer=self._observer,
        )

    def enter(self, step: Step) -> None:
        """Start before the first step."""
        self._step = step.number
        if step.number == 0:
            self._profiler.start()

    def leave(self, step: Step) -> None:
        """Advance to the next step; after the last active one the trace is exported."""
        if step.phase is Phase.AFTER:
            return
        if self._observer and self._file and step.is_last and step.following is Phase.ACTIVE:
            # The profiler starts the observer in its step(), and the observer needs its file by then.
            self._observer.register_callback(_make_parent(self._file()))
        self._profiler.step()

    def close(self) -> None:
        """Stop; if the loop ended inside the active steps, export them."""
        self._cut = self._step
        self._profiler.stop()
        if self._observer:
            self._observer.cleanup()

    def _ready(self, profiler: Any) -> None:
        self._export(profiler, self._cut)


def _actions(actions: Any, schedule: Schedule) -> Callable[[int], Any]:
    """Return the schedule function of torch's profiler."""

    def action(number: int) -> Any:
        step = schedule.step(number)
        if step.phase is Phase.WARMUP and schedule.active:
            return actions.WARMUP
        if step.phase is Phase.ACTIVE:
            return actions.RECORD_AND_SAVE if step.is_last else actions.RECORD
        return actions.NONE

    return action


class ExecutionTrace:
    """Execution Trace over the observed steps, without the profiler: its observer makes steps longer."""

    def __init__(self, torch: Any, file: Callable[[], Path]) -> None:
        self._file = file
        self._observer = torch.profiler.ExecutionTraceObserver()

    def enter(self, step: Step) -> None:
        """Start with the first observed step."""
        if step.phase is Phase.OBSERVED and not self._observer.is_registered:
            self._observer.register_callback(_make_parent(self._file()))
            self._observer.start()

    def leave(self, step: Step) -> None:
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

    def enter(self, step: Step) -> None:
        """Start with the first observed step."""
        if step.phase is Phase.OBSERVED and not self._is_on:
            self._memory._record_memory_history(max_entries=MEMORY_EVENTS)
            self._is_on = True

    def leave(self, step: Step) -> None:
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

    def enter(self, step: Step) -> None:
        """Open the range of an active step, and before the first one the capture range."""
        if step.phase is Phase.ACTIVE:
            if self._capture and not self._is_open:
                self._capture.start()
            self._push(f"step {step.number}")
            self._is_open = True

    def leave(self, step: Step) -> None:
        """Close the range, and after the last active step the capture range."""
        if step.phase is Phase.ACTIVE:
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
            if self.is_on:
                self._add(str(layer), experts, take(output))

        router.register_forward_hook(count)

    def _add(self, layer: str, experts: int, numbers: Any) -> None:
        """Add counts on the device, without waiting for it."""
        flat = numbers.detach().reshape(-1).long()
        if layer not in self._tokens:
            self._tokens[layer] = flat.new_zeros(experts)
        self._tokens[layer].scatter_add_(0, flat, flat.new_ones(()).expand_as(flat))

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
    torch: Any, options: Options, file_of: Callable[[str, Phase, str], Path], export: Callable[..., None]
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
        file = partial(file_of, "execution_trace", Phase.ACTIVE, _ET) if is_together else None
        recorders.append(TorchProfiler(torch, schedule, export, file))
    if not schedule.observed:
        return recorders, []
    if options.execution_trace == "apart":
        recorders.append(ExecutionTrace(torch, partial(file_of, "execution_trace", Phase.OBSERVED, _ET)))
    has_device = torch.cuda.is_available()
    if has_device and options.memory is not False:
        recorders.append(MemoryHistory(torch, partial(file_of, "memory_snapshot", Phase.OBSERVED, _SNAPSHOT)))
    refused = options.memory and not has_device
    return recorders, ["memory was not recorded: there is no CUDA device"] if refused else []


WRITERS_PER_NODE = 4
"""Number of ranks of a node that write at once by default."""


@contextlib.contextmanager
def write_slot(local_rank: int, writers: int) -> Iterator[None]:
    """Hold one of the write slots of a node; the system frees it when a process dies.

    If no slot can be held, as with a read-only temporary folder, every rank writes at once.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            slot = stack.enter_context(_slot_file(local_rank % writers))
            fcntl.flock(slot, fcntl.LOCK_EX)
        yield


def _slot_file(number: int) -> IO[str]:
    """Open the lock file of a slot, in a folder that only this user can write."""
    folder = Path(tempfile.gettempdir()) / f"ccl-bench-turns-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(folder)
    return (folder / str(number)).open("w")


_CHUNK_BYTES = 1 << 20
_GZIP_LEVEL = 1
"""Compression level: on traces level 9 takes five times as long and saves a fifth of the size."""


def export_trace(profiler: Any, file: Path, *, compress: bool, cut_step: int | None) -> str:
    """Write the trace of a profiler, and return the problem of the file, if any.

    `cut_step` is the number of a step that the loop did not finish.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(file))
    if not _is_complete(file):
        return f"the trace is incomplete: its disk has {_free_space(file)} free"
    if cut_step is not None:
        _rename_step(file, cut_step)
    return _compress(file) if compress else ""


def _is_complete(file: Path) -> bool:
    """Whether a file ends like JSON; the profiler reports no error when the disk is full."""
    if not file.exists():
        return False
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - 64))
        return stream.read().rstrip().endswith(b"}")


def _free_space(file: Path) -> str:
    return f"{shutil.disk_usage(file.parent).free / 1e6:.0f} MB"


def _rename_step(file: Path, step: int) -> None:
    """Remove the number from the range of an unfinished step: its length is not that of a step."""
    before, after = b'"ProfilerStep#%d"' % step, b'"unfinished ProfilerStep"'
    with _temporary_file(file) as temporary:
        with file.open("rb") as source, temporary.open("wb") as target:
            for piece in _replaced(source, before, after):
                target.write(piece)
        temporary.replace(file)


def _replaced(source: BinaryIO, before: bytes, after: bytes) -> Iterator[bytes]:
    """Yield the content of a stream with one text replaced, even across two chunks."""
    remainder = b""
    while chunk := source.read(_CHUNK_BYTES):
        text = (remainder + chunk).replace(before, after)
        overlap = len(before) - 1
        yield text[:-overlap]
        remainder = text[-overlap:]
    yield remainder


def _compress(file: Path) -> str:
    """Compress a trace; return why it stays uncompressed, if it does."""
    try:
        with _temporary_file(file) as temporary:
            with file.open("rb") as source, gzip.open(temporary, "wb", compresslevel=_GZIP_LEVEL) as target:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)
            temporary.replace(file.with_name(f"{file.name}.gz"))
    except OSError as error:
        return f"the trace is not compressed: {error.strerror}"
    file.unlink()
    return ""


@contextlib.contextmanager
def _temporary_file(file: Path) -> Iterator[Path]:
    """Yield a hidden path beside this one, and remove it afterwards unless it was renamed."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
