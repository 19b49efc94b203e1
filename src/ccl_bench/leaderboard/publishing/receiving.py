"""The bytes of an upload, written to disk as they come: up to a limit, and as long as more comes in time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
from http import HTTPStatus
from typing import TYPE_CHECKING

from anyio import CancelScope, to_thread
from starlette.requests import ClientDisconnect

from ccl_bench.leaderboard.bundle.archive import MEDIA_TYPE
from ccl_bench.leaderboard.publishing.incoming import incoming
from ccl_bench.leaderboard.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from fastapi import Request

PATIENCE_S = 60.0
"""Time without a byte after which an upload is given up."""
_READ_ON_BYTES = 16 << 20
"""Bytes beyond a limit that are still read, so that whoever sends hears why and not that the line broke."""
_RESERVE_BYTES = 256 << 20
"""Room that an upload must leave on the disk."""


@contextlib.asynccontextmanager
async def incoming_folder(data: Path) -> AsyncIterator[Path]:
    """Give a folder for an upload, without keeping other requests waiting for the lock that it takes."""
    manager = incoming(data)
    folder = await to_thread.run_sync(manager.__enter__)
    try:
        yield folder
    finally:
        with CancelScope(shield=True):
            await to_thread.run_sync(manager.__exit__, None, None, None)


@contextlib.contextmanager
def refusing_on_full_disk() -> Iterator[None]:
    """Say that there is no room where a disk is full while something is written."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise _no_room() from error
        raise


def refuse_unfit(request: Request, limit: int, data: Path) -> None:
    """Refuse an upload for what its headers say."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != MEDIA_TYPE:
        raise Refused(
            f"a bundle comes as {MEDIA_TYPE}, not as {kind[:100] or 'nothing in particular'}",
            fix="send it with ccl-bench publish",
            status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        )
    declared = request.headers.get("content-length", "0")
    size = int(declared) if declared.isdecimal() else 0
    if size > limit + _READ_ON_BYTES:
        raise too_large(limit)
    if size + _RESERVE_BYTES > shutil.disk_usage(data).free:
        raise _no_room()


async def received(request: Request, target: Path, limit: int) -> int:
    """Write the body of a request to a file, and return its size."""
    size = 0
    with target.open("xb") as stream:
        async for block in _blocks(request):
            size += len(block)
            if size <= limit:
                stream.write(block)
            elif size > limit + _READ_ON_BYTES:
                break
        stream.flush()
        await to_thread.run_sync(os.fsync, stream.fileno())
    if size > limit:
        raise too_large(limit)
    return size


async def _blocks(request: Request) -> AsyncIterator[bytes]:
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(PATIENCE_S):
                block = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            what = f"nothing came for {PATIENCE_S:.0f} s"
            raise Refused(what, fix="send it again", status=HTTPStatus.REQUEST_TIMEOUT) from error
        except ClientDisconnect as error:
            raise Refused("the line broke", fix="send it again", status=HTTPStatus.BAD_REQUEST) from error
        yield block


def too_large(limit: int) -> Refused:
    """Return the refusal of an archive over the limit."""
    return Refused(
        f"the archive has more than {limit:,} bytes",
        fix="put the traces into object storage: --traces s3://bucket/folder",
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    )


def _no_room() -> Refused:
    return Refused(
        "there is no room for it on this server",
        fix="tell its operator, and try again later",
        status=HTTPStatus.INSUFFICIENT_STORAGE,
    )
