"""Read what one device did from a trace that JAX wrote for viewers."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from ccl_bench.base.errors import InputError, NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.catalog.dtypes import width_bytes
from ccl_bench.schema import TABLES
from ccl_bench.trace import quality
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.formats.jax_trace.devices import list_devices
from ccl_bench.trace.formats.jax_trace.events import number, read_events
from ccl_bench.trace.formats.jax_trace.work import RUNS, STEPS, Threads, Work, device_work, run_number

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ccl_bench.trace.formats.jax_trace.devices import Device
    from ccl_bench.trace.formats.jax_trace.events import Event
    from ccl_bench.trace.hlo.instruction import Instruction

Row = dict[str, object]

_ENQUEUES = "DoEnqueueProgram"
"""The call that puts a program into a TPU's queue."""

_PYTHON = "$"
"""How the names of Python's own functions begin, which the profiler records by default."""

_MOMENTS = ("ThreadpoolListener::", "end: ")
"""How the names of events begin that mark a moment."""

_FEWEST = 2
"""Runs of a program that show that it is run step by step."""

_MAIN_SHARE = 0.5
"""Least share of the device's time that the program must take whose runs are the steps."""


def read_jax_trace(path: Path, file: str, part: str) -> TraceContent:
    """Return what the device named `part` did, or the only one; `file` names the trace in messages."""
    events, findings = read_events(path, file)
    device = next((each for each in list_devices(events) if part in {"", each.id}), None)
    if device is None:
        raise InputError(f"holds no device {part}".rstrip(), where=file, fix="copy it again")
    threads = Threads(events)
    work = device_work(threads, device)
    marks = [_mark(event) for event in threads.of_host if number(event.args.step_num) is not None]
    launches = _launches(threads.of_host, device)
    if not marks and (shown := _steps(threads.of(device), work)):
        marks, launches = shown, []  # such steps are times of the device, not of the host that launches
    tables = {
        "kernels": [_kernel(each, device) for each in work if not each.copies],
        "memcpy": [_copy(each, device) for each in work if each.copies],
        "cpu_ops": [_range(event) for event in threads.of_host if _is_range(event)],
        "launches": launches,
        "annotations": marks,
        "collectives": [row for each in work if (row := _collective(each))],
    }
    framed = {name: TABLES[name].frame(_columns(rows)).sort("start_ns") for name, rows in tables.items()}
    possible, implausible = quality.drop_impossible(framed, file)
    findings = [*findings, *([_limits(file)] if work else []), *implausible]
    return TraceContent(dict(possible), rank=device.rank, findings=findings)


def _columns(rows: Sequence[Row]) -> dict[str, list[object]]:
    return {key: [row[key] for row in rows] for key in rows[0]} if rows else {"start_ns": []}


def _limits(file: str) -> Finding:
    message = (
        "JAX's trace for viewers holds no compiled programs: the groups of collectives are unknown, "
        "and so are sizes where it does not hold the text of instructions"
    )
    return Finding("viewer-trace", "note", message, file, touches=("collectives",))


def _span(start_ns: int, end_ns: int, name: str) -> Row:
    return {"start_ns": start_ns, "end_ns": end_ns, "name": name}


def _kernel(work: Work, device: Device) -> Row:
    collective = work.instruction.collective if work.instruction else None
    return _span(work.start_ns, work.end_ns, work.name) | {
        "device": device.ordinal,
        "stream": work.stream,
        "correlation": work.launch,
        "collective": collective,
    }


def _copy(work: Work, device: Device) -> Row:
    return {
        "start_ns": work.start_ns,
        "end_ns": work.end_ns,
        "kind": work.copies,
        "device": device.ordinal,
        "stream": work.stream,
        "correlation": work.launch,
        "bytes": _bytes(work),
    }


def _bytes(work: Work) -> int | None:
    """Return the bytes that a copy moves, where the text of its instruction shows them."""
    sent = work.instruction.operands if work.instruction else ()
    try:
        return round(sum(shape.elements * width_bytes(shape.dtype) for shape in sent[:1])) if sent else None
    except NotMeasurable:
        return None


