"""Files behind an address such as `s3://bucket/run`: read through fsspec, whose failures become ours."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
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


def remote_path(address: str) -> Path:
    """Return the path behind a URL; UsageError where nothing here can open such an address."""
    from upath import UPath

    if _host(address) in _PAGES:
        raise UsageError(
            f"{address} is a page of Google Drive, which does not give its files to programs",
            fix=f"download the folder first, then name it: pip install gdown && "
            f"gdown --folder {shlex.quote(address)} -O DIR; or in the browser: Download, and unpack the zip",
        )
    try:
        return cast("Path", UPath(address))
    except ImportError as error:
        raise _missing(address, error) from error
    except ValueError as error:
        raise UsageError(
            f"cannot open addresses like {_scheme(address)}://: {error}",
            fix="name a local path, or an address such as s3://bucket/run",
        ) from error


def _host(address: str) -> str:
    return address.partition("://")[2].partition("/")[0].lower()


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
        raise InputError(f"cannot be reached: {error}", where=str(path), fix=_way_out(path)) from error


def _way_out(path: Path) -> str:
    if _scheme(str(path)) == "s3":
        return "check the address, the credentials (AWS_ACCESS_KEY_ID or AWS_PROFILE) and AWS_ENDPOINT_URL"
    return "check the address and the network"


def first_bytes(path: Path, size: int) -> bytes:
    """Return the first `size` bytes as stored, in one request and without reading ahead."""
    place = cast("UPath", path)
    return bytes(place.fs.cat_file(place.path, start=0, end=size))


@contextlib.contextmanager
def local_copy(path: Path) -> Iterator[Path]:
    """Give a local copy of a remote file, fetched once; a local file is given as it is."""
    if not is_remote(path):
        yield path
        return
    place = cast("UPath", path)
    with tempfile.TemporaryDirectory(prefix="ccl-bench-") as folder:
        copy = Path(folder, path.name)
        with remote_errors(path):
            place.fs.get_file(place.path, str(copy))
        yield copy


def version(path: Path) -> str:
    """Return what a remote store calls this version of the file; empty where it has no word for it."""
    if not is_remote(path):
        return ""
    stat: Any = path.stat()
    info = stat.as_info()
    return str(info.get("VersionId") or info.get("ETag") or info.get("etag") or "")
