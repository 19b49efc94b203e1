"""Calls of the CUDA runtime, and the ranges that a program marked, of one process.

`torch.autograd.profiler.emit_nvtx` marks each operator and appends what it knows of it to the name
(`aten::mm, seq = 3, op_id = 7, sizes = [[2, 2]]`): such a range is an operator, too, and both go by
the name alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema import TABLES
from ccl_bench.trace.formats.nsys.database import in_order, meanings, since_epoch
from ccl_bench.trace.formats.nsys.processes import THREAD, THREAD_BITS, rows_of

if TYPE_CHECKING:
    from ccl_bench.trace.formats.nsys.processes import ReportProcess
    from ccl_bench.trace.sqlite import Database

RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"

RANGE_TYPES = (59, 60, 70, 71)
"""`eventType` of push/pop and start/end ranges, of NVTX and of NVTX text files."""

_RANGE = {"start": "integer", "end": "integer", "globalTid": "integer"}
_API_VERSION = r"_v\d{4,5}$"
_OPERATOR = r", (?:seq|op_id) = \d+"
_OF_OPERATOR = r", (?:seq|op_id|sizes|input_op_ids) = "

UNNAMED = "(unnamed)"


def _thread(base_ns: int) -> list[pl.Expr]:
    return [
        since_epoch("start", base_ns).alias("start_ns"),
        since_epoch("end", base_ns).alias("end_ns"),
        (pl.col("globalTid") // (1 << THREAD_BITS) & THREAD).alias("process"),
        (pl.col("globalTid") & THREAD).alias("thread"),
    ]


def launches(database: Database, process: ReportProcess, base_ns: int) -> pl.DataFrame:
    """Return the `launches` rows of one process, by the names of the API without its versions."""
    kinds = _RANGE | {"correlationId": "integer", "nameId": "integer"}
    calls = database.frame(RUNTIME, kinds, rows_of(database, RUNTIME, process))
    if calls.is_empty():
        return TABLES["launches"].empty()

    def names(ids: pl.DataFrame) -> pl.Series:
        texts = database.strings(ids["nameId"]).fill_null(UNNAMED)
        return texts.str.replace(_API_VERSION, "").cast(pl.Categorical)

    rows = calls.select(
        *_thread(base_ns),
        meanings(calls, ("nameId",), names).alias("name"),
        pl.col("correlationId").alias("correlation"),
    )
    return in_order(TABLES["launches"].frame(rows.to_dict()))


def ranges(database: Database, process: ReportProcess, base_ns: int) -> pl.DataFrame:
    """Return the ranges that one process marked by NVTX or MPI, in order, with `text` as recorded.

    `name`, a category, is the text without what is appended for an operator; ranges that never ended have
    no end.
    """
    kinds = _RANGE | {"eventType": "integer", "text": "text", "textId": "integer"}
    events = database.frame(NVTX, kinds, rows_of(database, NVTX, process))
    is_range = events["eventType"].is_in(RANGE_TYPES)
    parts = [events if is_range.all(ignore_nulls=False) else events.filter(is_range)]
    for table in ("MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS"):
        parts.append(database.frame(table, kinds, rows_of(database, table, process)))
    events = pl.concat(parts)
    texts = pl.coalesce("text", database.strings(events["textId"]), pl.lit(UNNAMED))
    text = events.select(texts).to_series()
    is_operator = text.str.contains(_OPERATOR)
    # What is appended for an operator is cut off where it begins, a place in bytes.
    cut = pl.col("text").cast(pl.Binary).bin.head(pl.col("text").str.find(_OF_OPERATOR)).cast(pl.String)
    name = pl.when("is_operator").then(cut).otherwise("text").cast(pl.Categorical).alias("name")
    rows = events.select(*_thread(base_ns), text, is_operator.alias("is_operator"))
    return in_order(rows.with_columns(name))


def marked(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the `annotations` rows of ranges that ended."""
    if rows.is_empty():
        return TABLES["annotations"].empty()
    ended_ranges = rows.drop_nulls("end_ns")
    return TABLES["annotations"].frame(ended_ranges.with_columns(on_device=pl.lit(value=False)).to_dict())


def cpu_ops(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the `cpu_ops` rows of ranges that ended: the operators among them."""
    if rows.is_empty():
        return TABLES["cpu_ops"].empty()
    communicates = pl.any_horizontal(pl.col("name").cat.starts_with(prefix) for prefix in ("gloo:", "nccl:"))
    operators = rows.filter(pl.col("end_ns").is_not_null(), "is_operator", ~communicates)
    return TABLES["cpu_ops"].frame(operators.to_dict())
