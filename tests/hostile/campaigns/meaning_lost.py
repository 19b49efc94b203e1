"""Events that a trace lacks: lost by chance or by kind, or cut at a time, or at a place of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meaning_events import (
    call_operators,
    calls,
    copies,
    device,
    drop,
    end,
    events,
    host,
    kernels,
    launches,
    number,
    of,
    share,
    step_marks,
    steps,
    stream,
    transfers,
    window,
)
from meaning_kinds import Kind, of_all, of_one, several
from meaning_runs import InapplicableError
from trace_damage import CALL_ARGUMENTS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from meaning_events import Event
    from meaning_kinds import OfTrace
    from meaning_runs import Document, Traces


def _part(chosen: Callable[[Document], list[Event]]) -> OfTrace:
    return lambda document, chance: drop(document, share(chosen(document), chance))


def _all(chosen: Callable[[Document], list[Event]]) -> OfTrace:
    return lambda document, _: drop(document, chosen(document))


def _single(chosen: Callable[[Document], list[Event]]) -> OfTrace:
    return lambda document, chance: drop(document, [chance.choice(chosen(document))])


def _kernels_and_launches(document: Document, chance: random.Random) -> None:
    gone = {number(kernel) for kernel in share(kernels(document), chance)}
    drop(document, [event for event in of(document, "kernel", "cuda_runtime") if number(event) in gone])


def _whole_call(document: Document, chance: random.Random) -> None:
    """Remove one collective: its operator, what that holds, and its kernel."""
    operator = chance.choice(call_operators(document))
    inside = [
        event
        for event in host(document)
        if event["tid"] == operator["tid"] and operator["ts"] <= event["ts"] <= end(event) <= end(operator)
    ]
    started = {number(event) for event in inside} - {None}
    work = [event for event in events(document) if started and number(event) in started]
    ranges = [event for event in transfers(document) if event["ts"] >= operator["ts"]]
    drop(document, [*inside, *(work or ranges[:1])])


def _stream(document: Document, chance: random.Random) -> None:
    streams = sorted({stream(kernel) for kernel in kernels(document)})
    gone = chance.choice(streams)
    drop(document, [event for event in device(document) if stream(event) == gone])


def _inner_step(document: Document, chance: random.Random) -> None:
    marks = steps(document)
    if len(marks) < 3:
        raise InapplicableError
    mark = chance.choice(marks[1:-1])
    started = {number(e) for e in events(document) if mark["ts"] <= e["ts"] < end(mark)} - {None}
    drop(
        document,
        [
            event
            for event in events(document)
            if mark["ts"] <= event["ts"] < end(mark) or number(event) in started
        ],
    )


def _last_step(document: Document, _: random.Random) -> None:
    marks = steps(document)
    if len(marks) < 2:
        raise InapplicableError
    drop(document, [event for event in events(document) if event["ts"] >= marks[-1]["ts"]])


def _one_mark(document: Document, chance: random.Random) -> None:
    marks = steps(document)
    name = chance.choice(marks[1:-1] or marks)["name"]
    drop(document, [event for event in step_marks(document) if event["name"] == name])


def _arguments(document: Document, chance: random.Random) -> None:
    for event in share(calls(document), chance):
        for key in (*CALL_ARGUMENTS, "Input Dims"):
            event["args"].pop(key, None)


def _rank(run: Traces, chance: random.Random) -> None:
    run.remove(chance.choice(several(run)))


LOST = {
    "kernels": _part(kernels),
    "one kernel in fifty": lambda d, c: drop(d, c.sample(kernels(d), max(1, len(kernels(d)) // 50))),
    "kernels and their launches": _kernels_and_launches,
    "copies": _part(copies),
    "launches": _part(launches),
    "all launches": _all(launches),
    "work of the device": _all(device),
    "a stream": _stream,
    "times of collectives": _part(transfers),
    "the time of one collective": _single(transfers),
    "one whole call": _whole_call,
    "arguments of collectives": _arguments,
    "operators of collectives": _part(call_operators),
    "operators": _part(lambda document: of(document, "cpu_op")),
    "an inner step": _inner_step,
    "the last step": _last_step,
    "one mark of a step": _one_mark,
    "marks of steps": _all(step_marks),
}


def _before(chosen: Callable[[Document], list[Event]]) -> OfTrace:
    """Return a change that keeps only events that start after a time within the recording."""

    def change(document: Document, chance: random.Random) -> None:
        first, last = window(document)
        border = first + chance.uniform(0.1, 0.6) * (last - first)
        drop(document, [event for event in chosen(document) if event["ts"] < border])

    return change


def _after(chosen: Callable[[Document], list[Event]]) -> OfTrace:
    """Return a change that keeps only events that end before a time within the recording."""

    def change(document: Document, chance: random.Random) -> None:
        first, last = window(document)
        border = last - chance.uniform(0.1, 0.6) * (last - first)
        drop(document, [event for event in chosen(document) if end(event) > border])

    return change


def _rest_of_file(document: Document, chance: random.Random) -> None:
    listed = document["traceEvents"]
    del listed[round(len(listed) * chance.uniform(0.4, 0.95)) :]


def _last_kernels(document: Document, chance: random.Random) -> None:
    work = device(document)
    drop(document, work[-max(1, round(len(work) * chance.uniform(0.02, 0.3))) :])


TRUNCATED = {
    "front": _before(events),
    "tail": _after(events),
    "front of the device": _before(device),
    "tail of the device": _after(device),
    "last work of the device": _last_kernels,
    "front of the host": _before(host),
    "tail of the host": _after(host),
    "rest of the file": _rest_of_file,
}

KINDS = [
    *of_one("lost", LOST),
    *of_all(
        "lost", {name: LOST[name] for name in ("kernels", "launches", "an inner step", "marks of steps")}
    ),
    Kind("lost", "the trace of a rank", _rank),
    *of_one("truncated", TRUNCATED),
    *of_all("truncated", {name: TRUNCATED[name] for name in ("front", "tail", "tail of the device")}),
]
