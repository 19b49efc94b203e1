"""What the metrics about kernels have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics.rows import RECORD, need_rows

if TYPE_CHECKING:
    from ccl_bench.base.lazy_polars import pl


def need_kernels(kernel_time: pl.DataFrame, steps: pl.DataFrame) -> None:
    """Raise NotMeasurable where no kernel ran in any step."""
    need_rows(steps, "steps", RECORD)
    if not kernel_time["duration_ns"].sum():
        raise NotMeasurable(
            "the traces hold no kernels in any step",
            fix="record CUDA activity with torch.profiler; a run on CPUs has no kernels",
        )
