"""Training jobs for the simulator: their properties, their program step by step, and the length of a step."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

from simulate import (
    QUEUE,
    Busy,
    Close,
    Mark,
    Open,
    Synchronise,
    simulate,
)
from simulated_kineto import RECORD, STOP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simulate import Action, RankRecord

MAIN, AUTOGRAD, GLOO = 0, 9, 17
"""Threads: of Python, of the backward pass, of gloo."""

COMPUTE, COPIES, REDUCTIONS, TENSOR, DOWN, UP = 7, 11, 20, 24, 28, 32
"""Streams: of kernels, of copies ahead, of data parallelism, of tensor parallelism, of messages each way."""

MESSAGE = 16_777_216
"""Elements of a collective of usual size."""


@dataclass(frozen=True)
class Job:
    """A training job without any problem."""

    seed: int = 0
    ranks: int = 2
    tp: int = 1
    """Ranks in a tensor-parallel group; the others replicate."""
    pp: int = 1
    """Stages of a pipeline; each has `ranks / pp` replicas."""
    microbatches: int = 1
    layers: int = 4
    kernel_ns: int = 500_000
    """Time of a mean kernel, ns."""
    operator_ns: int = 60_000
    """Time of an operator of a kernel on the host, ns."""
    python_ns: int = 20_000
    """Unnamed time between two operators, ns."""
    reduction_ns: int = 400_000
    """Transfer of one layer's gradients, ns, hidden behind the backward pass of the next layer."""
    tensor_ns: int = 12_000
    """Transfer of one tensor-parallel reduction, ns."""
    message_ns: int = 30_000
    """Transfer between two stages, ns."""
    tiny_reductions: int = 0
    """Small reductions at the end of the forward pass of each layer, which everything waits for."""
    tiny_ns: int = 0
    late_reduction_ns: int = 0
    """Transfer of a reduction after the backward pass, ns, which the optimizer waits for."""
    reads: int = 0
    """Values that the program reads from the device in each layer, as `item()` does."""
    pageable_ns: int = 0
    """Time of a copy of the batch from pageable memory, ns; 0 for a small one from pinned memory."""
    copied_ahead_ns: int = 0
    """Time of a copy of the next batch on a stream of its own, ns."""
    recomputes: bool = False
    """Whether the backward pass computes each layer's forward pass again."""
    is_synchronous: bool = True
    """Whether each step ends with the loss read from the device."""
    steps: int = 4
    warm_up: int = 3
    """Steps before the recording."""
    starts_quiet: bool = False
    """Whether the device is idle when the recording starts."""
    queue: int = QUEUE
    noise: float = 0.0
    """Standard deviation of every kernel's and activity's time, as a share of it."""
    is_hip: bool = False
    on_cpu: bool = False

    @property
    def names(self) -> dict[str, str]:
        """Calls of the runtime by their CUDA name."""
        return _HIP if self.is_hip else _CUDA

    def replicas_of(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that reduce gradients with this one."""
        if self.pp > 1:
            stage = rank // (self.ranks // self.pp)
            return tuple(r for r in range(self.ranks) if r // (self.ranks // self.pp) == stage)
        return tuple(r for r in range(self.ranks) if r % self.tp == rank % self.tp)

    def tensor_group_of(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that share tensors with this one."""
        first = rank - rank % self.tp
        return tuple(range(first, first + self.tp))

    def groups(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return description and ranks of every process group."""
        everyone = ("default_pg", tuple(range(self.ranks)))
        replicas = {(self.replicated, self.replicas_of(rank)) for rank in range(self.ranks)}
        tensors = {("mesh_tp", self.tensor_group_of(rank)) for rank in range(self.ranks)}
        return (everyone, *sorted(replicas - {everyone}), *(sorted(tensors) if self.tp > 1 else ()))

    @property
    def replicated(self) -> str:
        """Description of the groups that reduce gradients."""
        return "default_pg" if self.tp == self.pp == 1 else "mesh_dp"


_CUDA = {
    each: each
    for each in ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaStreamSynchronize",
                 "cudaDeviceSynchronize", "cudaEventRecord", "cudaStreamWaitEvent", "cudaLaunchKernelExC")
}  # fmt: skip
_HIP = {each: each.replace("cuda", "hip") for each in _CUDA} | {"cudaLaunchKernelExC": "hipExtLaunchKernel"}

Steps = list[list[list["Action"]]]
"""Actions of each rank in each step, those before the recording first."""


@dataclass
class Program:
    """The actions of a job, step by step."""

    job: Job
    steps: Steps

    def changed(
        self, change: Callable[[int, int, list[Action]], list[Action]], *, first: int | None = None
    ) -> Program:
        """Return the program in which each rank's steps, from step `first` on, are changed."""
        since = -self.job.warm_up if first is None else first
        steps = [
            [
                change(rank, number - self.job.warm_up, actions)
                if number - self.job.warm_up >= since
                else actions
                for number, actions in enumerate(of_rank)
            ]
            for rank, of_rank in enumerate(self.steps)
        ]
        return Program(self.job, steps)

    def run(self) -> list[RankRecord]:
        """Return what happens."""
        return simulate([list(self._of_rank(rank)) for rank in range(self.job.ranks)], self.job.queue)

    def _of_rank(self, rank: int) -> Iterator[Action]:
        wait = Synchronise(3_000, self.job.names["cudaDeviceSynchronize"] if not self.job.on_cpu else "")
        for number, actions in enumerate(self.steps[rank]):
            step = number - self.job.warm_up
            if step == 0:
                if self.job.starts_quiet:
                    yield wait
                yield Mark(completed(-1))
                yield Mark(RECORD)
            yield Mark(step_name(step))
            yield Open(f"ProfilerStep#{step + 100}", "user_annotation")
            yield from actions
            yield Close()
            if step != -1:
                yield Mark(completed(step))
        yield Busy(2_000)
        yield wait
        yield Mark(STOP)


def step_name(step: int) -> str:
    """Return the mark at the start of a step; those before the recording are negative."""
    return f"step {step}"


def completed(step: int) -> str:
    """Return the mark at the end of a step's range on the host."""
    return f"end {step}"


def completions(job: Job, record: RankRecord) -> list[int]:
    """Return when each recorded step is complete on a rank, the last before the recording first, ns."""
    moments = []
    done = 0
    ends: dict[int, int] = {}
    for task in record.device:
        number = max(int(task.place.split()[1]), -1) if task.place.startswith("step") else -1
        ends[number] = max(ends.get(number, 0), task.end_ns)
    for step in range(-1, job.steps):
        done = max(done, record.marks[completed(step)], ends.get(step, 0))
        moments.append(done)
    return moments


def step_lengths(job: Job, records: list[RankRecord]) -> list[int]:
    """Return the distances at which recorded steps complete, each on its slowest rank, ns."""
    distances = [[late - early for early, late in pairwise(completions(job, each))] for each in records]
    return [max(of_step) for of_step in zip(*distances, strict=True)]


def stated_ns(job: Job, records: list[RankRecord]) -> float:
    """Return the length of a step as it is defined: the period, or that of a host's ranges if that is more.

    A host whose ranges are longer together than the distances sets the pace.
    """
    rows = []
    for record in records:
        distances = [late - early for early, late in pairwise(completions(job, record))]
        ranges = [record.marks[completed(step)] - record.marks[step_name(step)] for step in range(job.steps)]
        lacking = max(0, sum(ranges) - sum(distances)) / job.steps
        rows.append([distance + lacking for distance in distances])
    return fmean(max(of_step) for of_step in zip(*rows, strict=True))


def period_ns(job: Job, records: list[RankRecord]) -> float:
    """Return the mean distance at which recorded steps complete, ns."""
    return fmean(step_lengths(job, records))
