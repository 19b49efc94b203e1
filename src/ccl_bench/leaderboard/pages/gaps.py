"""The page of gaps: standard workloads with their rows, and the command that makes a missing one."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from ccl_bench.leaderboard.pages.render import render_page
from ccl_bench.leaderboard.store.gaps import SETS, coverage

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ccl_bench.leaderboard.pages.links import Links


def gaps_page(connection: Connection, to: Links) -> str:
    """Return the page."""
    workloads = coverage(connection)
    groups = [
        (SETS[name], list(group)) for name, group in groupby(workloads, key=lambda each: each.workload.set)
    ]
    with_rows = sum(bool(each.rows) for each in workloads)
    return render_page(
        "gaps.html", "Gaps", to, at="gaps", groups=groups, total=len(workloads), with_rows=with_rows
    )
