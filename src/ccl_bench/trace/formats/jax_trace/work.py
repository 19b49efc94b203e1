"""Work of a device in a Chrome trace that JAX wrote for viewers.

A TPU's threads are the lines of its profile, a GPU's its streams; what CPU devices ran are events of the
host's threads. Only a TPU's events hold the text of their instructions: elsewhere the name is all there is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ccl_bench.trace.device_steps import Ran
from ccl_bench.trace.formats.jax_trace.events import number
from ccl_bench.trace.hlo.instruction import CONTAINERS, Instruction, read_instruction

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ccl_bench.trace.formats.jax_trace.events import Event

OPS, ASYNC, RUNS, STEPS = "XLA Ops", "Async XLA Ops", "XLA Modules", "Steps"
"""Threads of a TPU: its lines."""

_STREAM = re.compile(r"\AStream #(\d+)")
_NUMBERED = re.compile(r"(?:\.\d+|\.clone)+\Z")
_BESIDE = 1 << 20
"""Stream of what runs beside the instructions of its own stream."""

_OPCODES = {
    "ppermute": "collective-permute",
    "psum": "all-reduce",
    "psum_invariant": "all-reduce",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "all_gather": "all-gather",
    "all_gather_invariant": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "psum_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "ragged_all_to_all": "ragged-all-to-all",
}
"""JAX's own operation, after which XLA may name an instruction → the opcode that it becomes."""


class Work(NamedTuple):
    """Something that the device ran."""

    name: str
    start_ns: int
    end_ns: int
    stream: int
    launch: int | None
    """Run of its program, or launch of the kernel."""
    program: str
    instruction: Instruction | None
    copies: str = ""
    """Which way a copy engine moved data, if one did."""


class Threads:
    """The complete events of a trace by the names of their threads."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._names = {
            (event.pid, event.tid): str(event.args.name or "")
            for event in events
            if event.ph == "M" and event.name == "thread_name"
        }
        hosts = {
            event.pid
            for event in events
            if event.ph == "M" and event.name == "process_name" and event.args.name == HOST
        }
        self._events = [event for event in events if event.ph == "X"]
        self.of_host = [event for event in self._events if event.pid in hosts]
        """Those of the host's threads."""

    def of(self, device: Device) -> dict[str, list[Event]]:
        """Return the events of a device's process by thread, each by start."""
        found: defaultdict[str, list[Event]] = defaultdict(list)
        for event in self._events:
            if event.pid == device.pid:
                found[self._names.get((event.pid, event.tid), "")].append(event)
        return defaultdict(list, {name: sorted(own, key=_start) for name, own in found.items()})

    def launched_elsewhere(self, device: Device) -> set[int | None]:
        """Return the launches whose kernels and copies ran on another device of the process."""
        own = {event.pid for event in self.of_host} | {device.pid}
        return {number(event.args.correlation_id) for event in self._events if event.pid not in own}


def _start(event: Event) -> int:
    return event.start_ns


def run_number(event: Event) -> int | None:
    """Return which run of a program an event is of: as it states it, but never below 0."""
    stated = number(event.args.run_id)
    return None if stated is None else stated % _RUNS


_RUNS = 1 << 62


def device_work(threads: Threads, device: Device) -> list[Work]:
    """Return what a device ran."""
    if device.kind == "TPU":
        return _of_tpu(threads.of(device))
    return _of_gpu(threads.of(device)) if device.kind == "GPU" else _of_cpu(threads.of_host, device)


def as_columns(work: Sequence[Work]) -> Ran:
    """Return work as the search for steps takes it; 0 is the run of what states none."""
    numbers: dict[str, int] = {}
    what = [numbers.setdefault(each.program or each.name, len(numbers)) for each in work]
    columns = what, *zip(*((each.start_ns, each.end_ns, each.launch or 0) for each in work), strict=True)
    return Ran(*(np.array(column, dtype=np.int64) for column in (columns if work else ((),) * 4)))


