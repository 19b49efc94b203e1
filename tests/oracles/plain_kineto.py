"""Metrics of a Kineto run by json, lists and loops, sharing nothing with the package.

Written from the definitions alone. It is slow and short, so that a reader can check it line by line.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import re
from collections import Counter, defaultdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Event = dict[str, Any]
Interval = tuple[int, int]

WORK = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
COMMUNICATION_NAMES = ("nccl", "dpsk::ep::internode")
WIDTHS = {"BFloat16": 2, "Half": 2, "Float": 4, "Int": 4, "Long": 8, "Double": 8, "Byte": 1, "Bool": 1}

KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "send": "send",
    "recv": "recv",
    "barrier": "barrier",
}
SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Nobody leaves these before all arrived; no run here records splits, so an all-to-all that gives as much as
it takes counts as even."""

HOST_COMMUNICATION = ("c10d::", "_c10d_functional::", "record_param_comms")
DISPATCHED = re.compile(r"(?!autograd::|torch::)[a-z_]\w*::[\w.]+")


def union(intervals: list[Interval]) -> list[Interval]:
    """Return disjoint intervals that cover the same instants."""
    joined: list[Interval] = []
    for start, end in sorted(pair for pair in intervals if pair[0] < pair[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def length(intervals: list[Interval]) -> int:
    """Return the time that intervals cover."""
    return sum(end - start for start, end in union(intervals))


def clip(intervals: list[Interval], window: Interval) -> list[Interval]:
    """Return the parts of intervals inside a window."""
    cut = [(max(start, window[0]), min(end, window[1])) for start, end in intervals]
    return [(start, end) for start, end in cut if start < end]


def covered_by_both(one: list[Interval], other: list[Interval]) -> int:
    """Return the time that both cover: |A| + |B| - |A or B|."""
    return length(one) + length(other) - length([*one, *other])


def kind_of(name: str) -> str | None:
    """Return the collective that a recorded name means."""
    letters = "".join(c for c in name.lower() if c.isalnum())
    if letters.startswith("wait") or letters in {"init", "end", "start"}:
        return None
    return next((kind for word, kind in KINDS.items() if word in letters), None)


def message_bytes(arguments: Event) -> int | None:
    """Return the message as nccl-tests counts it: Out of a gather, In of everything else."""
    kind = kind_of(str(arguments.get("Collective name", "")))
    width = WIDTHS.get(str(arguments.get("dtype")))
    side = "Out msg nelems" if kind in {"all_gather", "recv"} else "In msg nelems"
    elements = arguments.get(side)
    return None if kind is None or width is None or elements is None else int(elements) * width


def _communicates(kernel: Event) -> bool:
    """Whether a kernel moves data between ranks, by what was recorded with it or by its name."""
    return "Collective name" in kernel["args"] or any(name in kernel["name"] for name in COMMUNICATION_NAMES)


class Rank:
    """One rank's file: its steps, its work, its calls; times in whole nanoseconds."""

    def __init__(self, path: Path) -> None:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if path.suffix == ".gz" else raw
        document = json.loads(text, parse_float=Decimal)
        self.rank = int(document["distributedInfo"]["rank"])
        self.events = [e for e in document["traceEvents"] if e.get("ph") == "X" and "dur" in e]
        for event in self.events:
            start = int(Decimal(event["ts"]) * 1000)
            event["span"] = (start, start + int(Decimal(event["dur"]) * 1000))
        self.events.sort(key=lambda event: event["span"][0])
        self.kernels = self.of("kernel")
        self.copies = self.of("gpu_memcpy")
        self.launch_of: dict[int, Event] = {}
        for event in self.of(*LAUNCHES):
            correlation = event["args"].get("correlation")
            if correlation:
                self.launch_of.setdefault(correlation, event)
        self.on_device = bool(self.of(*WORK))
        self.steps = self._steps()
        self.calls = self._device_calls() if self.on_device else self._host_calls()
        self.compute = self._compute()

    def of(self, *categories: str) -> list[Event]:
        """Return the events of some categories in order of start."""
        return [event for event in self.events if event.get("cat") in categories]

    def _steps(self) -> list[tuple[int, Interval, Interval]]:
        """Return (number, CPU range, device window): the last work launched in a step ends its window."""
        marks = [e for e in self.of("user_annotation") if e["name"].startswith("ProfilerStep#")]
        spans = [(int(mark["name"].split("#")[1]), mark["span"]) for mark in marks]
        work = self.of(*WORK)
        before = max((e["span"][1] for e in work if self._is_backlog(e, spans[0][1][0])), default=0)
        found = []
        for number, (start, end) in spans:
            ends = [e["span"][1] for e in work if start <= self._launched_at(e) < end]
            until = max([end, before, *ends])
            found.append((number, (start, end), (max(start, before), until)))
            before = until
        return found

    def _launched_at(self, work: Event) -> int:
        launch = self.launch_of.get(work["args"].get("correlation", 0))
        return launch["span"][0] if launch else -1

    def _is_backlog(self, work: Event, first_step: int) -> bool:
        """Whether work was launched before the first step; launches are numbered in their order from 1."""
        if self._launched_at(work) >= 0:
            return self._launched_at(work) < first_step
        recorded = [number for number in self.launch_of if number > 0]
        return 0 < work["args"].get("correlation", 0) < min(recorded, default=0)

    def _device_calls(self) -> list[Event]:
        """Return (span, collective, bytes) of the communication kernels in order of start."""
        communicating = [kernel for kernel in self.kernels if _communicates(kernel)]
        numbers = {kernel["args"].get("correlation") for kernel in communicating}
        operators = {at: e["args"] for at, e in self._launched_in("record_param_comms", numbers).items()}
        started = self._launched_in("c10d::", numbers)
        calls = []
        for kernel in communicating:
            arguments = kernel["args"]
            if "Collective name" not in arguments:
                arguments = operators.get(arguments.get("correlation"), {})
            operator = started.get(kernel["args"].get("correlation"), {"name": "", "args": {}})
            name = str(arguments.get("Collective name", "")) or operator["name"]
            kind = kind_of(name) or kind_of(kernel["name"]) or "other"
            sides = [tuple(dims) for dims in operator["args"].get("Input Dims", [])[:2]]
            uneven = kind == "all_to_all" and len({*sides}) > 1
            calls.append({**kernel, "kind": kind, "bytes": message_bytes(arguments), "uneven": uneven})
        return calls

    def _launched_in(self, prefix: str, numbers: set[int | None]) -> dict[int, Event]:
        """Return correlation -> the innermost operator of that name in which the launch ran."""
        found = {}
        recorded = [e for e in self.of("cpu_op") if e["name"].startswith(prefix)]
        for correlation in numbers & self.launch_of.keys():
            launch = self.launch_of[correlation]
            at, thread = launch["span"][0], launch["tid"]
            around = [e for e in recorded if e["span"][0] <= at < e["span"][1] and e["tid"] == thread]
            if around:
                found[correlation] = around[-1]
        return found

    def _host_calls(self) -> list[Event]:
        ranges = [e for e in self.of("user_annotation") if e["name"].startswith("gloo:")]
        return [{"span": e["span"], "kind": "gloo", "bytes": None} for e in ranges]

    def described(self) -> list[list[Event]]:
        """Return the calls of each step with sizes: kernels, or on a CPU what starts them."""
        if self.on_device:
            return self.calls_by_step()
        recorded = [e for e in self.of("cpu_op") if kind_of(str(e["args"].get("Collective name", "")))]
        found = [
            {
                "span": e["span"],
                "kind": kind_of(e["args"]["Collective name"]),
                "bytes": message_bytes(e["args"]),
            }
            for e in recorded
        ]
        return [[c for c in found if start <= c["span"][0] < end] for _, (start, end), _ in self.steps]

    def _compute(self) -> list[Interval]:
        """Return what is computing: other kernels, or on a CPU operators."""
        if self.on_device:
            communicating = {call["span"] for call in self.calls}
            return [k["span"] for k in self.kernels if k["span"] not in communicating]
        ranges_on = defaultdict(list)
        for event in self.of("user_annotation"):
            if event["name"].startswith("gloo:"):
                ranges_on[event["tid"]].append(event["span"])
        found = []
        for event in self._computing_operators():
            if not any(start <= event["span"][0] < end for start, end in ranges_on[event["tid"]]):
                found.append(event["span"])
        return found

    def _computing_operators(self) -> Iterator[Event]:
        """Yield operators of the dispatcher that call no communication, and others that call nothing."""
        by_thread = defaultdict(list)
        for event in self.of("cpu_op"):
            by_thread[event["pid"], event["tid"]].append(event)
        for operators in by_thread.values():
            operators.sort(key=lambda e: (e["span"][0], -e["span"][1]))
            covered_ns = operators[0]["span"][0]
            for place, event in enumerate(operators):
                name, (_, end) = event["name"], event["span"]
                following = map(operators.__getitem__, range(place + 1, len(operators)))
                inside = itertools.takewhile(lambda e, end=end: e["span"][0] < end, following)
                names = [callee["name"] for callee in inside]
                calls = any(called.startswith(HOST_COMMUNICATION) for called in [name, *names])
                if end > covered_ns and not calls and (not names or DISPATCHED.fullmatch(name)):
                    covered_ns = end
                    yield event

    def windows(self) -> list[Interval]:
        """Return the device windows of the steps."""
        return [window for _, _, window in self.steps]

    def lengths(self) -> list[int]:
        """Return the lengths of the steps: their windows, and what these lack to the CPU ranges together.

        Windows that begin later than their step and the window before are the longer ones, in order.
        """
        lacking = sum((end - start) - (until - begin) for _, (start, end), (begin, until) in self.steps)
        found, before = [], 0
        for _, (start, _), (begin, until) in self.steps:
            more = min(max(lacking, 0), begin - max(start, before))
            found.append(until - begin + more)
            lacking, before = lacking - more, until
        return found

    def in_windows(self, intervals: list[Interval]) -> list[list[Interval]]:
        """Return the intervals clipped to each step."""
        return [clip(intervals, window) for window in self.windows()]

    def calls_by_step(self) -> list[list[Event]]:
        """Return the calls of each step."""
        return self.by_step(self.calls)

    def by_step(self, events: list[Event]) -> list[list[Event]]:
        """Return the events of each step: launched in it, or started in it where there is no device."""
        spans = [span for _, span, _ in self.steps]
        times = [self._launched_at(e) if self.on_device else e["span"][0] for e in events]
        return [[e for e, at in zip(events, times, strict=True) if start <= at < end] for start, end in spans]


def mean(values: list[float]) -> float | None:
    """Return the mean, None of nothing."""
    return math.fsum(values) / len(values) if values else None


def metrics_of(files: list[Path]) -> dict[str, float | None]:
    """Return metric -> value of a run, None where the definition gives none."""
    ranks = sorted(map(Rank, files), key=lambda rank: rank.rank)
    found = _times(ranks) | _communication(ranks) | _waiting(ranks) | _untraced(files[0].parent)
    found |= _exposed_parts(ranks)
    if all(rank.on_device for rank in ranks):
        found |= _kernels(ranks) | _copies(ranks)
    return found


def _times(ranks: list[Rank]) -> dict[str, float | None]:
    slowest: dict[int, int] = defaultdict(int)
    busy = []
    for rank in ranks:
        for (number, _, _), time in zip(rank.steps, rank.lengths(), strict=True):
            slowest[number] = max(slowest[number], time)
        work = [*rank.compute, *(c["span"] for c in rank.calls), *(e["span"] for e in rank.of(*WORK))]
        lengths = sum(map(length, rank.in_windows(work)))
        busy.append(100 * lengths / sum(rank.lengths()))
    share = mean(busy)
    return {
        "iteration_wall_clock_time": mean([time / 1e9 for time in slowest.values()]),
        "gpu_busy": share,
        "gpu_idle": None if share is None else 100 - share,
    }


def _untraced(folder: Path) -> dict[str, float | None]:
    """Return the step time of the side file that goes before the traces, where there is one."""
    path = folder / "step_times_per_rank.json"
    if path.is_file():
        per_rank = json.loads(path.read_text(encoding="utf-8"))
        return {
            "iteration_wall_clock_time": mean([max(step) for step in zip(*per_rank.values(), strict=True)])
        }
    path = folder / "step_times.json"
    if path.is_file():
        return {"iteration_wall_clock_time": mean(json.loads(path.read_text(encoding="utf-8")))}
    return {}


def _communication(ranks: list[Rank]) -> dict[str, float | None]:
    hidden, exposed, total, share = [], [], [], []
    for rank in ranks:
        calls = rank.in_windows([call["span"] for call in rank.calls])
        compute = rank.in_windows(rank.compute)
        communicated = sum(map(length, calls))
        both = sum(covered_by_both(one, other) for one, other in zip(calls, compute, strict=True))
        window = sum(rank.lengths())
        hidden += [100 * both / communicated] if communicated else []
        total += [length(step) / 1e9 for step in calls]
        exposed += [
            (length(one) - covered_by_both(one, other)) / 1e9
            for one, other in zip(calls, compute, strict=True)
        ]
        share.append(100 * communicated / window)
    lowest = ranks[0]
    return {
        "coll_call_num": mean([float(len(step)) for step in lowest.calls_by_step()]),
        "comm_comp_overlap": mean(hidden),
        "total_communication_time": mean(total),
        "exposed_communication_time": mean(exposed),
        "communication_fraction": mean(share),
    } | _traffic(ranks)


def _traffic(ranks: list[Rank]) -> dict[str, float | None]:
    steps = sum(len(rank.steps) for rank in ranks)
    inside = [call for rank in ranks for step in rank.described() for call in step]
    sized = [call for call in inside if call["kind"] != "barrier"]
    if not sized or any(call["bytes"] is None for call in sized):
        return {}
    by_kind: Counter[str] = Counter()
    for call in sized:
        by_kind[call["kind"]] += call["bytes"]
    return {
        "traffic_distribution_16": sum(by_kind.values()) / steps / 1e9,
        **{
            f"collective_volume_{kind.replace('_', '')}": by_kind[kind] / steps / 1e9
            for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
            if by_kind[kind]
        },
    }


def _waiting(ranks: list[Rank]) -> dict[str, float | None]:
    """Return the lag where every rank issues the same calls in one group, so that the k-th match."""
    if len(ranks) < 2 or not ranks[0].on_device:
        return {}
    rows = list(zip(*(rank.calls_by_step() for rank in ranks), strict=True))
    lags = []
    for step in rows:
        kinds = {tuple(call["kind"] for call in calls) for calls in step}
        if len(kinds) != 1:
            return {}
        waits = [0] * len(ranks)
        for calls in zip(*step, strict=True):
            times = [call["span"][1] - call["span"][0] for call in calls]
            if calls[0]["kind"] in SYMMETRIC and not any(call["uneven"] for call in calls):
                waits = [wait + time - min(times) for wait, time in zip(waits, times, strict=True)]
        lags.append((max(waits) - min(waits)) / 1e9)
    lag, step_time = mean(lags), _times(ranks)["iteration_wall_clock_time"]
    return {"straggler_lag_16": lag, "straggler": lag / step_time if lag and step_time else None}


def _exposed_parts(ranks: list[Rank]) -> dict[str, float | None]:
    """Return what of exposed communication waited and what moved data; nothing of one rank of several.

    An instant in which one call moves data and another waits is transfer.
    """
    names = ("exposed_wait_time", "exposed_transfer_time")
    if len(ranks) == 1:
        return dict.fromkeys(names)
    keyed = [_keyed(rank) for rank in ranks]
    if None in keyed or (ranks[0].on_device and len({tuple(calls or ()) for calls in keyed}) > 1):
        return {}
    durations = defaultdict(list)
    for calls in keyed:
        for key, call in (calls or {}).items():
            durations[key].append(call["span"][1] - call["span"][0])
    waited, moved = [], []
    for rank, calls in zip(ranks, keyed, strict=True):
        waits, moves, unknown = [], [], []
        for key, call in (calls or {}).items():
            start, end = call["span"]
            if call.get("uneven"):
                unknown.append((start, end))
            else:
                waits.append((start, end - min(durations[key])))
                moves.append((end - min(durations[key]), end))
        for window in rank.windows():
            compute = clip(rank.compute, window)
            sums = [length([*compute, *clip(intervals, window)]) for intervals in (moves, moves + unknown)]
            moved.append((sums[0] - length(compute)) / 1e9)
            waited.append((length([*compute, *clip(moves + unknown + waits, window)]) - sums[1]) / 1e9)
    return dict(zip(names, (mean(waited), mean(moved)), strict=True))


def _keyed(rank: Rank) -> dict[tuple[object, ...], Event] | None:
    """Return the calls by what they have in common on all ranks; None where that is not recorded.

    On a device it is step and place, for runs with one group. A range of gloo belongs to the earliest
    operator of its kind that has none yet.
    """
    if rank.on_device:
        steps = enumerate(rank.calls_by_step())
        return {(number, k, c["kind"]): c for number, step in steps for k, c in enumerate(step)}
    waiting = [e for e in rank.of("cpu_op") if "Process Group Ranks" in e["args"]]
    found: dict[tuple[object, ...], Event] = {}
    for event in rank.of("user_annotation"):
        if event["name"].startswith("gloo:"):
            kind = event["name"].removeprefix("gloo:")
            fitting = [e for e in waiting if kind in _carried_out_as(e["args"]["Collective name"])]
            if not fitting or fitting[0]["span"][0] > event["span"][0]:
                return None
            waiting.remove(fitting[0])
            arguments = fitting[0]["args"]
            found[arguments["Process Group Ranks"], arguments["Seq"]] = event
    return found


def _carried_out_as(name: str) -> set[str]:
    """Return how gloo names the range of a collective: it reduces everything where it scatters."""
    kind = kind_of(name)
    return {"all_reduce", "reduce_scatter"} if kind == "reduce_scatter" else {str(kind)}


def _kernels(ranks: list[Rank]) -> dict[str, float | None]:
    totals, concentration, occupied, computing = [], [], [], []
    for rank in ranks:
        by_name: Counter[str] = Counter()
        level_time = 0.0
        for window in rank.windows():
            changes: dict[int, Decimal] = defaultdict(Decimal)
            total = 0
            for kernel in rank.kernels:
                for start, end in clip([kernel["span"]], window):
                    by_name[kernel["name"]] += end - start
                    total += end - start
                    share = min(Decimal(kernel["args"].get("blocks per SM", 0)), Decimal(1))
                    changes[start] += share
                    changes[end] -= share
            totals.append(total / 1e9)
            level, previous = Decimal(0), 0
            for at in sorted(changes):
                level_time += float(min(level, Decimal(1))) * (at - previous)
                level, previous = level + changes[at], at
        concentration.append(100 * max(by_name.values()) / sum(by_name.values()))
        occupied.append(100 * level_time / sum(rank.lengths()))
        computing.append(sum(map(length, rank.in_windows(rank.compute))) / len(rank.steps))
    found = {
        "total_kernel_time": mean(totals),
        "dominant_kernel_concentration": mean(concentration),
        "sm": mean(occupied),
    }
    if len(ranks) > 1:
        found["load_imbalance_ratio"] = max(computing) / math.fsum(computing) * len(computing)
    return found


def _copies(ranks: list[Rank]) -> dict[str, float | None]:
    exposed, rates = [], []
    for rank in ranks:
        kernels = [kernel["span"] for kernel in rank.kernels]
        copies = [copy["span"] for copy in rank.copies]
        alone = sum(
            length(clip(copies, window)) - covered_by_both(clip(copies, window), clip(kernels, window))
            for window in rank.windows()
        )
        exposed.append(100 * alone / sum(rank.lengths()))
        moved = [copy for step in rank.by_step(rank.copies) for copy in step if "bytes" in copy["args"]]
        times = sum(copy["span"][1] - copy["span"][0] for copy in moved)
        rates += [sum(int(copy["args"]["bytes"]) for copy in moved) / times] if times else []
    return {"memory_transfer_overhead": mean(exposed), "average_memory_bandwidth": mean(rates)}
