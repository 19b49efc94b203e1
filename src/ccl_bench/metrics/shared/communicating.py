"""What the metrics about the time of communication have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics.rows import RECORD, need_rows

if TYPE_CHECKING:
    from ccl_bench.base.lazy_polars import pl


def need_communication(breakdown: pl.DataFrame) -> None:
    """Raise NotMeasurable where nothing communicated in any step: a run of several ranks does."""
    need_rows(breakdown, "steps", RECORD)
    if not breakdown["communication_ns"].sum():
        raise NotMeasurable(
            "no communication is recognised in any step",
            fix="check that the traces are of all ranks, or write world_size 1 into run_metadata.json",
        )
