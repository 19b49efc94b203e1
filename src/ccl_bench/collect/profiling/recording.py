"""Record a training loop: `with profile(...) as recording`, and `recording.step()` after every step."""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ccl_bench.base.errors import UsageError
from ccl_bench.base.registry import did_you_mean
from ccl_bench.collect.profiling import rank_summary, ranks
from ccl_bench.collect.profiling.clock import clock_for
from ccl_bench.collect.profiling.export import WRITERS_PER_NODE, export_trace, write_slot
from ccl_bench.collect.profiling.rank_summary import (
    log_warnings,
    memory_peaks,
    short_loop_remark,
    summarise_rank,
)
from ccl_bench.collect.profiling.ranks import Barrier
from ccl_bench.collect.profiling.recorders import ExpertCounts, choose_recorders
from ccl_bench.collect.profiling.schedule import Phase, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccl_bench.collect.profiling.ranks import ProcessRank
    from ccl_bench.collect.profiling.recorders import Recorder

OUTPUT_VARIABLE = "CCL_BENCH_OUTPUT"
MODE_VARIABLE = "CCL_BENCH_PROFILE_MODE"

EXECUTION_TRACES = ("apart", "together", "off")
MODES = ("torch", "nsys")

METADATA_NUMBERS = (
    "global_batch_size",
    "seq_len",
    "tokens_per_step",
    "model_flops_per_token",
    "gpu_peak_tflops",
    "gpu_hbm_bytes",
)
"""Numbers that `run_metadata.json` takes from a program; the number of ranks is counted."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a recording was asked to do."""

    output: Path
    schedule: Schedule = field(default_factory=Schedule)
    execution_trace: str = "apart"
    memory: bool | None = None
    compress: bool = False
    writers_per_node: int = WRITERS_PER_NODE
    metadata: Mapping[str, float] = field(default_factory=dict)
    profile_mode: str = "torch"


def check_options(
    output: str | os.PathLike[str] | None,
    schedule: Schedule | None,
    execution_trace: str,
    memory: bool | None,
    compress: bool,
    writers_per_node: int | None,
    metadata: Mapping[str, float] | None,
) -> Options:
    """Return options that can be followed, or raise UsageError."""
    place = output or os.environ.get(OUTPUT_VARIABLE)
    if not place:
        raise UsageError(
            "profile() was not told where to write",
            fix='name a directory, profile("runs/first"), or start the program by `ccl-bench collect`',
        )
    if execution_trace not in EXECUTION_TRACES:
        raise UsageError(
            f"execution_trace = {execution_trace!r} is not known",
            fix=f"one of: {', '.join(EXECUTION_TRACES)}",
        )
    for name in metadata or {}:
        if name not in METADATA_NUMBERS:
            raise UsageError(
                f"run_metadata.json has no {name}",
                fix=did_you_mean(name, METADATA_NUMBERS) or f"known: {', '.join(METADATA_NUMBERS)}",
            )
    writers = WRITERS_PER_NODE if writers_per_node is None else writers_per_node
    if writers < 1:
        raise UsageError(f"writers_per_node = {writers} lets nobody write", fix="give 1 or more")
    mode = os.environ.get(MODE_VARIABLE, "torch")
    return Options(
        Path(place).absolute(),
        schedule or Schedule(),
        execution_trace,
        memory,
        compress,
        writers,
        dict(metadata or {}),
        mode if mode in MODES else "torch",
    )


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
    options = check_options(output, schedule, execution_trace, memory, compress, writers_per_node, metadata)
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
    def place(self) -> ProcessRank:
        """Which rank this is; asked for after the loop has begun, when process groups are initialised."""
        return ranks.process_rank()

    @cached_property
    def _meeting(self) -> Barrier:
        return Barrier(self.place, f"recording_{self._number}")

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
        self._recorders, self._remarks = choose_recorders(self._torch, self.options, self._file, self._export)
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
            self._remark(short_loop_remark(self.step_number, self.schedule))
        self._hand_over()

    def _close_recorders(self) -> None:
        for recorder in self._recorders:
            recorder.close()
        self._recorders.clear()

    def _leave_phase(self, phase: Phase) -> None:
        """Do what belongs between two phases, where it disturbs no step."""
        if phase is Phase.TIMED:
            with self._writing("step times"):
                rank_summary.save_summary(self.options.output, self._part())
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
        with self._writing("the trace"), write_slot(self.place.local_rank, self.options.writers_per_node):
            problem = export_trace(profiler, file, is_packed=self.options.compress, cut_step=cut_step)
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
            rank_summary.save_summary(folder, part)
        if self._is_failing:
            return
        texts = self._meeting.gathered("parts", rank_summary.to_json(part))
        if self.place.is_first and texts:
            with self._writing("the files of the run"):
                found = [rank_summary.from_json(text) for text in texts]
                log_warnings(
                    text for text in rank_summary.combined_remarks(found) if text not in self._remarks
                )
                rank_summary.write_run_files(folder, found)
        self._meeting.wait("after parts were put together")
        if self._meeting.problem:
            self._remark(self._meeting.problem)
        elif self.place.world_size == 1 or self._meeting.is_together:
            rank_summary.remove_summary(folder, self.place.rank)

    def _part(self) -> rank_summary.RankSummary:
        """Return what this rank knows."""
        return summarise_rank(
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
            log_warnings([text])
