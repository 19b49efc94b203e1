"""Causes of lost time, put into programs of training jobs, beside the programs that lack them.

Each function gets chance, a job and a size, which is about the share of the step that the cause is to cost.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from job_author import build
from program_changes import (
    TIMED,
    base_ns,
    host_times,
    inserted,
    named,
    without_transfers,
    without_waits,
    work_times,
)
from simulate import Busy, Launch, Synchronise
from training_job import COMPUTE, MESSAGE, REDUCTIONS, TENSOR, Job, Program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from simulate import Action


class Injection(NamedTuple):
    """A cause in a program."""

    program: Program
    without: Program
    """The same program, with what the rule says changed: without the cause, unless it says otherwise."""
    rules: tuple[str, ...]
    """Diagnoses of which one must be given."""
    ranks: tuple[int, ...] | None = None
    """Ranks that it must name, if it names some."""
    word: str = ""
    """What the title must hold."""
    also: Mapping[str, Program] = MappingProxyType({})
    """Diagnoses that are true as well, with what they say changed: they may have larger gains."""
    first: int = 0
    """Number of first recorded steps of which each must be long."""


def slow_device(random: Random, job: Job, size: float) -> Injection:
    base, rank = build(job), random.randrange(job.ranks)
    factor = 1 + 1.3 * size

    def slow(each: Launch) -> float:
        return each.work.ns * (factor if each.work.stream == COMPUTE else 1)

    program = base.changed(lambda r, _, actions: work_times(actions, slow) if r == rank else actions)
    return Injection(program, base, ("slow_device",), (rank,))


def late_host(random: Random, job: Job, size: float) -> Injection:
    base, rank, where = build(job), random.randrange(job.ranks), random.random()
    if job.on_cpu or random.random() < 0.5:
        pause = (Busy(round(size * 1.3 * base_ns(base))),)
        program = base.changed(
            lambda r, _, actions: inserted(actions, where, *pause) if r == rank else actions
        )
    else:
        host_ns = sum(each.ns for each in base.steps[rank][0] if isinstance(each, TIMED))
        factor = (1 + size) * base_ns(base) / host_ns
        program = base.changed(lambda r, _, actions: host_times(actions, factor) if r == rank else actions)
    return Injection(program, base, ("late_ranks",), (rank,))


def rotating(random: Random, job: Job, size: float, name: str = "") -> Injection:
    base, first, where = build(job), random.randrange(job.ranks), random.random()
    pause = named(name, round(1.3 * size * base_ns(base)))

    def pauses(rank: int, step: int, actions: list[Action]) -> list[Action]:
        return inserted(actions, where, *pause) if (step + first) % job.ranks == rank else actions

    rule = "garbage_collection" if name else "host_pauses"
    return Injection(base.changed(pauses), base, (rule,))


def rotating_collections(random: Random, job: Job, size: float) -> Injection:
    return rotating(random, job, size, "gc.collect")


def data_loader(random: Random, job: Job, size: float) -> Injection:
    base = build(job)
    ns = round(1.1 * size * base_ns(base))
    rank = random.randrange(job.ranks) if job.ranks > 2 and random.random() < 0.3 else None

    def slow(r: int, step: int, actions: list[Action]) -> list[Action]:
        if rank not in {None, r}:
            return actions
        return [
            each._replace(ns=each.ns + ns) if isinstance(each, Busy) and each.tag == "loader" else each
            for each in actions
        ]

    also = {} if rank is None else {"late_ranks": base}
    return Injection(
        base.changed(slow), base, ("data_loading",), () if rank is None else (rank,), "DataLoader", also
    )


def _in_steps(
    random: Random, job: Job, size: float, new: Callable[[int], tuple[Action, ...]]
) -> tuple[Program, Program]:
    """Return a program with new actions on all ranks, in all steps or in every second one, and without."""
    base, where, every = build(job), random.random(), random.choice((1, 2)) if job.steps >= 6 else 1
    ns = round(1.1 * every * size * base_ns(base))
    program = base.changed(
        lambda _, step, actions: inserted(actions, where, *new(ns)) if step % every == 0 else actions
    )
    return program, base


def collections(random: Random, job: Job, size: float) -> Injection:
    program, base = _in_steps(random, job, size, lambda ns: named("gc.collect", ns))
    return Injection(program, base, ("garbage_collection",), ())


def compilation(random: Random, job: Job, size: float) -> Injection:
    name = random.choice(("_compile.compile_inner (dynamo_timed)", "entire_frame_compile (dynamo_timed)"))
    program, base = _in_steps(random, job, size, lambda ns: named(name, ns, "cpu_op"))
    return Injection(program, base, ("compilation_in_steps",), ())


def module_loading(random: Random, job: Job, size: float) -> Injection:
    if not job.is_hip:
        name = random.choice(("cuModuleLoadData", "cuLibraryLoadData"))
        program, base = _in_steps(random, job, size, lambda ns: (Synchronise(ns, name, waits=False),))
        return Injection(program, base, ("compilation_in_steps",), ())
    base, which = build(job), random.randrange(3, 3 + 5 * job.layers)
    ns = round(1.1 * size * base_ns(base))

    def loads(rank: int, step: int, actions: list[Action]) -> list[Action]:
        launches = [place for place, each in enumerate(actions) if isinstance(each, Launch)]
        first = launches[which]
        return [
            each._replace(loads_ns=ns) if place == first and isinstance(each, Launch) else each
            for place, each in enumerate(actions)
        ]

    return Injection(base.changed(loads), base, ("compilation_in_steps", "host_pauses"), ())


NAMES = ("save_checkpoint", "evaluate", "validation", "write_metrics")


def named_pauses(random: Random, job: Job, size: float) -> Injection:
    name = random.choice(NAMES)
    program, base = _in_steps(random, job, size, lambda ns: named(name, ns))
    return Injection(program, base, ("host_pauses",), (), name)


def first_rank_saves(random: Random, job: Job, size: float) -> Injection:
    base, where, name = build(job), random.random(), random.choice(NAMES)
    pause = named(name, round(1.1 * size * base_ns(base)))
    program = base.changed(lambda r, _, actions: actions if r else inserted(actions, where, *pause))
    return Injection(program, base, ("host_pauses", "late_ranks"), (0,), name)


def unnamed_pauses(random: Random, job: Job, size: float) -> Injection:
    base, count = build(job), random.randint(1, 3)
    wheres = [random.random() for _ in range(count)]
    ns = round(1.2 * size * base_ns(base) / count)

    def pauses(rank: int, step: int, actions: list[Action]) -> list[Action]:
        for where in wheres:
            actions = inserted(actions, where, Busy(ns))
        return actions

    return Injection(base.changed(pauses), base, ("host_pauses",), ())


def launch_bound(random: Random, job: Job, size: float) -> Injection:
    program = build(job)
    return Injection(
        program, program.changed(lambda _r, _s, actions: host_times(actions, 0.5)), ("launch_bound",), ()
    )


def synchronisation(random: Random, job: Job, size: float) -> Injection:
    program = build(replace(job, reads=max(1, round(25 * size))))
    return Injection(
        program, program.changed(lambda _r, _s, actions: without_waits(actions)), ("synchronisation",), ()
    )


def small_messages(random: Random, job: Job, size: float) -> Injection:
    program = build(replace(job, tiny_reductions=-(-16 // job.layers) + 1, tiny_ns=round(300_000 * size)))

    def combined(each: Launch) -> float:
        call = each.work.call
        return each.work.ns / (8 if call and call.elements < MESSAGE // 64 else 1)

    return Injection(
        program,
        program.changed(lambda _r, _s, actions: work_times(actions, combined)),
        ("small_messages",),
        (),
        also={"exposed_collectives": program.changed(without_transfers(REDUCTIONS))},
    )


def exposed_collectives(random: Random, job: Job, size: float) -> Injection:
    program = build(replace(job, late_reduction_ns=round(size * base_ns(build(job)))))
    return Injection(program, program.changed(without_transfers(REDUCTIONS)), ("exposed_collectives",), ())


def slow_group(random: Random, job: Job, size: float) -> Injection:
    base = build(job)
    group = job.tensor_group_of(random.randrange(job.ranks))
    more = size * base_ns(base) / job.layers

    def slow(each: Launch) -> float:
        return each.work.ns + (more if each.work.stream == TENSOR else 0)

    program = base.changed(lambda r, _, actions: work_times(actions, slow) if r in group else actions)
    also = {"exposed_collectives": program.changed(without_transfers(TENSOR))}
    return Injection(program, base, ("slow_group",), group, also=also)


def slow_calls(random: Random, job: Job, size: float) -> Injection:
    """Make one of a layer's reductions slow in each step, or in each second one: few enough to be unusual."""
    base, which, every = build(job), random.randrange(job.layers - 1), random.choice((1, 2))
    more = every * size * base_ns(base)

    def time(each: Launch) -> float:
        call = each.work.call
        if call is None or call.elements != MESSAGE:
            return each.work.ns
        step, place = divmod(call.number - 1, job.layers)
        return each.work.ns + (more if place == which and step % every == 0 else 0)

    program = base.changed(lambda _r, _s, actions: work_times(actions, time))
    also = {"exposed_collectives": program.changed(without_transfers(REDUCTIONS))}
    return Injection(program, base, ("slow_calls",), (), also=also)


