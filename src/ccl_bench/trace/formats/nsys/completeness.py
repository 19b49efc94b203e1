"""What a report misses: kernels hidden in CUDA graphs, dropped events, damaged tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_polars import pl
from ccl_bench.trace.formats.nsys import device_work
from ccl_bench.trace.formats.nsys.processes import rows_of
from ccl_bench.trace.plausibility import DAY_NS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.trace.formats.nsys.database import Database
    from ccl_bench.trace.formats.nsys.processes import Process

_DROPPED = re.compile(
    r"(?i)not all (?:CUDA|CUPTI|NVTX|MPI|GPU) events|\bdropped\b|\blost\b|\boverflow|\bran out of\b"
)
_TABLES = {
    device_work.KERNELS: ("kernels",),
    device_work.GRAPHS: ("kernels",),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("memcpy",),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("memcpy",),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("launches",),
    "NVTX_EVENTS": ("annotations", "cpu_ops", "collectives"),
    "MPI_COLLECTIVES_EVENTS": ("annotations", "collectives"),
    "MPI_P2P_EVENTS": ("annotations", "collectives"),
    "GPU_METRICS": ("counters",),
    "GENERIC_EVENTS": ("counters",),
}
"""Table of an export → our tables that are made of it."""


def findings(database: Database, process: Process, file: str) -> Iterator[Finding]:
    """Yield what is missing of one process."""
    yield from _hidden_kernels(database, process, file)
    yield from _dropped(database, process, file)
    yield from _refused(database, file)
    yield from damaged(database, file)


def _hidden_kernels(database: Database, process: Process, file: str) -> Iterator[Finding]:
    """Tell of graphs that ran as a whole, with no row for each kernel in them."""
    only = rows_of(database, device_work.GRAPHS, process)
    kinds = {"start": "integer", "end": "integer", "deviceId": "integer"}
    graphs = database.frame(device_work.GRAPHS, kinds, only)
    graphs = graphs.filter(~pl.col("deviceId").is_in(process.other_devices).fill_null(value=False))
    if graphs.height:
        lengths = graphs["end"] - graphs["start"]
        seconds = int(lengths.filter(lengths.is_between(0, DAY_NS)).sum()) / 1e9
        yield Finding(
            "cuda-graphs-hide-kernels",
            "error",
            f"{graphs.height} CUDA graphs, {seconds:.3f} s long in all, were recorded without the kernels in "
            "them: busy, idle, overlap and every count and time of kernels are wrong",
            file,
            count=graphs.height,
            touches=("kernels", "memcpy"),
        )


def _dropped(database: Database, process: Process, file: str) -> Iterator[Finding]:
    """Tell what the profiler itself said it had lost of this process."""
    kinds = {"severity": "integer", "text": "text", "globalPid": "integer"}
    for severity, text, owner in database.frame("DIAGNOSTIC_EVENT", kinds).iter_rows():
        if (severity or 0) > 1 and owner == process.global_pid and _DROPPED.search(text or ""):
            yield Finding("events-dropped", "warning", f"the profiler said: {text.strip()[:200]}", file)


def _refused(database: Database, file: str) -> Iterator[Finding]:
    views = [name for name in database.refused if name in _TABLES or name == "StringIds"]
    if views:
        message = f"not read, for it is no table: {', '.join(views)}"
        touched = tuple({name: None for view in views for name in _TABLES.get(view, ())})
        yield Finding("tables-refused", "error", message, file, count=len(views), touches=touched)


def damaged(database: Database, file: str) -> Iterator[Finding]:
    """Yield what of the file could not be read."""
    if database.cut:
        message = f"the database is cut short or damaged ({database.cut}); what can be read is used"
        yield Finding("file-truncated", "error", message, file)
    for table, why in database.damage.items():
        touches = _TABLES.get(table, ())
        yield Finding("table-damaged", "error", f"{table} is damaged: {why}", file, touches=touches)
