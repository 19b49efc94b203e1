"""Count what a Kineto file holds with nothing but json, whole numbers and loops.

This is the other side of each comparison with ccl_bench: no table, no library, no shared code.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from plain_json import document

Interval = tuple[int, int]

HOST_COMMUNICATION = ("c10d::", "_c10d_functional::", "record_param_comms")
DISPATCHED = re.compile(r"(?!autograd::|torch::)[a-z_]\w*::[\w.]+")


@dataclass
class Step:
    """A step as recorded on the CPU, and its window on the device, ns."""

    number: int
    start: int
    end: int
    device: Interval
    lacking: int = 0
    """What the step is longer than its window on the device, ns."""

    @property
    def length(self) -> int:
        return self.device[1] - self.device[0] + self.lacking


@dataclass(eq=False)
class Timeline:
    """What one rank did, ns."""

    rank: int
    steps: list[Step]
    compute: list[Interval] = field(default_factory=list)
    communication: list[Interval] = field(default_factory=list)
    memory: list[Interval] = field(default_factory=list)
    kernels: list[dict] = field(default_factory=list)

    @property
    def busy(self) -> list[Interval]:
        return [*self.compute, *self.communication, *self.memory]


def span(event: dict) -> Interval:
    """Return start and end of an event in whole nanoseconds."""
    start = int(event["ts"] * 1000)
    return start, start + int(event["dur"] * 1000)


def profiler_steps(events: Iterable[dict]) -> list[tuple[int, int, int]]:
    """Return (number, start, end) of the steps marked on the CPU, in order."""
    marks = [e for e in events if e["name"].startswith("ProfilerStep#") and e["cat"] == "user_annotation"]
    return sorted((int(e["name"].split("#")[1]), *span(e)) for e in marks)


def device_windows(steps: list[tuple[int, int, int]], events: list[dict]) -> list[Step]:
    """Return the steps, each window going on until the last work ends that the step launched.

    The next window starts where this one ended, or where its step starts if that is later. The first one
    starts once what has no recorded launch has ended: in these runs that was launched before the recording.
    """
    launched_at: dict[int, int] = {}
    for event in events:
        if event["cat"] in ("cuda_runtime", "cuda_driver"):
            launched_at.setdefault(event["args"]["correlation"], span(event)[0])
    last_end: dict[int, int] = defaultdict(int)
    for event in events:
        if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"):
            at = launched_at.get(event["args"].get("correlation"))
            for number, start, end in steps:
                if at is not None and start <= at < end:
                    last_end[number] = max(last_end[number], span(event)[1])
    found: list[Step] = []
    work = [e for e in events if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    until = max((span(e)[1] for e in work if e["args"].get("correlation") not in launched_at), default=0)
    for number, start, end in steps:
        window_end = max(end, last_end[number], until)
        found.append(Step(number, start, end, (max(start, until), window_end)))
        until = window_end
    give_lacking(found)
    return found


def give_lacking(steps: list[Step]) -> None:
    """Make steps as long together as the ranges on the CPU: the first ones whose window began late."""
    missing = sum(step.end - step.start for step in steps) - sum(step.length for step in steps)
    before = 0
    for step in steps:
        step.lacking = max(0, min(missing, step.device[0] - max(step.start, before)))
        missing -= step.lacking
        before = step.device[1]


def on_device(path: Path, is_communication: Callable[[str], bool]) -> Timeline:
    """Return the timeline of a rank with a GPU."""
    whole = document(path)
    events = [e for e in whole["traceEvents"] if e.get("ph") == "X"]
    line = Timeline(whole["distributedInfo"]["rank"], device_windows(profiler_steps(events), events))
    for event in events:
        if event["cat"] == "kernel":
            group = line.communication if is_communication(event["name"]) else line.compute
            group.append(span(event))
            line.kernels.append({"span": span(event), "name": event["name"], **event["args"]})
        elif event["cat"] in ("gpu_memcpy", "gpu_memset"):
            line.memory.append(span(event))
    return line


def on_cpu(path: Path) -> Timeline:
    """Return the timeline of a rank without a GPU: operators compute, `gloo:*` ranges communicate."""
    whole = document(path)
    events = [e for e in whole["traceEvents"] if e.get("ph") == "X"]
    steps = [Step(number, start, end, (start, end)) for number, start, end in profiler_steps(events)]
    line = Timeline(whole["distributedInfo"]["rank"], steps)
    by_thread: dict[tuple[int, int], list[dict]] = defaultdict(list)
    ranges_on: dict[int, list[Interval]] = defaultdict(list)
    for event in events:
        if event["cat"] == "user_annotation" and event["name"].startswith("gloo:"):
            line.communication.append(span(event))
            ranges_on[event["tid"]].append(span(event))
        elif event["cat"] == "cpu_op":
            by_thread[event["pid"], event["tid"]].append(event)
    for (_, thread), operators in by_thread.items():
        for event in computing(operators):
            start = span(event)[0]
            is_part = any(first <= start < last for first, last in ranges_on[thread])
            if not is_part and not event["name"].startswith(HOST_COMMUNICATION):
                line.compute.append(span(event))
    return line


def computing(operators: list[dict]) -> list[dict]:
    """Return the operators of one thread that compute, by walking the tree of calls.

    Those of the dispatcher count with their callees unless one of these communicates; others without any.
    """
    roots: list[dict] = []
    open_ones: list[dict] = []
    spans = [(*span(event), event) for event in operators]
    for start, end, event in sorted(spans, key=lambda each: (each[0], -each[1])):
        node = {"event": event, "end": end, "callees": []}
        while open_ones and open_ones[-1]["end"] <= start:
            open_ones.pop()
        (open_ones[-1]["callees"] if open_ones else roots).append(node)
        open_ones.append(node)
    return [event for root in roots for event in computing_below(root)]


def computing_below(node: dict) -> list[dict]:
    name, callees = node["event"]["name"], node["callees"]
    if not name.startswith(HOST_COMMUNICATION) and (
        not callees or (DISPATCHED.fullmatch(name) and not any(map(communicates, callees)))
    ):
        return [node["event"]]
    return [event for callee in callees for event in computing_below(callee)]


def communicates(node: dict) -> bool:
    return node["event"]["name"].startswith(HOST_COMMUNICATION) or any(map(communicates, node["callees"]))


def time_by_state(window: Interval, **groups: list[Interval]) -> Counter[frozenset[str]]:
    """Return how long each combination of groups was active inside the window, by walking its instants."""
    changes: dict[int, Counter[str]] = defaultdict(Counter)
    for name, intervals in groups.items():
        for start, end in intervals:
            first, last = max(start, window[0]), min(end, window[1])
            if first < last:
                changes[first][name] += 1
                changes[last][name] -= 1
    lengths: Counter[frozenset[str]] = Counter()
    active: Counter[str] = Counter()
    previous = window[0]
    for at in sorted({*changes, window[1]}):
        lengths[frozenset(name for name, count in active.items() if count)] += at - previous
        active.update(changes.get(at, {}))
        previous = at
    return lengths


def together(lengths: Counter[frozenset[str]], *names: str) -> int:
    """Return the time in which all the named groups were active."""
    return sum(length for state, length in lengths.items() if {*names} <= state)


def apart(lengths: Counter[frozenset[str]], name: str, *without: str) -> int:
    """Return the time in which one group was active and none of the others."""
    return sum(length for state, length in lengths.items() if name in state and not {*without} & state)


@cache
def states(line: Timeline) -> Counter[frozenset[str]]:
    """Return how long each combination of work lasted, over all steps of a rank."""
    total: Counter[frozenset[str]] = Counter()
    for step in line.steps:
        total += time_by_state(
            step.device, compute=line.compute, communication=line.communication, memory=line.memory
        )
        total[frozenset()] += step.lacking
    return total


def step_time(line: Timeline) -> int:
    """Return the length of all steps of a rank."""
    return sum(step.length for step in line.steps)


def calls_in(line: Timeline, step: Step) -> int:
    """Return the communication calls that start in the device window of a step."""
    return sum(step.device[0] <= start < step.device[1] for start, _ in line.communication)


def occupied(line: Timeline) -> float:
    """Return the time-weighted share of multiprocessors that kernels could occupy, ns.

    Between two instants at which a kernel starts or ends, shares add up to 1 at most.
    """
    total = 0.0
    for step in line.steps:
        changes: dict[int, float] = defaultdict(float)
        for kernel in line.kernels:
            first, last = max(kernel["span"][0], step.device[0]), min(kernel["span"][1], step.device[1])
            if first < last:
                share = min(float(kernel["blocks per SM"]), 1.0)
                changes[first] += share
                changes[last] -= share
        level, previous = 0.0, step.device[0]
        for at in sorted(changes):
            total += min(level, 1.0) * (at - previous)
            level += changes[at]
            previous = at
    return total


def occupancy(line: Timeline) -> float:
    """Return the mean estimated occupancy of kernels, each with its length inside the windows, %."""
    weighted = lengths = 0
    for kernel in line.kernels:
        for step in line.steps:
            first, last = max(kernel["span"][0], step.device[0]), min(kernel["span"][1], step.device[1])
            if first < last:
                weighted += kernel["est. achieved occupancy %"] * (last - first)
                lengths += last - first
    return float(weighted) / lengths


def is_nccl(name: str) -> bool:
    """Whether a kernel is NCCL's."""
    return name.startswith("nccl")


def is_deep_ep(name: str) -> bool:
    """Whether a kernel of the DualPipe trace moves tokens or their counts between ranks."""
    return name.startswith("void dpsk::ep::internode::")


@cache
def timelines(folder: Path) -> list[Timeline]:
    """Return the timelines of every rank of a set, by rank."""
    files = sorted(folder.glob("*.json.gz"))
    if "gloo" in folder.name:
        return sorted(map(on_cpu, files), key=lambda line: line.rank)
    rule = is_deep_ep if folder.name == "deepseek-dualpipe" else is_nccl
    return sorted((on_device(path, rule) for path in files), key=lambda line: line.rank)
