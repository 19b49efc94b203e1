"""Operations of a device: one row for each run of an instruction, and the description of each instruction.

A TPU's plane has them in `XLA Ops`, and those that run beside others in `Async XLA Ops`; a GPU's plane has
the kernels of each stream; of CPU devices they are events of the host's threads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ccl_bench.trace.device_steps import Ran
from ccl_bench.trace.hlo.instruction import CONTAINERS, HloInstruction, Product, read_instruction
from ccl_bench.trace.protobuf import DamagedMessageError, Message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccl_bench.trace.formats.xplane.devices import XlaDevice
    from ccl_bench.trace.formats.xplane.space import Plane, PlaneLine, Value
    from ccl_bench.trace.hlo.program import HloProgram
    from ccl_bench.trace.protobuf import Numbers

MODULES, OPS, ASYNC, STEPS, MARKS = "XLA Modules", "XLA Ops", "Async XLA Ops", "Steps", "XLA TraceMe"
"""Lines of a TPU's plane."""

_BARRIER = "barrier-cores"
"""Events of a TPU during which it waits for the other ones."""

_PROGRAM_ID = re.compile(r"\((\d{1,20})\)\Z")
_STREAM = re.compile(r"\AStream #(\d+)")
_COMPUTATIONS = ("XLA", "Framework", "TensorFlow", "Steps", "Source", "Launch")
_WHOLE = 1 << 64


class OperationKind(NamedTuple):
    """What is run: an instruction of a program, or a kernel of none."""

    name: str
    program: int | None
    instruction: HloInstruction | None
    category: str = ""
    flops: float | None = None
    """Operations of one run as the compiler counts them."""
    model_flops: float | None = None
    """Operations of these that the model itself needs."""
    bytes_accessed: float | None = None
    """Bytes that one run reads and writes, as the compiler counts them."""
    memory_bytes: float | None = None
    """Bytes of these that are in the device's main memory."""
    details: str = ""
    """What a GPU's profiler states of a kernel or copy; of a TPU's copy the text of the instruction."""
    is_copy: bool = False
    """Whether a copy engine works."""
    is_main: bool = True
    """Whether this stands for its instruction, of several kernels that carry one out."""

    @property
    def collective(self) -> str | None:
        """The canonical collective, or None for work that does not communicate."""
        if self.category == _BARRIER:
            return "barrier"
        return self.instruction.collective if self.instruction and self.is_main else None

    @property
    def products(self) -> tuple[Product, ...]:
        """The matrix products that one run computes."""
        return self.instruction.products if self.instruction and self.is_main else ()


@dataclass(slots=True)
class Operations:
    """What a device ran, in columns; one entry each time."""

    kinds: list[OperationKind] = field(default_factory=list)
    kind: Numbers = field(default_factory=lambda: _none())
    """Place in `kinds`."""
    start_ns: Numbers = field(default_factory=lambda: _none())
    end_ns: Numbers = field(default_factory=lambda: _none())
    stream: Numbers = field(default_factory=lambda: _none())
    run: Numbers = field(default_factory=lambda: _none())
    """Run of the program, or launch of the kernel; 0 if unknown."""

    def ran(self) -> Ran:
        """Return the work as the search for steps takes it."""
        numbers: dict[object, int] = {}
        of_kind = [numbers.setdefault(kind.program or kind.name, len(numbers)) for kind in self.kinds]
        programs = np.array([*of_kind, -1], dtype=np.int64)[self.kind]
        return Ran(programs, self.start_ns, self.end_ns, self.run)

    def take(self, rows: Numbers) -> Operations:
        """Return some of the rows."""
        columns = (self.kind, self.start_ns, self.end_ns, self.stream, self.run)
        return Operations(self.kinds, *(column[rows] for column in columns))


def _none() -> Numbers:
    return np.zeros(0, dtype=np.int64)


class _Collected:
    """Rows as they are found, and the kinds so far."""

    def __init__(self) -> None:
        self._kinds: dict[OperationKind, int] = {}
        self._parts: list[tuple[Numbers, ...]] = []

    def add(
        self,
        kinds: Sequence[OperationKind],
        places: Numbers,
        spans: tuple[Numbers, Numbers],
        stream: int,
        run: Numbers,
    ) -> None:
        """Add rows of one stream: `kinds` are the different ones, `places` says which each row is."""
        kind_numbers = [self._kinds.setdefault(kind, len(self._kinds)) for kind in kinds]
        numbers = np.array([*kind_numbers, -1], dtype=np.int64)[places]
        self._parts.append((numbers, *spans, np.full(numbers.size, stream, dtype=np.int64), run))

    def all(self) -> Operations:
        """Return all rows, by start."""
        kinds = [*self._kinds]
        if not self._parts:
            return Operations(kinds)
        columns = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
        operations = Operations(kinds, *columns)
        return operations.take(np.lexsort((-operations.end_ns, operations.start_ns)))


