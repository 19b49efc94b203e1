"""Changes of programs: other times of hosts and work, no waits, and something inserted.

A change gets the actions of one rank in one step, and returns others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulate import Busy, Close, Launch, Open, Record, Synchronise, Wait
from training_job import Program, period_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulate import Action

TIMED = (Busy, Launch, Record, Wait, Synchronise)
"""Actions that take time of the host."""


def host_times(actions: list[Action], factor: float) -> list[Action]:
    """Return actions whose host takes a factor of its time, except where it waits."""
    return [
        each._replace(ns=round(each.ns * factor)) if isinstance(each, TIMED) else each for each in actions
    ]


def work_times(actions: list[Action], time: Callable[[Launch], float]) -> list[Action]:
    """Return actions whose launches give work that takes other times, ns."""
    return [
        each._replace(work=each.work._replace(ns=max(0, round(time(each)))))
        if isinstance(each, Launch)
        else each
        for each in actions
    ]


def without_waits(actions: list[Action]) -> list[Action]:
    """Return actions in which no call waits for the device."""
    return [
        each._replace(blocks=False)
        if isinstance(each, Launch)
        else each._replace(waits=False)
        if isinstance(each, Synchronise) and each.function
        else each
        for each in actions
    ]


def without_transfers(stream: int) -> Callable[[int, int, list[Action]], list[Action]]:
    """Return the change in which collectives of a stream take no time once all ranks have come."""
    return lambda rank, step, actions: work_times(
        actions, lambda each: 0 if each.work.stream == stream else each.work.ns
    )


def places(actions: list[Action]) -> list[int]:
    """Return where Python runs between two operators."""
    found, depth = [], 0
    for place, action in enumerate(actions):
        if isinstance(action, Open) and action.category == "cpu_op":
            depth += 1
        elif isinstance(action, Open):
            depth += action.name.startswith(("enumerate", "Optimizer.zero_grad"))
        elif isinstance(action, Close):
            depth = max(0, depth - 1)
        elif isinstance(action, Busy) and not depth:
            found.append(place + 1)
    return found


def inserted(actions: list[Action], where: float, *new: Action) -> list[Action]:
    """Return actions with others inserted between two operators, at a share of these places."""
    found = places(actions)
    place = found[min(len(found) - 1, int(where * len(found)))]
    return [*actions[:place], *new, *actions[place:]]


def named(name: str, ns: int, category: str = "user_annotation") -> tuple[Action, ...]:
    """Return a range in which the host computes; without a name only the time."""
    return (Open(name, category), Busy(ns), Close()) if name else (Busy(ns),)


def base_ns(program: Program) -> float:
    """Return the length of a step of a program, ns."""
    return period_ns(program.job, program.run())
