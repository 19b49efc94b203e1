"""Runs drawn at random: a job, a cause of a size that is clear or hidden, and its truth; and healthy runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from statistics import fmean, median
from typing import TYPE_CHECKING

import causes
from job_author import LAYER, build
from program_changes import base_ns, host_times, without_transfers, without_waits, work_times
from simulate import Busy
from training_job import GLOO, REDUCTIONS, TENSOR, Job, Program, period_ns, stated_ns, step_lengths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from causes import Injection
    from simulate import Action

CLEAR = 0.08
"""Share of the step that a cause must really cost to be asked for: eight times what rules report from."""

HIDDEN = 0.003
"""Share of the step up to which a cause costs nothing: a third of what rules report from."""

AGREED = 0.03
"""Relative difference up to which a truth does not depend on when the change begins.

A program that never had the cause enters the recording in another state than one from which the cause is
taken when the recording starts. A run whose gain is not the same for both is not drawn.
"""

LONGER = 1.5
"""Length of the first step over the median of the later ones from which it is warm-up as well.

It is if a recording starts with an idle device that is behind its host in every later step.
"""

STEPS = (1, 2, 3, 5, 8, 12)
NOISE = (0.0, 0.005, 0.01, 0.02, 0.03)


@dataclass(frozen=True)
class Case:
    """A drawn run with its truth."""

    name: str
    """Cause and number, such as `late_host:7`."""
    program: Program
    step_s: float
    """Mean distance at which the recorded steps complete, s."""
    gain_s: float = 0.0
    """By how much it is shorter without the cause, s."""
    stated_s: float | None = None
    """Length of a step as it is defined, where hosts set the pace, s."""
    rules: tuple[str, ...] = ()
    """None for a run in which nothing is to be named."""
    ranks: tuple[int, ...] | None = None
    word: str = ""
    also: dict[str, float] = field(default_factory=dict)
    """True gain of other diagnoses that hold as well, s."""

    @property
    def regime(self) -> str:
        """What kind of job it is, in words."""
        job = self.program.job
        words = ["cpu" if job.on_cpu else "synchronous" if job.is_synchronous else "asynchronous"]
        words += ["quiet start"] if job.starts_quiet else []
        words += ["long before"] if job.warm_up > 10 else []
        words += [f"tp {job.tp}"] if job.tp > 1 else []
        words += [f"pp {job.pp}"] if job.pp > 1 else []
        return f"{', '.join(words)}, ranks {job.ranks}, steps {job.steps}, noise {job.noise:.1%}"


@dataclass(frozen=True)
class Cause:
    """How a cause is drawn."""

    make: Callable[[Random, Job, float], Injection]
    """From chance, a job and a size, which is about the share of the step that it costs."""
    job: Callable[[Random], Job]
    is_hidden: bool = False
    """Whether the cause is to be there and cost nothing."""
    longest: float = 0.0
    """Least length of the longest step over the median one; of warm-up, of each of its steps.

    A device that is behind its host hides some or all of a pause in the first step.
    """


def draw_job(random: Random, **fixed: object) -> Job:
    """Return a job without any problem; device-bound, unless its times are given."""
    regime = random.choice(("synchronous",) * 3 + ("asynchronous", "quiet", "long before"))
    drawn: dict[str, object] = {
        "seed": random.randrange(1 << 30),
        "ranks": random.choice((1, 2, 4, 8)),
        "layers": random.randint(2, 4),
        "kernel_ns": random.randint(250_000, 700_000),
        "operator_ns": random.randint(30_000, 90_000),
        "python_ns": random.randint(8_000, 30_000),
        "is_synchronous": regime == "synchronous",
        "starts_quiet": regime == "quiet",
        "warm_up": 28 if regime == "long before" else 3,
        "steps": random.choice(STEPS),
        "noise": random.choice(NOISE),
        "is_hip": random.random() < 0.3,
    }
    job = Job(**(drawn | fixed))  # type: ignore[arg-type]
    of_a_layer = 2 * sum(kind.weight for kind in LAYER) * job.kernel_ns
    return replace(job, reduction_ns=round(random.uniform(0.2, 0.5) * of_a_layer))


def _job(**choices: Sequence[object]) -> Callable[[Random], Job]:
    """Return what draws a job of which some properties are drawn from these choices."""

    def draw(random: Random) -> Job:
        return draw_job(random, **{name: random.choice(values) for name, values in choices.items()})

    return draw


SEVERAL = {"ranks": (2, 4, 8)}

LAGGING = {"is_synchronous": (False,), "starts_quiet": (False,), "warm_up": (4,)}
"""Jobs whose device is behind its host."""

ON_CPU = {
    "on_cpu": (True,),
    "is_synchronous": (True,),
    "starts_quiet": (False,),
    "warm_up": (2,),
    "is_hip": (False,),
}
_TINY = {
    "kernel_ns": (3_000, 6_000, 10_000),
    "layers": (6, 8, 10),
    "starts_quiet": (False,),
    "warm_up": (3,),
}
_SHORT = {
    "kernel_ns": (80_000, 120_000, 160_000),
    "operator_ns": (24_000, 36_000),
    "python_ns": (8_000, 12_000),
}

CAUSES = {
    "slow_device": Cause(causes.slow_device, _job(**SEVERAL)),
    "late_host": Cause(causes.late_host, _job(**SEVERAL)),
    "late_host_cpu": Cause(causes.late_host, _job(**SEVERAL, **ON_CPU)),
    "rotating_pauses": Cause(causes.rotating, _job(**SEVERAL, steps=(3, 5, 8, 12))),
    "rotating_pauses_cpu": Cause(causes.rotating, _job(**SEVERAL, **ON_CPU, steps=(3, 5, 8, 12))),
    "rotating_collections": Cause(causes.rotating_collections, _job(**SEVERAL, steps=(3, 5, 8, 12))),
    "data_loader": Cause(causes.data_loader, _job()),
    "data_loader_cpu": Cause(causes.data_loader, _job(**ON_CPU)),
    "collections": Cause(causes.collections, _job()),
    "compilation": Cause(causes.compilation, _job()),
    "module_loading": Cause(causes.module_loading, _job()),
    "named_pauses": Cause(causes.named_pauses, _job()),
    "first_rank_saves": Cause(causes.first_rank_saves, _job(**SEVERAL)),
    "unnamed_pauses": Cause(causes.unnamed_pauses, _job()),
    "launch_bound": Cause(causes.launch_bound, _job(**_TINY)),
    "synchronisation": Cause(causes.synchronisation, _job(**_SHORT, layers=(4, 6), warm_up=(3,))),
    "small_messages": Cause(causes.small_messages, _job(**SEVERAL, **_SHORT, warm_up=(3,))),
    "exposed_collectives": Cause(causes.exposed_collectives, _job(**SEVERAL)),
    "slow_group": Cause(causes.slow_group, _job(ranks=(4, 8), tp=(2,), tensor_ns=(40_000, 80_000))),
    "slow_calls": Cause(causes.slow_calls, _job(**SEVERAL, steps=(5, 8, 12), layers=(4, 5))),
    "uneven_stages": Cause(
        causes.uneven_stages, _job(ranks=(4, 8), pp=(2, 4), layers=(1,), microbatches=(8,), warm_up=(3,))
    ),
    "copies": Cause(causes.copies, _job()),
    "recomputation": Cause(causes.recomputation, _job()),
    "warm_up": Cause(causes.warm_up, _job(steps=(5, 8, 12)), longest=1.8),
    "outlier_steps": Cause(causes.outlier_steps, _job(steps=(8, 12)), longest=2.3),
    "hidden_late_host": Cause(causes.late_host, _job(**SEVERAL, **LAGGING), is_hidden=True),
    "hidden_loader": Cause(causes.data_loader, _job(**LAGGING), is_hidden=True),
    "hidden_collections": Cause(causes.collections, _job(**LAGGING), is_hidden=True),
    "hidden_pauses": Cause(causes.named_pauses, _job(**LAGGING), is_hidden=True),
    "hidden_copies": Cause(causes.copies_ahead, _job(), is_hidden=True),
}
"""Name → how it is drawn."""


def draw(name: str, seed: int, number: int) -> Case:
    """Return a run with a cause, of a size that is clear, or hidden; raises RuntimeError if none is found."""
    cause, random = CAUSES[name], Random(f"{seed} {name} {number}")
    for _ in range(40):
        job, chance = cause.job(random), random.random()
        size = 0.12 if cause.is_hidden else random.uniform(0.12, 0.5)
        for _ in range(6):
            injection = cause.make(Random(chance), job, size)
            case = _case(f"{name}:{number}", injection, cause)
            if case is not None:
                return case
            size *= 0.5 if cause.is_hidden else 1.5
    raise RuntimeError(f"no {name} of a clear size for seed {seed}, number {number}")


def _case(name: str, injection: Injection, cause: Cause) -> Case | None:
    """Return the case if its truth is clear, else None."""
    job, records = injection.program.job, injection.program.run()
    recorded = period_ns(job, records)
    gain = recorded - base_ns(injection.without)
    if cause.is_hidden:
        if abs(gain) > HIDDEN * recorded:
            return None
        return Case(name, injection.program, recorded / 1e9, gain / 1e9, stated_ns(job, records) / 1e9)
    lengths = step_lengths(job, records)
    longest = min(lengths[: injection.first], default=max(lengths))
    if gain < CLEAR * recorded or longest < cause.longest * median(lengths):
        return None
    if abs(gain - (recorded - base_ns(_from_recording_on(injection)))) > AGREED * gain:
        return None
    if name.partition(":")[0] != "warm_up" and not _goes_on(lengths, injection.without):
        return None
    also = {rule: (recorded - base_ns(program)) / 1e9 for rule, program in injection.also.items()}
    if len(lengths) > 2 and lengths[0] > LONGER * median(lengths[1:]):
        also["warm_up"] = (recorded - fmean(lengths[1:])) / 1e9
    return Case(
        name,
        injection.program,
        recorded / 1e9,
        gain / 1e9,
        stated_ns(job, records) / 1e9,
        injection.rules,
        injection.ranks,
        injection.word,
        also,
    )


def _goes_on(lengths: list[int], without: Program) -> bool:
    """Whether a cause costs time in later steps too: a host that runs ahead hides it after the first."""
    if len(lengths) < 2:
        return True
    better = step_lengths(without.job, without.run())
    return fmean(lengths[1:]) - fmean(better[1:]) >= CLEAR * fmean(lengths[1:])


def _from_recording_on(injection: Injection) -> Program:
    """Return the program with the cause before the recording only."""
    before = injection.program.job.warm_up
    pairs = zip(injection.program.steps, injection.without.steps, strict=True)
    return Program(injection.program.job, [[*old[:before], *new[before:]] for old, new in pairs])


MOST = 0.01
"""Share of a healthy step that any change may really gain: what rules report from."""

EVEN = 1.2
"""Length of the longest step of a healthy run over the median one, below that of any warm-up or outlier."""

_HEALTHY = (
    _job(),
    _job(),
    _job(noise=NOISE[2:], **SEVERAL),
    _job(ranks=(4, 8), tp=(2,)),
    _job(ranks=(2, 4, 8), pp=(2,), layers=(1,), microbatches=(8,), steps=STEPS[:5], warm_up=(3,)),
    _job(**ON_CPU),
)


def draw_healthy(seed: int, number: int) -> Case:
    """Return a run in which nothing is to be gained: no change of a rule shortens its step noticeably."""
    random = Random(f"{seed} healthy {number}")
    for _ in range(60):
        job = _HEALTHY[number % len(_HEALTHY)](random)
        program = build(job)
        records = program.run()
        recorded, lengths = period_ns(job, records), step_lengths(job, records)
        if max(lengths) > EVEN * median(lengths):
            continue
        if all(recorded - base_ns(each) < limit * recorded for each, limit in _changes(program)):
            return Case(f"healthy:{number}", program, recorded / 1e9, 0.0, stated_ns(job, records) / 1e9)
    raise RuntimeError(f"no healthy run for seed {seed}, number {number}")


def _changes(program: Program) -> Iterator[tuple[Program, float]]:
    """Yield what rules change, and the share of the step that it may gain in a healthy run.

    Waits of one call a step, exposed transfers and host times have thresholds of 5 %: half is far below.
    """

    def without_loader(rank: int, step: int, actions: list[Action]) -> list[Action]:
        return [each for each in actions if not (isinstance(each, Busy) and each.tag == "loader")]

    def without_copies(rank: int, step: int, actions: list[Action]) -> list[Action]:
        return work_times(
            actions, lambda each: 0 if each.work.category.startswith("gpu_mem") else each.work.ns
        )

    yield program.changed(without_loader), MOST / 2
    yield program.changed(without_copies), MOST / 2
    for stream in (REDUCTIONS, TENSOR, GLOO):
        yield program.changed(without_transfers(stream)), 2.5 * MOST
    if not program.job.on_cpu:
        yield program.changed(lambda _r, _s, actions: without_waits(actions)), 2.5 * MOST
        yield program.changed(lambda _r, _s, actions: host_times(actions, 0.5)), 2.5 * MOST
