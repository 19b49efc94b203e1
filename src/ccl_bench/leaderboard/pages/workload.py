"""A workload: what its runs have in common, who leads, and how its numbers moved from version to version."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ccl_bench.leaderboard.pages.defaults import default_columns
from ccl_bench.leaderboard.pages.frame import page
from ccl_bench.leaderboard.pages.trend import BY, trend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.leaderboard.pages.links import Links
    from ccl_bench.leaderboard.store.answer import Listed


def workloads_page(workloads: Sequence[dict[str, Any]], to: Links) -> str:
    """Return the list of workloads that have listed runs."""
    shown = [each | {"phase": json.loads(each["fields"]).get("model.phase", "any")} for each in workloads]
    return page("workloads.html", "Workloads", to, at="workloads", workloads=shown)


def workload_page(
    workload: dict[str, Any],
    runs: Sequence[Listed],
    to: Links,
    *,
    metric: str = "",
    by: str = "",
) -> str:
    """Return the page of a workload, with the trend of a metric by a version or by date.

    On a static site, where nobody can be asked for another metric, every usual one is drawn.
    """
    fields: dict[str, Any] = json.loads(workload["fields"])
    phase = fields.get("model.phase")
    offered = sorted({name for listed in runs for name in listed.numbers})
    columns = default_columns(phase if phase in {"training", "inference"} else "any")
    usual = [name for name in columns if name in offered] or offered[:1]
    chosen = metric if metric in offered else next(iter(usual), "")
    by = by if by in BY else _telling(runs)
    drawn = (trend(runs, name, by) for name in (usual if to.is_static else [chosen]))
    return page(
        "workload.html",
        workload["label"],
        to,
        at="workloads",
        workload=workload | {"phase": phase or "any"},
        fields=fields,
        metric=chosen,
        by=by,
        versions=BY,
        offered=offered,
        trends=[each for each in drawn if each],
    )


def _telling(runs: Sequence[Listed]) -> str:
    """Return the first version in which the runs differ, else the date."""
    for by in BY:
        if len({listed.run[by] for listed in runs if listed.run[by]}) > 1:
            return by
    return "submitted_at"
