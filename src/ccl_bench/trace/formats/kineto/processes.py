"""Whether the events of a file are those of one process: a profiler records no other.

Two ranks that write to one path, or traces that were merged, leave events of both in one file. Which
of them are whose is not known for the device's, so that every number of the file would be wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.errors import InputError
from ccl_bench.base.lazy_polars import pl
from ccl_bench.trace.ondisk import OnDisk

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHARE = 0.01
"""Share of the operators from which another process is no damaged number."""

_STEP = "ProfilerStep"


def need_one_process(tables: Mapping[str, pl.DataFrame | OnDisk], file: str) -> None:
    """Raise InputError where the operators are of several processes, or two loops of steps run at once."""
    numbers = _processes(tables)
    if len(numbers) > 1:
        listed = " and ".join(map(str, numbers))
        raise _mixed(f"events of several processes ({listed}) are mixed in it", file)
    annotations = tables.get("annotations")
    if isinstance(annotations, pl.DataFrame) and _steps_run_at_once(annotations):
        raise _mixed("events of several processes are mixed in it: two loops of steps run at once", file)


def _mixed(message: str, file: str) -> InputError:
    return InputError(
        message, where=file, fix="let each rank write a trace of its own, and do not merge them"
    )


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
