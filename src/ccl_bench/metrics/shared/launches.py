"""What the metrics that rest on launches have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotApplicable, NotMeasurable
from ccl_bench.metrics.rows import RECORD, need_rows

if TYPE_CHECKING:
    from ccl_bench.base.lazy_polars import pl


def need_launches(launching: pl.DataFrame, steps: pl.DataFrame) -> None:
    """Raise NotApplicable on a run without a device, NotMeasurable where launches were not recorded."""
    need_rows(steps, "steps", RECORD)
    if launching.is_empty():
        raise NotApplicable(
            "the traces hold no work of a device: the run was on CPUs, or CUDA activity was not recorded"
        )
    if not launching["launches"].sum():
        raise NotMeasurable(
            "no launch is recorded in any step, so nothing tells when work was launched",
            fix="record CPU activity beside CUDA activity with torch.profiler",
        )
