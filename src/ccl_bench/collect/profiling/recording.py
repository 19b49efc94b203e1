"""Recording a training loop: `with profile(...) as recording`, and `recording.step()` after every step."""

from __future__ import annotations

import contextlib
import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from ccl_bench.collect.profiling import parts, place
from ccl_bench.collect.profiling.account import memory_peaks, part_of, too_short, warn
from ccl_bench.collect.profiling.clock import clock_for
from ccl_bench.collect.profiling.experts import ExpertCounts
from ccl_bench.collect.profiling.exporting import export
from ccl_bench.collect.profiling.meeting import Meeting
from ccl_bench.collect.profiling.options import Options, checked
from ccl_bench.collect.profiling.schedule import Phase, Schedule
from ccl_bench.collect.profiling.setting_up import recorders
from ccl_bench.collect.profiling.turns import turn
from ccl_bench.errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ccl_bench.collect.profiling.place import Place
    from ccl_bench.collect.profiling.recorders import Recorder


@contextlib.contextmanager
def profile(
    output: str | os.PathLike[str] | None = None,
    *,
    schedule: Schedule | None = None,
    execution_trace: Literal["apart", "together", "off"] = "apart",
    memory: bool | None = None,
    compress: bool = False,
    writers_per_node: int | None = None,
    metadata: Mapping[str, float] | None = None,
) -> Iterator[Recording]:
    """Record a training loop into a run directory.

    Call it on every rank around the loop, and `recording.step()` at the end of every step. Steps that the
    schedule times run without a profiler; later ones are recorded. An exception in the loop passes through
    after what is there was written.

    Args:
        output: Run directory, the same on all ranks; what `ccl-bench collect` was given, unless named.
        schedule: Number of steps of each phase.
        execution_trace: `apart` observes steps of their own, because the observer makes steps longer;
            `together` the active ones, so that both traces show the same operators.
        memory: Whether to take a snapshot of device memory; None is yes where there is a CUDA device.
        compress: Whether traces are packed by gzip: a tenth of the size, and export takes longer.
        writers_per_node: Ranks of a node that export at the same time.
        metadata: Numbers for `run_metadata.json` that the program knows, such as `global_batch_size`.
    """
    options = checked(output, schedule, execution_trace, memory, compress, writers_per_node, metadata)
    recording = Recording(options)
    recording.begin()
    try:
        yield recording
    except BaseException as error:
        try:
            recording.end(failed=True)
        except Exception as second:  # the first error is what the user has to see
            error.add_note(f"ccl-bench could not write what was recorded: {second}")
        raise
    recording.end(failed=False)


_RECORDINGS = itertools.count()
"""Numbers the recordings of a program; every rank makes them in the same order."""


