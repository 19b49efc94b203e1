"""Files behind addresses such as `s3://bucket/run`, with errors that name the address."""

from __future__ import annotations

import contextlib
import shlex
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ccl_bench.base.errors import CclBenchError, InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from upath import UPath

_PACKAGES = {"s3": '"ccl-bench[remote]"', "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}


def is_remote(path: Path | UPath) -> bool:
    """Whether `path` lies outside the local file system."""
    return not isinstance(path, Path) or "://" in str(path)


_PAGES = ("drive.google.com", "docs.google.com")
"""Hosts whose addresses lead to pages for people, from which no program lists the files."""


def remote_path(address: str, *, follow_redirects: bool = True) -> Path:
    """Return the path behind a URL; UsageError if nothing here can open such an address.

    Clients follow every redirection, to any host, unless `follow_redirects` is false. That of Azure cannot be
    kept from it, but only connects to the hosts of its vendor.
    """
    from upath import UPath

    if address.partition("://")[2].partition("/")[0].lower() in _PAGES:
        raise UsageError(
            f"{address} is a page of Google Drive, which does not give its files to programs",
            fix=f"download the folder first, then name it: pip install gdown && "
            f"gdown --folder {shlex.quote(address)} -O DIR; or in the browser: Download, and unpack the zip",
        )
    try:
        without_redirects = {} if follow_redirects else _WITHOUT_REDIRECTS
        options = without_redirects.get(_scheme(address), dict)()
        return cast("Path", UPath(address, **options))
    except ImportError as error:
        raise _missing(address, error) from error
    except ValueError as error:
        raise UsageError(
            f"cannot open addresses like {_scheme(address)}://: {error}",
            fix="name a local path, or an address such as s3://bucket/run",
        ) from error


@cache
def _s3_without_redirects() -> dict[str, Any]:
    """Return the options of a client of S3 that treats a redirection as an error."""
    from aiobotocore.httpsession import AIOHTTPSession  # type: ignore[import-untyped]

    class OneHost:
        def __init__(self, session: Any) -> None:
            self._session = session

        async def request(self, *arguments: Any, **named: Any) -> Any:
            return await self._session.request(*arguments, **named, allow_redirects=False)

    class OneHostSession(AIOHTTPSession):  # type: ignore[misc]
        async def _get_session(self, proxy_url: str) -> OneHost:
            return OneHost(await super()._get_session(proxy_url))

    return {"config_kwargs": {"http_session_cls": OneHostSession}}


@cache
def _google_without_redirects() -> dict[str, Any]:
    """Return the options of a client of Google's storage that treats a redirection as an error."""
    from aiohttp import TraceConfig

    async def refuse(*_: object) -> None:
        raise OSError("the storage redirects to another address")

    requests = TraceConfig()
    requests.on_request_redirect.append(refuse)
    return {"session_kwargs": {"trace_configs": [requests]}}


_WITHOUT_REDIRECTS = {
    "s3": _s3_without_redirects,
    "gs": _google_without_redirects,
    "gcs": _google_without_redirects,
}


def _scheme(address: str) -> str:
    return address.split("://", 1)[0]


def _missing(address: str, error: ImportError) -> UsageError:
    package = _PACKAGES.get(_scheme(address), '"ccl-bench[remote]"')
    return UsageError(
        f"cannot open addresses like {_scheme(address)}://: {error}", fix=f"run: pip install {package}"
    )


@contextlib.contextmanager
def remote_errors(path: Path) -> Iterator[None]:
    """Turn whatever a remote file system raises into an error that names the address.

    Each backend has exceptions of its own, many of them no OSError, so all are taken. Nothing
    changes for a local path.
    """
    try:
        yield
    except CclBenchError:
        raise
    except ImportError as error:
        if not is_remote(path):
            raise
        raise _missing(str(path), error) from error
    except Exception as error:
        if not is_remote(path):
            raise
        fix = "check the address and the network"
        if _scheme(str(path)) == "s3":
            fix = "check the address, the credentials (AWS_ACCESS_KEY_ID or AWS_PROFILE) and AWS_ENDPOINT_URL"
        raise InputError(f"cannot be reached: {error}", where=str(path), fix=fix) from error


def first_bytes(path: Path, size: int) -> bytes:
    """Return the first `size` bytes as stored, in one request and without reading ahead."""
    remote = cast("UPath", path)
    return bytes(remote.fs.cat_file(remote.path, start=0, end=size))


def fetch(path: Path, copy: Path) -> None:
    """Copy a file from its address to a local path."""
    remote = cast("UPath", path)
    remote.fs.get_file(remote.path, str(copy))


def stored_version(path: Path) -> str:
    """Return the version that a remote store states of the file; empty if it states none."""
    if not is_remote(path):
        return ""
    stat: Any = path.stat()
    info = stat.as_info()
    return str(info.get("VersionId") or info.get("ETag") or info.get("etag") or "")
