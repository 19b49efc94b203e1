"""Ranks: comparable numbers of one workload against each other, kept beside the numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import and_, case, func, select, update

from ccl_bench.leaderboard.store.history import LISTED
from ccl_bench.leaderboard.store.tables import RUNS, VALUES, WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection, Subquery
    from sqlalchemy.sql.elements import ColumnElement

TOGETHER = (
    RUNS.c.workload,
    VALUES.c.metric,
    VALUES.c.better,
    VALUES.c.unit,
    VALUES.c.revision,
    VALUES.c.measured,
)
"""What numbers must have in common to be ranked together."""


def refresh(connection: Connection, workloads: Iterable[str]) -> None:
    """Rank the numbers of some workloads anew, and count their runs.

    Left out are runs that are not listed or whose card does not say what was run, and numbers that an
    error in the data makes doubtful.
    """
    theirs = RUNS.c.workload.in_(sorted(workloads))
    ranked = _ranked(theirs)
    of_theirs = VALUES.c.run.in_(select(RUNS.c.id).where(theirs))
    connection.execute(update(VALUES).where(of_theirs).values(place=None, ranked=None))
    connection.execute(
        update(VALUES)
        .where(and_(VALUES.c.run == ranked.c.run, VALUES.c.metric == ranked.c.metric))
        .values(place=ranked.c.place, ranked=ranked.c.ranked)
    )
    size = select(func.count()).where(RUNS.c.workload == WORKLOADS.c.key, is_listed()).scalar_subquery()
    connection.execute(update(WORKLOADS).where(WORKLOADS.c.key.in_(sorted(workloads))).values(size=size))


def is_listed() -> ColumnElement[bool]:
    """Return the condition that a run is listed."""
    return RUNS.c.state.in_([state.value for state in LISTED])


def _ranked(condition: ColumnElement[bool]) -> Subquery:
    best_first = case((VALUES.c.better == "lower", VALUES.c.value), else_=-VALUES.c.value)
    return (
        select(
            VALUES.c.run,
            VALUES.c.metric,
            func.rank().over(partition_by=TOGETHER, order_by=best_first).label("place"),
            func.count().over(partition_by=TOGETHER).label("ranked"),
        )
        .join(RUNS, RUNS.c.id == VALUES.c.run)
        .where(condition, is_listed(), RUNS.c.is_rankable == 1)
        .where(VALUES.c.better != "neither", VALUES.c.errors == 0)
        .subquery()
    )
