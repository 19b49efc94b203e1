"""The schedule of a training loop: skipped, timed, profiled and observed steps."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from itertools import accumulate

from ccl_bench.base.errors import UsageError


class StepPhase(StrEnum):
    """The phase of a step."""

    SKIP = "skip"
    """Training warms up: memory pools fill, kernels are chosen and compiled. Nothing is recorded."""
    TIMED = "timed"
    """No profiler runs; the length of these steps is the speed of the run."""
    WARMUP = "warmup"
    """The profiler runs and its events are discarded: its first steps are slow."""
    ACTIVE = "active"
    """The profiler records."""
    OBSERVED = "observed"
    """The most expensive recorders run here alone: Execution Trace, memory history, expert counts."""
    AFTER = "after"
    """The recording is over."""


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """One step of a loop."""

    number: int
    """Counted from 0."""
    phase: StepPhase
    following: StepPhase
    """Phase of the step after it."""

    @property
    def is_last(self) -> bool:
        """Whether its phase ends with it."""
        return self.following is not self.phase


EARLIEST_STEP = 2
"""First step that can be recorded of a program that does not record itself: after its first one and a
step in which the profiler warms up."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Number of steps of each phase, in order."""

    skip: int = 5
    timed: int = 5
    warmup: int = 5
    active: int = 5
    observed: int = 1

    def __post_init__(self) -> None:
        """Refuse an impossible schedule."""
        for phase_field in fields(self):
            count = getattr(self, phase_field.name)
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                raise UsageError(
                    f"{phase_field.name} = {count!r} is not a number of steps",
                    fix="give 0 or a positive whole number",
                )
        if self.active and not self.warmup:
            raise UsageError(
                "the profiler needs at least one warm-up step: its first step is slower than the others",
                fix="give warmup=1 or more",
            )

    @classmethod
    def of_steps(cls, text: str) -> Schedule:
        """Return the schedule whose active steps are these, such as `15-19`; those before are divided."""
        first, dash, last = (word.strip() for word in text.partition("-"))
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            raise UsageError(f"{text!r} is not a range of steps", fix="write the first and the last: 15-19")
        before = int(first)
        if before < EARLIEST_STEP:
            raise UsageError(
                f"step {before} cannot be recorded: the program and the profiler must warm up first",
                fix=f"begin at step {EARLIEST_STEP} or later, such as 15-19",
            )
        usual = cls()
        warmup = min(usual.warmup, max(1, before // 3))
        timed = min(usual.timed, (before - warmup) // 2)
        return cls(before - warmup - timed, timed, warmup, int(last) - before + 1)

    @property
    def length(self) -> int:
        """Number of steps until the recording is over."""
        return self.skip + self.timed + self.warmup + self.active + self.observed

    def as_numbers(self) -> dict[str, int]:
        """Return the number of steps of each phase by its name."""
        return asdict(self)

    def phase(self, step: int) -> StepPhase:
        """Return the phase of a step, counted from 0."""
        ends = accumulate(getattr(self, phase_field.name) for phase_field in fields(self))
        phases = (StepPhase(phase_field.name) for phase_field in fields(self))
        return next((phase for phase, end in zip(phases, ends, strict=True) if step < end), StepPhase.AFTER)

    def step(self, number: int) -> ScheduledStep:
        """Return a step with its phase and the next one."""
        return ScheduledStep(number, self.phase(number), self.phase(number + 1))

    def end_of(self, phase: StepPhase) -> int:
        """Return the number of steps that end before or with a phase; it names the recording window."""
        order = list(StepPhase)
        later = order[order.index(phase) + 1 :]
        return next(step for step in range(self.length + 1) if self.phase(step) in later)
