"""Single runs and workloads of the index, by the beginning of their names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from ccl_bench.leaderboard.store.answer import Listed, numbers_of
from ccl_bench.leaderboard.store.history import SHOWN
from ccl_bench.leaderboard.store.ranks import is_listed
from ccl_bench.leaderboard.store.tables import RUNS, WORKLOADS

if TYPE_CHECKING:
    from sqlalchemy import Column, Connection

_BEGINNING = re.compile(r"[0-9a-f]{8,64}")


def run_named(connection: Connection, beginning: str) -> Listed | None:
    """Return the run whose identifier begins so, with all its numbers; None where there is no single one."""
    found = _runs(connection, _begins(RUNS.c.id, beginning), limit=2) if _is_hash(beginning) else []
    return found[0] if len(found) == 1 else None


def workload_named(connection: Connection, beginning: str) -> dict[str, Any] | None:
    """Return the row of the workload whose key begins so; None where there is no single one."""
    if not _is_hash(beginning):
        return None
    asked = select(WORKLOADS).where(_begins(WORKLOADS.c.key, beginning)).limit(2)
    found = connection.execute(asked).mappings().all()
    return dict(found[0]) if len(found) == 1 else None


def workloads(connection: Connection) -> list[dict[str, Any]]:
    """Return the workloads that have listed runs, those with most runs first."""
    asked = select(WORKLOADS).where(WORKLOADS.c.size > 0)
    ordered = asked.order_by(WORKLOADS.c.size.desc(), WORKLOADS.c.label, WORKLOADS.c.key)
    return [dict(row) for row in connection.execute(ordered).mappings()]


def shown(connection: Connection) -> list[str]:
    """Return the identifiers of all runs that have a page."""
    asked = select(RUNS.c.id).where(RUNS.c.state.in_([state.value for state in SHOWN])).order_by(RUNS.c.id)
    return list(connection.execute(asked).scalars())


def runs_of(connection: Connection, workload: str, limit: int = 1000) -> list[Listed]:
    """Return the listed runs of a workload, the newest first, with all their numbers."""
    return _runs(connection, (RUNS.c.workload == workload) & is_listed(), limit=limit)


def _runs(connection: Connection, condition: Any, *, limit: int) -> list[Listed]:
    asked = (
        select(RUNS, WORKLOADS.c.label, WORKLOADS.c.size)
        .join(WORKLOADS, WORKLOADS.c.key == RUNS.c.workload)
        .where(condition, RUNS.c.state.in_([state.value for state in SHOWN]))
        .order_by(RUNS.c.submitted_at.desc(), RUNS.c.id)
        .limit(limit)
    )
    rows = [dict(row) for row in connection.execute(asked).mappings()]
    numbers = numbers_of(connection, [row["id"] for row in rows])
    return [Listed(row, row.pop("label"), row.pop("size"), numbers[row["id"]]) for row in rows]


def _is_hash(beginning: str) -> bool:
    return bool(_BEGINNING.fullmatch(beginning))


def _begins(column: Column[str], beginning: str) -> Any:
    """Return the condition that a hash begins so, as a range that the index of the column answers."""
    return column.between(beginning.ljust(64, "0"), beginning.ljust(64, "f"))
