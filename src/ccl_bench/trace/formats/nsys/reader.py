"""Reader of one process of a report or export, with findings about missing data."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.device_order import drop_disordered
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

    from ccl_bench.trace.formats.nsys.processes import ReportProcess
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


def completeness_findings(database: Database, process: ReportProcess, file: str) -> Iterator[Finding]:
    """Yield the findings on missing data of one process."""
    kinds = {"start": "integer", "end": "integer", "deviceId": "integer"}
    graphs = database.frame(device.GRAPHS, kinds, rows_of(database, device.GRAPHS, process))
    graphs = graphs.filter(~pl.col("deviceId").is_in(process.other_devices).fill_null(value=False))
    if graphs.height:  # each ran as a whole, with no row for the kernels in it
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
    kinds = {"severity": "integer", "text": "text", "globalPid": "integer"}
    for severity, text, owner in database.frame("DIAGNOSTIC_EVENT", kinds).iter_rows():
        if (severity or 0) > 1 and owner == process.global_pid and _DROPPED.search(text or ""):
            yield Finding("events-dropped", "warning", f"the profiler reported: {text.strip()[:200]}", file)
    if views := [name for name in database.refused if name in _TABLES or name == "StringIds"]:
        message = f"not read, because it is not a table: {', '.join(views)}"
        touched_tables = tuple({name: None for view in views for name in _TABLES.get(view, ())})
        yield Finding("tables-refused", "error", message, file, count=len(views), touches=touched_tables)
    yield from damage_findings(database, file)


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
        selected = select_process(database, process)
        start = session_start_ns(database)
        base = start or 0
        devices = devices_of(database, selected)
        ranges = host.ranges(database, selected, base)
        raw_tables = {
            "kernels": device.kernels(database, selected, devices, base),
            "memcpy": device.memcpy(database, selected, base),
            "launches": host.launches(database, selected, base),
            "annotations": host.marked(ranges),
            "cpu_ops": host.cpu_ops(ranges),
            "collectives": communication.collectives(database, selected, ranges, base),
            "devices": devices.table,
            "counters": counters.counters(database, selected, devices, base),
            "network_traffic": counters.network_traffic(database, base),
        }
        tables, implausible = drop_impossible(raw_tables, file)
        tables, repeats = drop_repeated(tables, file)
        tables, disordered = drop_disordered(tables, file)
        if selected.other_devices:  # launches whose work ran there belong to other traces
            kinds = {"deviceId": "integer", "correlationId": "integer"}
            elsewhere = pl.concat(
                database.frame(table, kinds, rows_of(database, table, selected))
                for table in (device.KERNELS, device.GRAPHS, device.COPIES, device.SETS)
            ).filter(pl.col("deviceId").is_in(selected.other_devices))
            correlations = elsewhere["correlationId"].drop_nulls().implode()
            tables["launches"] = tables["launches"].filter(~pl.col("correlation").is_in(correlations))
        return TraceContent(
            tables=tables,
            rank=selected.rank,
            world_size=selected.world_size,
            findings=[
                *completeness_findings(database, selected, file),
                *implausible,
                *repeats,
                *disordered,
                *_doubts(tables, ranges, start, file),
            ],
            attributes=_versions(database),
        )


def _doubts(
    tables: dict[str, pl.DataFrame], ranges: pl.DataFrame, start: int | None, file: str
) -> Iterator[Finding]:
    """Yield the findings on what was read."""
    if start is None:
        message = (
            "the start of the session is not recorded: times cannot be compared with those of other files"
        )
        yield Finding("clock-unanchored", "warning", message, file)
    if unended := ranges["end_ns"].null_count():
        message = f"left out, because still open when the recording ended: {counted(unended, 'range')}"
        yield Finding("ranges-unended", "note", message, file, count=unended, touches=("annotations",))
    if not any(table.height for name, table in tables.items() if name != "devices"):
        yield Finding("no-events", "error", "the file holds no events", file)


def _versions(database: Database) -> dict[str, str]:
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
