"""The host in a profile of XLA: its ranges, the calls that started work on a device, and marked steps.

A range may continue what another one began, on another thread: the one names a flow as its producer (`_p`),
the other as its consumer (`_c`). So the call that enqueues a program leads back to the line of Python that
dispatched it.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ccl_bench.trace.device_steps import Mark, Moment
from ccl_bench.trace.formats.xplane.operations import signed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccl_bench.trace.formats.xplane.space import Plane, PlaneLine, Value

_PYTHON = "$"
"""How the names of Python's own functions begin, which the profiler records too."""

_NO_RANGES = ("ThreadpoolListener::", "end: ")
"""How the names of events begin that mark a moment."""

_FARTHEST = 8
"""Flows that are followed from a call to the one that dispatched it."""

_ENQUEUES = "DoEnqueueProgram"
"""The call that puts a program into a TPU's queue."""


class Range(NamedTuple):
    """A range of a thread of the host."""

    name: str
    start_ns: int
    end_ns: int
    thread: int


class HostCall(NamedTuple):
    """A call that started work on a device."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    run: int
    """Run of a program, or correlation with a kernel."""


Flow = tuple[int, int]
"""Kind and id of a flow."""


class HostThreads:
    """The threads of the host, with all that follows from them for each device."""

    def __init__(self, plane: Plane | None, base_ns: int) -> None:
        self.marks: list[Mark] = []
        self.ranges: list[Range] = []
        self.launches: list[HostCall] = []
        """The calls that launched kernels and copies of GPUs, with their correlations."""
        self.executions: dict[int, HostCall] = {}
        """Run of a program on CPU devices → the call that started it."""
        self._enqueued: dict[int, HostCall] = {}
        self._alone: list[HostCall] = []
        self._producers: dict[Flow, tuple[int, int]] = {}
        self._consumers: dict[int, list[tuple[int, int, Flow]]] = {}
        for line in plane.lines if plane else ():
            self._read(line, base_ns)
        self.marks.sort(key=lambda mark: mark.start_ns)
        for consumers in self._consumers.values():
            consumers.sort()

    def _read(self, line: PlaneLine, base_ns: int) -> None:
        """Keep the calls, flows, steps and ranges that the events of a thread show."""
        thread = signed(line.id)
        names, places = line.distinct()
        is_range = np.array(
            [*(not event_name.name.startswith((_PYTHON, *_NO_RANGES)) for event_name, _ in names), False]
        )
        is_kept = is_range[places]
        for key in _STATED:
            is_kept |= line.holds(key)
        rows = np.flatnonzero(is_kept)
        starts, ends = (times[rows].tolist() for times in line.times(base_ns))
        stats_of = [dict[str, int]() for _ in rows]
        for key in _STATED:
            is_stated, numbers = line.holds(key)[rows], line.numbers(key)[rows]
            for row in np.flatnonzero(is_stated).tolist():
                stats_of[row][key] = int(numbers[row])
        for place, start, end, stats in zip(places[rows].tolist(), starts, ends, stats_of, strict=True):
            name = names[place][0].name
            call = HostCall(name, start, end, thread, 0)
            produced, consumed = _flow(stats, "_pt", "_p"), _flow(stats, "_ct", "_c")
            if produced:
                self._producers[produced] = (thread, start)
            if consumed and end > start:
                self._consumers.setdefault(thread, []).append((start, end, consumed))
            if "hlo_op" in stats and "correlation_id" not in stats:
                continue  # work of a CPU device
            if "step_num" in stats:
                self.marks.append(Mark(name, stats["step_num"], start, end, thread))
            elif end > start and is_range[place]:
                self.ranges.append(Range(name, start, end, thread))
                if name.endswith(_ALONE):
                    self._alone.append(call)
            if stats.get("correlation_id", 0) > 0:
                self.launches.append(call._replace(run=stats["correlation_id"]))
            elif name == _ENQUEUES and produced:
                self._enqueued[produced[1]] = call
            elif "run_id" in stats and "device_ordinal" not in stats:
                # A range of a run that names a device is of the runtime's thread that runs it there, maybe
                # long after the program asked for it.
                earlier = self.executions.setdefault(stats["run_id"], call)
                if start < earlier.start_ns:
                    self.executions[stats["run_id"]] = call

    def executions_in_order(self, begins: Sequence[int]) -> list[HostCall]:
        """Return the calls that started the runs of the only device, which begin at these times, in order.

        Such calls do not name the run. None is returned unless there is one before each run and no other.
        """
        calls = sorted(self._alone, key=lambda call: call.start_ns)
        if len(calls) != len(begins):
            return []
        is_before = all(call.start_ns <= begin for call, begin in zip(calls, begins, strict=True))
        return calls if is_before else []

    def enqueued(self, flow: Value | None) -> HostCall | None:
        """Return the call that put a run into a TPU's queue, by the flow between them."""
        return self._enqueued.get(flow) if isinstance(flow, int) else None

    def dispatched(self, call: HostCall) -> Moment:
        """Return the moment at which the program dispatched a call's work: the begin of the flows to it.

        The innermost range around a time shows the flow that it continues, where that is one at all.
        """
        thread, time = call.thread, call.start_ns
        for _ in range(_FARTHEST):
            consumers = self._consumers.get(thread, [])
            place = bisect.bisect_right(consumers, time, key=lambda consumer: consumer[0])
            near = reversed(consumers[max(0, place - _NESTED) : place])
            flow = next((flow for start, end, flow in near if start <= time < end), None)
            if flow is None or flow not in self._producers:
                break
            thread, time = self._producers[flow]
        return Moment(thread, time)


_ALONE = "::ExecuteHelperOnSingleDevice"
"""How the calls are named that start a run where a process has one device."""

_NESTED = 64
"""Ranges before a moment among which the one around it is looked for."""

_STATED = ("step_num", "correlation_id", "run_id", "device_ordinal", "hlo_op", "_pt", "_p", "_ct", "_c")


def _flow(stats: Mapping[str, int], kind: str, number: str) -> Flow | None:
    return (stats[kind], stats[number]) if kind in stats and number in stats else None
