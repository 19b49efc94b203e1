"""Reader of Kineto traces: one pass in bounded memory; rows of a large file lie on disk."""

from __future__ import annotations

import gc
from itertools import pairwise
from typing import TYPE_CHECKING

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.schema.table import keep_rows
from ccl_bench.trace import content, device_order, quality
from ccl_bench.trace.content import OnDisk, TraceContent
from ccl_bench.trace.formats.kineto import document
from ccl_bench.trace.formats.kineto.native.reader import native_rows
from ccl_bench.trace.formats.kineto.rows import RowBuilder
from ccl_bench.trace.json_array import Document, damage
from ccl_bench.trace.values import whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

    from ccl_bench.trace.content import Scratch

Tables = dict[str, "pl.DataFrame | OnDisk"]

_SHARE = 0.01
"""Share of the operators from which another process is no damaged number."""


def _check_one_process(tables: Tables, file: str) -> None:
    """Raise InputError if the operators are of several processes, or two loops of steps run at once."""
    processes: set[int] = set()
    for name in ("cpu_ops", "launches"):
        column = _columns(tables[name], ["process"])["process"]
        if not column.null_count() and column.len() and column.min() == column.max():
            processes.add(column[0])
        else:
            numbers, counts = column.drop_nulls().value_counts()
            processes |= {*numbers.filter(counts >= _SHARE * column.len())}
    problem = ""
    if len(processes) > 1:
        numbered = " and ".join(map(str, sorted(processes)))
        problem = f"events of several processes ({numbered}) are mixed in it"
    elif isinstance(annotations := tables["annotations"], pl.DataFrame):
        is_step = annotations["name"].cat.starts_with("ProfilerStep") & ~annotations["on_device"]
        columns = (annotations[name].filter(is_step).to_list() for name in ("name", "start_ns", "end_ns"))
        steps = pairwise(sorted(set(zip(*columns, strict=True))))  # as a set, for a copy is no second loop
        # Two steps of one number that share more than half of the shorter one are of two loops.
        if any(
            name == before and 2 * (min(end, last) - start) > min(end - start, last - first)
            for (before, first, last), (name, start, end) in steps
        ):
            problem = "events of several processes are mixed in it: two loops of steps run concurrently"
    if problem:
        fix = "let each rank write its own trace, and do not merge them"
        raise InputError(problem, where=file, fix=fix)


def _clean_tables(rows: RowBuilder, base_ns: int, file: str) -> tuple[Tables, list[Finding]]:
    """Return every table without impossible and repeated events, and findings on those.

    The tables of a large file are cleaned one by one, and each goes to disk before the next is made.
    """
    if rows.folder is None:
        possible, implausible = quality.drop_impossible(dict(rows.tables(base_ns)), file)
        unique, repeats = quality.drop_repeated(possible, file)
        ordered, disordered = device_order.drop_disordered(unique, file)
        return dict(ordered), [*implausible, *repeats, *disordered, *quality.doubt_ids(ordered, file)]
    middle = quality.median_start(rows.starts(base_ns))
    tables: Tables = {}
    implausible, repeats = [], []
    for name, table in rows.tables(base_ns):
        possible, impossible = quality.drop_impossible({name: table}, file, middle)
        unique, copies = quality.drop_repeated(possible, file)
        tables[name] = _to_disk(unique[name], name, rows.folder)
        implausible += impossible
        repeats += [*copies, *quality.doubt_ids(unique, file)]
    kernels, memcpy, launches = (_columns(tables[name], each) for name, each in device_order.COLUMNS.items())
    is_possible, disordered = device_order.in_order(kernels, memcpy, launches, file)
    for name, mask in is_possible.items():
        tables[name] = _to_disk(keep_rows(_columns(tables[name]), mask), name, rows.folder)
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


_NUMBERED = ("cpu_ops", "annotations")
_GAPS, _GAPS_SHARE = 20, 0.01
"""Gaps in the numbers of operators and ranges, as a count and as a share of them, that mean lost events.

Kineto numbers both in one row, and leaves out at most a block of numbers for each thread: real traces of
9,000 operators have at most 5 gaps.
"""


def _lost_operators(tables: Tables, file: str) -> Iterator[Finding]:
    columns = (_columns(tables[name], ["external_id"])["external_id"] for name in _NUMBERED)
    numbers = pl.concat(columns).drop_nulls().sort()
    steps = numbers.slice(1) - numbers.head(-1)
    distinct = 1 + int((steps > 0).sum())
    if (gaps := steps.filter(steps > 1)).len() >= max(_GAPS, _GAPS_SHARE * distinct):
        lost = int((gaps.filter(gaps <= distinct) - 1).sum())
        message = f"about {counted(lost, 'operator', 'operators')} or ranges are not in the file"
        yield Finding("operators-lost", "error", message, file, count=lost, touches=_NUMBERED)


_METADATA_DAMAGED = "the file's header or footer is damaged: rank, devices or clock base may be missing"


def _remarks(rows: RowBuilder, file: str) -> Iterator[Finding]:
    """Yield what is unusual about the events of a file that could be read."""
    if rows.ignored:
        most = sorted(rows.ignored.items(), key=lambda item: (-item[1], item[0]))[:5]
        message = "categories not used: " + ", ".join(f"{name or '(none)'} {count}" for name, count in most)
        yield Finding("categories-unknown", "note", message, file, count=rows.ignored.total())
    if count := rows.unlabelled:
        message = f"{counted(count, 'event has', 'events have')} no name or no phase"
        yield Finding("events-unlabelled", "error", message, file, count=count)
    if count := rows.ambiguous:
        message = f"{counted(count, 'event states', 'events state')} a key twice; the last value counts"
        yield Finding("keys-repeated", "warning", message, file, count=count)


def _columns(table: pl.DataFrame | OnDisk, names: Sequence[str] | None = None) -> pl.DataFrame:
    return table.frame(names) if isinstance(table, OnDisk) else table


def read_kineto(stream: BinaryIO, file: str) -> TraceContent:
    """Return the content of the Kineto trace in `stream`; `file` names it in messages.

    Raises InputError when the file holds no array of events at all, or those of several processes.
    Everything less than that is salvaged and reported in the findings.
    """
    text, rows = Document(), RowBuilder(native_rows())
    collecting = gc.isenabled()
    gc.disable()  # events are freed by reference count; walking them in between only costs time
    try:
        document.read_events(stream, text, rows)
        rows.finish()
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
    tables, doubts = _clean_tables(rows, document.base_time_ns(meta), file)
    _check_one_process(tables, file)
    tables |= {"devices": document.devices(meta), "process_groups": document.process_groups(meta)}
    findings = [*damage(text, document.EVENTS, file), *_remarks(rows, file), *doubts]
    findings += _lost_operators(tables, file)
    if not is_whole:
        findings.append(Finding("metadata-damaged", "warning", _METADATA_DAMAGED, file))
    if not rows.events:
        findings.append(Finding("no-events", "error", "the file holds no events", file))
    job = document.distributed(meta)
    return TraceContent(
        tables=tables,
        rank=whole(job.get("rank")),
        world_size=whole(job.get("world_size")),
        findings=findings,
        attributes=document.attributes(meta),
    )
