"""Revoke a token or a key: its row stays, with the time from which on it counts for nothing."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from sqlalchemy import select, update

from ccl_bench.leaderboard.errors import RequestRefused
from ccl_bench.leaderboard.store import writing
from ccl_bench.leaderboard.store.database import timestamp

if TYPE_CHECKING:
    from sqlalchemy import Engine, Table


def revoke(engine: Engine, table: Table, row_id: str, kind: str) -> None:
    """Revoke the row of this id, which messages call a `kind`; a revoked one stays as it is.

    Raises RequestRefused where there is none.
    """
    with writing(engine) as connection:
        known = connection.execute(select(table.c.revoked_at).where(table.c.id == row_id)).first()
        if known is None:
            fix = "list them to see their ids"
            raise RequestRefused(f"there is no {kind} {row_id[:20]!r}", fix=fix, status=HTTPStatus.NOT_FOUND)
        if known[0] is None:
            connection.execute(update(table).where(table.c.id == row_id).values(revoked_at=timestamp()))