def signed(number: int) -> int:
    """Return a number of 64 bits as a signed one."""
    return (number + (_WHOLE >> 1)) % _WHOLE - (_WHOLE >> 1)


class Runs(NamedTuple):
    """The runs of programs on a device, by start."""

    program: list[str]
    start_ns: Numbers
    end_ns: Numbers
    run: Numbers
    flow: list[Value | None]
    """What links a run to the call that enqueued it."""

    def around(self, times: Numbers) -> Numbers:
        """Return the run during which each time lies; 0 for none."""
        if not self.start_ns.size:
            return np.zeros(times.size, dtype=np.int64)
        place = np.searchsorted(self.start_ns, times, side="right") - 1
        is_inside = (place >= 0) & (times < self.end_ns[place])
        return np.where(is_inside, self.run[place], 0)

    def program_id(self, run: int) -> int | None:
        """Return the id of the program of a run, which stands in its name; None for no run."""
        match = _PROGRAM_ID.search(self.program[run - 1]) if run else None
        return int(match[1]) % _WHOLE if match else None


def tpu_runs(plane: Plane, base_ns: int) -> Runs:
    """Return the runs of programs on a TPU; they are numbered from 1 in order of time."""
    for line in plane.lines:
        if line.name == MODULES:
            starts, ends = line.times(base_ns)
            order = np.argsort(starts, kind="stable")
            names, flows = line.names(), line.stat_values("_c")
            return Runs(
                [names[place].name for place in order.tolist()],
                starts[order],
                ends[order],
                np.arange(1, order.size + 1),
                [flows[place] for place in order.tolist()],
            )
    return Runs([], _none(), _none(), _none(), [])


def tpu_instructions(plane: Plane, programs: Mapping[int, HloProgram], base_ns: int) -> Operations:
    """Return the instructions of a TPU's core as recorded, halves of asynchronous ones apart."""
    collected = _Collected()
    for line in plane.lines:
        if line.name == OPS:
            no_runs = np.zeros(line.count, dtype=np.int64)
            collected.add(*_tpu_kinds(line, programs), _device_times(line, base_ns), 0, no_runs)
    return _leaves(collected.all())


def _device_times(line: PlaneLine, base_ns: int) -> tuple[Numbers, Numbers]:
    """Return start and end of each event, ns; as long as the device's own clock says where it is stated."""
    starts, ends = line.times(base_ns)
    lengths = line.numbers("device_duration_ps")
    exact = (line.offset_ps % 1000 + lengths) // 1000
    return starts, np.where(lengths > 0, starts + exact, ends)


def tpu_operations(plane: Plane, runs: Runs, programs: Mapping[int, HloProgram], base_ns: int) -> Operations:
    """Return the work of a TPU: its instructions, those that run beside others, and waits for other TPUs."""
    collected = _Collected()
    lines = {line.name: line for line in plane.lines}
    async_kinds = _tpu_kinds(lines[ASYNC], programs)[0] if ASYNC in lines else []
    whole_ones = {(kind.program, kind.instruction.name) for kind in async_kinds if kind.instruction}
    for stream, name in enumerate((OPS, ASYNC)):
        if name not in lines:
            continue
        kinds, places = _tpu_kinds(lines[name], programs)
        starts_ns, ends_ns = _device_times(lines[name], base_ns)
        is_kept = [True] * (len(kinds) + 1)
        if name == OPS:  # without the halves of those whose whole run is on the other line
            for place, kind in enumerate(kinds):
                if kind.instruction:
                    halves = {(kind.program, kind.instruction.name), (kind.program, kind.instruction.starts)}
                    is_kept[place] = not halves & whole_ones
        rows = np.flatnonzero(np.array(is_kept)[places])
        spans = starts_ns[rows], ends_ns[rows]
        collected.add(kinds, places[rows], spans, stream, runs.around(spans[0]))
    if MARKS in lines:  # waits for other TPUs, each of the program in whose run it is
        names, places = lines[MARKS].distinct()
        is_barrier = np.array([*(event_name.name == _BARRIER for event_name, _ in names), False])
        rows = np.flatnonzero(is_barrier[places])
        starts_ns, ends_ns = lines[MARKS].times(base_ns)
        run_numbers = runs.around(starts_ns[rows])
        around, numbers = np.unique(run_numbers, return_inverse=True)
        barriers = [OperationKind(_BARRIER, runs.program_id(run), None, _BARRIER) for run in around.tolist()]
        collected.add(barriers, numbers, (starts_ns[rows], ends_ns[rows]), 2, run_numbers)
    return _leaves(_joined_halves(collected.all()))


