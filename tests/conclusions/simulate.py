"""A simulator of training jobs in whole nanoseconds: hosts that launch, streams that run, ranks that meet.

Each rank has one host, which performs the actions of its program one after the other, and streams, which run
work in the order of its launches. A collective moves data when its last member has started. The simulator
shares no code with ccl-bench: it is what its conclusions are checked against.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

QUEUE = 1_024
"""Launches that a stream of CUDA holds; another one blocks its host until the oldest has run."""

DEVICE_GAP_NS = 1_000
"""Least time between two pieces of work on a stream, ns."""

LATENCY_NS = 4_000
"""Least time from the start of a launch to that of its work, ns."""

WAKE_NS = 3_000
"""Time from the end of awaited work to the return of the call that waits, ns."""


class Call(NamedTuple):
    """One member's part of a collective or message."""

    collective: str
    """As PyTorch records it, such as `allreduce`."""
    ranks: tuple[int, ...]
    """Members of the process group."""
    description: str
    """Description of the group, such as `mesh_tp`."""
    number: int
    """Number of the call in its group; of a message, in its direction."""
    elements: int
    peer: int | None = None
    """The rank at the other end of a message."""


class Work(NamedTuple):
    """What one launch gives a stream to do."""

    name: str
    stream: int
    ns: int
    """Time that it takes; of a collective, since its last member started."""
    category: str = "kernel"
    call: Call | None = None
    bytes: int = 0


class Busy(NamedTuple):
    """The host computes."""

    ns: int
    tag: str = ""
    """What a cause knows this action by."""


class Open(NamedTuple):
    """A range or operator begins."""

    name: str
    category: str = "cpu_op"
    call: Call | None = None
    """The communication that its arguments describe."""
    tag: str = ""


class Close(NamedTuple):
    """The innermost range of this thread ends."""

    tag: str = ""


class Thread(NamedTuple):
    """The next actions are performed by another thread; the host's threads take turns."""

    number: int


class Launch(NamedTuple):
    """The host gives a stream work."""

    work: Work
    ns: int
    function: str
    """The call of the runtime; empty if the work is not launched through one."""
    blocks: bool = False
    """Whether the call returns when the work is done, as a copy to pageable memory."""
    loads_ns: int = 0
    """Time in the call before it launches, as in loading the module of the kernel, ns."""
    tag: str = ""


class Record(NamedTuple):
    """The host records an event on a stream."""

    stream: int
    event: str
    ns: int
    function: str


class Wait(NamedTuple):
    """The next work of a stream waits for an event."""

    stream: int
    event: str
    ns: int
    function: str


class Synchronise(NamedTuple):
    """The host waits until a stream, or all of them, have run all work."""

    ns: int
    function: str
    stream: int | None = None
    waits: bool = True
    """Whether it waits at all; a re-simulation may leave the call and take its wait away."""
    tag: str = ""


class Mark(NamedTuple):
    """The host passes a place that the caller wants the time of."""

    name: str


Action = Busy | Open | Close | Thread | Launch | Record | Wait | Synchronise | Mark


@dataclass(slots=True)
class Task:
    """A piece of work on a stream."""

    work: Work
    correlation: int
    launched_ns: int
    """When the call launched it: not before the queue had room and its module was loaded, ns."""
    after: list[Task]
    """Work of other streams that it waits for."""
    place: str
    """The last mark before its launch."""
    thread: int
    operator: int
    """Number of the operator around its launch, 0 without one."""
    start_ns: int = -1
    end_ns: int = -1


class HostEvent(NamedTuple):
    """A range, an operator or a call of the runtime."""

    category: str
    name: str
    thread: int
    start_ns: int
    end_ns: int
    number: int
    """Number of an operator or range; of a call that of the operator around it."""
    correlation: int
    """Number of a call of the runtime, else 0."""
    call: Call | None = None


@dataclass
class RankRecord:
    """All that happened on one rank."""

    host: list[HostEvent] = field(default_factory=list)
    device: list[Task] = field(default_factory=list)
    marks: dict[str, int] = field(default_factory=dict)
    """Mark → when the host passed it, ns."""


def simulate(programs: Sequence[Sequence[Action]], queue: int = QUEUE) -> list[RankRecord]:
    """Return what happens if each rank performs its program; raises RuntimeError if ranks wait for ever."""
    meetings: dict[tuple[object, ...], _Meeting] = {}
    ranks = [_Rank(rank, program, queue, meetings) for rank, program in enumerate(programs)]
    running = {rank.number: rank.perform() for rank in ranks}
    while running:
        moved = False
        for number, host in list(running.items()):
            before = ranks[number].performed
            if next(host, None) is None:
                del running[number]
            moved |= number not in running or ranks[number].performed > before
        while any(rank.run_streams() for rank in ranks):
            moved = True
        if not moved:
            raise RuntimeError(f"the ranks {sorted(running)} wait for ever")
    if any(task.end_ns < 0 for rank in ranks for task in rank.record.device):
        raise RuntimeError("a collective lacks a member")
    return [rank.record for rank in ranks]


@dataclass(slots=True)
class _Meeting:
    members: int
    arrived: list[Task] = field(default_factory=list)


