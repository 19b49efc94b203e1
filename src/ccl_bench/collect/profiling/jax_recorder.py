"""Recording with JAX's profiler into `plugins/profile/<window>/<host>_<process>.xplane.pb`.

JAX returns from a call before its devices have finished, so step times are measured after a wait for them.
Its profiler has no warm-up: it starts with the first active step. The tracer of Python calls stays off: it
writes an event for every function call, which no number needs, and slows the program down.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccl_bench.collect.profiling.clock import HostClock
from ccl_bench.collect.profiling.schedule import StepPhase

if TYPE_CHECKING:
    from ccl_bench.collect.profiling.clock import Clock
    from ccl_bench.collect.profiling.options import Options
    from ccl_bench.collect.profiling.recorders import FileOf, Recorder, Together
    from ccl_bench.collect.profiling.schedule import Schedule, ScheduledStep

MARK = "train"
"""Name of the ranges that mark the steps."""

PROFILES = Path("plugins", "profile")
"""Folder of profiles of JAX, TensorBoard and XProf, with one folder per recording."""


def wait_for_devices(jax: Any) -> None:
    """Wait until every live array is computed; an array may be donated meanwhile."""
    for array in jax.live_arrays():
        with contextlib.suppress(RuntimeError):
            array.block_until_ready()


class AwaitedClock(HostClock):
    """The clock of the host after a wait for the devices, at each timed step and the end of a phase."""

    name = "host, after a wait for the devices"

    def __init__(self, jax: Any, schedule: Schedule) -> None:
        super().__init__()
        self._jax, self._schedule = jax, schedule

    def stop(self, step: int) -> None:
        """End a step."""
        step_end = self._schedule.step(step)
        if step_end.phase is StepPhase.TIMED or step_end.is_last:
            wait_for_devices(self._jax)
        super().stop(step)


class JaxProfiler:
    """`jax.profiler` over the active steps."""

    def __init__(
        self,
        jax: Any,
        target: Path,
        together: Together,
        *,
        marks: bool,
    ) -> None:
        """`together` calls the writer of the profile after all processes have stopped recording."""
        self._jax, self._target, self._together = jax, target, together
        self._marks = marks
        self._mark: Any = None
        self._is_on = False

    def enter(self, step: ScheduledStep) -> None:
        """Start with the first active step, and mark each of them."""
        if step.phase is not StepPhase.ACTIVE:
            return
        if not self._is_on:
            options = self._jax.profiler.ProfileOptions()
            options.python_tracer_level = 0
            wait_for_devices(self._jax)
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix=".", dir=self._target.parent))
            # JAX refuses a second profiler in one process with a RuntimeError.
            self._jax.profiler.start_trace(str(self._folder), profiler_options=options)
            self._is_on = True
        if self._marks:
            self._mark = self._jax.profiler.StepTraceAnnotation(MARK, step_num=step.number)
            self._mark.__enter__()

    def leave(self, step: ScheduledStep) -> None:
        """End the mark of a step, and after the last active one the profile."""
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
        if step.phase is StepPhase.ACTIVE and step.is_last:
            self.close()

    def close(self) -> None:
        """Stop and write the profile; it has no mark for an unfinished step."""
        if not self._is_on:
            return
        self._is_on = False
        wait_for_devices(self._jax)
        self._together(self._write)
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None

    def _write(self) -> str:
        """Write the profile, and return its problem, if any.

        JAX names it after the host, which several processes may share, and also writes a trace for viewers
        with the same content.
        """
        try:
            self._jax.profiler.stop_trace()
            for profile in self._folder.rglob("*.xplane.pb"):
                profile.replace(self._target)
                return ""
            return "JAX's profiler wrote no profile"
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


class JaxFramework:
    """JAX for recordings."""

    name = "jax"

    def __init__(self, jax: Any, *, marks: bool = True) -> None:
        """`marks` are made in each active step unless the program makes its own."""
        self._jax, self._marks = jax, marks

    def schedule(self, schedule: Schedule) -> Schedule:
        """Return the schedule without observed steps: JAX has no separate recorders."""
        return replace(schedule, observed=0)

    def clock(self, schedule: Schedule) -> Clock:
        """Return the clock that times the steps."""
        return AwaitedClock(self._jax, schedule)

    def recorders(
        self, options: Options, file_of: FileOf, together: Together
    ) -> tuple[list[Recorder], list[str]]:
        """Return the recorders of the steps, and remarks on what is not possible."""
        if options.profile_mode == "nsys":
            return [], ["steps of JAX are not marked for Nsight Systems"]
        if not options.schedule.active:
            return [], []
        window = file_of("", StepPhase.ACTIVE, "").parent.name
        name = f"{socket.gethostname()}_{self._jax.process_index()}.xplane.pb"
        target = options.output / PROFILES / window / name
        return [JaxProfiler(self._jax, target, together, marks=self._marks)], []

    def memory_peaks(self) -> dict[str, int]:
        """Return the highest peak of the allocators of this process; empty if unknown."""
        statistics = [device.memory_stats() or {} for device in self._jax.local_devices()]
        peaks = [
            int(counters["peak_bytes_in_use"]) for counters in statistics if "peak_bytes_in_use" in counters
        ]
        return {"allocated_bytes.all.peak": max(peaks)} if peaks else {}

    def about(self) -> dict[str, str]:
        """Return the platform, such as `tpu`, and the name of its devices."""
        return {"platform": self._jax.default_backend(), "device": self._jax.local_devices()[0].device_kind}

    def ranks(self) -> list[int]:
        """Return the ranks of the devices of this process: their positions among all, by id."""
        local_ids = {device.id for device in self._jax.local_devices()}
        all_ids = sorted(device.id for device in self._jax.devices())
        return [rank for rank, device in enumerate(all_ids) if device in local_ids]

    def world_size(self) -> int:
        """Return the number of devices of the job."""
        return int(self._jax.device_count())