def _tpu_kinds(line: PlaneLine, programs: Mapping[int, HloProgram]) -> tuple[list[OperationKind], Numbers]:
    """Return the kinds of work of a line's events, and for each event the place of its kind."""
    names, places = line.distinct()
    kinds = []
    for event_name, _ in names:
        stats = event_name.stats
        program = _number(stats.get("program_id"))
        program = None if program is None else program % _WHOLE
        text = read_instruction(event_name.name)
        name = (
            text.name if text else event_name.display_name or event_name.name.partition(" = ")[0].lstrip("%")
        )
        hlo_program = programs.get(program) if program is not None else None
        is_copy = text is not None and text.kind == "copy"
        kind = OperationKind(
            name,
            program,
            (hlo_program.instructions.get(name) if hlo_program else None) or text,
            str(stats.get("hlo_category", "")),
            _number(stats.get("flops")),
            _number(stats.get("model_flops")),
            _number(stats.get("bytes_accessed")),
            _memory_bytes(stats.get("memory_access_breakdown")),
            event_name.name if is_copy else "",
            is_copy=text is not None and is_copy and (text.is_start or text.is_done),
        )
        kinds.append(kind)
    return kinds, places


_ACCESSES, _SPACE, _SIZE = 1, 2, 3
"""Numbers of the fields of a `memory_access_breakdown`: accesses, and of one of them its memory and bytes."""

_MAIN_MEMORY = 1


def _memory_bytes(breakdown: Value | None) -> int | None:
    """Return the bytes of a breakdown by memory that are in the main memory; None without one."""
    if not isinstance(breakdown, bytes):
        return None
    try:
        accesses = Message(breakdown).messages(_ACCESSES)
    except DamagedMessageError:
        return None
    return sum(access.number(_SIZE) for access in accesses if access.number(_SPACE) == _MAIN_MEMORY)


def _number(value: Value | None) -> int | None:
    if isinstance(value, str) and value.lstrip("-").isdecimal():
        return int(value)
    return int(value) if isinstance(value, int | float) else None


def gpu_operations(plane: Plane, programs: Mapping[int, HloProgram], base_ns: int) -> Operations:
    """Return the work of a GPU; the run of each is the correlation of its launch.

    Several kernels may carry out one instruction: the one that takes most time over all runs is its main one.
    """
    collected = _Collected()
    for line in plane.lines:
        if line.name.startswith(_COMPUTATIONS):
            continue
        match = _STREAM.match(line.name)
        stream = int(match[1]) if match else signed(line.id)
        names, places = line.distinct(
            "program_id", "hlo_op", "kernel_details", "memcpy_details", "memset_details"
        )
        kinds = []
        for event_name, (program, op, kernel, copy, reset) in names:
            kind = _host_kind(program, op, programs, "memset" if reset else event_name.name)
            details = str(copy or reset or kernel or "")
            kinds.append(kind._replace(details=details, is_copy=bool(copy or reset)))
        collected.add(kinds, places, line.times(base_ns), stream, line.numbers("correlation_id"))
    work = collected.all()
    lengths = np.bincount(work.kind, weights=work.end_ns - work.start_ns, minlength=len(work.kinds))
    main: dict[tuple[int | None, str], int] = {}
    for place, kind in enumerate(work.kinds):
        if kind.instruction is not None:
            key = (kind.program, kind.instruction.name)
            if lengths[place] > lengths[main.setdefault(key, place)]:
                main[key] = place
    main_places = {*main.values()}
    kinds = [
        kind._replace(is_main=kind.instruction is None or place in main_places)
        for place, kind in enumerate(work.kinds)
    ]
    return replace(work, kinds=kinds)