class _Rank:
    """The host and the streams of one rank."""

    def __init__(
        self,
        number: int,
        program: Sequence[Action],
        queue: int,
        meetings: dict[tuple[object, ...], _Meeting],
    ) -> None:
        self.number, self.program, self.queue, self.meetings = number, program, queue, meetings
        self.record = RankRecord()
        self.now, self.performed, self.thread, self.place = 0, 0, 0, ""
        self.numbers = self.correlation = 0
        self.open: dict[int, list[tuple[Open, int, int]]] = {0: []}
        self.streams: dict[int, list[Task]] = {}
        self.done: dict[int, int] = {}
        self.events: dict[str, Task | None] = {}
        self.awaited: dict[int, list[Task]] = {}

    def perform(self) -> Iterator[bool]:
        """Perform the program; yield whenever the host must wait for work whose end is unknown."""
        for action in self.program:
            self.performed += 1
            match action:
                case Busy():
                    self.now += action.ns
                case Open():
                    self.numbers += 1
                    self.open[self.thread].append((action, self.now, self.numbers))
                case Close():
                    opened, start, number = self.open[self.thread].pop()
                    self._note(opened.category, opened.name, start, number, call=opened.call)
                case Thread():
                    self.thread = action.number
                    self.open.setdefault(action.number, [])
                case Mark():
                    self.place = action.name
                    self.record.marks[action.name] = self.now
                case Launch():
                    yield from self._launch(action)
                case Record():
                    stream = self.streams.get(action.stream)
                    self.events[action.event] = stream[-1] if stream else None
                    self._call(action.function, action.ns)
                case Wait():
                    event = self.events[action.event]
                    if event is not None:
                        self.awaited.setdefault(action.stream, []).append(event)
                    self._call(action.function, action.ns)
                case Synchronise():
                    yield from self._synchronise(action)

    def _note(
        self,
        category: str,
        name: str,
        start: int,
        number: int,
        *,
        correlation: int = 0,
        call: Call | None = None,
    ) -> None:
        self.record.host.append(
            HostEvent(category, name, self.thread, start, self.now, number, correlation, call)
        )

    def _operator(self) -> int:
        """Return the number of the innermost operator of this thread."""
        opened = self.open[self.thread]
        return next((number for each, _, number in reversed(opened) if each.category == "cpu_op"), 0)

    def _call(self, function: str, ns: int) -> None:
        start, self.now = self.now, self.now + ns
        if function:
            self.correlation += 1
            category = "cuda_driver" if function[2:3].isupper() else "cuda_runtime"
            self._note(category, function, start, self._operator(), correlation=self.correlation)

    def _launch(self, action: Launch) -> Iterator[bool]:
        stream = self.streams.setdefault(action.work.stream, [])
        begin = self.now
        self.correlation += 1
        correlation = self.correlation
        if len(stream) >= self.queue:
            yield from self._until(stream[-self.queue])
            self.now = max(self.now, stream[-self.queue].end_ns)
        self.now += action.loads_ns
        after = self.awaited.pop(action.work.stream, [])
        operator = self._operator()
        task = Task(action.work, correlation, self.now, after, self.place, self.thread, operator)
        stream.append(task)
        self.record.device.append(task)
        self.now += action.ns
        if action.blocks:
            yield from self._until(task)
            self.now = max(self.now, task.end_ns + WAKE_NS)
        if action.function:
            self._note("cuda_runtime", action.function, begin, operator, correlation=correlation)

    def _synchronise(self, action: Synchronise) -> Iterator[bool]:
        start = self.now
        self.now += action.ns
        chosen = self.streams if action.stream is None else {action.stream}
        for stream in chosen:
            if action.waits and self.streams.get(stream):
                last = self.streams[stream][-1]
                yield from self._until(last)
                self.now = max(self.now, last.end_ns + WAKE_NS)
        if action.function:
            self.correlation += 1
            self._note("cuda_runtime", action.function, start, self._operator(), correlation=self.correlation)

    def _until(self, task: Task) -> Iterator[bool]:
        while task.end_ns < 0:
            yield True

    def run_streams(self) -> bool:
        """Run the work whose causes are known; return whether there was any."""
        moved = False
        for number, stream in self.streams.items():
            place = self.done.get(number, 0)
            while place < len(stream) and self._run(stream, place):
                moved = moved or stream[place].end_ns >= 0
                if stream[place].end_ns < 0:
                    break
                place += 1
            self.done[number] = place
        return moved

    def _run(self, stream: list[Task], place: int) -> bool:
        """Start a task, if its causes have ended, and end it if its peers have started."""
        task = stream[place]
        if task.start_ns >= 0:
            return task.end_ns >= 0
        if any(each.end_ns < 0 for each in task.after):
            return False
        earliest = [each.end_ns for each in task.after]
        if place:
            earliest.append(stream[place - 1].end_ns + DEVICE_GAP_NS)
        task.start_ns = max(task.launched_ns + LATENCY_NS, *earliest, 0)
        call = task.work.call
        if call is None:
            task.end_ns = task.start_ns + task.work.ns
            return True
        self._meet(task, call)
        return True

    def _meet(self, task: Task, call: Call) -> None:
        """Let a call arrive; the last member ends it for all."""
        if call.peer is None:
            key: tuple[object, ...] = (call.description, call.ranks, call.number)
            members = len(call.ranks)
        else:
            ends = (self.number, call.peer) if call.collective == "send" else (call.peer, self.number)
            key, members = (call.description, ends, call.number), 2
        meeting = self.meetings.setdefault(key, _Meeting(members))
        meeting.arrived.append(task)
        if len(meeting.arrived) == meeting.members:
            end = max(each.start_ns for each in meeting.arrived) + max(
                each.work.ns for each in meeting.arrived
            )
            for each in meeting.arrived:
                each.end_ns = end
