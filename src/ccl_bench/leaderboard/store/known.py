"""The metrics that this program knows, loaded once."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ccl_bench import metrics

if TYPE_CHECKING:
    from ccl_bench.metrics import Metric


@cache
def known_metrics() -> dict[str, Metric]:
    """Return the metrics by their names, without those that are another's number in another unit."""
    return {metric.name: metric for metric in metrics.load() if not metric.variant_of}


@cache
def variants() -> frozenset[str]:
    """Return the names of those that are."""
    return frozenset(metric.name for metric in metrics.load() if metric.variant_of)
