"""Reader of one process of a report or export, with findings about missing data."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.formats.nsys import communication, counters, device, host
from ccl_bench.trace.formats.nsys.database import complete_rows, open_database, session_start_ns, settings
from ccl_bench.trace.formats.nsys.device import devices_of
from ccl_bench.trace.formats.nsys.export import export_of
from ccl_bench.trace.formats.nsys.json_lines import number_of_lost_lines
from ccl_bench.trace.formats.nsys.processes import rows_of, select_process
from ccl_bench.trace.quality import DAY_NS, drop_impossible, drop_repeated
from ccl_bench.trace.sqlite import absent_names, whole_file_findings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccl_bench.trace.formats.nsys.processes import Process
    from ccl_bench.trace.sqlite import Database

_DROPPED = re.compile(
    r"(?i)not all (?:CUDA|CUPTI|NVTX|MPI|GPU) events|\bdropped\b|\blost\b|\boverflow|\bran out of\b"
)
_TABLES = {
    device.KERNELS: ("kernels",),
    device.GRAPHS: ("kernels",),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("memcpy",),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("memcpy",),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("launches",),
    "NVTX_EVENTS": ("annotations", "cpu_ops", "collectives"),
    "MPI_COLLECTIVES_EVENTS": ("annotations", "collectives"),
    "MPI_P2P_EVENTS": ("annotations", "collectives"),
    "GPU_METRICS": ("counters",),
    "GENERIC_EVENTS": ("counters",),
    counters.SAMPLES: ("network_traffic",),
    counters.METRICS: ("network_traffic",),
}
"""Table of an export → our tables that are made of it."""

_NAMED = ("kernels", "launches", "annotations", "cpu_ops", "collectives")
"""Our tables whose rows have names from `StringIds`."""


def completeness_findings(database: Database, process: Process, file: str) -> Iterator[Finding]:
    """Yield the findings on missing data of one process."""
    yield from _hidden_kernels(database, process, file)
    yield from _dropped(database, process, file)
    yield from _refused(database, file)
    yield from damage_findings(database, file)


def _hidden_kernels(database: Database, process: Process, file: str) -> Iterator[Finding]:
    """Report graphs that ran as a whole, with no row for each kernel in them."""
    only = rows_of(database, device.GRAPHS, process)
    kinds = {"start": "integer", "end": "integer", "deviceId": "integer"}
    graphs = database.frame(device.GRAPHS, kinds, only)
    graphs = graphs.filter(~pl.col("deviceId").is_in(process.other_devices).fill_null(value=False))
    if graphs.height:
        lengths = graphs["end"] - graphs["start"]
        seconds = int(lengths.filter(lengths.is_between(0, DAY_NS)).sum()) / 1e9
        yield Finding(
            "cuda-graphs-hide-kernels",
            "error",
            f"{counted(graphs.height, 'CUDA graph was', 'CUDA graphs were')} recorded without the kernels "
            f"inside, {seconds:.3f} s long in all: busy, idle, overlap and every count and time of kernels "
            "are wrong",
            file,
            count=graphs.height,
            touches=("kernels", "memcpy"),
        )


def _dropped(database: Database, process: Process, file: str) -> Iterator[Finding]:
    """Report the losses that the profiler itself states of this process."""
    kinds = {"severity": "integer", "text": "text", "globalPid": "integer"}
    for severity, text, owner in database.frame("DIAGNOSTIC_EVENT", kinds).iter_rows():
        if (severity or 0) > 1 and owner == process.global_pid and _DROPPED.search(text or ""):
            yield Finding("events-dropped", "warning", f"the profiler reported: {text.strip()[:200]}", file)


def _refused(database: Database, file: str) -> Iterator[Finding]:
    views = [name for name in database.refused if name in _TABLES or name == "StringIds"]
    if views:
        message = f"not read, because it is not a table: {', '.join(views)}"
        touched_tables = tuple({name: None for view in views for name in _TABLES.get(view, ())})
        yield Finding("tables-refused", "error", message, file, count=len(views), touches=touched_tables)


def damage_findings(database: Database, file: str) -> Iterator[Finding]:
    """Yield the findings on unreadable parts of the file."""
    yield from whole_file_findings(database, file)
    if lost := number_of_lost_lines(settings(database)):
        yield Finding(
            "events-lost", "error", f"{counted(lost, 'line is', 'lines are')} unreadable", file, count=lost
        )
    yield from absent_names(database, file, _NAMED)
    for table, why in database.damage.items():
        touches = _TABLES.get(table, ())
        yield Finding("table-damaged", "error", f"{table} is damaged: {why}", file, touches=touches)


TABLES = frozenset(
    {
        *("kernels", "memcpy", "cpu_ops", "launches", "annotations", "collectives"),
        *("devices", "counters", "network_traffic"),
    }
)
"""Raw tables that a report can fill."""


def read_nsys(path: Path, file: str, process: str | None = None) -> TraceContent:
    """Return the content of a report or export for one of its processes; `file` names it in messages.

    `process` is the `id` of one of `processes(path)`; it may be left out where there is only one.
    Raises InputError when the file is no export that can be read, or cannot be turned into one.
    """
    with open_database(export_of(path, file), file) as database:
        return _content(database, select_process(database, process), file)


def _content(database: Database, process: Process, file: str) -> TraceContent:
    start = session_start_ns(database)
    base = start or 0
    devices = devices_of(database, process)
    ranges = host.ranges(database, process, base)
    raw_tables = {
        "kernels": device.kernels(database, process, devices, base),
        "memcpy": device.memcpy(database, process, base),
        "launches": host.launches(database, process, base),
        "annotations": host.marked(ranges),
        "cpu_ops": host.cpu_ops(ranges),
        "collectives": communication.collectives(database, process, ranges, base),
        "devices": devices.table,
        "counters": counters.counters(database, process, devices, base),
        "network_traffic": counters.network_traffic(database, base),
    }
    tables, implausible = drop_impossible(raw_tables, file)
    tables, repeats = drop_repeated(tables, file)
    tables["launches"] = _own_launches(database, process, tables)
    return TraceContent(
        tables=tables,
        rank=process.rank,
        world_size=process.world_size,
        findings=[
            *completeness_findings(database, process, file),
            *implausible,
            *repeats,
            *_about(tables, ranges, start, file),
        ],
        attributes=_attributes(database),
    )


def _own_launches(database: Database, process: Process, tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the launches without those whose work ran on a device that another trace is about."""
    launches = tables["launches"]
    if not process.other_devices:
        return launches
    kinds = {"deviceId": "integer", "correlationId": "integer"}
    elsewhere = pl.concat(
        database.frame(table, kinds, rows_of(database, table, process))
        for table in (device.KERNELS, device.GRAPHS, device.COPIES, device.SETS)
    ).filter(pl.col("deviceId").is_in(process.other_devices))
    return launches.filter(~launches["correlation"].is_in(elsewhere["correlationId"].drop_nulls().implode()))


