"""Reader of Kineto traces: one pass in bounded memory; rows of a large file lie on disk."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter, defaultdict
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.schema import TABLES
from ccl_bench.schema.table import keep_rows
from ccl_bench.trace import content, device_order, memory, quality
from ccl_bench.trace.content import OnDisk, TraceContent
from ccl_bench.trace.formats.kineto import communication, document, tables
from ccl_bench.trace.formats.kineto.document import Losses, event_lists
from ccl_bench.trace.formats.kineto.events import (
    CATEGORIES,
    COMPLETE,
    HEAD,
    HEADS,
    NO_ARGS,
    ROWS,
    TAIL,
    TAILS,
    UNSORTED,
    UNUSED_CATEGORIES,
)
from ccl_bench.trace.formats.kineto.native.reader import native_rows
from ccl_bench.trace.values import Document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from ccl_bench.trace.content import Scratch
    from ccl_bench.trace.formats.kineto.events import Args, Event
    from ccl_bench.trace.formats.kineto.native.reader import NativeRows

MOST_ROWS = 1 << 21
"""Rows that are held in memory; with those of the next piece they take some 250 MB."""


class _Spool:
    """Rows of several kinds, each in the order in which they came."""

    def __init__(self) -> None:
        self._frames: dict[str, list[pl.DataFrame]] = defaultdict(list)
        self._files: dict[str, list[Path]] = defaultdict(list)
        self._rows = 0
        self.folder: Scratch | None = None
        """Where rows lie, if some do."""

    def add(self, kind: str, rows: pl.DataFrame) -> None:
        """Add rows of one kind; InputError if they are more than memory may hold."""
        memory.hold_rows(kind, rows.height, on_disk=self.folder is not None)
        self._frames[kind].append(rows)
        self._rows += rows.height

    def relieve(self, alike: Callable[[list[pl.DataFrame]], list[pl.DataFrame]]) -> None:
        """Put the rows on disk if they are many; they stay where they are if it is full.

        `alike` makes few frames of many.
        """
        if self._rows <= MOST_ROWS:
            return
        self._rows = 0
        with contextlib.suppress(*content.disk_errors()):
            self.folder = self.folder or content.scratch_folder()
            for kind in self._frames:
                self._frames[kind] = alike(self._frames[kind])
                while self._frames[kind]:
                    file = self.folder.path / f"{kind} {len(self._files[kind])}.arrow"
                    self._frames[kind][0].write_ipc(file, compression="lz4")
                    self._files[kind].append(file)
                    del self._frames[kind][0]

    def take(self, kind: str, columns: list[str] | None = None) -> list[pl.DataFrame]:
        """Return the rows of one kind, which is then empty unless only some of their columns are wanted."""
        files, in_memory = self._files[kind], self._frames[kind]
        read = [pl.read_ipc(file, columns=columns) for file in files]
        if columns is not None:
            return [*read, *(frame.select(columns) for frame in in_memory)]
        for file in files:
            file.unlink(missing_ok=True)
        self._files[kind], self._frames[kind] = [], []
        return [*read, *in_memory]


_CALLS_AT_A_TIME = 4096

_TAKEN_AT_A_TIME = 256 << 20
"""Bytes of text after which native rows are taken, because they are larger than those of polars."""

_TIMED = ("kernels", "memcpy", "cpu_ops", "products", "launches", "annotations", "collectives")

_LINKS = "autograd_links"

_MAKERS: dict[str, Callable[[Sequence[Event], Sequence[Args]], pl.DataFrame]] = {
    "kernels": tables.kernels,
    "memcpy": tables.memcpy,
    "cpu_ops": tables.cpu_ops,
    "launches": tables.launches,
    "annotations": tables.named_ranges,
    UNSORTED: tables.cpu_ops,
    TAILS: tables.arrow_ends,
    HEADS: tables.arrow_ends,
}

_UNKNOWN = ""

_COMPLETE_ROWS: dict[str | None, str | None] = {
    **{category: ROWS.get(kind) for category, kind in CATEGORIES.items()},
    **dict.fromkeys(UNUSED_CATEGORIES),
}


def _table(event: Event) -> str | None:
    """Return the rows that an event belongs to; None for none."""
    if event.ph == COMPLETE:
        return _COMPLETE_ROWS.get(event.cat, _UNKNOWN)
    if event.ph in {TAIL, HEAD} and CATEGORIES.get(event.cat or "") == "arrow":
        return TAILS if event.ph == TAIL else HEADS
    return None


class RowBuilder:
    """The rows of one file, in the order of the file."""

    def __init__(self, native: NativeRows | None) -> None:
        self._native = native
        self._rows = _Spool()
        self._calls: list[dict[str, object]] = []
        self._products: list[dict[str, object]] = []
        self._events = 0
        self._untaken_bytes = 0
        self.ignored: Counter[str] = Counter()
        """How many events of each unknown category there were."""
        self.unlabelled = 0
        """How many events lack their phase, or a name where it counts; the native reader refuses such."""

    @property
    def events(self) -> int:
        """Number of events."""
        return self._events + (self._native.events if self._native else 0)

    @property
    def ambiguous(self) -> int:
        """Number of events taken by the native reader that state a key twice."""
        return self._native.ambiguous if self._native else 0

    def taken(self, text: bytes, *, must_end: bool) -> int | None:
        """Let the native reader take the events of `text`; None if it does not.

        Otherwise returns where the text after the array of events begins.
        """
        if not self._native or (end := self._native.feed(text, must_end=must_end)) is None:
            return None
        self._add_arguments(self._native.calls(text))
        self._untaken_bytes += len(text)
        if self._untaken_bytes > _TAKEN_AT_A_TIME:
            self._take_native()
            self._rows.relieve(_joined_by_clock)
        return end

    def add(self, events: list[Event]) -> None:
        """Add the events of one piece."""
        self._take_native()
        self._events += len(events)
        tables: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            if (name := _table(event)) is not None:
                tables[name].append(event)
            self.unlabelled += not event.ph or (bool(name) and not event.name)
        self.ignored.update(event.cat or "" for event in tables.pop(_UNKNOWN, ()))
        for name, members in tables.items():
            self._add_rows(name, _MAKERS[name](members, [event.args or NO_ARGS for event in members]))
        self._rows.relieve(_joined_by_clock)
        self._add_arguments(events)

    def _take_native(self) -> None:
        self._untaken_bytes = 0
        if self._native:
            rows, ignored = self._native.take()
            for name, frame in rows.items():
                self._add_rows(name, frame)
            self.ignored.update(ignored)

    def _add_rows(self, name: str, rows: pl.DataFrame) -> None:
        for table, part in (tables.sorted_out(rows) if name == UNSORTED else {name: rows}).items():
            if part.height:
                self._rows.add(table, part)

    def _add_arguments(self, events: list[Event]) -> None:
        """Add the rows from the arguments of events: communication calls and matrix products."""
        self._calls += [communication.call(event) for event in events if communication.is_call(event)]
        self._products += [tables.product(event) for event in events if tables.is_product(event)]
        if len(self._calls) + len(self._products) > _CALLS_AT_A_TIME:
            self._flush_arguments()

    def _flush_arguments(self) -> None:
        if self._calls:
            self._rows.add("collectives", communication.collectives(self._calls))
        if self._products:
            self._rows.add("products", tables.products(self._products))
        self._calls, self._products = [], []

    def _timed(self, name: str, base_ns: int) -> pl.DataFrame | None:
        """Return all rows of one kind, with absolute times; None if there is none."""
        if not (rows := _joined_by_clock(self._rows.take(name))):
            return None
        return _in_order([tables.absolute(rows.pop(0), base_ns) for _ in range(len(rows))])

    @property
    def folder(self) -> Scratch | None:
        """Folder of the rows of a large file until they are tables."""
        return self._rows.folder

    def finish(self) -> None:
        """Take the last rows; there is nothing to add after this."""
        self._take_native()
        self._flush_arguments()

    def starts(self, base_ns: int) -> pl.Series:
        """Return the start of everything that has one, ns."""
        rows = (frame for name in _TIMED for frame in self._rows.take(name, ["ts", "dur"]))
        none = pl.Series("start_ns", dtype=pl.Int64)
        return pl.concat([none, *(tables.absolute(frame, base_ns)["start_ns"] for frame in rows)])

    def tables(self, base_ns: int) -> Iterator[tuple[str, pl.DataFrame]]:
        """Yield every table, with absolute times, in order of time; to be called once."""
        for name in _TIMED:
            yield name, _shaped(name, self._timed(name, base_ns))
        tails, heads = self._timed(TAILS, base_ns), self._timed(HEADS, base_ns)
        links = None if tails is None or heads is None else tables.autograd_links(tails, heads)
        yield _LINKS, _shaped(_LINKS, links)


def _shaped(name: str, rows: pl.DataFrame | None) -> pl.DataFrame:
    return TABLES[name].empty() if rows is None else TABLES[name].frame(rows.to_dict())


def _in_order(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of all parts in order of time; `parts` is empty then.

    Of a large table one column goes after the other, so that it is in memory once and not twice.
    """
    together = pl.concat(parts)
    parts.clear()
    if together["start_ns"].is_sorted():
        return together
    if together.height <= content.LARGE_ROWS:
        return together.sort("start_ns", maintain_order=True)
    order = together.select(pl.arg_sort_by("start_ns", maintain_order=True)).to_series()
    columns = together.to_dict()
    del together
    for name in columns:
        columns[name] = columns[name][order]
    return pl.DataFrame(list(columns.values()))


