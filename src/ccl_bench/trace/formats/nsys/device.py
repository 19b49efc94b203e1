"""The devices that one process saw, and its kernels, copies and memory sets on them."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema import TABLES
from ccl_bench.trace.formats.nsys.database import complete_rows, in_order, meanings, since_epoch
from ccl_bench.trace.formats.nsys.processes import rows_of

if TYPE_CHECKING:
    from ccl_bench.trace.formats.nsys.processes import ReportProcess
    from ccl_bench.trace.sqlite import Database

_GPU = {
    "id": "integer",
    "name": "text",
    "totalMemory": "integer",
    "smCount": "integer",
    "cuDevice": "integer",
    "maxWarpsPerSm": "integer",
    "threadsPerWarp": "integer",
}
_CUDA_DEVICE = {
    "gpuId": "integer",
    "cudaId": "integer",
    "pid": "integer",
    "numMultiprocessors": "integer",
}

_MANY = 1 << 20

_NO_KIND = -1
"""Number that no kind of memory has."""


@dataclass(frozen=True, slots=True)
class ReportDevices:
    """The devices that one process saw."""

    table: pl.DataFrame
    """Rows of `devices`, by the numbers that the process uses."""
    sms: dict[int, int]
    """Device → multiprocessors, where they are known."""
    number_of_gpu: dict[int, int]
    """Number that the report gives a GPU → number that the process uses."""


def devices_of(database: Database, process: ReportProcess) -> ReportDevices:
    """Return the devices that a process saw.

    CUDA numbers them for each process, and the report for the machine; `TARGET_INFO_CUDA_DEVICE`
    joins the two, before it existed `cuDevice` of the GPU did.
    """
    gpus = _by("id", database.frame("TARGET_INFO_GPU", _GPU))
    cuda = database.frame("TARGET_INFO_CUDA_DEVICE", _CUDA_DEVICE).drop_nulls(["cudaId", "pid"])
    by_gpu = _by("gpuId", cuda.filter(cuda["pid"] == process.pid))
    numbers = {gpu: row["cudaId"] for gpu, row in by_gpu.items()} or {
        gpu: gpu if row["cuDevice"] is None else row["cuDevice"] for gpu, row in gpus.items()
    }
    sms = {
        number: count
        for gpu, number in numbers.items()
        if (count := _count(gpus.get(gpu), "smCount") or _count(by_gpu.get(gpu), "numMultiprocessors"))
    }
    rows = [(number, gpus[gpu]) for gpu, number in sorted(numbers.items(), key=itemgetter(1)) if gpu in gpus]
    sides = [(_count(gpu, "maxWarpsPerSm"), _count(gpu, "threadsPerWarp")) for _, gpu in rows]
    table = TABLES["devices"].frame(
        {
            "device": [number for number, _ in rows],
            "name": [gpu["name"] for _, gpu in rows],
            "memory_bytes": [gpu["totalMemory"] for _, gpu in rows],
            "sms": [sms.get(number) for number, _ in rows],
            "threads_per_sm": [warps * threads if warps and threads else None for warps, threads in sides],
        }
    )
    return ReportDevices(table, sms, numbers)


def _by(key: str, rows: pl.DataFrame) -> dict[int, dict[str, Any]]:
    return {row[key]: row for row in rows.iter_rows(named=True) if row[key] is not None}


def _count(row: dict[str, Any] | None, name: str) -> int | None:
    """Return a count of a piece of hardware; None if unknown or none there can be."""
    count = row[name] if row else None
    return count if count and 0 < count < _MANY else None


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


def _of_process(rows: pl.DataFrame, process: ReportProcess) -> pl.DataFrame:
    """Return the rows of the process's own devices.

    Work on a device that no trace of the process is about goes with its first one.
    """
    if not process.other_devices:
        return rows
    is_of_process = pl.col("deviceId").is_in(process.devices)
    if process.devices < process.other_devices:
        is_of_process |= ~pl.col("deviceId").is_in(process.other_devices)
    return rows.filter(is_of_process.fill_null(value=False))


def kernels(database: Database, process: ReportProcess, devices: ReportDevices, base_ns: int) -> pl.DataFrame:
    """Return the `kernels` rows of one process."""
    recorded_kernels = database.frame(KERNELS, _KERNEL, rows_of(database, KERNELS, process))
    if recorded_kernels.is_empty():
        return TABLES["kernels"].empty()
    rows = _of_process(recorded_kernels, process)
    sms = rows["deviceId"].replace_strict(
        list(devices.sms), list(devices.sms.values()), default=None, return_dtype=pl.Int64
    )
    rows = rows.with_columns(
        _product(_GRID).alias("grid_blocks"), _product(_BLOCK).alias("block_threads"), sms.alias("sms")
    )

    def fullest_names(ids: pl.DataFrame) -> pl.Series:
        texts = pl.DataFrame({name: database.strings(ids[name]) for name in _NAMES})
        return texts.select(pl.coalesce(*_NAMES, pl.lit(UNNAMED)).cast(pl.Categorical)).to_series()

    blocks, threads = pl.col("grid_blocks"), pl.col("block_threads")
    is_sound = pl.all_horizontal(pl.col(part).is_between(0, 2**40) for part in _SHARED)
    kernel_rows = rows.select(
        since_epoch("start", base_ns).alias("start_ns"),
        since_epoch("end", base_ns).alias("end_ns"),
        meanings(rows, _NAMES, fullest_names).alias("name"),
        pl.col("deviceId").alias("device"),
        pl.col("streamId").alias("stream"),
        pl.col("correlationId").alias("correlation"),
        (blocks / pl.col("sms")).alias("blocks_per_sm"),
        (blocks * (threads / WARP_THREADS).ceil() / pl.col("sms")).alias("warps_per_sm"),
        "grid_blocks",
        "block_threads",
        pl.col("registersPerThread").alias("registers"),
        pl.when(is_sound).then(pl.sum_horizontal(_SHARED)).alias("shared_memory_bytes"),
    )
    return in_order(TABLES["kernels"].frame(kernel_rows.to_dict()))


def _product(sides: tuple[str, ...]) -> pl.Expr:
    """Return the product of the sides of a launch shape; null if one is absent or it is no shape."""
    columns = [pl.col(side) for side in sides]
    possible = pl.all_horizontal(column.is_between(1, 2**31) for column in columns)
    real = columns[0].cast(pl.Float64) * columns[1] * columns[2]
    whole = columns[0] * columns[1] * columns[2]
    return pl.when(possible & (real < 2.0**62)).then(whole)


def memcpy(database: Database, process: ReportProcess, base_ns: int) -> pl.DataFrame:
    """Return the `memcpy` rows of one process: copies and memory sets."""
    copies = _moved(database, process, COPIES)
    sets = _moved(database, process, SETS)
    if copies.is_empty() and sets.is_empty():
        return TABLES["memcpy"].empty()
    named = database.frame("ENUM_CUDA_MEMCPY_OPER", {"id": "integer", "name": "text"})
    by_number = {number: name.removeprefix("CUDA_MEMCPY_KIND_") for number, name in complete_rows(named)}
    names = _COPY_NUMBERS | by_number  # as the export numbers them, else as CUPTI does
    kinds = {number: _COPY_KINDS[name] for number, name in names.items() if name in _COPY_KINDS}
    copy_kinds = copies["copyKind"].replace_strict(
        list(kinds), list(kinds.values()), default="other", return_dtype=pl.String
    )
    labels = database.frame("ENUM_CUDA_MEM_KIND", {"id": "integer", "label": "text"})
    numbers = {label: number for number, label in complete_rows(labels)}
    pageable, pinned = (
        pl.any_horizontal(pl.col("srcKind", "dstKind") == numbers.get(label, _NO_KIND))
        for label in ("Pageable", "Pinned")
    )
    memory_sets = pl.lit("memset").alias("kind")
    rows = pl.concat([copies.with_columns(copy_kinds.alias("kind")), sets.with_columns(memory_sets)]).select(
        since_epoch("start", base_ns).alias("start_ns"),
        since_epoch("end", base_ns).alias("end_ns"),
        "kind",
        pl.when(pageable | pinned).then(pageable).alias("is_pageable"),
        pl.col("deviceId").alias("device"),
        pl.col("streamId").alias("stream"),
        pl.col("correlationId").alias("correlation"),
        "bytes",
    )
    return in_order(TABLES["memcpy"].frame(rows.to_dict()))


def _moved(database: Database, process: ReportProcess, table: str) -> pl.DataFrame:
    kinds = _WORK | {"bytes": "integer", "copyKind": "integer", "srcKind": "integer", "dstKind": "integer"}
    return _of_process(database.frame(table, kinds, rows_of(database, table, process)), process)
