"""Recording of the loop of an unchanged program, from the calls that end its steps."""

from __future__ import annotations

import atexit
import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Protocol

from ccl_bench.collect.injection.steps import Beat
from ccl_bench.collect.profiling.frameworks import framework
from ccl_bench.collect.profiling.options import check_options
from ccl_bench.collect.profiling.rank_summary import claim_rank, log_warnings
from ccl_bench.collect.profiling.ranks import process_rank
from ccl_bench.collect.profiling.recording import Recording
from ccl_bench.collect.profiling.schedule import StepPhase

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 60.0
"""Longest time that a rank waits for the others: they may have stepped less often, and wait for this one."""

_NOTHING_RECORDED = {StepPhase.SKIP, StepPhase.TIMED, StepPhase.WARMUP}
_ONE_PROFILER = (
    "the program starts its own profiler, and {framework} allows only one: ccl-bench does not record"
)


class Counter(Protocol):
    """Decides which calls end steps."""

    is_settled: bool
    """Whether the choice of the call that ends a step is final."""
    late: ClassVar[str]
    """The remark on another call that may end steps, first made after `{step}` when the profiler ran."""

    @property
    def end(self) -> str:
        """The call that ends a step."""

    @property
    def marks(self) -> bool:
        """Whether the program itself marks its steps for the profiler."""

    @property
    def begun(self) -> int:
        """Steps that have ended when the first beat comes."""


class WatchedLoop:
    """The training loop of this process; without a call that ends steps nothing happens."""

    def __init__(self, counter: Counter, framework: str) -> None:
        self.is_over = False
        """Whether the loop is finished."""
        self.depth = 0
        """Watched calls that are running, one inside the other; only the outermost counts."""
        self.is_busy = False
        """Whether a call is being handled."""
        self._counter, self._framework = counter, framework
        self._recording: Recording | None = None
        self._process = 0
        os.register_at_fork(after_in_child=self.forget)

    def profiler_starts(self) -> None:
        """Stop our profiler before the program starts its own."""
        if self.is_over or self.is_busy:
            return
        with self.undisturbed():
            remark = _ONE_PROFILER.format(framework=self._framework)
            self._stay_away("" if Recording.of_program else remark)

    def finish(self) -> None:
        """Write the recording when the program ends."""
        if not self.is_over:
            with self.undisturbed():
                self._end()

    def handle(self, beat: Beat) -> None:
        """Act on a call that may end a step."""
        if beat is Beat.NOTHING:
            return
        with self.undisturbed():
            if beat is Beat.LATE and self._recording is not None:
                self._recording.remark(self._counter.late.format(step=self._recording.step_number - 1))
                return
            if Recording.of_program:
                self._stay_away("")
                return
            if beat is Beat.FIRST:
                self._begin()
            if self._recording is None:
                return
            for _ in range(self._counter.begun if beat is Beat.FIRST else 1):
                self._recording.step()
            phase = self._recording.phase
            self._counter.is_settled = phase not in _NOTHING_RECORDED
            if phase is StepPhase.AFTER:
                self._end()

    def _begin(self) -> None:
        """Begin a recording at the end of the first step, and drop an earlier one."""
        options = replace(check_options(), patience_s=PATIENCE_S)
        if self._recording is not None:
            self._recording.close_recorders()
        elif claim_rank(options.output, rank := process_rank().rank):
            atexit.register(self.finish)
        else:
            self._stay_away(f"another process records rank {rank}: this one, {os.getpid()}, is not recorded")
            return
        library = framework(self._framework, marks=not self._counter.marks)
        self._recording = Recording(options, library, is_injected=True)
        self._recording.step_end = self._counter.end
        self._recording.begin(in_step=True)

    def _stay_away(self, remark: str) -> None:
        """Stop for a reason; a recording whose profiler has not started is not written."""
        if remark and process_rank().is_first:
            log_warnings([remark])
        if self._recording is not None and self._recording.phase in _NOTHING_RECORDED:
            self._recording.close_recorders()
            self._recording = None
        self._end()

    def _end(self) -> None:
        """Stop permanently, and write the recording."""
        self.is_over = True
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.end(alone=True)

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Keep errors away from the program."""
        self.is_busy = True
        try:
            yield
        except Exception as error:
            self.is_over = True
            log_warnings([f"the program is no longer recorded: {type(error).__name__}: {error}"])
        finally:
            self.is_busy = False

    def forget(self) -> None:
        """Do not record in a child of a recording process; a child forked earlier may be a rank."""
        self.depth = 0
        if self._recording is not None:
            self.is_over, self._recording = True, None
            atexit.unregister(self.finish)
