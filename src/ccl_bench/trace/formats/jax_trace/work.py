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
from ccl_bench.trace.hlo.instruction import CONTAINERS, HloInstruction, read_instruction

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ccl_bench.trace.formats.jax_trace.events import JaxEvent

OPS, ASYNC, RUNS, STEPS = "XLA Ops", "Async XLA Ops", "XLA Modules", "Steps"
"""Threads of a TPU: its lines."""

_STREAM = re.compile(r"\AStream #(\d+)")
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
    instruction: HloInstruction | None
    copies: str = ""
    """Which way a copy engine moved data, if one did."""


class Threads:
    """The complete events of a trace by the names of their threads."""

    def __init__(self, events: Sequence[JaxEvent]) -> None:
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

    def of(self, device: JaxDevice) -> dict[str, list[JaxEvent]]:
        """Return the events of a device's process by thread, each by start."""
        by_thread: defaultdict[str, list[JaxEvent]] = defaultdict(list)
        for event in self._events:
            if event.pid == device.pid:
                by_thread[self._names.get((event.pid, event.tid), "")].append(event)
        for events in by_thread.values():
            events.sort(key=lambda event: event.start_ns)
        return by_thread

    def launched_elsewhere(self, device: JaxDevice) -> set[int | None]:
        """Return the launches whose kernels and copies ran on another device of the process."""
        pids = {event.pid for event in self.of_host} | {device.pid}
        return {number(event.args.correlation_id) for event in self._events if event.pid not in pids}


def run_number(event: JaxEvent) -> int | None:
    """Return the number of the run of a program that an event states, modulo 2^62, never below 0."""
    run_id = number(event.args.run_id)
    return None if run_id is None else run_id % (1 << 62)


def device_work(threads: Threads, device: JaxDevice) -> list[Work]:
    """Return the work of a device."""
    if device.kind == "TPU":
        return _of_tpu(threads.of(device))
    return _of_gpu(threads.of(device)) if device.kind == "GPU" else _of_cpu(threads.of_host, device)


def as_columns(work: Sequence[Work]) -> Ran:
    """Return work as the search for steps takes it; 0 is the run of work that states none."""
    numbers: dict[str, int] = {}
    programs = [numbers.setdefault(item.program or item.name, len(numbers)) for item in work]
    columns = programs, *zip(*((item.start_ns, item.end_ns, item.launch or 0) for item in work), strict=True)
    return Ran(*(np.array(column, dtype=np.int64) for column in (columns if work else ((),) * 4)))


def _of_tpu(lines: dict[str, list[JaxEvent]]) -> list[Work]:
    """Return the instructions of a TPU, each with the run of the program around it."""
    runs, work = lines[RUNS], []
    for stream, name in enumerate((OPS, ASYNC)):
        place = 0
        for event in lines[name]:
            while place + 1 < len(runs) and runs[place + 1].start_ns <= event.start_ns:
                place += 1
            is_in_run = bool(runs) and runs[place].start_ns <= event.start_ns < runs[place].end_ns
            launch = run_number(runs[place]) if is_in_run else None
            program = runs[place].name.partition("(")[0] if is_in_run else ""
            text = str(event.args.long_name or "")
            instruction = read_instruction(text)
            copies = ""
            if instruction and instruction.kind == "copy" and instruction.kind != instruction.opcode:
                # `S(5)` in the layout of an array is the memory of the host.
                shapes = text.partition(" = ")[2].split("copy-", 1)[0].split("]{")
                in_host = ["S(5)" in shape for shape in shapes[1:3]]
                copies = (
                    "DtoH" if in_host == [True, False] else "HtoD" if in_host == [False, True] else "DtoD"
                )
            span = event.start_ns, event.end_ns
            work.append(Work(event.name, *span, stream, launch, program, instruction, copies))
    return _joined(_leaves(work), has_whole_ones=bool(lines[ASYNC]))


def _leaves(work: Iterable[Work]) -> list[Work]:
    """Return the work without loops, branches and calls around other instructions."""
    return [item for item in work if not item.instruction or item.instruction.kind not in CONTAINERS]


def _joined(work: Sequence[Work], *, has_whole_ones: bool) -> list[Work]:
    """Return work with each start of an asynchronous instruction and its done as one.

    The nth start of an instruction in a run belongs to the nth done of it; within one nanosecond a start
    comes first. Where the trace has the whole run of them too, the halves are left out.
    """
    joined: list[Work] = []
    begun: defaultdict[tuple[int | None, str], list[int]] = defaultdict(list)
    for item in sorted(
        work, key=lambda item: (item.start_ns, bool(item.instruction and item.instruction.is_done))
    ):
        instruction = item.instruction
        if instruction is None or item.stream or not (instruction.is_start or instruction.is_done):
            joined.append(item)
        elif has_whole_ones:
            continue
        elif instruction.is_start:
            begun[item.launch, instruction.name].append(len(joined))
            joined.append(item._replace(stream=_BESIDE))
        elif places := begun[item.launch, instruction.starts]:
            place = places.pop(0)
            joined[place] = joined[place]._replace(end_ns=item.end_ns)
    return joined