class Recording:
    """One recording; `profile` makes it."""

    def __init__(self, options: Options) -> None:
        import torch

        self.options = options
        self.schedule: Schedule = options.schedule
        self.step_number = 0
        """Steps that have ended."""
        self._torch = torch
        self._clock = clock_for(torch)
        self._experts = ExpertCounts()
        self._losses: dict[int, Any] = {}
        self._tokens: int | None = None
        self._remarks: list[str] = []
        self._recorders: list[Recorder] = []
        self._is_failing = False
        self._number = next(_RECORDINGS)

    @property
    def phase(self) -> Phase:
        """What happens to the step that is running."""
        return self.schedule.phase(self.step_number)

    @cached_property
    def place(self) -> Place:
        """Which rank this is; asked for after the loop has begun, when process groups are initialised."""
        return place.here()

    @cached_property
    def _meeting(self) -> Meeting:
        return Meeting(self.place, f"recording_{self._number}")

    def watch_router(self, router: Any, *, layer: int | str, experts: int, chosen: Any = None) -> None:
        """Count the tokens that a router of a mixture of experts sends to each of `experts`.

        Counting happens in the observed steps. `chosen` takes the experts' numbers out of the output.
        """
        if not self.schedule.observed:
            raise UsageError(
                "experts are counted in observed steps, and there are none", fix="give observed=1"
            )
        self._experts.watch(router, layer=layer, experts=experts, chosen=chosen)

    def begin(self) -> None:
        """Begin before the first step."""
        self._recorders, self._remarks = recorders(self._torch, self.options, self._file, self._export)
        for recorder in self._recorders:
            recorder.enter(self.schedule.step(0))
        self._clock.start()

    def step(self, *, tokens: int | None = None, loss: Any = None) -> None:
        """End a step.

        Args:
            tokens: Tokens of this step over all ranks.
            loss: Loss of this step where this rank computed one: a number, or a tensor that is read later,
                so that nothing waits for the device.
        """
        ended = self.schedule.step(self.step_number)
        if ended.phase is not Phase.AFTER:
            self._clock.stop(ended.number)
        if loss is not None:
            self._losses[ended.number] = loss.detach() if hasattr(loss, "detach") else loss
        self._tokens = tokens if tokens is not None else self._tokens
        for recorder in self._recorders:
            recorder.leave(ended)
        self.step_number += 1
        if ended.is_last:
            self._leave_phase(ended.phase)
        for recorder in self._recorders:
            recorder.enter(self.schedule.step(self.step_number))
        self._experts.is_on = self.phase is Phase.OBSERVED
        if self.phase is not Phase.AFTER:
            self._clock.start()

    def end(self, *, failed: bool) -> None:
        """End after the last step; with `failed` no other rank is waited for."""
        self._is_failing = failed
        self._close_recorders()
        self._write_experts()
        if self.step_number < self.schedule.length and not failed:
            self._remark(too_short(self.step_number, self.schedule))
        self._hand_over()

    def _close_recorders(self) -> None:
        for recorder in self._recorders:
            recorder.close()
        self._recorders.clear()

    def _leave_phase(self, phase: Phase) -> None:
        """Do what belongs between two phases, where it disturbs no step."""
        if phase is Phase.TIMED:
            with self._writing("step times"):
                parts.leave(self.options.output, self._part())
        if phase is Phase.OBSERVED:
            self._meeting.wait("before what is observed is written")
            with self._writing("what was observed"):
                self._close_recorders()
            self._meeting.wait("after what is observed was written")

    def _file(self, kind: str, phase: Phase, ending: str) -> Path:
        """Return the file of this rank for a kind of trace whose window ends with a phase."""
        window = f"iteration_{self.schedule.end_of(phase)}"
        return self.options.output / kind / window / f"rank{self.place.rank}_{ending}"

    def _export(self, profiler: Any, cut_step: int | None) -> None:
        """Write the trace of this rank: when all have stopped recording, and a few at a time."""
        file = self._file("profile_trace", Phase.ACTIVE, "trace.json")
        if not self._is_failing:
            self._meeting.wait("before traces are written")
        with self._writing("the trace"), turn(self.place.local_rank, self.options.writers_per_node):
            problem = export(profiler, file, is_packed=self.options.compress, cut_step=cut_step)
            if problem:
                self._remark(problem)
        if not self._is_failing:
            self._meeting.wait("after traces were written")

    def _write_experts(self) -> None:
        file = self.options.output / f"moe_assignments_rank{self.place.rank}.json"
        with self._writing("counts of experts"):
            self._experts.write(file, self.place.rank)

    def _hand_over(self) -> None:
        """Put together what all ranks know; a rank that fails only leaves its part."""
        folder, part = self.options.output, self._part()
        with self._writing("what this rank knows"):
            parts.leave(folder, part)
        if self._is_failing:
            return
        texts = self._meeting.gathered("parts", parts.as_text(part))
        if self.place.is_first and texts:
            with self._writing("the files of the run"):
                found = [parts.from_text(text) for text in texts]
                warn(text for text in parts.remarks_of(found) if text not in self._remarks)
                parts.write(folder, found)
        self._meeting.wait("after parts were put together")
        if self._meeting.problem:
            self._remark(self._meeting.problem)
        elif self.place.world_size == 1 or self._meeting.is_together:
            parts.withdraw(folder, self.place.rank)

    def _part(self) -> parts.Part:
        """Return what this rank knows."""
        return part_of(
            self.place,
            self.options,
            self._clock,
            steps=self.step_number,
            losses=self._losses,
            tokens=self._tokens,
            memory=memory_peaks(self._torch),
            remarks=self._remarks,
        )

    @contextlib.contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """Go on where something cannot be written: a full disk is no reason to end a training."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            # Without the name of the file, so that ranks that meet the same say the same.
            cause = error.strerror if isinstance(error, OSError) and error.strerror else error
            self._remark(f"{what} could not be written: {cause}")

    def _remark(self, text: str) -> None:
        self._remarks.append(text)
        if self.place.is_first or self._is_failing:
            warn([text])