def _of_tpu(lines: dict[str, list[Event]]) -> list[Work]:
    """Return the instructions of a TPU, each with the run of the program around it."""
    runs, found = lines[RUNS], []
    for stream, name in enumerate((OPS, ASYNC)):
        place = 0
        for event in lines[name]:
            while place + 1 < len(runs) and runs[place + 1].start_ns <= event.start_ns:
                place += 1
            around = runs[place] if runs and runs[place].start_ns <= event.start_ns else None
            run = around if around and event.start_ns < around.end_ns else None
            launch = run_number(run) if run else None
            text = str(event.args.long_name or "")
            own = read_instruction(text)
            copies = _way(text) if own and own.kind == "copy" and own.kind != own.opcode else ""
            program = run.name.partition("(")[0] if run else ""
            span = event.start_ns, event.end_ns
            found.append(Work(event.name, *span, stream, launch, program, own, copies))
    return _joined(_leaves(found), has_whole_ones=bool(lines[ASYNC]))


def _way(text: str) -> str:
    """Return which way a copy goes: `S(5)` in the layout of an array is the memory of the host."""
    shapes = text.partition(" = ")[2].split("copy-", 1)[0].split("]{")
    in_host = ["S(5)" in shape for shape in shapes[1:]]
    if len(in_host) < 2 or in_host[0] == in_host[1]:
        return "DtoD"
    return "DtoH" if in_host[0] else "HtoD"


def _leaves(work: Iterable[Work]) -> list[Work]:
    """Return what is no loop, branch or call around other instructions."""
    return [each for each in work if not each.instruction or each.instruction.kind not in CONTAINERS]


def _joined(work: Sequence[Work], *, has_whole_ones: bool) -> list[Work]:
    """Return work with each start of an asynchronous instruction and its done as one.

    The nth start of an instruction in a run belongs to the nth done of it; within one nanosecond a start
    comes first. Where the trace has the whole run of them too, the halves are left out.
    """
    found: list[Work] = []
    begun: defaultdict[tuple[int | None, str], list[int]] = defaultdict(list)
    for each in sorted(
        work, key=lambda each: (each.start_ns, bool(each.instruction and each.instruction.is_done))
    ):
        own = each.instruction
        is_half = own is not None and (own.is_start or own.is_done) and each.stream == 0
        if own is None or not is_half:
            found.append(each)
        elif has_whole_ones:
            continue
        elif own.is_start:
            begun[each.launch, own.name].append(len(found))
            found.append(each._replace(stream=_BESIDE))
        elif places := begun[each.launch, own.starts]:
            place = places.pop(0)
            found[place] = found[place]._replace(end_ns=each.end_ns)
    return found


def _of_gpu(lines: dict[str, list[Event]]) -> list[Work]:
    """Return the kernels and copies of a GPU's streams."""
    found = []
    for name, events in lines.items():
        if not (stream := _STREAM.match(name)):
            continue
        for event in events:
            args = event.args
            copies = "memset" if args.memset_details else _copy_kind(str(args.memcpy_details or ""))
            launch, program = number(args.correlation_id), str(args.hlo_module or "")
            span = event.start_ns, event.end_ns
            found.append(Work(event.name, *span, int(stream[1]), launch, program, _named(event), copies))
    return found


_COPY_KIND = re.compile(r"kind[_a-z]*:(\w+)")
_WAYS = {"H2D": "HtoD", "D2H": "DtoH", "D2D": "DtoD", "P2P": "PtoP", "H2H": "HtoH"}


def _copy_kind(details: str) -> str:
    """Return which way a copy goes; empty for no copy."""
    if not details:
        return ""
    found = _COPY_KIND.search(details)
    return _WAYS.get(found[1].upper() if found else "", "other")


