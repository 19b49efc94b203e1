"""Uploads within limits on number and size; `protocol` closes one that is too slow."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

from anyio import CancelScope, to_thread
from sqlalchemy import delete
from sqlalchemy.dialects import postgresql, sqlite
from starlette.requests import ClientDisconnect

from ccl_bench.leaderboard.bundle.archive import MEDIA_TYPE
from ccl_bench.leaderboard.errors import RequestRefused
from ccl_bench.leaderboard.publishing.ingest import upload_folder
from ccl_bench.leaderboard.store import writing
from ccl_bench.leaderboard.store.database import timestamp
from ccl_bench.leaderboard.store.tables import UPLOADS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from fastapi import Request
    from sqlalchemy import Engine

    from ccl_bench.leaderboard.publishing.settings import Settings


def count_upload(engine: Engine, submitter: str, settings: Settings) -> None:
    """Count an upload before it begins; raise RequestRefused if it exceeds the limits."""
    count, size = _add_to_hour(engine, submitter, count=1, size=0)
    if count <= settings.uploads_per_hour and size < settings.upload_bytes_per_hour:
        return
    moment = datetime.now(UTC)
    wait_s = max(1, 3600 - moment.minute * 60 - moment.second)
    allowed = f"{settings.uploads_per_hour:,} uploads and {settings.upload_bytes_per_hour:,} bytes"
    raise RequestRefused(
        f"{count:,} uploads of {size:,} bytes were sent in this hour; {allowed} are allowed",
        fix=f"try again in {wait_s} s",
        status=HTTPStatus.TOO_MANY_REQUESTS,
        headers={"retry-after": str(wait_s)},
    )


def count_bytes(engine: Engine, submitter: str, size: int) -> None:
    """Count the bytes of an upload, whether accepted or not."""
    _add_to_hour(engine, submitter, count=0, size=size)


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
_RESERVE_BYTES = 256 << 20
"""Free bytes that an upload must leave on the disk."""


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


def check_upload_headers(request: Request, limit: int, data: Path) -> None:
    """Refuse an upload by its headers: content type, size, free space on the disk."""
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
    if size + _RESERVE_BYTES > shutil.disk_usage(data).free:
        raise _disk_full()


async def receive_body(request: Request, target: Path, limit: int) -> int:
    """Write the body of a request to a file, and return its size."""
    size = 0
    with target.open("xb") as stream:
        try:
            async for block in request.stream():
                size += len(block)
                if size <= limit:
                    stream.write(block)
                elif size > limit + _READ_ON_BYTES:
                    break
        except ClientDisconnect as error:
            raise RequestRefused(
                "the connection broke", fix="send it again", status=HTTPStatus.BAD_REQUEST
            ) from error
        stream.flush()
        await to_thread.run_sync(os.fsync, stream.fileno())
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
