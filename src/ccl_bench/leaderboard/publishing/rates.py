"""How much a submitter may send in an hour, counted in the database so that it holds for all servers."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from sqlalchemy import delete
from sqlalchemy.dialects import postgresql, sqlite

from ccl_bench.leaderboard.publishing.clock import now, seconds_to_next_hour
from ccl_bench.leaderboard.publishing.tables import UPLOADS
from ccl_bench.leaderboard.refusal import Refused
from ccl_bench.leaderboard.store import writing

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from ccl_bench.leaderboard.publishing.settings import Settings

_HOUR = len("2026-01-31T12")


def count_upload(engine: Engine, submitter: str, settings: Settings) -> None:
    """Count an upload before it begins; raise Refused where it is one too many."""
    count, size = _counted(engine, submitter, count=1, size=0)
    if count <= settings.uploads_per_hour and size < settings.upload_bytes_per_hour:
        return
    allowed = f"{settings.uploads_per_hour:,} uploads and {settings.upload_bytes_per_hour:,} bytes"
    wait = seconds_to_next_hour()
    raise Refused(
        f"{count:,} uploads of {size:,} bytes were sent in this hour, and {allowed} are allowed",
        fix=f"try again in {wait} s",
        status=HTTPStatus.TOO_MANY_REQUESTS,
        headers={"retry-after": str(wait)},
    )


def count_bytes(engine: Engine, submitter: str, size: int) -> None:
    """Count what an upload brought, whatever became of it."""
    _counted(engine, submitter, count=0, size=size)


def _counted(engine: Engine, submitter: str, *, count: int, size: int) -> tuple[int, int]:
    """Add to what was sent in this hour and return the sums; earlier hours are forgotten."""
    hour = now()[:_HOUR]
    row = {"submitter": submitter, "hour": hour, "count": count, "bytes": size}
    more = {"count": UPLOADS.c.count + count, "bytes": UPLOADS.c.bytes + size}
    with writing(engine) as connection:
        connection.execute(delete(UPLOADS).where(UPLOADS.c.hour < hour))
        insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
        keys = [UPLOADS.c.submitter, UPLOADS.c.hour]
        summed = insert(UPLOADS).values(row).on_conflict_do_update(index_elements=keys, set_=more)
        sums = connection.execute(summed.returning(UPLOADS.c.count, UPLOADS.c.bytes)).one()
    return sums[0], sums[1]
