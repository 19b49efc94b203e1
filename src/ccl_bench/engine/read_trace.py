"""Computing the tables of one trace, and concatenating the tables of many traces."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from ccl_bench.analysis.derived import DERIVED, Derived, computation_order, raw_needs, tables_behind
from ccl_bench.analysis.device.completeness import (
    Subject,
    devices_at_work,
    lost_work,
    on_device,
    sign_of_device,
)
from ccl_bench.analysis.intervals import CHOSEN_PROGRAM
from ccl_bench.analysis.steps.marks import (
    CHOSEN_RANGE,
    FORMAT_RANGE,
    overlapping_ranges,
    program_names,
    range_names,
    select_steps,
)
from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.engine import kept_tables
from ccl_bench.result.step_choice import EVERY_STEP, StepChoice
from ccl_bench.run.completeness import TraceTables
from ccl_bench.run.copies import Sketch, sketch
from ccl_bench.schema import KEYS, TABLES
from ccl_bench.trace import memory
from ccl_bench.trace.cache import read_content
from ccl_bench.trace.device_steps import DETECTED
from ccl_bench.trace.quality import CUT_SHORT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ccl_bench.trace.content import TraceContent
    from ccl_bench.trace.formats import Format, TraceFile

RECORDED = "recorded_steps"
"""Name under which the steps of a trace are kept as they were before some were chosen."""

_MOST_NAMES = 1_000
"""Names of ranges that are kept of a trace to say which there are."""


def marker_table(choice: StepChoice, form: Format) -> pl.DataFrame:
    """Return the table that says which ranges are the steps: as chosen, else as the format marks them."""
    pattern, program = choice.marker or form.step_marker or None, choice.program or None
    rows = [] if pattern is None and program is None else [0]
    return TABLES["marker"].frame({"pattern": [pattern for _ in rows], "program": [program for _ in rows]})


def choose_steps(steps: pl.DataFrame, choice: StepChoice) -> dict[str, pl.DataFrame]:
    """Return the steps that count, and also all recorded steps if only some are chosen.

    A step that is not chosen is none: whatever comes from the steps is of the chosen ones alone.
    """
    return {"steps": select_steps(steps, choice), RECORDED: steps} if choice else {"steps": steps}


def names_to_choose(choice: StepChoice, content: TraceContent) -> tuple[str, ...]:
    """Return the names of programs or of ranges, whichever was chosen by name, the most frequent first."""
    names = program_names if choice.program else range_names
    return tuple(names(content.table("annotations"))[:_MOST_NAMES])


def marker_findings(choice: StepChoice, content: TraceContent, trace: TraceFile) -> list[Finding]:
    """Return a finding if ranges that the marker names begin in one step and end after it."""
    count = overlapping_ranges(content.table("annotations"), choice.marker) if choice.marker else 0
    if not count:
        return []
    message = (
        f"ranges that match {choice.marker!r} overlap with earlier ones; only the earlier ones are steps"
    )
    return [Finding("marker-overlaps", "warning", message, trace.relative, trace.rank, count, ("steps",))]


OF_DEVICES = ("kernels", "memcpy", "launches", "counters")
"""Raw tables that are split by device."""

_INDEPENDENT_OF_DEVICE = frozenset({"contents", "call_counts", "completeness"})
"""Tables that say what a file holds, whatever device it is of."""


@dataclass(frozen=True, slots=True)
class ByDevice:
    """One trace, device by device."""

    contents: tuple[TraceContent, ...]
    findings: tuple[Finding, ...]


def split_by_device(content: TraceContent, file: str) -> ByDevice | None:
    """Return the content for each device that its process worked on; None if it is at most one."""
    used = content.table("kernels", ("start_ns", "end_ns", "device"))
    if used["device"].min() == used["device"].max():
        return None
    devices, touched = devices_at_work(used)
    tables = {name: content.table(name) for name in OF_DEVICES}
    contents = []
    for device in devices:
        others = [other for other in (*devices, *touched) if other != device]
        device_tables = on_device(tables, device, others, is_first=device == devices[0])
        contents.append(replace(content, tables={**content.tables, **device_tables}))
    findings = [
        finding
        for finding in (_several_devices_finding(devices, file), _touched_devices_finding(touched, file))
        if finding
    ]
    return ByDevice(tuple(contents), tuple(findings))


def _several_devices_finding(devices: list[int], file: str) -> Finding | None:
    if len(devices) < 2:
        return None
    message = (
        f"{file} comes from a process that used devices {_listed(devices)}: each device counts separately, "
        "numbers are means over devices, and calls are not matched with other ranks"
    )
    return Finding("several-devices", "note", message, file, count=len(devices), touches=OF_DEVICES)


def _touched_devices_finding(devices: list[int], file: str) -> Finding | None:
    if not devices:
        return None
    message = f"devices {_listed(devices)} of {file} are left out: they have less than 1 % of its kernel time"
    return Finding("device-touched", "note", message, file, count=len(devices), touches=OF_DEVICES)


def _listed(devices: Iterable[int]) -> str:
    return ", ".join(map(str, devices))


def is_of_device(table: str) -> bool:
    """Whether a table differs from device to device of one trace."""
    if table in _INDEPENDENT_OF_DEVICE:
        return False
    return not tables_behind([table], but=frozenset()).isdisjoint({"kernels", "memcpy", "counters"})


_LARGEST = "cpu_ops"

_SPAN = ("start_ns", "end_ns")

_OF_EVERY_TRACE = {"identity", "findings", "marker"}
"""Raw tables that no format fills, because they are about the trace itself."""


_WHOLE, _COMPLETENESS = "whole_steps", "completeness"

_TIMES_WORK = frozenset({"steps", "forward_passes"})
"""Tables that time the work of a device, and are wrong if it was not recorded."""


@dataclass(frozen=True, slots=True)
class Task:
    """One trace and the tables that are wanted of it, raw or derived from it alone."""

    trace: TraceFile
    wanted_tables: tuple[str, ...]
    use_cache: bool = True
    choice: StepChoice = EVERY_STEP
    memory_bound: int | None = field(default_factory=memory.stated_bound)
    """Memory that reading the trace may take, bytes, as the user set it; None for the usual bound."""


TraceStream = Generator[tuple[int, TraceTables], None, None]
"""Each task's number and its outcome, as soon as that is known. Closing it stops what is at work."""

