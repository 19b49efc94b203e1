"""What each device has where processes worked on several, whose ranks are none of a device's own."""

from __future__ import annotations

from typing import Any

from ccl_bench.base.lazy_polars import pl
from ccl_bench.metrics.rows import label


def share_by_device(table: pl.DataFrame, device_used: pl.DataFrame, part: str, whole: str) -> dict[str, Any]:
    """Return details with one column's sum as percent of another's on each of several devices."""
    without_rank = device_used.filter(pl.col("rank").is_null())
    if without_rank["device"].n_unique() < 2:
        return {}
    shares = (
        table.join(without_rank.select("trace", "device"), on="trace", maintain_order="left")
        .group_by("device")
        .agg((100 * pl.col(part).sum() / pl.col(whole).sum()).alias("pct"))
        .sort("device")
    )
    return {"per_device_pct": {label(device): share for device, share in shares.iter_rows()}}
