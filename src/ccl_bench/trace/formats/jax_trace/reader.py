"""Reader of one device's work in a Chrome trace that JAX wrote for viewers."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.base.errors import InputError, NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.catalog.dtypes import width_bytes
from ccl_bench.schema import TABLES
from ccl_bench.trace import quality
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.device_steps import (
    MARKED,
    Mark,
    Moment,
    ProgramRun,
    find_steps,
    is_of_program,
    numbered_steps,
    runs_as_steps,
    step_findings,
)
from ccl_bench.trace.formats.jax_trace.events import JaxEvent, number, read_events
from ccl_bench.trace.formats.jax_trace.work import (
    RUNS,
    STEPS,
    Threads,
    Work,
    as_columns,
    device_work,
    list_devices,
    run_number,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ccl_bench.trace.device_steps import DeviceStep, DeviceSteps
    from ccl_bench.trace.formats.jax_trace.work import JaxDevice
    from ccl_bench.trace.hlo.instruction import HloInstruction

Row = dict[str, object]
Calls = list[tuple[int, JaxEvent]]
"""The calls that started work, each with the run or the kernel that it started."""

_ENQUEUES = "DoEnqueueProgram"
"""The call that puts a program into a TPU's queue."""

_PYTHON = "$"
"""How the names of Python's own functions begin, which the profiler records by default."""

_MOMENTS = ("ThreadpoolListener::", "end: ")
"""How the names of events begin that mark a moment."""


def read_jax_trace(path: Path, file: str, part: str) -> TraceContent:
    """Return the content of the device named `part`, or of the only one; `file` names it in messages.

    Raises InputError if the file holds no such device, or no events that can be read.
    """
    events, findings = read_events(path, file)
    device = next((candidate for candidate in list_devices(events) if part in {"", candidate.id}), None)
    if device is None:
        raise InputError(f"holds no device {part}".rstrip(), where=file, fix="copy it again")
    threads = Threads(events)
    work = device_work(threads, device)
    calls = _calls(threads, device)
    recorded = [(event.name, event.start_ns, event.end_ns) for event in threads.of(device)[RUNS]]
    runs = [
        ProgramRun(program.partition("(")[0], start, end)
        for program, start, end in recorded or _runs(work, device)
    ]
    steps = _steps(threads, device, work, calls, runs)
    ranges = [
        event
        for event in threads.of_host  # without steps, instructions, launches, moments and Python's functions
        if event.args.step_num is None and event.args.hlo_op is None and event.args.correlation_id is None
        if not event.name.startswith((_PYTHON, *_MOMENTS))
    ]
    tables: dict[str, list[Row]] = {
        "kernels": [],
        "memcpy": [],
        "cpu_ops": [_range(event) for event in ranges],
        "launches": [_range(event) | {"correlation": run} for run, event in calls],
        "annotations": [
            *(_annotation(step, step.label, on_device=steps.source != MARKED) for step in steps.steps),
            *(_annotation(run, run.label(number), on_device=True) for number, run in enumerate(runs)),
            *(_annotation(e, e.name, on_device=False) for e in ranges if is_of_program(e.name)),
        ],
        "collectives": [call for item in work if (call := _collective(item))],
    }
    for item in work:
        row: Row = {
            "start_ns": item.start_ns,
            "end_ns": item.end_ns,
            "device": device.ordinal,
            "stream": item.stream,
            "correlation": item.launch,
        }
        if item.copies:
            size = None
            if item.instruction and item.instruction.operands:
                sent = item.instruction.operands[0]
                with contextlib.suppress(NotMeasurable):  # an element type of unknown width
                    size = round(sent.elements * width_bytes(sent.dtype))
            tables["memcpy"].append(row | {"kind": item.copies, "bytes": size})
        else:
            collective = item.instruction.collective if item.instruction else None
            tables["kernels"].append(row | {"name": item.name, "collective": collective})
    frames = {}
    for name, rows in tables.items():
        columns = {key: [row[key] for row in rows] for key in rows[0]} if rows else {}
        frames[name] = TABLES[name].frame(columns or {"start_ns": []}).sort("start_ns")
    possible, implausible = quality.drop_impossible(frames, file)
    if work:
        message = (
            "JAX's trace for viewers holds no compiled programs: the groups of collectives are unknown, "
            "and so are sizes where it does not hold the text of instructions"
        )
        if device.rank is None:
            message += "; nothing states the rank of its devices, so they count in their order"
        touches = () if device.rank is None else ("collectives",)
        findings.append(Finding("viewer-trace", "note", message, file, touches=touches))
    findings += [*step_findings(steps, file), *implausible]
    return TraceContent(dict(possible), rank=device.rank, findings=findings)


