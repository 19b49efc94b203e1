"""The recorded framework: clock of its steps, recorders, and its ranks and devices."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

from ccl_bench.base.errors import UsageError
from ccl_bench.collect.profiling.clock import clock_for
from ccl_bench.collect.profiling.jax_recorder import JaxFramework
from ccl_bench.collect.profiling.recorders import choose_recorders, export_trace
from ccl_bench.collect.profiling.schedule import StepPhase

if TYPE_CHECKING:
    from ccl_bench.collect.profiling.clock import Clock
    from ccl_bench.collect.profiling.options import Options
    from ccl_bench.collect.profiling.recorders import FileOf, Recorder, Together
    from ccl_bench.collect.profiling.schedule import Schedule

NAMES = ("torch", "jax")


class RecordedFramework(Protocol):
    """The interface of a framework for recordings."""

    name: str

    def schedule(self, schedule: Schedule) -> Schedule:
        """Return the schedule without phases in which nothing would be recorded."""

    def clock(self, schedule: Schedule) -> Clock:
        """Return the clock that times the steps."""

    def recorders(
        self, options: Options, file_of: FileOf, together: Together
    ) -> tuple[list[Recorder], list[str]]:
        """Return the recorders of the steps, and remarks on what is not possible."""

    def memory_peaks(self) -> dict[str, int]:
        """Return the peaks of the allocator, bytes; empty if unknown."""

    def about(self) -> dict[str, str]:
        """Return the devices according to the framework, if the environment does not show them."""

    def ranks(self) -> list[int]:
        """Return the ranks of this process if each of its devices is a rank; else none."""

    def world_size(self) -> int | None:
        """Return the number of ranks of the job if devices are ranks; else None."""


class TorchFramework:
    """PyTorch for recordings: each process is a rank."""

    name = "torch"

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def schedule(self, schedule: Schedule) -> Schedule:
        """Return the schedule as it is."""
        return schedule

    def clock(self, schedule: Schedule) -> Clock:  # noqa: ARG002
        """Return the clock that times the steps."""
        return clock_for(self._torch)

    def recorders(
        self, options: Options, file_of: FileOf, together: Together
    ) -> tuple[list[Recorder], list[str]]:
        """Return the recorders of the steps, and remarks on what is not possible."""

        def export(profiler: Any, cut_step: int | None) -> None:
            file = file_of("profile_trace", StepPhase.ACTIVE, "trace.json")
            together(lambda: export_trace(profiler, file, compress=options.compress, cut_step=cut_step))

        return choose_recorders(self._torch, options, file_of, export)

    def memory_peaks(self) -> dict[str, int]:
        """Return the peaks of the allocator, bytes; empty if nothing was allocated on a device."""
        cuda = self._torch.cuda
        if not (cuda.is_available() and cuda.is_initialized()):
            return {}
        return {
            "allocated_bytes.all.peak": cuda.max_memory_allocated(),
            "reserved_bytes.all.peak": cuda.max_memory_reserved(),
        }

    def about(self) -> dict[str, str]:
        """Return nothing: the environment shows the devices."""
        return {}

    def ranks(self) -> list[int]:
        """Return nothing: the process is one rank, regardless of its devices."""
        return []

    def world_size(self) -> None:
        """Return nothing: ranks are processes."""


def framework(name: str | None = None, *, marks: bool = True) -> RecordedFramework:
    """Return the framework of a name; by default JAX if the program has loaded it and not torch.

    `marks` are made in each recorded step of JAX; torch's profiler always makes its own.
    """
    if name is not None and name not in NAMES:
        raise UsageError(f"framework = {name!r} is unknown", fix=f"one of: {', '.join(NAMES)}")
    if name == "jax" or (name is None and "jax" in sys.modules and "torch" not in sys.modules):
        import jax

        return JaxFramework(jax, marks=marks)
    import torch

    return TorchFramework(torch)
