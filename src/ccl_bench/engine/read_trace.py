"""Computing the tables of one trace, and concatenating the tables of many traces."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from ccl_bench.analysis.derived import DERIVED, computation_order, raw_needs, tables_behind
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
from ccl_bench.base.foreign import is_foreign, reason_of
from ccl_bench.base.lazy_imports import pl
from ccl_bench.engine import kept_tables
from ccl_bench.result.step_choice import EVERY_STEP, StepChoice
from ccl_bench.run.copies import sketch
from ccl_bench.run.trace_tables import TraceTables
from ccl_bench.schema import KEYS, TABLES
from ccl_bench.trace import memory
from ccl_bench.trace.cache import read_content
from ccl_bench.trace.device_steps import DETECTED
from ccl_bench.trace.quality import CUT_SHORT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ccl_bench.trace.content import TraceContent
    from ccl_bench.trace.formats import Format, TraceFile

Tables = dict[str, "pl.DataFrame"]

RECORDED = "recorded_steps"
"""Name under which the steps of a trace are kept as they were before some were chosen."""

_MOST_NAMES = 1_000
"""Names of ranges that are kept of a trace to say which there are."""


def marker_table(choice: StepChoice, form: Format) -> pl.DataFrame:
    """Return the table that says which ranges are the steps: as chosen, else as the format marks them."""
    pattern, program = choice.marker or form.step_marker or None, choice.program or None
    rows = [] if pattern is None and program is None else [0]
    return TABLES["marker"].frame({"pattern": [pattern for _ in rows], "program": [program for _ in rows]})


OF_DEVICES = ("kernels", "memcpy", "launches", "counters")
"""Raw tables that are split by device."""

_INDEPENDENT_OF_DEVICE = frozenset({"contents", "call_counts", "completeness"})
"""Tables that say what a file holds, whatever device it is of."""


def split_by_device(content: TraceContent, file: str) -> tuple[list[TraceContent], list[Finding]] | None:
    """Return the content for each device that its process worked on, with findings about them.

    None if the process worked on one device at most.
    """
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
    findings = []
    if len(devices) > 1:
        message = (
            f"{file} comes from a process that used devices {', '.join(map(str, devices))}: each device "
            "counts separately, numbers are means over devices, and calls are not matched with other ranks"
        )
        findings.append(
            Finding("several-devices", "note", message, file, count=len(devices), touches=OF_DEVICES)
        )
    if touched:
        message = (
            f"devices {', '.join(map(str, touched))} of {file} are left out: "
            "they have less than 1 % of its kernel time"
        )
        findings.append(
            Finding("device-touched", "note", message, file, count=len(touched), touches=OF_DEVICES)
        )
    return contents, findings


def is_of_device(table: str) -> bool:
    """Whether a table differs from device to device of one trace."""
    if table in _INDEPENDENT_OF_DEVICE:
        return False
    return not tables_behind([table], but=frozenset()).isdisjoint({"kernels", "memcpy", "counters"})


_LARGEST = "cpu_ops"

_SPAN = ("start_ns", "end_ns")

_OF_WORK = ("kernels", "cpu_ops")
"""Tables of which a trace is recognised, the best first."""

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
    trace, choice = task.trace, task.choice
    computed = computation_order(wanted_tables)
    whole = (_WHOLE,) if "steps" in computed else ()
    completeness = () if _TIMES_WORK.isdisjoint(computed) else (_COMPLETENESS,)
    raw = raw_needs((*wanted_tables, *whole, *completeness)) | {"devices"}
    try:
        with memory.use_memory(task.memory_bound):
            content, sha256 = read_content(trace, raw, use_cache=task.use_cache)
    except InputError as error:
        return unread_trace(task, "trace-unreadable", error.message)
    # The file itself has the last word on its rank and on the size of the run.
    rank = trace.rank if content.rank is None else content.rank
    noted = []
    if trace.rank is not None and rank != trace.rank:
        claim = f"its {trace.rank_source} states {trace.rank}"
        message = f"the file states rank {rank}, {claim}; the file is used"
        noted.append(Finding("rank-conflict", "warning", message, trace.relative, rank=rank))
    world_size = trace.world_size if content.world_size is None else content.world_size
    identity = TABLES["identity"].frame({"rank": [rank], "world_size": [world_size]})
    of_trace = {"identity": identity, "marker": marker_table(choice, trace.form)}
    content = replace(content, tables={**content.tables, **of_trace})
    tables, further, of_devices = _by_device((*wanted_tables, *completeness), content, task)
    noted += of_devices
    steps = tables.get("steps")
    recorded = tables.pop(RECORDED, steps)
    steps_from = "" if recorded is None else "".join(recorded["source"].head(1))
    annotations = content.table("annotations") if choice.is_by_name else None
    if choice.marker and annotations is not None:
        overlaps = overlapping_ranges(annotations, choice.marker)
        if overlaps:
            message = (
                f"ranges that match {choice.marker!r} overlap with earlier ones; "
                "only the earlier ones are steps"
            )
            about = (trace.relative, trace.rank, overlaps, ("steps",))
            noted.append(Finding("marker-overlaps", "warning", message, *about))
    is_chosen = steps_from in {CHOSEN_RANGE, CHOSEN_PROGRAM}
    range_names_there: tuple[str, ...] = ()
    if annotations is not None and not is_chosen:
        names = program_names if choice.program else range_names
        range_names_there = tuple(names(annotations)[:_MOST_NAMES])
    whole_steps = None
    if steps is not None and any(finding.code in CUT_SHORT for finding in content.findings):
        inputs = [steps if need == "steps" else content.table(need) for need in DERIVED.get(_WHOLE).needs]
        whole_steps = frozenset(DERIVED.get(_WHOLE).compute(*inputs).filter("is_whole")["step"])
    of_work = next((name for name in _OF_WORK if name in raw and content.height(name)), None)
    outcome = TraceTables(
        trace,
        tables,
        [
            *(
                _touching_own_tables(finding, trace.form)
                for finding in content.findings
                if not (is_chosen and finding.code in DETECTED)
            ),
            *noted,
        ],
        sha256,
        rank,
        world_size,
        content.attributes,
        steps_from=steps_from,
        filled=frozenset(name for name in raw if content.height(name)),
        devices=frozenset(content.table("devices")["name"]) - {None},
        span_ns=_span(content, raw),
        sketch=sketch(content.table(of_work, _SPAN)) if of_work else None,
        whole_steps=whole_steps,
        further=further,
        recorded_steps=tuple(recorded["step"]) if recorded is not None and choice else (),
        range_names=range_names_there,
    )
    if completeness:
        _note_completeness(outcome, tables.pop(_COMPLETENESS).row(0, named=True))
    return outcome


def _by_device(
    wanted_tables: tuple[str, ...], content: TraceContent, task: Task
) -> tuple[Tables, list[Tables], list[Finding]]:
    """Return the wanted tables, those of a device for its first device and then for each further one."""
    by_device = split_by_device(content, task.trace.relative) if content.height("kernels") else None
    if by_device is None:
        failed: list[Finding] = []
        return _tables(wanted_tables, content, task, failed), [], failed
    contents, findings = by_device
    differing = tuple(name for name in wanted_tables if is_of_device(name))
    common = _tables(tuple(name for name in wanted_tables if name not in differing), content, task, findings)
    first, *further = (_tables(differing, part, task, findings) for part in contents)
    return common | first, further, findings


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
        for name in raw
        if {*_SPAN} <= {*TABLES[name].columns} and content.height(name)
    ]
    bounds = [(table["start_ns"].min(), table["end_ns"].max()) for table in spans]
    known_bounds = cast("list[tuple[int, int]]", [pair for pair in bounds if None not in pair])
    if not known_bounds:
        return None
    return min(start for start, _ in known_bounds), max(end for _, end in known_bounds)


def unread_trace(task: Task, code: str, message: str) -> TraceTables:
    """Return the outcome of a trace that could not be read: a finding with one of the codes of UNREAD."""
    trace = task.trace
    finding = Finding(code, "error", message, trace.relative, rank=trace.rank)
    return TraceTables(trace, findings=[_touching_own_tables(finding, trace.form)], rank=trace.rank)


def _touching_own_tables(finding: Finding, form: Format) -> Finding:
    """Return a finding about a whole trace as one about the tables that its format fills."""
    return finding if finding.touches else replace(finding, touches=tuple(sorted(form.tables)))


def _tables(
    wanted_tables: tuple[str, ...], content: TraceContent, task: Task, findings: list[Finding]
) -> Tables:
    """Return the wanted tables, and the recorded steps if steps are wanted and some were chosen.

    A table of a plug-in that fails is empty, and is added to `findings`.
    Whatever else they come from is held only as long as it is needed, the largest raw table first.
    """
    ordered = computation_order(wanted_tables)
    largest = (name for name in ordered if _LARGEST in DERIVED.get(name).needs)
    ordered = computation_order([*largest, *ordered])
    tables: Tables = {}
    for position, name in enumerate(ordered):
        table = DERIVED.get(name)
        inputs = (tables[n] if n in tables else content.table(n, table.reads.get(n)) for n in table.needs)
        try:
            tables[name] = table.computed(*inputs)
        except Exception as error:
            if not is_foreign(table.compute):
                raise
            module = table.compute.__module__
            message = f"the table {name} of the plug-in {module} failed: {reason_of(error)}"
            about = (task.trace.relative, task.trace.rank)
            findings.append(Finding("table-failed", "error", message, *about, touches=(name,)))
            tables[name] = table.table.empty()
        if name == "steps":
            if task.trace.form.step_marker and not task.choice.marker:
                source = pl.col("source").cast(pl.String).replace(CHOSEN_RANGE, FORMAT_RANGE)
                dtype = tables[name].schema["source"]
                tables[name] = tables[name].with_columns(source=source.cast(dtype))
            if task.choice:  # whatever comes from the steps is of the chosen ones alone
                tables |= {RECORDED: tables[name], name: select_steps(tables[name], task.choice)}
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


BLOCK = 32
"""Traces whose tables are made one as soon as all of them are there: small tables are mostly overhead."""

MANY_ROWS = 1_000
"""Rows of a trace from which a table holds more than what its columns of text reserve."""


class ConcatenatedTables:
    """The tables of the traces that have come so far."""

    def __init__(self, names: Sequence[str], traces: int) -> None:
        self._names = names
        self._traces = traces
        self._loose: dict[int, dict[int, Tables]] = {}
        self._blocks: dict[int, Tables] = {}

    def take(self, position: int, trace: TraceTables) -> None:
        """Take the tables out of the outcome of the trace at `position`.

        A further device counts as a trace of its own. A rank of several devices is not one's own.
        """
        number = position // BLOCK
        loose = self._loose.setdefault(number, {})
        rank = None if trace.further else trace.rank
        rows: dict[str, list[pl.DataFrame]] = {}
        for device, tables in enumerate((trace.tables, *trace.further)):
            key = (position + device * self._traces, rank, trace.trace.iteration)
            keys = [pl.Series(name, [value], pl.Int64) for name, value in zip(KEYS, key, strict=True)]
            for name, table in tables.items():
                # A query for each of the small tables would take longer than the work.
                columns = table.to_dict() | {each.name: each.new_from_index(0, table.height) for each in keys}
                rows.setdefault(name, []).append(pl.DataFrame([*columns.values()]))
        loose[position] = {name: pl.concat(parts) for name, parts in rows.items()}
        trace.tables, trace.further = {}, []
        if len(loose) == min(BLOCK, self._traces - number * BLOCK):
            del self._loose[number]
            together = self._joined([loose[each] for each in sorted(loose)])
            # A column of text reserves 8 kB for each trace, which its rows hold until they are copied.
            texts = pl.col(pl.String).cast(pl.Categorical).cast(pl.String)
            self._blocks[number] = {
                name: t.rechunk().with_columns(texts if t.height < MANY_ROWS * len(loose) else ())
                for name, t in together.items()
            }

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


def empty_table(name: str) -> pl.DataFrame:
    """Return a table of single traces with no rows."""
    table = TABLES[name] if name in TABLES else DERIVED.get(name).table
    return table.empty().with_columns(*(pl.lit(None, pl.Int64).alias(key) for key in KEYS))
