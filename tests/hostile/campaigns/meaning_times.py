"""Times that are not those of what happened: shifted on one clock or another, or in another unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meaning_events import (
    copies,
    device,
    drop,
    end,
    events,
    found,
    host,
    kernels,
    launches,
    number,
    step_marks,
    stream,
    transfers,
    window,
)
from meaning_kinds import Kind, of_all, of_one

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable

    from meaning_events import Event
    from meaning_kinds import OfTrace
    from meaning_runs import Document

SHIFTS_US = (1e3, 1e5, 1e6, 6e7, 3.6e9)
"""1 ms to 1 h."""

GRAPH = 20
"""Kernels of a graph, which one launch starts."""


def _shift(chosen: Iterable[Event], by: float) -> None:
    for event in chosen:
        event["ts"] += by


def _shifted(
    chosen: Callable[[Document, random.Random], Iterable[Event]], by_us: tuple[float, ...] = SHIFTS_US
) -> OfTrace:
    def change(document: Document, chance: random.Random) -> None:
        _shift(chosen(document, chance), chance.choice(by_us) * chance.choice((1, -1)))

    return change


def _of_stream(document: Document, chance: random.Random) -> list[Event]:
    chosen = chance.choice(sorted({stream(kernel) for kernel in kernels(document)}))
    return [event for event in device(document) if stream(event) == chosen]


def _all_with_time(document: Document, _: random.Random) -> list[Event]:
    """Return all events, also marks and arrows."""
    return found(event for event in document["traceEvents"] if "ts" in event)


def _before_launch(document: Document, chance: random.Random, part: float = 0.2) -> None:
    """Let kernels start 10 us before the host asks for them."""
    asked = {number(launch): launch["ts"] for launch in launches(document)}
    known = [kernel for kernel in kernels(document) if number(kernel) in asked]
    for kernel in chance.sample(known, max(1, round(len(known) * part))):
        kernel["ts"] = asked[number(kernel)] - 10.0


def _marks_shifted(document: Document, _: random.Random) -> None:
    marks = step_marks(document)
    _shift(marks, marks[0]["dur"] / 2)


SHIFTED = {
    "one kernel": _shifted(lambda document, chance: [chance.choice(kernels(document))]),
    "one collective": _shifted(lambda document, chance: [chance.choice(transfers(document))]),
    "one stream": _shifted(_of_stream),
    "clock of the device": _shifted(lambda document, _: device(document)),
    "clock of the device by 1 ms": lambda document, chance: _shift(
        device(document), chance.choice((1e3, -1e3))
    ),
    "whole clock": _shifted(_all_with_time),
    "whole clock by 1 ms": _shifted(_all_with_time, SHIFTS_US[:1]),
    "kernels before their launch": _before_launch,
    "all kernels before their launch": lambda document, chance: _before_launch(document, chance, 1.0),
    "marks of steps by half a step": _marks_shifted,
}


def _longer(chosen: Callable[[Document], list[Event]], factor: float) -> OfTrace:
    def change(document: Document, chance: random.Random) -> None:
        chance.choice(chosen(document))["dur"] *= factor

    return change


def _last_kernel(document: Document, _: random.Random) -> None:
    max(kernels(document), key=end)["dur"] *= 1000


def _kernel_of_graph(document: Document, chance: random.Random) -> None:
    """Let one launch start twenty kernels, as that of a graph does, and make one of them far longer."""
    chosen = _of_stream(document, chance)
    first = chance.randrange(max(1, len(chosen) - GRAPH))
    graph = chosen[first : first + GRAPH]
    gone = {number(event) for event in graph[1:]}
    drop(document, [event for event in launches(document) if number(event) in gone] or graph[:0])
    for event in graph:
        event["args"]["correlation"] = number(graph[0])
    chance.choice(graph)["dur"] *= 1000


def _lengths(chosen: Callable[[Document], Iterable[Event]], factor: float) -> OfTrace:
    def change(document: Document, _: random.Random) -> None:
        for event in chosen(document):
            event["dur"] *= factor

    return change


def _rate(chosen: Callable[[Document], list[Event]], factor: float) -> OfTrace:
    """Return a change of starts and lengths, as of a clock that runs at another rate."""

    def change(document: Document, _: random.Random) -> None:
        first = window(document)[0]
        for event in chosen(document):
            event["ts"] = first + (event["ts"] - first) * factor
            event["dur"] *= factor

    return change


def _unit(factor: float) -> OfTrace:
    """Return a change of every time of a trace, as if it were written in another unit."""

    def change(document: Document, _: random.Random) -> None:
        for event in document["traceEvents"]:
            for key in ("ts", "dur"):
                if key in event:
                    event[key] *= factor

    return change


def _zero_lengths(document: Document, chance: random.Random) -> None:
    for kernel in chance.sample(kernels(document), max(1, len(kernels(document)) // 5)):
        kernel["dur"] = 0


def _whole_microseconds(document: Document, _: random.Random) -> None:
    for event in events(document):
        ended = round(end(event))
        event["ts"] = round(event["ts"])
        event["dur"] = ended - event["ts"]


SCALED = {
    "a kernel x 1000": _longer(kernels, 1000),
    "the last kernel x 1000": _last_kernel,
    "a kernel of a graph x 1000": _kernel_of_graph,
    "a collective x 1000": _longer(transfers, 1000),
    "a copy x 1000": _longer(copies, 1000),
    "a copy / 1000": _longer(copies, 1e-3),
    "a kernel x 1.1": _longer(kernels, 1.1),
    "lengths on the device x 1000": _lengths(device, 1000),
    "lengths on the device / 1000": _lengths(device, 1e-3),
    "lengths on the host / 1000": _lengths(host, 1e-3),
    "all lengths / 1000": _lengths(events, 1e-3),
    "clock of the device x 1000": _rate(device, 1000),
    "clock of the device / 1000": _rate(device, 1e-3),
    "times in ms": _unit(1e-3),
    "times in ns": _unit(1e3),
    "zero lengths of kernels": _zero_lengths,
    "all kernels of zero length": _lengths(kernels, 0),
    "times in whole us": _whole_microseconds,
}

KINDS: list[Kind] = [
    *of_one("shifted", SHIFTED),
    *of_all("shifted", {name: SHIFTED[name] for name in ("clock of the device", "whole clock")}),
    *of_one("scaled", SCALED),
    *of_all(
        "scaled",
        {
            name: SCALED[name]
            for name in (
                *("lengths on the device x 1000", "lengths on the device / 1000", "all lengths / 1000"),
                *("times in ms", "times in ns", "times in whole us"),
            )
        },
    ),
]