def _host_kind(
    program: Value | None, op: Value | None, programs: Mapping[int, HloProgram], name: str
) -> OperationKind:
    """Return the kind of an event that names its instruction."""
    number = program % _WHOLE if isinstance(program, int) else None
    hlo_program = programs.get(number) if number is not None else None
    instruction = hlo_program.instructions.get(op) if hlo_program and isinstance(op, str) else None
    return OperationKind(name, number, instruction, instruction.kind if instruction else "")


def cpu_operations(
    plane: Plane, device: XlaDevice, programs: Mapping[int, HloProgram], base_ns: int
) -> Operations:
    """Return the work of a CPU device on the host's threads, as few streams as it takes.

    The instructions of one program move from thread to thread; those that do not overlap follow each other.
    """
    collected = _Collected()
    for thread, line in enumerate(plane.lines):
        of_device = line.holds("hlo_op") & (line.numbers("device_ordinal") == device.ordinal)
        rows = np.flatnonzero(of_device & line.holds("device_ordinal"))
        if not rows.size:
            continue
        names, places = line.distinct("program_id", "hlo_op")
        kinds = [_host_kind(program, op, programs, str(op)) for _, (program, op) in names]
        starts_ns, ends_ns = line.times(base_ns)
        spans = starts_ns[rows], ends_ns[rows]
        collected.add(kinds, places[rows], spans, thread, line.numbers("run_id")[rows])
    work = _leaves(_joined_halves(collected.all()))
    free_at: list[int] = []
    streams = np.zeros(work.kind.size, dtype=np.int64)
    for row, (start, end) in enumerate(zip(work.start_ns.tolist(), work.end_ns.tolist(), strict=True)):
        stream = next((place for place, free in enumerate(free_at) if free <= start), len(free_at))
        free_at[stream : stream + 1] = [end]
        streams[row] = stream
    return replace(work, stream=streams)


def _joined_halves(work: Operations) -> Operations:
    """Return the operations with each start and its done as one, from the start's begin to the done's end.

    The nth start of an instruction in a run belongs to the nth done of it. What the device itself does in
    the halves is no work of its own. A half without the other stays what it is.
    """
    begins = np.array([*(bool(kind.instruction and kind.instruction.is_start) for kind in work.kinds), False])
    ends = np.array([*(bool(kind.instruction and kind.instruction.is_done) for kind in work.kinds), False])
    rows = np.flatnonzero((begins | ends)[work.kind])
    if not rows.size:
        return work
    # Within one nanosecond a start comes first: its done waits for it.
    rows = rows[np.lexsort((ends[work.kind[rows]], work.start_ns[rows]))]
    open_starts: dict[tuple[int | None, str, int], list[int]] = {}
    end_ns, is_dropped = work.end_ns.copy(), np.zeros(work.kind.size, dtype=bool)
    stream = work.stream.copy()
    for row in rows.tolist():
        kind = work.kinds[work.kind[row]]
        instruction = kind.instruction
        if instruction is None:
            continue
        key = (
            kind.program,
            instruction.name if instruction.is_start else instruction.starts,
            int(work.run[row]),
        )
        if instruction.is_start:
            open_starts.setdefault(key, []).append(row)
        elif open_starts.get(key):
            first = open_starts[key].pop(0)
            end_ns[first], is_dropped[row] = max(end_ns[row], end_ns[first]), True
            stream[first] = _BESIDE
    joined = replace(work, end_ns=end_ns, stream=stream)
    return joined.take(np.flatnonzero(~is_dropped))


_BESIDE = 1 << 20
"""Stream of what runs beside the instructions of its own stream."""


def _leaves(work: Operations) -> Operations:
    """Return the operations without those that only hold others: loops, branches and calls."""
    holders = [kind.instruction is not None and kind.instruction.kind in CONTAINERS for kind in work.kinds]
    rows = np.flatnonzero(np.array([*holders, False])[work.kind]) if any(holders) else _none()
    keep = np.ones(work.kind.size, dtype=bool)
    after = np.searchsorted(work.start_ns, work.end_ns[rows])
    for row, last in zip(rows.tolist(), after.tolist(), strict=True):
        inside = slice(row + 1, last)
        is_inside = work.end_ns[inside] <= work.end_ns[row]
        instruction = work.kinds[work.kind[row]].instruction
        if instruction is not None and instruction.kind == "call":  # its instructions run on its own thread
            is_inside &= work.stream[inside] == work.stream[row]
        keep[row] = not is_inside.any()
    return work.take(np.flatnonzero(keep)) if rows.size else work
