"""Events of a Kineto trace by what they are: work of the device, launches, collectives, steps."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from meaning_runs import Document, InapplicableError

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

Event = dict[str, Any]
Change = "Callable[[Document, random.Random], None]"

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"}
LAUNCHES = {"cuda_runtime", "cuda_driver"}
STEP = re.compile(r"ProfilerStep#\d+")


def events(document: Document) -> list[Event]:
    """Return the events with a time and a duration."""
    return [e for e in document["traceEvents"] if e.get("ph") == "X" and e.get("cat") != "Trace"]


def of(document: Document, *categories: str) -> list[Event]:
    """Return the events of some categories by start; a run without any cannot be damaged so."""
    return found([event for event in events(document) if event.get("cat") in categories])


def found(chosen: Iterable[Event]) -> list[Event]:
    """Return events by start; InapplicableError where there is none."""
    listed = sorted(chosen, key=lambda event: event["ts"])
    if not listed:
        raise InapplicableError
    return listed


def kernels(document: Document) -> list[Event]:
    """Return the kernels."""
    return of(document, "kernel")


def copies(document: Document) -> list[Event]:
    """Return the copies of the device."""
    return of(document, "gpu_memcpy")


def device(document: Document) -> list[Event]:
    """Return all that has a time of the device."""
    return of(document, *DEVICE)


def host(document: Document) -> list[Event]:
    """Return all that has a time of the host."""
    return found(event for event in events(document) if event.get("cat") not in DEVICE)


def launches(document: Document) -> list[Event]:
    """Return the calls that started work of the device."""
    started = {number(event) for event in device(document)} - {None}
    return found(event for event in of(document, *LAUNCHES) if number(event) in started)


def number(event: Event) -> int | None:
    """Return what links a launch and its work."""
    return (event.get("args") or {}).get("correlation")


def transfers(document: Document) -> list[Event]:
    """Return the kernels of NCCL, or the ranges of gloo where there is no device."""
    return found(
        event
        for event in events(document)
        if (event.get("cat") == "kernel" and "nccl" in event["name"].lower())
        or (event.get("cat") == "user_annotation" and event["name"].startswith("gloo:"))
    )


def calls(document: Document) -> list[Event]:
    """Return what records the arguments of collectives, on the host and on the device."""
    return found(event for event in events(document) if "Collective name" in (event.get("args") or {}))


def call_operators(document: Document) -> list[Event]:
    """Return the operators that record a collective."""
    return found(event for event in events(document) if event["name"] == "record_param_comms")


def steps(document: Document) -> list[Event]:
    """Return the ranges that mark steps on the host."""
    marks = (event for event in events(document) if STEP.fullmatch(event["name"]))
    return found(event for event in marks if event["cat"] not in DEVICE)


def step_marks(document: Document) -> list[Event]:
    """Return the ranges that mark steps, also those of the device."""
    return found(event for event in events(document) if STEP.fullmatch(event["name"]))


def stream(event: Event) -> Any:
    """Return the stream of work."""
    return event["args"].get("stream")


def end(event: Event) -> float:
    """Return when an event ends, us."""
    return event["ts"] + event["dur"]


def window(document: Document) -> tuple[float, float]:
    """Return start and end of the recording, us."""
    listed = events(document)
    return min(event["ts"] for event in listed), max(map(end, listed))


def drop(document: Document, chosen: Iterable[Event]) -> None:
    """Remove events, and the arrows to work whose launch or kernel they are."""
    gone = {id(event) for event in chosen}
    if not gone:
        raise InapplicableError
    document["traceEvents"] = [event for event in document["traceEvents"] if id(event) not in gone]


def share(chosen: list[Event], chance: random.Random, most: float = 0.4) -> list[Event]:
    """Return a part of events by chance: a twentieth to `most` of them, at least one."""
    return chance.sample(chosen, max(1, round(len(chosen) * chance.uniform(0.05, most))))


def copied(event: Event) -> Event:
    """Return a copy of an event that shares nothing with it."""
    return event | {"args": dict(event["args"])} if event.get("args") else dict(event)
