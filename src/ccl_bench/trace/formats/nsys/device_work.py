"""Kernels, copies and memory sets of one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_polars import pl
from ccl_bench.schema import TABLES
from ccl_bench.trace.formats.nsys.processes import rows_of
from ccl_bench.trace.formats.nsys.times import absolute

if TYPE_CHECKING:
    from ccl_bench.trace.formats.nsys.database import Database
    from ccl_bench.trace.formats.nsys.devices import Devices
    from ccl_bench.trace.formats.nsys.processes import Process

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPIES, SETS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"

_WORK = dict.fromkeys(("start", "end", "deviceId", "streamId", "correlationId"), "integer")
_NAMES = ("demangledName", "shortName", "mangledName")
_GRID, _BLOCK = ("gridX", "gridY", "gridZ"), ("blockX", "blockY", "blockZ")
_SHARED = ("staticSharedMemory", "dynamicSharedMemory")
_KERNEL = _WORK | dict.fromkeys((*_NAMES, *_GRID, *_BLOCK, *_SHARED, "registersPerThread"), "integer")

UNNAMED = "(unnamed kernel)"
WARP_THREADS = 32

_COPY_KINDS = {
    "HTOD": "HtoD",
    "DTOH": "DtoH",
    "HTOA": "HtoD",
    "ATOH": "DtoH",
    "ATOA": "DtoD",
    "ATOD": "DtoD",
    "DTOA": "DtoD",
    "DTOD": "DtoD",
    "HTOH": "HtoH",
    "PTOP": "PtoP",
    "UVM_HTOD": "HtoD",
    "UVM_DTOH": "DtoH",
    "UVM_DTOD": "DtoD",
}
"""Ending of a name in `ENUM_CUDA_MEMCPY_OPER` → kind; arrays lie on the device."""

_COPY_NUMBERS = dict(enumerate(_COPY_KINDS, 1))
"""The numbers of `CUpti_ActivityMemcpyKind`, and of unified memory after them."""


def _own(rows: pl.DataFrame, process: Process) -> pl.DataFrame:
    """Return the rows of the process's own devices.

    Work on a device that no trace of the process is about goes with its first one.
    """
    if not process.other_devices:
        return rows
    mine = pl.col("deviceId").is_in(process.devices)
    if process.devices < process.other_devices:
        mine |= ~pl.col("deviceId").is_in(process.other_devices)
    return rows.filter(mine.fill_null(value=False))


def kernels(database: Database, process: Process, devices: Devices, base_ns: int) -> pl.DataFrame:
    """Return the `kernels` rows of one process."""
    found = database.frame(KERNELS, _KERNEL, rows_of(database, KERNELS, process))
    rows = _shaped(_own(found, process), devices)
    blocks, threads = pl.col("grid_blocks"), pl.col("block_threads")
    timed = rows.select(
        absolute("start", base_ns).alias("start_ns"),
        absolute("end", base_ns).alias("end_ns"),
        _names(database, rows).alias("name"),
        pl.col("deviceId").alias("device"),
        pl.col("streamId").alias("stream"),
        pl.col("correlationId").alias("correlation"),
        (blocks / pl.col("sms")).alias("blocks_per_sm"),
        (blocks * (threads / WARP_THREADS).ceil() / pl.col("sms")).alias("warps_per_sm"),
        "grid_blocks",
        "block_threads",
        pl.col("registersPerThread").alias("registers"),
        _sum(_SHARED).alias("shared_memory_bytes"),
    )
    return _table("kernels", timed)


def _names(database: Database, rows: pl.DataFrame) -> pl.Series:
    """Return the fullest name of each kernel."""
    known = pl.DataFrame({name: database.strings(rows[name]) for name in _NAMES})
    return known.select(pl.coalesce(*_NAMES, pl.lit(UNNAMED)).cast(pl.Categorical)).to_series()


def _shaped(rows: pl.DataFrame, devices: Devices) -> pl.DataFrame:
    """Add the blocks of each grid, the threads of each block, and the multiprocessors of the device."""
    sms = rows["deviceId"].replace_strict(
        list(devices.sms), list(devices.sms.values()), default=None, return_dtype=pl.Int64
    )
    return rows.with_columns(
        _product(_GRID).alias("grid_blocks"), _product(_BLOCK).alias("block_threads"), sms.alias("sms")
    )


def _product(sides: tuple[str, ...]) -> pl.Expr:
    """Return the product of the sides of a launch shape; null where one is absent or it is no shape."""
    columns = [pl.col(side) for side in sides]
    possible = pl.all_horizontal(column.is_between(1, 2**31) for column in columns)
    real = columns[0].cast(pl.Float64) * columns[1] * columns[2]
    whole = columns[0] * columns[1] * columns[2]
    return pl.when(possible & (real < 2.0**62)).then(whole)


def _sum(parts: tuple[str, ...]) -> pl.Expr:
    possible = pl.all_horizontal(pl.col(part).is_between(0, 2**40) for part in parts)
    return pl.when(possible).then(pl.sum_horizontal(parts))


def memcpy(database: Database, process: Process, base_ns: int) -> pl.DataFrame:
    """Return the `memcpy` rows of one process: copies and memory sets."""
    copies = _moved(database, process, COPIES)
    sets = _moved(database, process, SETS)
    kinds = _copy_kinds(database)
    named = copies["copyKind"].replace_strict(
        list(kinds), list(kinds.values()), default="other", return_dtype=pl.String
    )
    memory_sets = pl.lit("memset").alias("kind")
    rows = pl.concat([copies.with_columns(named.alias("kind")), sets.with_columns(memory_sets)])
    return _table(
        "memcpy",
        rows.select(
            absolute("start", base_ns).alias("start_ns"),
            absolute("end", base_ns).alias("end_ns"),
            "kind",
            pl.col("deviceId").alias("device"),
            pl.col("streamId").alias("stream"),
            pl.col("correlationId").alias("correlation"),
            pl.when(pl.col("bytes") >= 0).then("bytes").alias("bytes"),
        ),
    )


def _moved(database: Database, process: Process, table: str) -> pl.DataFrame:
    kinds = _WORK | {"bytes": "integer", "copyKind": "integer"}
    return _own(database.frame(table, kinds, rows_of(database, table, process)), process)


def _copy_kinds(database: Database) -> dict[int, str]:
    """Return number → kind, as the export names its numbers, else as CUPTI numbers them."""
    rows = database.frame("ENUM_CUDA_MEMCPY_OPER", {"id": "integer", "name": "text"}).drop_nulls()
    named = {number: name.removeprefix("CUDA_MEMCPY_KIND_") for number, name in rows.iter_rows()}
    numbered = (_COPY_NUMBERS | named).items()
    return {number: _COPY_KINDS[name] for number, name in numbered if name in _COPY_KINDS}


def _table(name: str, rows: pl.DataFrame) -> pl.DataFrame:
    return TABLES[name].frame(rows.to_dict()).sort("start_ns", maintain_order=True)