def uneven_stages(random: Random, job: Job, size: float) -> Injection:
    base, stage = build(job), random.randrange(job.pp)
    per_stage = job.ranks // job.pp

    def slow(each: Launch) -> float:
        return each.work.ns * (1 + 1.5 * size if each.work.stream == COMPUTE else 1)

    ranks = tuple(range(stage * per_stage, (stage + 1) * per_stage))
    program = base.changed(lambda r, _, actions: work_times(actions, slow) if r in ranks else actions)
    return Injection(program, base, ("uneven_stages",), ranks)


def copies(random: Random, job: Job, size: float) -> Injection:
    program = build(replace(job, pageable_ns=round(1.1 * size * base_ns(build(job)))))

    def instant(each: Launch) -> float:
        return 0 if each.work.category.startswith("gpu_mem") else each.work.ns

    return Injection(
        program,
        program.changed(lambda _r, _s, actions: work_times(actions, instant)),
        ("copies_in_step",),
        (),
        also={"synchronisation": program.changed(lambda _r, _s, actions: without_waits(actions))},
    )


def copies_ahead(random: Random, job: Job, size: float) -> Injection:
    base = build(job)
    return Injection(build(replace(job, copied_ahead_ns=round(0.5 * base_ns(base)))), base, ())


def recomputation(random: Random, job: Job, size: float) -> Injection:
    program = build(replace(job, recomputes=True))

    def kept(rank: int, step: int, actions: list[Action]) -> list[Action]:
        return [each for each in actions if getattr(each, "tag", "") != "recomputed"]

    return Injection(program, program.changed(kept), ("recomputation",), ())


def _single(random: Random, job: Job, size: float, steps: set[int], rule: str) -> Injection:
    """Make the hosts of all ranks pause in single steps: their pauses are true as well."""
    base, where = build(job), random.random()
    pause = Busy(round(size * job.steps * base_ns(base) / len(steps)))
    program = base.changed(
        lambda _, step, actions: inserted(actions, where, pause) if step in steps else actions
    )
    return Injection(program, base, (rule,), (), also={"host_pauses": base})


def warm_up(random: Random, job: Job, size: float) -> Injection:
    count = random.choice((1, 2)) if job.steps > 5 else 1
    return _single(random, job, size, set(range(count)), "warm_up")._replace(first=count)


def outlier_steps(random: Random, job: Job, size: float) -> Injection:
    return _single(random, job, size, {random.randrange(2, job.steps)}, "outlier_steps")
