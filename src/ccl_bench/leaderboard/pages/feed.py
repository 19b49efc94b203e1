"""The Atom feed of newly published runs (RFC 4287)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

from sqlalchemy import select

from ccl_bench.leaderboard.pages.render import hardware_text, name_and_version, render_xml
from ccl_bench.leaderboard.pages.titles import metric_title
from ccl_bench.leaderboard.store import query_result
from ccl_bench.leaderboard.store.query import RunQuery, default_columns
from ccl_bench.leaderboard.store.tables import LOG
from ccl_bench.report.formatting import with_unit

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ccl_bench.leaderboard.pages.links import Links
    from ccl_bench.leaderboard.store.query_result import ListedRun

MOST_RUNS = 50
"""Entries of the feed, the newest first."""
_NUMBERS = 3
"""Headline numbers of an entry."""


@dataclass(frozen=True, slots=True)
class FeedEntry:
    """One run in the feed."""

    run: str
    title: str
    summary: str
    updated: str
    author: str
    state: str


def runs_feed(connection: Connection, to: Links) -> str:
    """Return the feed. A run whose date is no date is left out: no reader could sort it."""
    query = RunQuery(phase="any", sort="submitted_at", size=MOST_RUNS)
    columns = {name for names in default_columns().values() for name in names}
    listed = query_result.find_runs(connection, query, sorted(columns)).runs
    shown = [_entry(each) for each in listed if _is_date(each.run["submitted_at"])]
    # Every board has a log of its own, so the hash of its first entry names the board and its feed.
    first = connection.execute(select(LOG.c.hash).order_by(LOG.c.number).limit(1)).scalar()
    return render_xml(
        "feed.atom",
        to=to,
        board=first or "0" * 64,
        updated=max((entry.updated for entry in shown), default="1970-01-01T00:00:00Z"),
        entries=shown,
    )


def _is_date(text: str) -> bool:
    """Whether text is a date with a time and a zone, as Atom demands."""
    try:
        return datetime.fromisoformat(text).tzinfo is not None and "T" in text
    except ValueError:
        return False


def _entry(listed: ListedRun) -> FeedEntry:
    run, numbers = listed.run, listed.numbers
    usual = default_columns().get(run["phase"] or "any", default_columns()["any"])
    measured = islice((name for name in usual if name in numbers), _NUMBERS)
    texts = [
        f"{metric_title(name)} {with_unit(numbers[name].value, numbers[name].unit)}" for name in measured
    ]
    software = name_and_version(run, "framework", "framework_version")
    title = f"{run['model'] or run['name']} on {hardware_text(run) or 'unknown hardware'}"
    return FeedEntry(
        run["id"],
        f"{title}, {software}" if software else title,
        "; ".join([listed.workload, *texts]),
        run["submitted_at"],
        run["submitter"] or "unknown",
        run["state"],
    )
