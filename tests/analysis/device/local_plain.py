"""The same numbers from the same JSON by other means: plain Python, one event at a time."""

from decimal import Decimal
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from plain_json import document

Event = dict[str, Any]
Interval = tuple[int, int]

DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def ns(microseconds: Decimal | int) -> int:
    """Return whole nanoseconds; a double would lose digits of absolute times."""
    return int((Decimal(microseconds) * 1000).to_integral_value())


def interval(event: Event) -> Interval:
    return ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])


class Trace:
    """The events of one file by category, times relative to the file's own base."""

    def __init__(self, path: Path) -> None:
        self.events = [event for event in document(path)["traceEvents"] if event.get("ph") == "X"]

    def of(self, *categories: str) -> list[Event]:
        return [event for event in self.events if str(event.get("cat")).lower() in categories]

    @cached_property
    def work(self) -> list[Event]:
        return self.of(*DEVICE_WORK)

    @cached_property
    def launches(self) -> dict[int, Event]:
        """First runtime or driver call of each correlation."""
        found: dict[int, Event] = {}
        for event in sorted(self.of("cuda_runtime", "cuda_driver"), key=lambda e: e["ts"]):
            found.setdefault(event["args"].get("correlation", 0), event)
        return found

    @cached_property
    def steps(self) -> list[tuple[int, Interval, Interval]]:
        """Number, CPU range and device window of each ProfilerStep.

        The first window begins once what has no recorded launch has ended: in these runs that was launched
        before the recording.
        """
        marked = sorted(
            (int(e["name"].split("#")[1]), interval(e))
            for e in self.of("user_annotation")
            if e["name"].startswith("ProfilerStep#")
        )
        backlog = [e for e in self.work if e["args"]["correlation"] not in self.launches]
        steps, before = [], max((interval(event)[1] for event in backlog), default=0)
        for number, (start, end) in marked:
            until = max(
                [end, before]
                + [
                    interval(work)[1]
                    for work in self.work
                    for launch in [self.launches.get(work["args"]["correlation"])]
                    if launch and start <= ns(launch["ts"]) < end
                ]
            )
            steps.append((number, (start, end), (max(start, before), until)))
            before = until
        return steps

    @cached_property
    def lacking(self) -> list[int]:
        """What each step is longer than its window, for all to be as long as the CPU ranges together.

        The first steps whose window began late get it, up to the time by which that was.
        """
        missing = sum(end - start for _, (start, end), _ in self.steps)
        missing -= sum(end - start for _, _, (start, end) in self.steps)
        found, before = [], 0
        for _, (start, _), window in self.steps:
            found.append(max(0, min(missing, window[0] - max(start, before))))
            missing -= found[-1]
            before = window[1]
        return found


@cache
def trace_of(path: Path) -> Trace:
    """Return the events of a file that nobody changes."""
    return Trace(path)


def clip(intervals: list[Interval], window: Interval) -> list[Interval]:
    cut = [(max(start, window[0]), min(end, window[1])) for start, end in intervals]
    return [(start, end) for start, end in cut if start < end]


def union(intervals: list[Interval]) -> list[Interval]:
    joined: list[list[int]] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        elif start < end:
            joined.append([start, end])
    return [(start, end) for start, end in joined]


def length(intervals: list[Interval]) -> int:
    return sum(end - start for start, end in intervals)


def union_length(intervals: list[Interval], window: Interval) -> int:
    return length(union(clip(intervals, window)))
