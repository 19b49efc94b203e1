"""A reader of trace event files that shares nothing with the writer, and is stricter than any viewer.

Perfetto drops slices of one thread that overlap without nesting and says nothing; this raises.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

NS = 1000


@dataclass
class Slice:
    """One slice, in whole nanoseconds."""

    process: str
    thread: str
    category: str
    name: str
    start_ns: int
    end_ns: int
    args: dict[str, Any]

    @property
    def stands_for(self) -> int:
        """How many slices it was merged from."""
        return int(self.args.get("slices", 1))

    @property
    def sum_ns(self) -> int:
        """How long those were together."""
        return int(self.args.get("sum_ns", self.end_ns - self.start_ns))


@dataclass
class TraceFile:
    """A file as a viewer would show it."""

    slices: list[Slice] = field(default_factory=list)
    processes: dict[int, str] = field(default_factory=dict)
    flows: dict[int, list[tuple[str, str, int]]] = field(default_factory=lambda: defaultdict(list))
    """Number of a collective → (phase, process, time)."""
    paths: dict[int, list[tuple[str, str, int]]] = field(default_factory=lambda: defaultdict(list))
    """The same of critical paths."""
    counters: list[tuple[int, int]] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)

    def of(self, category: str, process: str = "") -> list[Slice]:
        """Return the slices of a category, of one process where it is named."""
        return [s for s in self.slices if s.category == category and process in {"", s.process}]

    def totals_ns(self, category: str) -> dict[str, int]:
        """Return process -> time in a category."""
        found: Counter[str] = Counter()
        for each in self.of(category):
            found[each.process] += each.sum_ns
        return dict(found)


def exposed_ns(shown: TraceFile, process: str, *parts: str) -> int:
    """Return the exposed communication of a process, in all parts or in those named."""
    categories = [f"exposed {part}" for part in parts or ("waiting", "transfer", "unknown")]
    return sum(shown.totals_ns(category).get(process, 0) for category in categories)


def read(path: Path) -> TraceFile:
    """Return a file, or raise AssertionError for anything that a viewer would misread."""
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    document = json.loads(text, parse_float=Decimal, parse_constant=_refuse)
    assert set(document) == {"displayTimeUnit", "traceEvents", "otherData"}
    found = TraceFile(about=document["otherData"])
    threads: dict[tuple[int, int], str] = {}
    for event in document["traceEvents"]:
        if event["ph"] == "M" and event["name"] == "process_name":
            found.processes[event["pid"]] = event["args"]["name"]
        elif event["ph"] == "M" and event["name"] == "thread_name":
            assert (event["pid"], event["tid"]) not in threads
            threads[event["pid"], event["tid"]] = event["args"]["name"]
    open_ends: dict[tuple[int, int], list[int]] = defaultdict(list)
    last_start: dict[tuple[int, int], int] = {}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            _take_slice(found, event, threads, open_ends, last_start)
        elif event["ph"] in {"s", "t", "f"}:
            arrows = {"collective": found.flows, "critical path": found.paths}[event["cat"]]
            arrows[event["id"]].append((event["ph"], found.processes[event["pid"]], _ns(event["ts"])))
        elif event["ph"] == "C":
            found.counters.append((_ns(event["ts"]), event["args"]["ranks"]))
        else:
            assert event["ph"] == "M", event
    _check_flows(found)
    return found


def _refuse(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")


def _ns(microseconds: Decimal | int) -> int:
    time = Decimal(microseconds) * NS
    assert time == int(time), "a time is no whole nanosecond"
    return int(time)


def _take_slice(
    found: TraceFile,
    event: dict[str, Any],
    threads: dict[tuple[int, int], str],
    open_ends: dict[tuple[int, int], list[int]],
    last_start: dict[tuple[int, int], int],
) -> None:
    place = event["pid"], event["tid"]
    start, length = _ns(event["ts"]), _ns(event["dur"])
    assert start >= 0
    assert length >= 0
    assert start >= last_start.get(place, 0), "slices of a thread are not in order"
    last_start[place] = start
    ends = open_ends[place]
    while ends and ends[-1] <= start:
        ends.pop()
    assert not ends or start + length <= ends[-1], f"{event} overlaps the slice around it"
    ends.append(start + length)
    process = found.processes[event["pid"]]
    name, category = event["name"], event["cat"]
    found.slices.append(Slice(process, threads[place], category, name, start, start + length, event["args"]))


def _check_flows(found: TraceFile) -> None:
    """Every arrow starts once, ends at most once, and its points lie inside slices."""
    starts = {(s.process, s.start_ns) for s in found.slices}
    assert not found.flows.keys() & found.paths.keys()
    for points in (*found.flows.values(), *found.paths.values()):
        phases = Counter(phase for phase, _, _ in points)
        assert phases["s"] == 1
        assert phases["f"] == (1 if len(points) > 1 else 0)
        times = {phase: time for phase, _, time in points}
        assert times["s"] == min(time for _, _, time in points)
        assert times.get("f", times["s"]) == max(time for _, _, time in points)
        assert all((process, time) in starts for _, process, time in points)
