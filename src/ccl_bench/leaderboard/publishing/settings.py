"""Settings of the operator of a leaderboard: limits, quarantine, sandbox, readable storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from ccl_bench.base.errors import InputError
from ccl_bench.base.text import json_decoder
from ccl_bench.leaderboard.bundle.format import GIB, MIB, Limits

if TYPE_CHECKING:
    from pathlib import Path

FILE = "publishing.toml"
STORAGE = ("s3://", "gs://", "gcs://", "az://", "abfs://")
"""Addresses of object storage. Others are never read: a server must not follow arbitrary links."""

Positive = Annotated[int, msgspec.Meta(ge=1)]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of `publishing.toml`; every one has a default."""

    quarantine: Literal["first", "all", "none"] = "none"
    """Whose bundles wait for a maintainer: those of new submitters, all, or none.

    In any case, bundles whose recomputed numbers differ are put there.
    """
    requests_per_minute: Positive = 6000
    """From one address, of any kind."""
    token_requests_per_minute: Positive = 600
    """With one token."""
    uploads_per_hour: Positive = 60
    """Of one submitter."""
    upload_bytes_per_hour: Positive = 25 * GIB
    """Of one submitter, as they are stored: the largest bundle, and 5 GiB of others."""
    submitter_bytes: Positive = 100 * GIB
    """Of all runs of one submitter: five of the largest bundles, or 10,000 with traces of 10 MB each."""
    archive_bytes: Positive = 4 * GIB
    """Of a compressed archive."""
    unpacked_bytes: Positive = 20 * GIB
    """Of the unpacked archive."""
    files: Positive = 10_000
    """In an archive."""
    text_bytes: Positive = 32 * MIB
    """Of the results, and of the report."""
    trace_storage: tuple[str, ...] = ()
    """Prefixes of addresses in object storage that the worker may read, such as `s3://traces/public/`."""
    recompute_seconds: Positive = 1800
    """For recomputing one run."""
    recompute_bytes: Positive = 8 * GIB
    """Of memory for it."""
    sandbox: Literal["available", "required"] = "available"
    """Required sandbox: what the machine has, or all of it; then no worker starts without it."""

    @property
    def limits(self) -> Limits:
        """The limits of a bundle."""
        return Limits(self.archive_bytes, self.unpacked_bytes, self.files, self.text_bytes)


# TOML is decoded to the same types.
json_decoder(Settings)


def load_settings(data: Path) -> Settings:
    """Return the settings of a data directory."""
    path = data / FILE
    try:
        settings = msgspec.toml.decode(path.read_bytes(), type=Settings)
    except FileNotFoundError:
        return Settings()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        fix = "correct the file, or remove it to use the defaults"
        raise InputError(f"cannot be used: {error}", where=str(path), fix=fix) from error
    for address in settings.trace_storage:
        bucket = address.partition("://")[2].partition("/")[0]
        if not address.startswith(STORAGE) or not address.endswith("/") or not bucket:
            raise InputError(
                f"trace_storage: {address!r} is not a prefix of addresses in object storage",
                where=str(path),
                fix="write for example s3://bucket/folder/, with the slash at its end",
            )
    return settings
