"""Devices: what a process calls them, and what the report knows of the hardware behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ccl_bench.schema import TABLES

if TYPE_CHECKING:
    from ccl_bench.base.lazy_polars import pl
    from ccl_bench.trace.formats.nsys.database import Database
    from ccl_bench.trace.formats.nsys.processes import Process

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


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices that one process saw."""

    table: pl.DataFrame
    """Rows of `devices`, by the numbers that the process uses."""
    sms: dict[int, int] = field(default_factory=dict)
    """Device → multiprocessors, where they are known."""
    number_of_gpu: dict[int, int] = field(default_factory=dict)
    """Number that the report gives a GPU → number that the process uses."""


def devices_of(database: Database, process: Process) -> Devices:
    """Return the devices that a process saw.

    CUDA numbers them for each process, and the report for the machine; `TARGET_INFO_CUDA_DEVICE`
    joins the two, before it existed `cuDevice` of the GPU did.
    """
    gpus = _by("id", database.frame("TARGET_INFO_GPU", _GPU))
    cuda = database.frame("TARGET_INFO_CUDA_DEVICE", _CUDA_DEVICE).drop_nulls(["cudaId", "pid"])
    own = _by("gpuId", cuda.filter(cuda["pid"] == process.pid))
    numbers = {gpu: row["cudaId"] for gpu, row in own.items()}
    numbers = numbers or {gpu: _cuda_number(row) for gpu, row in gpus.items()}
    sms = {
        number: count
        for gpu, number in numbers.items()
        if (count := _count(gpus.get(gpu), "smCount") or _count(own.get(gpu), "numMultiprocessors"))
    }
    return Devices(_table(gpus, numbers, sms), sms, numbers)


def _by(key: str, rows: pl.DataFrame) -> dict[int, dict[str, Any]]:
    return {row[key]: row for row in rows.drop_nulls(key).iter_rows(named=True)}


def _cuda_number(gpu: dict[str, Any]) -> int:
    number: int = gpu["id"] if gpu["cuDevice"] is None else gpu["cuDevice"]
    return number


def _count(row: dict[str, Any] | None, name: str) -> int | None:
    """Return a count of a piece of hardware; None where it is not known or none there can be."""
    count = row[name] if row else None
    return count if count and 0 < count < _MANY else None


def _table(gpus: dict[int, dict[str, Any]], numbers: dict[int, int], sms: dict[int, int]) -> pl.DataFrame:
    known = [(number, gpus[gpu]) for gpu, number in sorted(numbers.items(), key=_number) if gpu in gpus]
    return TABLES["devices"].frame(
        {
            "device": [number for number, _ in known],
            "name": [gpu["name"] for _, gpu in known],
            "memory_bytes": [gpu["totalMemory"] for _, gpu in known],
            "sms": [sms.get(number) for number, _ in known],
            "threads_per_sm": [_threads(gpu) for _, gpu in known],
        }
    )


def _number(pair: tuple[int, int]) -> int:
    return pair[1]


def _threads(gpu: dict[str, Any]) -> int | None:
    warps, threads = _count(gpu, "maxWarpsPerSm"), _count(gpu, "threadsPerWarp")
    return warps * threads if warps and threads else None
