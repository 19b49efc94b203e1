"""Read a Kineto trace into tables, in one pass and in bounded memory."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_polars import pl
from ccl_bench.trace import content, quality
from ccl_bench.trace.content import OnDisk, TraceContent
from ccl_bench.trace.formats.kineto import metadata
from ccl_bench.trace.formats.kineto.native.reader import native_rows
from ccl_bench.trace.formats.kineto.pieces import Document, Losses, event_lists
from ccl_bench.trace.formats.kineto.row_builder import RowBuilder

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Mapping
    from typing import BinaryIO

    from ccl_bench.trace.content import Scratch

_SHARE = 0.01
"""Share of the operators from which another process is no damaged number."""

_STEP = "ProfilerStep"


def _check_one_process(tables: Mapping[str, pl.DataFrame | OnDisk], file: str) -> None:
    """Raise InputError where the operators are of several processes, or two loops of steps run at once."""
    numbers = _processes(tables)
    if len(numbers) > 1:
        listed = " and ".join(map(str, numbers))
        raise _mixed(f"events of several processes ({listed}) are mixed in it", file)
    annotations = tables.get("annotations")
    if isinstance(annotations, pl.DataFrame) and _steps_run_at_once(annotations):
        raise _mixed("events of several processes are mixed in it: two loops of steps run concurrently", file)


def _mixed(message: str, file: str) -> InputError:
    return InputError(message, where=file, fix="let each rank write its own trace, and do not merge them")


def _processes(tables: Mapping[str, pl.DataFrame | OnDisk]) -> list[int]:
    """Return the processes that a good part of the operators or launches is of."""
    found: set[int] = set()
    for name in ("cpu_ops", "launches"):
        table = tables.get(name)
        if table is None:
            continue
        column = (table.frame(["process"]) if isinstance(table, OnDisk) else table)["process"]
        counts = column.drop_nulls().value_counts()
        found |= {*counts.filter(pl.col("count") >= _SHARE * column.len())["process"]}
    return sorted(found)


def _steps_run_at_once(annotations: pl.DataFrame) -> bool:
    """Whether two steps of one number overlap by more than half of the shorter one; a copy does not count."""
    is_step = pl.col("name").cast(pl.String).str.starts_with(_STEP)
    steps = annotations.filter(~pl.col("on_device") & is_step).select("name", "start_ns", "end_ns").unique()
    ordered = steps.sort("name", "start_ns", "end_ns")
    length = pl.col("end_ns") - pl.col("start_ns")
    shared = pl.min_horizontal("end_ns", pl.col("end_ns").shift(1)) - pl.col("start_ns")
    at_once = 2 * shared > pl.min_horizontal(length, length.shift(1))
    return not ordered.filter((pl.col("name") == pl.col("name").shift(1)) & at_once).is_empty()


Tables = dict[str, "pl.DataFrame | OnDisk"]


def _clean_tables(gathering: RowBuilder, base_ns: int, file: str) -> tuple[Tables, list[Finding]]:
    """Return every table without impossible and repeated events, and what was left out."""
    gathering.finish()
    if gathering.folder is not None:
        return _one_by_one(gathering, gathering.folder, base_ns, file)
    tables, implausible = quality.drop_impossible(dict(gathering.tables(base_ns)), file)
    once, repeated = quality.drop_repeated(tables, file)
    return dict(once), [*implausible, *repeated]


def _one_by_one(
    gathering: RowBuilder, folder: Scratch, base_ns: int, file: str
) -> tuple[Tables, list[Finding]]:
    middle = quality.median_start(gathering.starts(base_ns))
    tables: Tables = {}
    implausible, repeated = [], []
    for name, table in gathering.tables(base_ns):
        possible, impossible = quality.drop_impossible({name: table}, file, middle)
        once, copies = quality.drop_repeated(possible, file)
        tables[name] = _to_disk(once[name], name, folder)
        implausible += impossible
        repeated += copies
    return tables, [*implausible, *repeated]


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
        message = f"{losses.lost} events are unreadable, {place}"
        yield Finding("events-lost", "error", message, file, count=losses.lost)
    if _EVENTS in text.tail:
        message = "another trace follows the first in the file, and is not read"
        yield Finding("events-lost", "error", message, file)
    if losses.repaired:
        yield Finding(
            "events-repaired",
            "note",
            f"{losses.repaired} events were read after their text was repaired, {place}",
            file,
            count=losses.repaired,
        )


def _most(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:5]


def _unknown(gathering: RowBuilder, file: str) -> Iterator[Finding]:
    if gathering.ignored:
        listed = ", ".join(f"{name or '(none)'} {count}" for name, count in _most(gathering.ignored))
        count = gathering.ignored.total()
        yield Finding("categories-unknown", "note", f"categories not used: {listed}", file, count=count)


def _unlabelled(gathering: RowBuilder, file: str) -> Iterator[Finding]:
    if gathering.unlabelled:
        message = f"{gathering.unlabelled} events have no name or no phase"
        yield Finding("events-unlabelled", "error", message, file, count=gathering.unlabelled)


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
    if not text.found_events:
        raise InputError(
            text.broken_off or "no array of trace events in it",
            where=file,
            fix="export the trace again with torch.profiler, or leave the file out of the run",
        )
    meta, is_whole = metadata.metadata(text.head, text.tail)
    tables, doubts = _clean_tables(gathering, metadata.base_time_ns(meta), file)
    _check_one_process(tables, file)
    tables |= {"devices": metadata.devices(meta), "process_groups": metadata.process_groups(meta)}
    findings = [*_damage(text, losses, file), *_unknown(gathering, file), *_unlabelled(gathering, file)]
    findings += doubts
    if not is_whole:
        findings.append(Finding("metadata-damaged", "warning", _METADATA_DAMAGED, file))
    if not gathering.events:
        findings.append(Finding("no-events", "error", "the file holds no events", file))
    return TraceContent(
        tables=tables,
        rank=metadata.rank(meta),
        world_size=metadata.world_size(meta),
        findings=findings,
        attributes=metadata.attributes(meta),
    )