Engine = Callable[[Sequence[Task], int | None], TraceStream]
"""Reads traces with at most so many workers."""


def tables_of_each_trace(wanted_tables: Iterable[str], forms: Collection[Format]) -> tuple[str, ...]:
    """Return the tables of single traces that `wanted_tables` come down to in a run with these formats."""
    DERIVED.load()
    needed: dict[str, None] = {}

    def visit(name: str) -> None:
        if name in TABLES:
            needed[name] = None
        elif name in DERIVED:
            table = DERIVED.get(name)
            if not table.across_ranks:
                needed[name] = None
            elif has_rows(name, forms):
                for need in table.needs:
                    visit(need)

    for name in wanted_tables:
        visit(name)
    return tuple(needed)


def has_rows(name: str, forms: Collection[Format]) -> bool:
    """Whether a table across ranks can have rows in a run with these formats."""
    rows_of = DERIVED.get(name).rows_of
    return not rows_of or any(contributes(form, rows_of) for form in forms)


def contributes(form: Format, table: str) -> bool:
    """Whether traces of a format have a say in a table: they fill one of the raw tables behind it."""
    raw = raw_needs([table]) - _OF_EVERY_TRACE
    return not raw or not raw.isdisjoint(form.tables)


def read_trace(task: Task) -> TraceTables:
    """Return the wanted tables to which one trace contributes; without any it is not read.

    A trace that cannot be read gives a finding instead.
    """
    DERIVED.load()
    wanted_tables = tuple(name for name in task.wanted_tables if contributes(task.trace.form, name))
    if not wanted_tables:
        return TraceTables(task.trace, rank=task.trace.rank, world_size=task.trace.world_size)
    answer_file = (
        kept_tables.kept_file(task.trace, wanted_tables, astuple(task.choice)) if task.use_cache else None
    )
    if answer_file and (answer := kept_tables.load_answer(answer_file, task.trace)):
        return answer
    answer = _read_trace(task, wanted_tables)
    if answer_file and answer.sha256:
        kept_tables.save_answer(answer_file, answer)
    return answer


