"""The reference pages: definitions of the metrics, and the HTTP API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ccl_bench.leaderboard.pages.render import render_page
from ccl_bench.leaderboard.store.rows import known_metrics
from ccl_bench.report.page_model import ManualPage
from ccl_bench.report.render.html import definitions

if TYPE_CHECKING:
    from ccl_bench.leaderboard.pages.links import Links
    from ccl_bench.metrics import Metric


def metrics_page(to: Links) -> str:
    """Return the definitions of all metrics of this installation."""
    entries = [metric_definition(metric) for metric in known_metrics().values()]
    return render_page(
        "metrics.html", "Metrics", to, at="metrics", definitions=definitions(entries), count=len(entries)
    )


def metric_definition(metric: Metric) -> ManualPage:
    """Return the definition of a metric."""
    return ManualPage(metric.name, metric.unit, metric.better, metric.revision, metric.manual)


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One call of the API."""

    method: str
    path: str
    summary: str
    parameters: list[tuple[str, str, str]]
    """Name, place, meaning."""


def api_page(description: dict[str, Any], to: Links) -> str:
    """Return the page; `description` is the OpenAPI document."""
    address = f"{to.root}/openapi.json"
    calls = [
        ApiCall(
            method.upper(),
            path,
            operation.get("description") or operation.get("summary", ""),
            [
                (parameter["name"], parameter["in"], parameter.get("description", ""))
                for parameter in operation.get("parameters", ())
            ],
        )
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    ]
    return render_page(
        "interface.html", "Interface for programs", to, at="interface", calls=calls, description=address
    )
