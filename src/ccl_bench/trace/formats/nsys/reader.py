"""Read one process of a report, or of its export, into tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_polars import pl
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.formats.nsys import communication, completeness, counters, device_work, host
from ccl_bench.trace.formats.nsys.database import opened
from ccl_bench.trace.formats.nsys.devices import devices_of
from ccl_bench.trace.formats.nsys.export import exported
from ccl_bench.trace.formats.nsys.processes import rows_of, selected
from ccl_bench.trace.formats.nsys.times import session_start_ns, settings
from ccl_bench.trace.plausibility import screened
from ccl_bench.trace.repeats import each_once

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccl_bench.trace.formats.nsys.database import Database
    from ccl_bench.trace.formats.nsys.processes import Process

TABLES = frozenset(
    {"kernels", "memcpy", "cpu_ops", "launches", "annotations", "collectives", "devices", "counters"}
)
"""Raw tables that a report can fill."""


def read_nsys(path: Path, file: str, process: str | None = None) -> TraceContent:
    """Return the content of a report or export for one of its processes; `file` names it in messages.

    `process` is the `id` of one of `processes(path)`; it may be left out where there is only one.
    Raises InputError when the file is no export that can be read, or cannot be turned into one.
    """
    with opened(exported(path, file), file) as database:
        return _content(database, selected(database, process), file)


def _content(database: Database, process: Process, file: str) -> TraceContent:
    start = session_start_ns(database)
    base = start or 0
    devices = devices_of(database, process)
    ranges = host.ranges(database, process, base)
    found = {
        "kernels": device_work.kernels(database, process, devices, base),
        "memcpy": device_work.memcpy(database, process, base),
        "launches": host.launches(database, process, base),
        "annotations": host.marked(ranges),
        "cpu_ops": host.cpu_ops(ranges),
        "collectives": communication.collectives(database, process, ranges, base),
        "devices": devices.table,
        "counters": counters.counters(database, process, devices, base),
    }
    tables, implausible = screened(found, file)
    tables, repeated = each_once(tables, file)
    tables["launches"] = _own_launches(database, process, tables)
    return TraceContent(
        tables=tables,
        rank=process.rank,
        world_size=process.world_size,
        findings=[
            *completeness.findings(database, process, file),
            *implausible,
            *repeated,
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
        for table in (device_work.KERNELS, device_work.GRAPHS, device_work.COPIES, device_work.SETS)
    ).filter(pl.col("deviceId").is_in(process.other_devices))
    return launches.filter(~launches["correlation"].is_in(elsewhere["correlationId"].drop_nulls().implode()))


def _about(
    tables: dict[str, pl.DataFrame], ranges: pl.DataFrame, start: int | None, file: str
) -> Iterator[Finding]:
    if start is None:
        message = "the start of the session is not recorded: times do not compare with those of other files"
        yield Finding("clock-unanchored", "warning", message, file)
    unended = ranges["end_ns"].null_count()
    if unended:
        message = f"{unended} ranges had not ended when the recording did, and are left out"
        yield Finding("ranges-unended", "note", message, file, count=unended, touches=("annotations",))
    if not any(table.height for name, table in tables.items() if name != "devices"):
        yield Finding("no-events", "error", "the file holds no events", file)


def _attributes(database: Database) -> dict[str, str]:
    """Return the versions that the report records."""
    said = settings(database)
    machine = database.frame("TARGET_INFO_SYSTEM_ENV", {"name": "text", "value": "text"}).drop_nulls()
    known = dict(machine.filter(pl.col("name") == "CudaDriverVersion").iter_rows())
    versions = {
        "nsys_version": said.get("EXPORT_PRODUCT_VERSION"),
        "nsys_schema_version": said.get("EXPORT_SCHEMA_VERSION"),
        "cuda_driver_version": known.get("CudaDriverVersion"),
    }
    return {name: value[:64] for name, value in versions.items() if value}