def _span(start_ns: int, end_ns: int, name: str) -> Row:
    return {"start_ns": start_ns, "end_ns": end_ns, "name": name}


def _collective(work: Work) -> Row | None:
    """Return the call of a collective whose text shows its operands; None for other work."""
    instruction = work.instruction
    if instruction is None or instruction.collective is None or not instruction.operands:
        return None
    dtypes = {shape.dtype for shape in instruction.operands}
    received = instruction.operands if instruction.is_start else instruction.results
    return _span(work.start_ns, work.end_ns, work.name) | {
        "source": "kernel",
        "thread": work.stream,
        "correlation": work.launch,
        "dtype": dtypes.pop() if len(dtypes) == 1 else None,
        "in_elements": sum(shape.elements for shape in instruction.operands),
        "out_elements": sum(shape.elements for shape in received),
        "group_size": len(instruction.groups[0]) if instruction.groups else None,
    }


def _range(event: JaxEvent) -> Row:
    return _span(event.start_ns, event.end_ns, event.name) | {"process": event.pid, "thread": event.tid}


def _annotation(span: DeviceStep | ProgramRun | JaxEvent, name: str, *, on_device: bool) -> Row:
    return _span(span.start_ns, span.end_ns, name) | {"on_device": on_device}


def _calls(threads: Threads, device: JaxDevice) -> Calls:
    """Return the calls that started the device's work: by correlation, or by the run of the program."""
    by_run: dict[int, JaxEvent] = {}
    of_kernels = []
    elsewhere = threads.launched_elsewhere(device) if device.kind == "GPU" else set()
    for event in threads.of_host:
        args = event.args
        correlation, run = number(args.correlation_id), run_number(event)
        if device.kind == "GPU" and correlation:
            if correlation not in elsewhere:
                of_kernels.append((correlation, event))
            continue
        is_start = device.kind == "CPU" or (
            event.name == _ENQUEUES and number(args.device_ordinal) == device.ordinal
        )
        if run is None or args.hlo_op is not None or not is_start:
            continue
        if run not in by_run or event.start_ns < by_run[run].start_ns:
            by_run[run] = event
    return [*of_kernels, *by_run.items()]


def _steps(
    threads: Threads, device: JaxDevice, work: Sequence[Work], calls: Calls, runs: Sequence[ProgramRun]
) -> DeviceSteps:
    """Return the steps of a device: as marked, else its own, else the runs of its main program.

    A call on a thread that marks no step does not show which step asked for it.
    """
    marks = [
        Mark(event.name, step, event.start_ns, event.end_ns, event.tid)
        for event in threads.of_host
        if (step := number(event.args.step_num)) is not None
    ]
    marking = {mark.thread for mark in marks}
    dispatches = {run: Moment(call.tid, call.start_ns) for run, call in calls if call.tid in marking}
    if step_events := threads.of(device)[STEPS]:
        names = [event.name.strip() for event in step_events]
        starts_ns, ends_ns = [e.start_ns for e in step_events], [e.end_ns for e in step_events]
        on_device = numbered_steps(names, starts_ns, ends_ns)
    else:
        starts, ends = (np.array([run[side] for run in runs], dtype=np.int64) for side in (1, 2))
        on_device = runs_as_steps([run.program for run in runs], starts, ends)
    return find_steps(marks, dispatches, as_columns(work), on_device)


def _runs(work: Sequence[Work], device: JaxDevice) -> list[tuple[str, int, int]]:
    """Return the runs of programs as the instructions show them, by start.

    CPU devices state the run of each instruction. A GPU's kernels do not: there the instruction that begins
    a run of its program shows where the next one starts. It is the first of those that each run executes
    once: those of loops are run twice as often or more. Of the others most have the same count: a record
    that lacks the name of its program costs no run.
    """
    in_programs = sorted((item for item in work if item.program), key=lambda item: item.start_ns)
    counts: defaultdict[str, Counter[HloInstruction | None]] = defaultdict(Counter)
    for item in in_programs:
        counts[item.program][item.instruction] += 1
    first = {}
    for program, times in counts.items():
        fewest = Counter(count for count in times.values() if count < 2 * min(times.values()))
        usual_count = max(fewest, key=lambda count: (fewest[count], -count))
        first[program] = next(instruction for instruction, count in times.items() if count == usual_count)
    spans: dict[tuple[str, int | None], tuple[int, int]] = {}
    number_of: Counter[str] = Counter()
    for item in in_programs:
        number_of[item.program] += first[item.program] == item.instruction
        key = item.program, item.launch if device.kind == "CPU" else number_of[item.program]
        start, end = spans.get(key, (item.start_ns, item.end_ns))
        spans[key] = min(start, item.start_ns), max(end, item.end_ns)
    return sorted(((program, *span) for (program, _), span in spans.items()), key=lambda run: run[1])