def _read_trace(task: Task, wanted_tables: tuple[str, ...]) -> TraceTables:
    computed = computation_order(wanted_tables)
    whole = (_WHOLE,) if "steps" in computed else ()
    completeness = () if _TIMES_WORK.isdisjoint(computed) else (_COMPLETENESS,)
    raw = raw_needs((*wanted_tables, *whole, *completeness)) | {"devices"}
    try:
        with memory.use_memory(task.memory_bound):
            content, sha256 = read_content(task.trace, raw, use_cache=task.use_cache)
    except InputError as error:
        return unread_trace(task, "trace-unreadable", error.message)
    rank, conflict = _resolve_rank(task.trace, content)
    world_size = content.world_size if content.world_size is not None else task.trace.world_size
    identity = TABLES["identity"].frame({"rank": [rank], "world_size": [world_size]})
    of_trace = {"identity": identity, "marker": marker_table(task.choice, task.trace.form)}
    content = replace(content, tables={**content.tables, **of_trace})
    tables, further, notes = _by_device((*wanted_tables, *completeness), content, task)
    steps = tables.get("steps")
    recorded = tables.pop(RECORDED, steps)
    steps_from = "" if recorded is None else "".join(recorded["source"].head(1))
    notes = (*notes, *marker_findings(task.choice, content, task.trace))
    is_chosen = steps_from in {CHOSEN_RANGE, CHOSEN_PROGRAM}
    recorded_findings = [f for f in content.findings if not (is_chosen and f.code in DETECTED)]
    trace = TraceTables(
        task.trace,
        tables,
        [
            *(_touching_own_tables(finding, task.trace.form) for finding in recorded_findings),
            *conflict,
            *notes,
        ],
        sha256,
        rank,
        world_size,
        content.attributes,
        steps_from=steps_from,
        filled=frozenset(name for name in raw if content.height(name)),
        devices=frozenset(content.table("devices")["name"]) - {None},
        span_ns=_span(content, raw),
        sketch=_sketch(content, raw),
        whole_steps=None if steps is None else _whole_steps(steps, content),
        further=further,
        recorded_steps=tuple(recorded["step"]) if recorded is not None and task.choice else (),
        range_names=names_to_choose(task.choice, content) if task.choice.is_by_name and not is_chosen else (),
    )
    if completeness:
        _note_completeness(trace, tables.pop(_COMPLETENESS).row(0, named=True))
    return trace


def _by_device(
    wanted_tables: tuple[str, ...], content: TraceContent, task: Task
) -> tuple[dict[str, pl.DataFrame], list[dict[str, pl.DataFrame]], tuple[Finding, ...]]:
    """Return the wanted tables, those of a device for its first device and then for each further one."""
    by_device = split_by_device(content, task.trace.relative) if content.height("kernels") else None
    if by_device is None:
        return _tables(wanted_tables, content, task), [], ()
    differing = tuple(name for name in wanted_tables if is_of_device(name))
    common = _tables(tuple(name for name in wanted_tables if name not in differing), content, task)
    first, *further = (_tables(differing, part, task) for part in by_device.contents)
    return common | first, further, by_device.findings


def _note_completeness(trace: TraceTables, complete: dict[str, Any]) -> None:
    """Note whether a trace holds work of a device and communication, or should, and what was lost of it."""
    trace.on_device = bool(complete["kernels"] or (complete["copies"] and not complete["kernel_launches"]))
    if not complete["kernels"]:
        trace.sign_of_device = sign_of_device(complete, trace.attributes.get("backend", ""))
    if complete["calls"] or complete["groups"] or trace.attributes.get("backend"):
        trace.communicates = bool(complete["calls"])
    codes = {finding.code for finding in trace.findings}
    if codes.isdisjoint(CUT_SHORT):
        lost = lost_work(complete, Subject(trace.trace.relative, trace.rank))
        trace.findings += [finding for finding in lost if finding.code not in codes]


