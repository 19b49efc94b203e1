"""Pipeline schedules: the order in which each stage computes its microbatches.

GPipe [arXiv 1811.06965], one-forward-one-backward and its interleaved form [arXiv 2104.04473], and the zero
bubble schedule H1 [arXiv 2401.10241].
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from ccl_bench.base.errors import UsageError

FORWARD, BACKWARD, WEIGHTS = "forward", "backward", "weights"
"""Kinds of slots; where a schedule splits the backward pass, `backward` is the gradient of the inputs."""

GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE = "gpipe", "1f1b", "interleaved", "zb"

_SPELLINGS = {
    GPIPE: GPIPE,
    "schedulegpipe": GPIPE,
    ONE_F_ONE_B: ONE_F_ONE_B,
    "schedule1f1b": ONE_F_ONE_B,
    INTERLEAVED: INTERLEAVED,
    "interleaved1f1b": INTERLEAVED,
    "scheduleinterleaved1f1b": INTERLEAVED,
    ZERO_BUBBLE: ZERO_BUBBLE,
    "zbh1": ZERO_BUBBLE,
    "zerobubble": ZERO_BUBBLE,
}


class Slot(NamedTuple):
    """The computation of one microbatch in one chunk of a stage."""

    kind: str
    microbatch: int
    chunk: int = 0
    """Chunk of the stage, from 0; chunk c of stage s is part `c · pp + s` of the model."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule and the number of model chunks on a stage."""

    name: str
    chunks: int = 1

    def __str__(self) -> str:
        """Return the notation of the command line."""
        return f"{self.name}:{self.chunks}" if self.chunks > 1 else self.name

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of weights are computed apart from those of inputs."""
        return self.name == ZERO_BUBBLE


def parse_schedule(text: str, chunks: int = 1) -> Schedule:
    """Return the schedule of a notation such as `1f1b` or `interleaved:2`, else of `chunks` chunks.

    Raises UsageError for others.
    """
    name, colon, count = text.partition(":")
    spelled = _SPELLINGS.get(re.sub(r"[\W_]", "", name).lower())
    number = int(count) if count.isdecimal() and len(count) < 4 else 0
    is_interleaved = spelled == INTERLEAVED
    chunks = (number if colon else chunks) if is_interleaved else 1
    if spelled is None or (colon and not is_interleaved) or (is_interleaved and chunks < 2):
        fix = "write gpipe, 1f1b, zb, or interleaved:V with V chunks on a stage, 2 or more"
        raise UsageError(f"{text!r} is not a schedule", fix=fix)
    return Schedule(spelled, chunks)


def stage_order(schedule: Schedule, stages: int, stage: int, microbatches: int) -> list[Slot]:
    """Return the slots of one stage in order.

    Raises UsageError if an interleaved schedule has microbatches that the stages do not divide.
    """
    if schedule.name == INTERLEAVED:
        if microbatches % stages:
            message = f"{schedule} needs a multiple of {stages} microbatches, not {microbatches}"
            raise UsageError(message, fix="choose other microbatches, or 1f1b")
        return _interleaved(stages, stage, microbatches, schedule.chunks)
    # Where a stage waits for the first gradient, it computes forward as far as the schedule lets it.
    before = microbatches if schedule.name == GPIPE else min(microbatches, stages - stage - 1)
    split = schedule.splits_backward
    slots = [Slot(FORWARD, number) for number in range(before)]
    for number in range(microbatches):
        if before + number < microbatches:
            slots.append(Slot(FORWARD, before + number))
        slots.append(Slot(BACKWARD, number))
        # H1 delays the weights of a stage by as many microbatches as there are stages before it.
        if split and number >= stage:
            slots.append(Slot(WEIGHTS, number - stage))
    if split:
        slots += [Slot(WEIGHTS, number) for number in range(max(0, microbatches - stage), microbatches)]
    return slots


def _interleaved(stages: int, stage: int, microbatches: int, chunks: int) -> list[Slot]:
    """Return the order of Megatron-LM: groups of `stages` microbatches, chunk by chunk."""
    total, group = microbatches * chunks, stages * chunks

    def slot(kind: str, number: int) -> Slot:
        chunk = number % group // stages
        microbatch = number // group * stages + number % stages
        return Slot(kind, microbatch, chunk if kind == FORWARD else chunks - 1 - chunk)

    before = min(total, 2 * (stages - stage - 1) + (chunks - 1) * stages)
    slots = [slot(FORWARD, number) for number in range(before)]
    for number in range(total):
        if before + number < total:
            slots.append(slot(FORWARD, before + number))
        slots.append(slot(BACKWARD, number))
    return slots
