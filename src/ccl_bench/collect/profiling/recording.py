"""Recording of a training loop: `with profile(...) as recording`, and `recording.step()` after every step."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ccl_bench.base.errors import UsageError
from ccl_bench.collect.profiling import frameworks, rank_summary, ranks
from ccl_bench.collect.profiling.options import check_options
from ccl_bench.collect.profiling.rank_summary import (
    log_warnings,
    short_loop_remark,
    summarise_rank,
)
from ccl_bench.collect.profiling.ranks import Barrier
from ccl_bench.collect.profiling.recorders import ExpertCounts, write_slot
from ccl_bench.collect.profiling.schedule import Schedule, StepPhase

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from ccl_bench.collect.profiling.frameworks import RecordedFramework
    from ccl_bench.collect.profiling.options import Options
    from ccl_bench.collect.profiling.ranks import ProcessRank
    from ccl_bench.collect.profiling.recorders import Recorder

STEP_END = "recording.step()"
"""The call that ends a step of a program that records itself."""


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
    framework: Literal["torch", "jax"] | None = None,
) -> Iterator[Recording]:
    """Record a training loop into a run directory.

    Call it on every rank around the loop, and `recording.step()` at the end of every step. Timed steps of
    the schedule run without a profiler; later ones are recorded. An exception in the loop is raised again
    after the recorded data is written.

    Args:
        output: Run directory, the same on all ranks; by default that of `ccl-bench collect`. schedule:
        Number of steps of each phase. execution_trace: `apart` records in separate steps, because the
        observer makes steps longer;
            `together` in the active ones, so that both traces show the same operators.
        memory: Whether to take a snapshot of device memory; by default if there is a CUDA device. compress:
        Whether to compress traces with gzip: a tenth of the size, a longer export. writers_per_node: Ranks
        of a node that export at the same time. metadata: Numbers for `run_metadata.json`, such as
        `global_batch_size`. framework: The framework that trains; by default JAX if the program has
        imported it and not torch. Execution Trace,
            memory snapshot and compression are torch's.
    """
    options = check_options(output, schedule, execution_trace, memory, compress, writers_per_node, metadata)
    recording = Recording(options, frameworks.framework(framework))
    recording.begin()
    try:
        yield recording
    except BaseException as error:
        try:
            recording.end(failed=True)
        except Exception as second:  # the user has to see the first error
            error.add_note(f"ccl-bench cannot write the recording: {second}")
        raise
    recording.end(failed=False)


class Recording:
    """The recording of one loop; `profile` makes it."""

    of_program: ClassVar[int] = 0
    """Recordings that the program made itself; every rank makes them in the same order."""

    def __init__(self, options: Options, framework: RecordedFramework, *, is_injected: bool = False) -> None:
        self.schedule: Schedule = framework.schedule(options.schedule)
        self.options = replace(options, schedule=self.schedule)
        self.step_number = 0
        """Number of steps that have ended."""
        self._framework = framework
        self._clock = framework.clock(self.schedule)
        self._experts = ExpertCounts()
        self._losses: dict[int, Any] = {}
        self._tokens: int | None = None
        self._remarks: list[str] = []
        self._recorders: list[Recorder] = []
        self._is_alone = False
        """Whether the other ranks may be missing, so that this one does not wait."""
        self.step_end = STEP_END
        """The call that ends a step."""
        self._is_injected = is_injected
        self._name = "injected" if is_injected else f"recording_{Recording.of_program}"
        if not is_injected:
            Recording.of_program += 1

    @property
    def phase(self) -> StepPhase:
        """Phase of the step that is running."""
        return self.schedule.phase(self.step_number)

    @cached_property
    def process(self) -> ProcessRank:
        """The rank of this process; first read inside the loop, when process groups are initialised."""
        return ranks.process_rank()

    @cached_property
    def _barrier(self) -> Barrier:
        options = self.options
        return Barrier(self.process, self._name, options.patience_s, options.traced_ranks)

    def watch_router(self, router: Any, *, layer: int | str, experts: int, chosen: Any = None) -> None:
        """Count the tokens that a mixture-of-experts router sends to each of `experts`.

        Counts cover the observed steps. `chosen` returns the tensor of expert numbers in the router's output.
        """
        if self._framework.name != "torch":
            raise UsageError("experts are counted in modules of torch", fix="leave watch_router() out")
        if not self.schedule.observed:
            raise UsageError(
                "experts are counted in observed steps, but there are none", fix="give observed=1"
            )
        self._experts.watch(router, layer=layer, experts=experts, chosen=chosen)

    def begin(self, *, in_step: bool = False) -> None:
        """Start before the first step, or inside it; its length is then unknown."""
        traced = self.options.traced_ranks
        if traced is None or self.process.rank in traced:
            self._recorders, self._remarks = self._framework.recorders(
                self.options, self._file, self._write_together
            )
        if traced and traced[-1] >= self.process.world_size:
            self.remark(f"there is no rank {traced[-1]}: the ranks are 0 to {self.process.world_size - 1}")
        for recorder in self._recorders:
            recorder.enter(self.schedule.step(0))
        if not in_step:
            self._clock.start()

    def step(self, *, tokens: int | None = None, loss: Any = None) -> None:
        """End a step.

        Args:
            tokens: Tokens of this step over all ranks.
            loss: Loss of this step if this rank computes it: a number, or a tensor, which is read later
                so that nothing waits for the device.
        """
        scheduled_step = self.schedule.step(self.step_number)
        if scheduled_step.phase is not StepPhase.AFTER:
            self._clock.stop(scheduled_step.number)
        if loss is not None:
            self._losses[scheduled_step.number] = loss.detach() if hasattr(loss, "detach") else loss
        self._tokens = tokens if tokens is not None else self._tokens
        for recorder in self._recorders:
            recorder.leave(scheduled_step)
        self.step_number += 1
        if scheduled_step.is_last:  # between two phases no step is disturbed by writing
            if scheduled_step.phase is StepPhase.TIMED:
                with self._writing("step times"):
                    rank_summary.save_summary(self.options.output, self._summary())
            if scheduled_step.phase is StepPhase.OBSERVED:
                self._barrier.wait("before observed data is written")
                with self._writing("observed data"):
                    self.close_recorders()
                self._barrier.wait("after observed data is written")
        for recorder in self._recorders:
            recorder.enter(self.schedule.step(self.step_number))
        self._experts.is_on = self.phase is StepPhase.OBSERVED
        if self.phase is not StepPhase.AFTER:
            self._clock.start()

    def end(self, *, failed: bool = False, alone: bool = False) -> None:
        """Stop after the last step; wait for no other rank if the loop `failed`, or this one ends `alone`."""
        self._is_alone = failed or alone
        self.close_recorders()
        file = self.options.output / f"moe_assignments_rank{self.process.rank}.json"
        with self._writing("the expert counts"):
            self._experts.write(file, self.process.rank)
        if self.step_number < self.schedule.length and not failed:
            self.remark(short_loop_remark(self.step_number, self.schedule))
        self._write_summaries()

    def close_recorders(self) -> None:
        """Stop recording, and write the recorded data."""
        for recorder in self._recorders:
            recorder.close()
        self._recorders.clear()

    def _file(self, kind: str, phase: StepPhase, ending: str) -> Path:
        """Return the file of this rank for a kind of trace; its window ends with a phase."""
        window = f"iteration_{self.schedule.end_of(phase)}"
        return self.options.output / kind / window / f"rank{self.process.rank}_{ending}"

    def _write_together(self, write: Callable[[], str]) -> None:
        """Write the trace of this rank after all ranks stop recording, a few ranks at a time."""
        if not self._is_alone:
            self._barrier.wait("before traces are written")
        with self._writing("the trace"), write_slot(self.process.local_rank, self.options.writers_per_node):
            if problem := write():
                self.remark(problem)
        if not self._is_alone:
            self._barrier.wait("after traces were written")

    def _write_summaries(self) -> None:
        """Merge the summaries of all ranks; a rank that fails only saves its own."""
        folder, summary = self.options.output, self._summary()
        with self._writing("the summary of this rank"):
            rank_summary.save_summary(folder, summary)
        if self._is_alone:
            return
        texts = self._barrier.gather("summaries", rank_summary.to_json(summary))
        if self.process.is_first and texts:
            with self._writing("the files of the run"):
                summaries = [rank_summary.from_json(text) for text in texts]
                log_warnings(
                    text for text in rank_summary.combined_remarks(summaries) if text not in self._remarks
                )
                rank_summary.write_run_files(folder, summaries)
        self._barrier.wait("after summaries are merged")
        if self._barrier.problem:
            self.remark(self._barrier.problem)
        elif self.process.world_size == 1 or self._barrier.is_connected:
            rank_summary.remove_summary(folder, self.process.rank)

    def _summary(self) -> rank_summary.RankSummary:
        """Return the summary of this rank."""
        return summarise_rank(
            self.process,
            self.options,
            self._clock,
            self._framework,
            steps=None if self._is_injected and self.phase is StepPhase.AFTER else self.step_number,
            losses=self._losses,
            tokens=self._tokens,
            remarks=self._remarks,
            step_end=self.step_end,
        )

    @contextlib.contextmanager
    def _writing(self, item: str) -> Iterator[None]:
        """Continue if something cannot be written: a full disk must not end a training."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            # Without the name of the file, so that equal remarks of several ranks merge into one.
            cause = error.strerror if isinstance(error, OSError) and error.strerror else error
            self.remark(f"cannot write {item}: {cause}")

    def remark(self, text: str) -> None:
        """Store a remark for the metadata of the run, and log it once."""
        self._remarks.append(text)
        if self.process.is_first or self._is_alone:
            log_warnings([text])