def _of_cpu(events: Iterable[Event], device: Device) -> list[Work]:
    """Return the instructions that a CPU device ran on the host's threads."""
    streams: dict[int, int] = {}
    found = []
    for event in events:
        args = event.args
        if args.hlo_op is None or number(args.device_ordinal) != device.ordinal:
            continue
        stream = streams.setdefault(event.tid, len(streams))
        launch, program = run_number(event), str(args.hlo_module or "")
        span = event.start_ns, event.end_ns
        found.append(Work(event.name, *span, stream, launch, program, _named(event)))
    return _leaves(found)


def _named(event: Event) -> Instruction | None:
    """Return the instruction of an event that only names it: its name begins with the opcode."""
    if event.args.hlo_op is None:
        return None
    name = str(event.args.hlo_op)
    base = _NUMBERED.sub("", name)
    return Instruction(name, _OPCODES.get(base, base))


HOST = "/host:CPU"
_DEVICE = re.compile(r"\A/device:(TPU|GPU):(\d{1,6})\Z")
_STARTED = re.compile(r"\A\[(\d{1,6})\] \w+::Execute\b")
"""Ranges in which a program was started on a device: the number is the device's in its process."""

_EXECUTE = re.compile(r"\A\w+::Execute \(")
"""Ranges in which a program was started on all devices of a process."""

_CPU_DEVICES = 2048
"""JAX numbers the CPU devices of process p from 2048 p."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device of the trace."""

    kind: str
    """`TPU`, `GPU` or `CPU`."""
    ordinal: int
    """Number in its process."""
    pid: int
    """Process of the trace that holds its events."""
    rank: int | None = None
    world_size: int | None = None

    @property
    def id(self) -> str:
        """What names the device in its file, such as `TPU:0`."""
        return f"{self.kind}:{self.ordinal}"


def list_devices(events: Sequence[Event]) -> list[Device]:
    """Return the devices, those of the CPU where the trace has no others, in order of their numbers."""
    names = {e.pid: str(e.args.name or "") for e in events if e.ph == "M" and e.name == "process_name"}
    ids = _global_ids(events)
    found = [
        Device(match[1], int(match[2]), pid, ids.get(int(match[2])))
        for pid, name in names.items()
        if (match := _DEVICE.match(name))
    ]
    if not found:
        hosts = [pid for pid, name in names.items() if name == HOST]
        found = [device for pid in hosts for device in _cpu_devices(pid, events)]
    return sorted(found, key=lambda device: (device.kind, device.ordinal))


def _cpu_devices(pid: int, events: Sequence[Event]) -> list[Device]:
    """Return the devices that ran instructions on the host's threads; their numbers are XLA's global ones."""
    known = {number(e.args.device_ordinal) for e in events if e.args.hlo_op is not None and e.pid == pid}
    each, world = _sizes(events)
    found = []
    for ordinal in sorted(ordinal for ordinal in known if ordinal is not None):
        process, place = divmod(ordinal, _CPU_DEVICES)
        rank = process * each + place if each and place < each else None
        found.append(Device("CPU", ordinal, pid, rank, world))
    return found


def _global_ids(events: Iterable[Event]) -> dict[int, int]:
    """Return the global id of each device by its number in the process, where a range states both."""
    found = {}
    for event in events:
        known = number(event.args.global_device_id)
        if known is not None and (match := _STARTED.match(event.name)):
            found[int(match[1])] = known
    return found


def _sizes(events: Iterable[Event]) -> tuple[int | None, int | None]:
    """Return the devices of one process and of the job, as the largest program states them."""
    largest: tuple[int | None, int | None] = (None, None)
    for event in events:
        partitions, replicas = number(event.args.num_partitions), number(event.args.num_replicas)
        each = number(event.args.num_addressable_devices)
        if not (partitions and replicas and each and _EXECUTE.match(event.name)):
            continue
        if (partitions * replicas) > (largest[1] or 0):
            largest = each, partitions * replicas
    return largest
