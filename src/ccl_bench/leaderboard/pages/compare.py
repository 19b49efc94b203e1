"""The page that compares published runs: comparability, changes beyond noise, step breakdown."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from sqlalchemy import select

from ccl_bench.base.errors import InputError
from ccl_bench.base.text import plain
from ccl_bench.comparison.compare import compare_runs
from ccl_bench.comparison.run_results import RunResults
from ccl_bench.leaderboard.pages.reference import metric_definition
from ccl_bench.leaderboard.pages.render import hardware_text, render_page
from ccl_bench.leaderboard.store import query_result
from ccl_bench.leaderboard.store.query import default_columns
from ccl_bench.leaderboard.store.rows import known_metrics, unit_variants
from ccl_bench.leaderboard.store.tables import VALUES
from ccl_bench.report.comparison import phrases
from ccl_bench.report.comparison.page import sections
from ccl_bench.report.render.html import definitions, section
from ccl_bench.report.theme import CHART_CONFIG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from ccl_bench.leaderboard.bundle.format import Bundle
    from ccl_bench.leaderboard.pages.links import Links
    from ccl_bench.leaderboard.pages.reported import ReportedSide
    from ccl_bench.leaderboard.store.query_result import ListedRun

_LOG = logging.getLogger("ccl_bench.leaderboard")
_WRONG_SHAPES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What plain data of another shape than expected raises. Strangers wrote the details: a bundle is accepted
only if it can be compared with itself, but its details may have another shape than those of the next."""

MAX_RUNS = 8
"""Largest number of runs to compare."""


OFFERED = (
    "The two best comparable runs of the largest workload. To compare others, select them in the table and "
    "press Compare selected; the first is the baseline."
)
"""Note on the page that opens with `best_pair`."""
_WORKLOADS_TRIED = 5


def best_pair(connection: Connection) -> list[str]:
    """Return the two best comparable runs of the largest workload that has two; none without any."""
    for workload in query_result.list_workloads(connection)[:_WORKLOADS_TRIED]:
        phase = json.loads(workload["fields"]).get("model.phase") or "any"
        metric = default_columns().get(phase, default_columns()["any"])[0]
        numbers = select(VALUES.c.run, VALUES.c.comparable).where(
            VALUES.c.metric == metric, VALUES.c.workload == workload["key"], VALUES.c.comparable.is_not(None)
        )
        pairs: dict[str, list[str]] = {}
        for run, comparable in connection.execute(numbers.order_by(VALUES.c.rank_key, VALUES.c.run)):
            alike = pairs.setdefault(comparable, [])
            alike.append(run)
            if len(alike) == 2:
                return alike
    return []


def compare_page(
    chosen: Sequence[tuple[Bundle | ReportedSide, ListedRun]],
    to: Links,
    *,
    note: str = "",
    offered: Sequence[str] = (),
) -> str:
    """Return the comparison of the first run with each other one; for fewer than two, instructions.

    Rows of several sources are not compared, and the page says why. `offered` are the runs that the script
    of a static site compares when the address names none.
    """
    runs = [listed for _, listed in chosen]
    sources = {run.run["source"] for run in runs}
    if len(sources) > 1:
        names = " and ".join(sorted(source or "runs with traces" for source in sources))
        note = (
            f"Rows of {names} cannot be compared: what each source means by a number differs. "
            "Compare rows of one source, or runs with traces."
        )
    if len(chosen) < 2 or len(sources) > 1:
        return render_page(
            "compare.html",
            "Compare runs",
            to,
            at="compare",
            runs=runs,
            note=note,
            body=[],
            charts=None,
            offered=offered,
            offered_note=OFFERED,
        )
    sides, measured = [], set()
    for bundle, listed in chosen:
        run = listed.run
        name = " ".join(filter(None, (run["model"] or run["name"], hardware_text(run), f"({bundle.id[:8]})")))
        sides.append(RunResults(name, {result.metric: result for result in bundle.results}, bundle.fields))
        measured |= {result.metric for result in bundle.results if result.value is not None}
    try:
        comparison = compare_runs(sides, sorted(measured - unit_variants()))
        page_sections = list(sections(comparison))
    except _WRONG_SHAPES as error:
        _LOG.error("%s cannot be compared: %s", ", ".join(run.run["id"] for run in runs), plain(repr(error)))
        raise InputError(f"these runs cannot be compared: {error}", fix="compare others") from error
    metrics = known_metrics()
    compared = {change.metric for pair in comparison.pairs for change in pair.changes}
    charts = {chart.key: chart.spec for each in page_sections for chart in each.charts}
    return render_page(
        "compare.html",
        "Runs compared",
        to,
        at="compare",
        runs=runs,
        note=note or phrases.noise_note(comparison),
        body=[section(each) for each in page_sections],
        definitions=definitions(
            metric_definition(metrics[name]) for name in sorted(compared & metrics.keys())
        ),
        offered=(),
        charts={"config": CHART_CONFIG, "specs": charts} if charts else None,
    )
