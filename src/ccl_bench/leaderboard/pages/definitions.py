"""What each metric means: the pages of the manual that come from the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.leaderboard.pages.frame import page
from ccl_bench.leaderboard.store.known import known_metrics
from ccl_bench.report.page_model import Definition
from ccl_bench.report.render.html import definitions

if TYPE_CHECKING:
    from ccl_bench.leaderboard.pages.links import Links
    from ccl_bench.metrics import Metric


def metrics_page(to: Links) -> str:
    """Return the definition of every metric that this program knows."""
    known = [definition(metric) for metric in known_metrics().values()]
    return page("metrics.html", "Metrics", to, at="metrics", definitions=definitions(known), count=len(known))


def definition(metric: Metric) -> Definition:
    """Return the definition of a metric."""
    return Definition(metric.name, metric.unit, metric.better, metric.revision, metric.manual)