def _span(content: TraceContent, raw: Collection[str]) -> tuple[int, int] | None:
    """Return the first start and the last end in these tables."""
    spans = [
        content.table(name, _SPAN)
        for name in sorted(raw)
        if {*_SPAN} <= {*TABLES[name].columns} and content.height(name)
    ]
    bounds = [(table["start_ns"].min(), table["end_ns"].max()) for table in spans]
    known_bounds = cast("list[tuple[int, int]]", [pair for pair in bounds if None not in pair])
    if not known_bounds:
        return None
    return min(start for start, _ in known_bounds), max(end for _, end in known_bounds)


_OF_WORK = ("kernels", "cpu_ops")
"""Tables of which a trace is recognised, the best first."""


def _sketch(content: TraceContent, raw: Collection[str]) -> Sketch | None:
    """Return the sample of the work of a trace; None if nothing wanted holds it."""
    name = next((name for name in _OF_WORK if name in raw and content.height(name)), None)
    return sketch(content.table(name, _SPAN)) if name else None


def unread_trace(task: Task, code: str, message: str) -> TraceTables:
    """Return the outcome of a trace that could not be read: a finding with one of the codes of UNREAD."""
    trace = task.trace
    finding = Finding(code, "error", message, trace.relative, rank=trace.rank)
    return TraceTables(trace, findings=[_touching_own_tables(finding, trace.form)], rank=trace.rank)


def _touching_own_tables(finding: Finding, form: Format) -> Finding:
    """Return a finding about a whole trace as one about the tables that its format fills."""
    return finding if finding.touches else replace(finding, touches=tuple(sorted(form.tables)))


def _tables(wanted_tables: tuple[str, ...], content: TraceContent, task: Task) -> dict[str, pl.DataFrame]:
    """Return the wanted tables, and the recorded steps if steps are wanted and some were chosen.

    Whatever else they come from is held only as long as it is needed.
    """
    ordered = _largest_first(wanted_tables)
    tables: dict[str, pl.DataFrame] = {}
    for position, name in enumerate(ordered):
        tables[name] = _compute(DERIVED.get(name), tables, content)
        if name == "steps":
            tables |= choose_steps(_with_source(tables[name], task), task.choice)
        needed = {
            *wanted_tables,
            RECORDED,
            *(need for later in ordered[position + 1 :] for need in DERIVED.get(later).needs),
        }
        for each in tables.keys() - needed:
            del tables[each]
    extra = {RECORDED} & tables.keys() if "steps" in wanted_tables else set()
    return {
        name: tables[name] if name in tables else content.table(name) for name in (*wanted_tables, *extra)
    }


def _with_source(steps: pl.DataFrame, task: Task) -> pl.DataFrame:
    """Return steps with the format as their source, if its marker found them and the user chose none."""
    if task.choice.marker or not task.trace.form.step_marker:
        return steps
    source = pl.col("source").cast(pl.String)
    return steps.with_columns(source=source.replace(CHOSEN_RANGE, FORMAT_RANGE).cast(steps.schema["source"]))


def _largest_first(wanted_tables: tuple[str, ...]) -> list[str]:
    """Return the derived tables behind `wanted_tables` in order, those of the largest raw table early."""
    ordered = computation_order(wanted_tables)
    return computation_order([*(name for name in ordered if _LARGEST in DERIVED.get(name).needs), *ordered])


def _compute(table: Derived, tables: dict[str, pl.DataFrame], content: TraceContent) -> pl.DataFrame:
    """Return a derived table; raw ones are held for its sake alone."""
    inputs = [tables[n] if n in tables else content.table(n, table.reads.get(n)) for n in table.needs]
    return table.compute(*inputs)


def _whole_steps(steps: pl.DataFrame, content: TraceContent) -> frozenset[int] | None:
    """Return the steps of a file that was cut short of which it can lack nothing."""
    if not any(finding.code in CUT_SHORT for finding in content.findings):
        return None
    table = DERIVED.get(_WHOLE)
    inputs = [steps if need == "steps" else content.table(need) for need in table.needs]
    frame = table.compute(*inputs)
    return frozenset(frame.filter("is_whole")["step"])