def _of_gpu(lines: dict[str, list[JaxEvent]]) -> list[Work]:
    """Return the kernels and copies of a GPU's streams."""
    work = []
    for name, events in lines.items():
        if not (stream := _STREAM.match(name)):
            continue
        for event in events:
            args = event.args
            copies = ""
            if args.memset_details:
                copies = "memset"
            elif details := str(args.memcpy_details or ""):
                kind = _COPY_KIND.search(details)
                copies = _WAYS.get(kind[1].upper() if kind else "", "other")
            launch, program = number(args.correlation_id), str(args.hlo_module or "")
            span = event.start_ns, event.end_ns
            work.append(
                Work(event.name, *span, int(stream[1]), launch, program, _instruction_of(event), copies)
            )
    return work


_COPY_KIND = re.compile(r"\bkind[_a-z]*+:(\w+)")
_WAYS = {"H2D": "HtoD", "D2H": "DtoH", "D2D": "DtoD", "P2P": "PtoP", "H2H": "HtoH"}


def _of_cpu(events: Iterable[JaxEvent], device: JaxDevice) -> list[Work]:
    """Return the instructions that a CPU device ran on the host's threads."""
    streams: dict[int, int] = {}
    work = []
    for event in events:
        args = event.args
        if args.hlo_op is None or number(args.device_ordinal) != device.ordinal:
            continue
        stream = streams.setdefault(event.tid, len(streams))
        launch, program = run_number(event), str(args.hlo_module or "")
        span = event.start_ns, event.end_ns
        work.append(Work(event.name, *span, stream, launch, program, _instruction_of(event)))
    return _leaves(work)


def _instruction_of(event: JaxEvent) -> HloInstruction | None:
    """Return the instruction of an event that only names it: its name begins with the opcode."""
    if event.args.hlo_op is None:
        return None
    name = str(event.args.hlo_op)
    base = _without_numbers(name)
    return HloInstruction(name, _OPCODES.get(base, base))


def _without_numbers(name: str) -> str:
    """Return an instruction's name without what XLA adds to distinguish it: `dot.3.clone` gives `dot`."""
    parts = name.split(".")
    while len(parts) > 1 and (parts[-1] == "clone" or parts[-1].isdecimal()):
        parts.pop()
    return ".".join(parts)


HOST = "/host:CPU"
_DEVICE = re.compile(r"\A/device:(TPU|GPU):(\d{1,6})\Z")
_STARTED = re.compile(r"\A\[(\d{1,6})\] \w+::Execute\b")
"""Ranges in which a program was started on a device: the number is the device's in its process."""

_EXECUTE = re.compile(r"\A\w+::Execute \(")
"""Ranges in which a program was started on all devices of a process."""

_CPU_DEVICES = 2048
"""JAX numbers the CPU devices of process p from 2048 p."""


@dataclass(frozen=True, slots=True)
class JaxDevice:
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
        """Name of the device in its file, such as `TPU:0`."""
        return f"{self.kind}:{self.ordinal}"


def list_devices(events: Sequence[JaxEvent]) -> list[JaxDevice]:
    """Return the devices, those of the CPU where the trace has no others, in order of their numbers."""
    names = {e.pid: str(e.args.name or "") for e in events if e.ph == "M" and e.name == "process_name"}
    ids: dict[int, int] = {}
    per_process = world = None
    for event in events:
        global_id = number(event.args.global_device_id)
        if global_id is not None and (match := _STARTED.match(event.name)):
            ids[int(match[1])] = global_id
        # The largest program states the devices of one process and of the job.
        partitions, replicas = number(event.args.num_partitions), number(event.args.num_replicas)
        local = number(event.args.num_addressable_devices)
        count = (partitions or 0) * (replicas or 0)
        if local and count > (world or 0) and _EXECUTE.match(event.name):
            per_process, world = local, count
    devices = [
        JaxDevice(match[1], int(match[2]), pid, ids.get(int(match[2])))
        for pid, name in names.items()
        if (match := _DEVICE.match(name))
    ]
    if not devices:
        # CPU devices ran instructions on the host's threads; their numbers are XLA's global ones.
        on_host = {(e.pid, number(e.args.device_ordinal)) for e in events if e.args.hlo_op is not None}
        for pid in (pid for pid, name in names.items() if name == HOST):
            for ordinal in (place for on, place in on_host if on == pid and place is not None):
                process, place = divmod(ordinal, _CPU_DEVICES)
                rank = process * per_process + place if per_process and place < per_process else None
                devices.append(JaxDevice("CPU", ordinal, pid, rank, world))
    return sorted(devices, key=lambda device: (device.kind, device.ordinal))