def _about(
    tables: dict[str, pl.DataFrame], ranges: pl.DataFrame, start: int | None, file: str
) -> Iterator[Finding]:
    if start is None:
        message = (
            "the start of the session is not recorded: times cannot be compared with those of other files"
        )
        yield Finding("clock-unanchored", "warning", message, file)
    unended = ranges["end_ns"].null_count()
    if unended:
        message = f"left out, because still open when the recording ended: {counted(unended, 'range')}"
        yield Finding("ranges-unended", "note", message, file, count=unended, touches=("annotations",))
    if not any(table.height for name, table in tables.items() if name != "devices"):
        yield Finding("no-events", "error", "the file holds no events", file)


def _attributes(database: Database) -> dict[str, str]:
    """Return the versions that the report records."""
    export_settings = settings(database)
    environment = dict(
        complete_rows(database.frame("TARGET_INFO_SYSTEM_ENV", {"name": "text", "value": "text"}))
    )
    versions = {
        "nsys_version": export_settings.get("EXPORT_PRODUCT_VERSION"),
        "nsys_schema_version": export_settings.get("EXPORT_SCHEMA_VERSION"),
        "cuda_driver_version": environment.get("CudaDriverVersion"),
    }
    return {name: value[:64] for name, value in versions.items() if value}