def _resolve_rank(trace: TraceFile, content: TraceContent) -> tuple[int | None, list[Finding]]:
    """Return the rank of a trace once the whole file is known; the file itself has the last word."""
    if content.rank is None or content.rank == trace.rank:
        return trace.rank, []
    if trace.rank is None:
        return content.rank, []
    message = (
        f"the file states rank {content.rank}, its {trace.rank_source} states {trace.rank}; the file is used"
    )
    return content.rank, [Finding("rank-conflict", "warning", message, trace.relative, rank=content.rank)]


BLOCK = 32
"""Traces whose tables are made one as soon as all of them are there: small tables are mostly overhead."""

Tables = dict[str, "pl.DataFrame"]


class ConcatenatedTables:
    """The tables of the traces that have come so far."""

    def __init__(self, names: Sequence[str], traces: int) -> None:
        self._names = names
        self._traces = traces
        self._loose: dict[int, dict[int, Tables]] = {}
        self._blocks: dict[int, Tables] = {}

    def take(self, position: int, trace: TraceTables) -> None:
        """Take the tables out of the outcome of the trace at `position`."""
        number = position // BLOCK
        loose = self._loose.setdefault(number, {})
        devices = self._keyed_devices(position, trace)
        loose[position] = {name: _rows(name, devices) for name in trace.tables}
        trace.tables, trace.further = {}, []
        if len(loose) == min(BLOCK, self._traces - number * BLOCK):
            del self._loose[number]
            together = self._joined([loose[each] for each in sorted(loose)])
            self._blocks[number] = {name: _compact(table) for name, table in together.items()}

    def _keyed_devices(self, position: int, trace: TraceTables) -> list[tuple[Tables, pl.DataFrame]]:
        """Return the tables of each device with their keys; a further one counts as a trace of its own.

        A rank that belongs to several devices is not one's own.
        """
        rank = None if trace.further else trace.rank
        devices = (trace.tables, *trace.further)
        numbers = [position + number * self._traces for number in range(len(devices))]
        keys = [(number, rank, trace.trace.iteration) for number in numbers]
        types = dict.fromkeys(KEYS, pl.Int64)
        return [
            (each, pl.DataFrame([key], types, orient="row")) for each, key in zip(devices, keys, strict=True)
        ]

    def tables(self) -> Tables:
        """Return each table of all traces as one, in the order of the traces."""
        joined = self._joined([self._blocks.pop(number) for number in sorted(self._blocks)])
        return {name: joined[name] if name in joined else empty_table(name) for name in self._names}

    def _joined(self, parts: list[Tables]) -> Tables:
        """Return the tables of several parts as one each; every part is let go when it is done with."""
        joined = {}
        for name in self._names:
            tables = [part.pop(name) for part in parts if name in part]
            if tables:
                joined[name] = pl.concat(tables)
        return joined


def _compact(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table whose texts lie in memory of their own.

    Each column of text of each trace has 8 kB reserved for texts, which its rows hold until they are copied.
    """
    columns = table.rechunk().iter_columns()
    return pl.DataFrame(
        [
            column.cast(pl.Categorical).cast(pl.String) if column.dtype == pl.String else column
            for column in columns
        ]
    )


def _rows(name: str, devices: Sequence[tuple[Tables, pl.DataFrame]]) -> pl.DataFrame:
    """Return the rows of one table of all devices of a trace, with their keys."""
    parts = []
    for tables, keys in devices:
        if name in tables:
            columns = {column.name: column for column in tables[name].iter_columns()}
            height = tables[name].height
            columns |= {key.name: key.new_from_index(0, height) for key in keys.iter_columns()}
            parts.append(pl.DataFrame([*columns.values()]))
    return pl.concat(parts) if len(parts) > 1 else parts[0]


def empty_table(name: str) -> pl.DataFrame:
    """Return a table of single traces with no rows."""
    table = TABLES[name] if name in TABLES else DERIVED.get(name).table
    return pl.DataFrame([*table.empty().iter_columns(), *(pl.Series(key, dtype=pl.Int64) for key in KEYS)])
