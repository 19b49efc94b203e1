"""Uploads within limits on number and size; `protocol` closes one that is too slow."""

from __future__ import annotations

import contextlib
import errno
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

from anyio import CancelScope, CapacityLimiter, to_thread
from sqlalchemy import delete
from sqlalchemy.dialects import postgresql, sqlite
from starlette.requests import ClientDisconnect

from ccl_bench import storage
from ccl_bench.leaderboard.bundle.archive import MEDIA_TYPE
from ccl_bench.leaderboard.errors import RequestRefused
from ccl_bench.leaderboard.publishing.ingest import upload_folder
from ccl_bench.leaderboard.store import writing
from ccl_bench.leaderboard.store.database import timestamp
from ccl_bench.leaderboard.store.tables import UPLOADS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path
    from weakref import WeakValueDictionary

    from fastapi import Request
    from sqlalchemy import Engine

    from ccl_bench.leaderboard.publishing.settings import Settings


_BOOKED_AT_ONCE = 16 << 20
"""Bytes that are added to the database at once: 10,000 small files would be as many transactions."""


@dataclass(slots=True)
class Allowance:
    """What an upload may still put on the disk, of what its submitter may in this hour.

    An upload counts with its archive or its content, whichever takes more.
    """

    engine: Engine
    submitter: str
    settings: Settings
    _unbooked: int = 0

    def begin(self, declared_bytes: int) -> None:
        """Count an upload before its body arrives."""
        count, size = _add_to_hour(self.engine, self.submitter, count=1, size=0)
        self._check(count, size + declared_bytes)

    def book_archive(self, size: int) -> None:
        """Count the bytes of an archive that arrived, whether it is accepted or not."""
        _add_to_hour(self.engine, self.submitter, count=0, size=size)
        self._unbooked = -size

    def claim(self, size: int) -> None:
        """Count bytes of its content before they are written."""
        self._unbooked += size
        if self._unbooked >= _BOOKED_AT_ONCE:
            self._check(*self.book())

    def book(self) -> tuple[int, int]:
        """Count what was claimed; return the number and the bytes of the uploads in this hour."""
        size, self._unbooked = max(0, self._unbooked), min(0, self._unbooked)
        return _add_to_hour(self.engine, self.submitter, count=0, size=size)

    def _check(self, count: int, size: int) -> None:
        if count > self.settings.uploads_per_hour or size > self.settings.upload_bytes_per_hour:
            raise _over_the_hour(count, size, self.settings)


def _over_the_hour(count: int, size: int, settings: Settings) -> RequestRefused:
    moment = datetime.now(UTC)
    wait_s = max(1, 3600 - moment.minute * 60 - moment.second)
    allowed = f"{settings.uploads_per_hour:,} uploads and {settings.upload_bytes_per_hour:,} bytes"
    return RequestRefused(
        f"{count:,} uploads of {size:,} bytes in this hour are too many; {allowed} are allowed",
        fix=f"try again in {wait_s} s",
        status=HTTPStatus.TOO_MANY_REQUESTS,
        headers={"retry-after": str(wait_s)},
    )


def _add_to_hour(engine: Engine, submitter: str, *, count: int, size: int) -> tuple[int, int]:
    """Add to the volume of this hour and return the sums; earlier hours are dropped."""
    hour = timestamp()[: len("2026-01-31T12")]
    row = {"submitter": submitter, "hour": hour, "count": count, "bytes": size}
    more = {"count": UPLOADS.c.count + count, "bytes": UPLOADS.c.bytes + size}
    with writing(engine) as connection:
        connection.execute(delete(UPLOADS).where(UPLOADS.c.hour < hour))
        insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
        keys = [UPLOADS.c.submitter, UPLOADS.c.hour]
        summed = insert(UPLOADS).values(row).on_conflict_do_update(index_elements=keys, set_=more)
        sums = connection.execute(summed.returning(UPLOADS.c.count, UPLOADS.c.bytes)).one()
    return sums[0], sums[1]


_READ_ON_BYTES = 16 << 20
"""Bytes read beyond the limit, so that the client receives the reason instead of a broken connection."""
_RESERVED_AT_ONCE = 16 << 20
"""Bytes of the disk that are reserved for a body of unknown size when it outgrows the last ones."""


_UPLOADS_AT_ONCE = 2
"""Of one submitter, in each server process: a slow one does not block the next, and half of the archives that
are unpacked at once are left to others. It also bounds the disk that unfinished uploads reserve."""


@contextlib.asynccontextmanager
async def turn(request: Request, submitter: str) -> AsyncIterator[None]:
    """Wait until a submitter has few other uploads in progress; nothing of the body is received before."""
    turns: WeakValueDictionary[str, CapacityLimiter] = request.app.state.upload_turns
    limiter = turns.get(submitter) or turns.setdefault(submitter, CapacityLimiter(_UPLOADS_AT_ONCE))
    async with limiter:
        yield


@contextlib.asynccontextmanager
async def async_upload_folder(data: Path) -> AsyncIterator[Path]:
    """Yield a folder for an upload without blocking other requests on its lock."""
    manager = upload_folder(data)
    folder = await to_thread.run_sync(manager.__enter__)
    try:
        yield folder
    finally:
        with CancelScope(shield=True):
            await to_thread.run_sync(manager.__exit__, None, None, None)


@contextlib.contextmanager
def refuse_on_full_disk() -> Iterator[None]:
    """Refuse the request if the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise _disk_full() from error
        raise


def declared_bytes(request: Request, limit: int, data: Path) -> int:
    """Return the size that the headers of an upload state; 0 if none.

    Raises RequestRefused by its content type and size, and OSError (ENOSPC) if the disk has no room.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != MEDIA_TYPE:
        raise RequestRefused(
            f"a bundle has the content type {MEDIA_TYPE}, not {kind[:100] or 'none'}",
            fix="send it with ccl-bench publish",
            status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        )
    declared = request.headers.get("content-length", "0")
    size = int(declared) if declared.isdecimal() else 0
    if size > limit + _READ_ON_BYTES:
        raise too_large(limit)
    storage.check_space(data, 2 * size)  # for the archive and its content, which is hardly ever smaller
    return size


async def receive_body(request: Request, target: Path, limit: int, declared: int) -> int:
    """Write the body of a request to a file, whose declared bytes are reserved first; return its size."""
    size, reserved = 0, min(declared, limit)
    with target.open("xb") as stream:
        await to_thread.run_sync(storage.reserve, stream, reserved)
        try:
            async for block in request.stream():
                size += len(block)
                if reserved < size <= limit:
                    reserved = size + _RESERVED_AT_ONCE
                    await to_thread.run_sync(storage.reserve, stream, reserved)
                if size <= limit:
                    stream.write(block)
                elif size > limit + _READ_ON_BYTES:
                    break
        except ClientDisconnect as error:
            raise RequestRefused(
                "the connection broke", fix="send it again", status=HTTPStatus.BAD_REQUEST
            ) from error
        finally:
            stream.truncate()  # to what arrived
    if size > limit:
        raise too_large(limit)
    return size


def too_large(limit: int) -> RequestRefused:
    """Return the refusal of an archive over the limit."""
    return RequestRefused(
        f"the archive has more than {limit:,} bytes",
        fix="put the traces into object storage: --traces s3://bucket/folder",
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    )


def _disk_full() -> RequestRefused:
    return RequestRefused(
        "the disk of this server is full",
        fix="inform its operator, and try again later",
        status=HTTPStatus.INSUFFICIENT_STORAGE,
    )