def _collective(work: Work) -> Row | None:
    """Return the call of a collective whose text shows what it sends; else nothing."""
    own = work.instruction
    if own is None or own.collective is None or not own.operands:
        return None
    dtypes = {shape.dtype for shape in own.operands}
    received = own.operands if own.is_start else own.results
    size = len(own.groups[0]) if own.groups else None
    return _span(work.start_ns, work.end_ns, work.name) | {
        "source": "kernel",
        "thread": work.stream,
        "correlation": work.launch,
        "dtype": dtypes.pop() if len(dtypes) == 1 else None,
        "in_elements": sum(shape.elements for shape in own.operands),
        "out_elements": sum(shape.elements for shape in received),
        "group_size": size,
    }


def _range(event: Event) -> Row:
    return _span(event.start_ns, event.end_ns, event.name) | {"process": event.pid, "thread": event.tid}


def _mark(event: Event) -> Row:
    name = f"{event.name}#step_num={number(event.args.step_num)}#"
    return _range(event) | {"name": name, "on_device": False}


def _is_range(event: Event) -> bool:
    """Whether an event is a range: no step, instruction, launch, moment or function of Python."""
    args = event.args
    is_other = args.step_num is not None or args.hlo_op is not None or args.correlation_id is not None
    return not is_other and not event.name.startswith((_PYTHON, *_MOMENTS))


def _launches(events: Sequence[Event], device: Device) -> list[Row]:
    """Return the calls that started what the device ran: by correlation, or by the run of the program."""
    found: dict[int, Event] = {}
    rows = []
    for event in events:
        args = event.args
        correlation, run = number(args.correlation_id), run_number(event)
        if device.kind == "GPU" and correlation:
            rows.append(_range(event) | {"correlation": correlation})
        elif run is None or args.hlo_op is not None or not _starts(event, device):
            continue
        elif run not in found or event.start_ns < found[run].start_ns:
            found[run] = event
    return [*rows, *(_range(event) | {"correlation": run} for run, event in found.items())]


def _starts(event: Event, device: Device) -> bool:
    if device.kind == "CPU":
        return True
    return event.name == _ENQUEUES and number(event.args.device_ordinal) == device.ordinal


def _steps(lines: dict[str, list[Event]], work: Sequence[Work]) -> list[Row]:
    """Return the steps that a device shows: its own, else the runs of the program that takes most time.

    Each lasts until the next one.
    """
    if lines[STEPS]:
        return [
            _on_device(event.start_ns, event.end_ns, event.name, place)
            for place, event in enumerate(lines[STEPS])
        ]
    spans = [(event.name.partition("(")[0], event.start_ns, event.end_ns) for event in lines[RUNS]]
    spans = spans or _runs(work)
    totals: defaultdict[str, int] = defaultdict(int)
    for program, start, end in spans:
        totals[program] += end - start
    main = max(totals, key=lambda program: totals[program], default="")
    own = [(start, end) for program, start, end in spans if program == main]
    if len(own) < _FEWEST or totals[main] < _MAIN_SHARE * sum(totals.values()):
        return []
    begins = [start for start, _ in own]
    ends = [*begins[1:], max(end for _, end in own)]
    return [
        _on_device(start, end, main, place)
        for place, (start, end) in enumerate(zip(begins, ends, strict=True))
    ]


def _runs(work: Sequence[Work]) -> list[tuple[str, int, int]]:
    """Return the runs of programs as the instructions show them, by start.

    A GPU's kernels do not state their run: of the instructions of a program that are run least often, the
    first one begins a run.
    """
    own = sorted((each for each in work if each.program), key=lambda each: each.start_ns)
    counts = Counter((each.program, each.instruction) for each in own)
    fewest: dict[str, int] = {}
    for (program, _), count in counts.items():
        fewest[program] = min(count, fewest.get(program, count))
    first: dict[str, Instruction | None] = {}
    found: dict[tuple[str, int], tuple[int, int]] = {}
    number_of: Counter[str] = Counter()
    for each in own:
        if counts[each.program, each.instruction] == fewest[each.program]:
            first.setdefault(each.program, each.instruction)
        number_of[each.program] += first.get(each.program, each) == each.instruction
        key = each.program, number_of[each.program]
        start, end = found.get(key, (each.start_ns, each.end_ns))
        found[key] = min(start, each.start_ns), max(end, each.end_ns)
    return sorted(((program, *span) for (program, _), span in found.items()), key=lambda run: run[1])


def _on_device(start_ns: int, end_ns: int, name: str, number_: int) -> Row:
    row = _span(start_ns, end_ns, f"{name}#step_num={number_}#")
    return row | {"process": None, "thread": None, "on_device": False}