def _joined_by_clock(parts: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """Return parts as few: one with odd times in it holds exact nanoseconds, the others hold doubles."""
    if len(parts) == 1:
        return parts
    ordered = (part.select(parts[0].columns) for part in parts)  # the two readers have another order
    return [pl.concat(alike) for _, alike in groupby(ordered, key=_clock_type)]


def _clock_type(rows: pl.DataFrame) -> str:
    return f"{rows.schema['ts']} {rows.schema['dur']}"


_SHARE = 0.01
"""Share of the operators from which another process is no damaged number."""

_STEP = "ProfilerStep"


def _check_one_process(tables: Mapping[str, pl.DataFrame | OnDisk], file: str) -> None:
    """Raise InputError if the operators are of several processes, or two loops of steps run at once."""
    numbers = _processes(tables)
    if len(numbers) > 1:
        text = " and ".join(map(str, numbers))
        raise _mixed(f"events of several processes ({text}) are mixed in it", file)
    annotations = tables.get("annotations")
    if isinstance(annotations, pl.DataFrame) and annotations.height and _steps_run_at_once(annotations):
        raise _mixed("events of several processes are mixed in it: two loops of steps run concurrently", file)


def _mixed(message: str, file: str) -> InputError:
    return InputError(message, where=file, fix="let each rank write its own trace, and do not merge them")


def _processes(tables: Mapping[str, pl.DataFrame | OnDisk]) -> list[int]:
    """Return the processes that a good part of the operators or launches is of."""
    processes: set[int] = set()
    for name in ("cpu_ops", "launches"):
        table = tables.get(name)
        if table is None:
            continue
        column = _column(table, "process")
        if column.null_count() == column.len():
            continue
        if not column.null_count() and column.min() == column.max():
            processes.add(column[0])
            continue
        numbers, counts = column.value_counts()
        processes |= {*numbers.filter(counts >= _SHARE * column.len())} - {None}
    return sorted(processes)


def _steps_run_at_once(annotations: pl.DataFrame) -> bool:
    """Whether two steps of one number overlap by more than half of the shorter one; a copy does not count."""
    is_step = annotations["name"].cat.starts_with(_STEP) & ~annotations["on_device"]
    columns = (annotations[name].filter(is_step).to_list() for name in ("name", "start_ns", "end_ns"))
    steps = pairwise(sorted(set(zip(*columns, strict=True))))
    return any(
        name == before and 2 * (min(end, last) - start) > min(end - start, last - first)
        for (before, first, last), (name, start, end) in steps
    )


Tables = dict[str, "pl.DataFrame | OnDisk"]


def _clean_tables(gathering: RowBuilder, base_ns: int, file: str) -> tuple[Tables, list[Finding]]:
    """Return every table without impossible and repeated events, and findings on those."""
    gathering.finish()
    if gathering.folder is not None:
        return _one_by_one(gathering, gathering.folder, base_ns, file)
    tables, implausible = quality.drop_impossible(dict(gathering.tables(base_ns)), file)
    unique, repeats = quality.drop_repeated(tables, file)
    ordered, disordered = device_order.drop_disordered(unique, file)
    return dict(ordered), [*implausible, *repeats, *disordered, *quality.doubt_ids(ordered, file)]


def _one_by_one(
    gathering: RowBuilder, folder: Scratch, base_ns: int, file: str
) -> tuple[Tables, list[Finding]]:
    middle = quality.median_start(gathering.starts(base_ns))
    tables: Tables = {}
    implausible, repeats = [], []
    for name, table in gathering.tables(base_ns):
        possible, impossible = quality.drop_impossible({name: table}, file, middle)
        unique, copies = quality.drop_repeated(possible, file)
        tables[name] = _to_disk(unique[name], name, folder)
        implausible += impossible
        repeats += [*copies, *quality.doubt_ids(unique, file)]
    kernels, memcpy, launches = (_columns(tables[name], each) for name, each in device_order.COLUMNS.items())
    is_possible, disordered = device_order.in_order(kernels, memcpy, launches, file)
    for name, mask in is_possible.items():
        tables[name] = _to_disk(keep_rows(_columns(tables[name]), mask), name, folder)
    return tables, [*implausible, *repeats, *disordered]


def _to_disk(table: pl.DataFrame, name: str, folder: Scratch) -> pl.DataFrame | OnDisk:
    """Return a table, from disk if it is large and there is room."""
    if table.height <= content.LARGE_ROWS:
        return table
    path = folder.path / f"{name}.parquet"
    try:
        content.write_table(table, path)
    except content.disk_errors():
        return table
    return OnDisk(path, table.height, folder)


_EVENTS = b'"traceEvents"'

_METADATA_DAMAGED = "the file's header or footer is damaged: rank, devices or clock base may be missing"


def _damage(text: Document, losses: Losses, file: str) -> Iterator[Finding]:
    place = f"first at byte {losses.first_at:,}" if losses.first_at >= 0 else ""
    if text.broken_off:
        yield Finding(
            "file-broken-off", "error", f"reading stopped after {text.size:,} bytes: {text.broken_off}", file
        )
    elif losses.truncated:
        yield Finding(
            "file-truncated", "error", f"the file ends among its events, after {text.size:,} bytes", file
        )
    if losses.lost:
        message = f"{counted(losses.lost, 'event is', 'events are')} unreadable, {place}"
        yield Finding("events-lost", "error", message, file, count=losses.lost)
    if _EVENTS in text.tail:
        message = "another trace follows the first in the file, and is not read"
        yield Finding("events-lost", "error", message, file)
    if losses.repaired:
        subject = counted(losses.repaired, "event was", "events were")
        message = f"{subject} read after a repair of the text, {place}"
        yield Finding("events-repaired", "note", message, file, count=losses.repaired)


def _most(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:5]


def _unknown(gathering: RowBuilder, file: str) -> Iterator[Finding]:
    if gathering.ignored:
        categories = ", ".join(f"{name or '(none)'} {count}" for name, count in _most(gathering.ignored))
        count = gathering.ignored.total()
        yield Finding("categories-unknown", "note", f"categories not used: {categories}", file, count=count)


def _ambiguous(gathering: RowBuilder, losses: Losses, file: str) -> Iterator[Finding]:
    if count := gathering.ambiguous + losses.ambiguous:
        message = f"{counted(count, 'event states', 'events state')} a key twice; the last value counts"
        yield Finding("keys-repeated", "warning", message, file, count=count)


def _unlabelled(gathering: RowBuilder, file: str) -> Iterator[Finding]:
    if gathering.unlabelled:
        message = f"{counted(gathering.unlabelled, 'event has', 'events have')} no name or no phase"
        yield Finding("events-unlabelled", "error", message, file, count=gathering.unlabelled)


_NUMBERED = ("cpu_ops", "annotations")
_GAPS, _GAPS_SHARE = 20, 0.01
"""Gaps in the numbers of operators and ranges, as a count and as a share of them, that mean lost events.

Kineto numbers both in one row, and leaves out at most a block of numbers for each thread: real traces of
9,000 operators have at most 5 gaps.
"""


def _lost_operators(tables: Tables, file: str) -> Iterator[Finding]:
    columns = (_column(tables[name], "external_id") for name in _NUMBERED if name in tables)
    numbers = pl.concat([pl.Series(dtype=pl.Int64), *columns]).sort()  # nulls come first
    numbers = numbers.slice(numbers.null_count())
    steps = numbers.slice(1) - numbers.head(-1)
    distinct = 1 + int((steps > 0).sum())
    if (gaps := steps.filter(steps > 1)).len() >= max(_GAPS, _GAPS_SHARE * distinct):
        lost = int((gaps.filter(gaps <= distinct) - 1).sum())
        message = f"about {counted(lost, 'operator', 'operators')} or ranges are not in the file"
        yield Finding(
            "operators-lost", "error", message, file, count=lost, touches=("cpu_ops", "annotations")
        )


def _column(table: pl.DataFrame | OnDisk, name: str) -> pl.Series:
    return _columns(table, [name])[name]


def _columns(table: pl.DataFrame | OnDisk, names: Sequence[str] | None = None) -> pl.DataFrame:
    return table.frame(names) if isinstance(table, OnDisk) else table


def read_kineto(stream: BinaryIO, file: str) -> TraceContent:
    """Return the content of the Kineto trace in `stream`; `file` names it in messages.

    Raises InputError when the file holds no array of events at all, or those of several processes.
    Everything less than that is salvaged and reported in the findings.
    """
    text, losses, gathering = Document(), Losses(), RowBuilder(native_rows())
    collecting = gc.isenabled()
    gc.disable()  # events are freed by reference count; walking them in between only costs time
    try:
        for events in event_lists(stream, text, losses, gathering.taken):
            gathering.add(events)
    finally:
        if collecting:
            gc.enable()
    if not text.found_array:
        raise InputError(
            text.broken_off or "no array of trace events in it",
            where=file,
            fix="export the trace again with torch.profiler, or leave the file out of the run",
        )
    meta, is_whole = document.metadata(text.head, text.tail)
    tables, doubts = _clean_tables(gathering, document.base_time_ns(meta), file)
    _check_one_process(tables, file)
    tables |= {"devices": document.devices(meta), "process_groups": document.process_groups(meta)}
    findings = [*_damage(text, losses, file), *_unknown(gathering, file), *_unlabelled(gathering, file)]
    findings += [*_ambiguous(gathering, losses, file), *doubts, *_lost_operators(tables, file)]
    if not is_whole:
        findings.append(Finding("metadata-damaged", "warning", _METADATA_DAMAGED, file))
    if not gathering.events:
        findings.append(Finding("no-events", "error", "the file holds no events", file))
    return TraceContent(
        tables=tables,
        rank=document.rank(meta),
        world_size=document.world_size(meta),
        findings=findings,
        attributes=document.attributes(meta),
    )
