"""The client of a leaderboard: it sends a run over HTTP, or into a data directory."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import TypeAdapter, ValidationError

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.leaderboard.bundle.archive import MEDIA_TYPE, write_archive
from ccl_bench.leaderboard.bundle.format import Bundle
from ccl_bench.leaderboard.publishing.ingest import ingest_bundle, upload_folder
from ccl_bench.leaderboard.publishing.models import Acceptance, Receipt, Terms
from ccl_bench.leaderboard.publishing.settings import load_settings
from ccl_bench.leaderboard.publishing.tokens import Caller, Role
from ccl_bench.leaderboard.store import open_store
from ccl_bench.leaderboard.store.rows import single_line
from ccl_bench.storage import remote_errors, remote_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from ccl_bench.engine import Progress
    from ccl_bench.leaderboard.bundle.upload import Upload

TOKEN_VARIABLE = "CCL_BENCH_TOKEN"  # noqa: S105  the name of a variable
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_TIMEOUT = httpx.Timeout(30.0, read=600.0, write=120.0)
_PAUSES_S = (1.0, 2.0, 4.0, 8.0)
"""Waits between attempts to send a bundle. It may arrive twice: the second time it already exists."""
_RETRY_STATUSES = {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
_BLOCK_BYTES = 1 << 20
_TERMS, _ACCEPTANCE = TypeAdapter(Terms), TypeAdapter(Acceptance)
_RECEIPT, _RECEIPTS = TypeAdapter(Receipt), TypeAdapter(list[Receipt])

T = TypeVar("T")


def read_token(file: str | None) -> str | None:
    """Return the token in a file, else that of the environment; None if there is none."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip() or None
    try:
        return Path(file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        fix = f"write the token into it, or into {TOKEN_VARIABLE}"
        raise InputError(f"cannot be read: {error}", where=file, fix=fix) from error


@dataclass(frozen=True, slots=True)
class LeaderboardClient:
    """A leaderboard at an address, with a token."""

    address: str
    token: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.address)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError(
                f"{self.address} is not the address of a leaderboard", fix="give https://HOST or a directory"
            )
        if self.token and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise UsageError(
                f"{self.address} is not encrypted, so others could read the token",
                fix="use https://, or a tunnel: ssh -L 8000:localhost:8000 HOST",
            )

    def terms(self) -> Terms:
        """Return the terms of the leaderboard, and the holder of the token."""
        return _decode(_TERMS, self._request("GET", "publishing"))

    def publish(self, archive: Path, *, progress: Callable[[int, int], None] | None = None) -> Acceptance:
        """Send a bundle; `progress` is called with the number of sent bytes and their total."""
        size = archive.stat().st_size
        headers = {"content-type": MEDIA_TYPE, "content-length": str(size)}

        def body() -> Iterator[bytes]:
            sent = 0
            with archive.open("rb") as stream:
                while block := stream.read(_BLOCK_BYTES):
                    yield block
                    sent += len(block)
                    if progress:
                        progress(sent, size)

        answer = self._request("POST", "bundles", body=body, headers=headers, pauses_s=_PAUSES_S)
        return _decode(_ACCEPTANCE, answer)

    def withdraw(self, run: str, note: str) -> Receipt:
        """Take a run back."""
        return _decode(_RECEIPT, self._request("POST", f"bundles/{run}/withdraw", json={"note": note}))

    def approve(self, run: str, note: str) -> Receipt:
        """List a run that waits."""
        return _decode(_RECEIPT, self._request("POST", f"bundles/{run}/approve", json={"note": note}))

    def waiting(self) -> list[Receipt]:
        """Return the bundles in quarantine."""
        return _decode(_RECEIPTS, self._request("GET", "bundles"))

    def page(self, run: str) -> str:
        """Return the address of a run's page."""
        return f"{self.address.rstrip('/')}/runs/{run}"

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: Callable[[], Iterator[bytes]] | None = None,
        pauses_s: Sequence[float] = (),
        **how: Any,
    ) -> httpx.Response:
        """Return the answer to a call; if none arrives, repeat the call after each pause.

        Raises InputError if the call is refused, or no answer arrives.
        """
        address = f"{self.address.rstrip('/')}/api/v1/{path}"
        headers = how.pop("headers", {}) | ({"authorization": f"Bearer {self.token}"} if self.token else {})
        for pause in (*pauses_s, None):
            try:
                content = body() if body else None
                answer = httpx.request(
                    method, address, content=content, headers=headers, timeout=_TIMEOUT, **how
                )
            except httpx.TransportError as error:
                if pause is None:
                    fix = "check the address and that the server runs"
                    raise InputError(f"cannot be reached: {error}", where=self.address, fix=fix) from error
            else:
                if answer.is_success:
                    return answer
                if answer.status_code not in _RETRY_STATUSES or pause is None:
                    break
            time.sleep(pause)
        try:
            refusal = answer.json()
            message, fix = str(refusal["detail"]), str(refusal.get("fix", ""))
        except (ValueError, LookupError, TypeError):
            message = f"answers with status {answer.status_code}"
            fix = "check that the address is a leaderboard's"
        raise InputError(message, where=self.address, fix=fix)


def _decode(kind: TypeAdapter[T], answer: httpx.Response) -> T:
    try:
        return kind.validate_json(answer.content)
    except ValidationError as error:
        fix = "check the address, and that both sides have the same version of ccl-bench"
        raise InputError("does not answer as a leaderboard does", where=str(answer.url), fix=fix) from error


_COPY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The outcome of an upload."""

    place: str
    """Address of its page, or its folder."""
    state: str
    is_new: bool
    replaced: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


class Destination(Protocol):
    """A destination of uploads."""

    @property
    def metrics(self) -> Collection[str] | None:
        """Metrics that it knows; None for all."""

    def submitter(self, upload: Upload) -> str:
        """Return the name of the publisher of an upload."""

    def take(self, upload: Upload, scratch: Path, progress: Progress | None) -> PublishResult:
        """Accept an upload, with the files of the run if it has some and no address for them."""


@dataclass(frozen=True)
class ServerDestination:
    """A leaderboard over HTTP."""

    leaderboard: LeaderboardClient

    @cached_property
    def terms(self) -> Terms:
        """What it accepts."""
        return self.leaderboard.terms()

    @property
    def metrics(self) -> Collection[str]:
        """Metrics that it knows."""
        return self.terms.metrics

    def submitter(self, upload: Upload) -> str:  # noqa: ARG002  the token says who
        """Return the name that the token is bound to."""
        if self.terms.submitter is None:
            fix = f"ask its operator for one, and put it into {TOKEN_VARIABLE}"
            raise UsageError("publishing needs a token", where=self.leaderboard.address, fix=fix)
        return self.terms.submitter

    def take(self, upload: Upload, scratch: Path, progress: Progress | None) -> PublishResult:
        """Send an upload."""
        where = self.leaderboard.address
        self.submitter(upload)
        archive = scratch / "bundle.tar.gz"
        write_archive(archive, upload.bundle.folder, upload.sent)
        size, most = archive.stat().st_size, self.terms.archive_bytes
        if size > most:
            fix = "put the traces into object storage: --traces s3://bucket/folder"
            raise InputError(
                f"accepts up to {most:,} bytes, but this upload has {size:,}", where=where, fix=fix
            )
        acceptance = self.leaderboard.publish(archive, progress=progress)
        place = self.leaderboard.page(acceptance.id)
        return PublishResult(
            place, acceptance.state, acceptance.is_new, acceptance.replaced, acceptance.remarks
        )


@dataclass(frozen=True)
class DirectoryDestination:
    """A directory that `serve` and `board site` make a leaderboard from."""

    data: Path
    database: str | None = None
    metrics: Collection[str] | None = None

    def submitter(self, upload: Upload) -> str:
        """Return the contributor that the card names."""
        return single_line(upload.bundle.card.value.contributor or "", 64)

    def take(self, upload: Upload, scratch: Path, progress: Progress | None) -> PublishResult:  # noqa: ARG002  copies only
        """Put an upload into the directory, which is created if it is missing."""
        store = open_store(self.data, self.database, create=True)
        with upload_folder(store.data) as folder:
            bundle = Bundle(shutil.copytree(upload.bundle.folder, folder / "bundle"))
            run_files = folder / "run"
            for name, path in upload.sent.items():
                (run_files / name).parent.mkdir(parents=True, exist_ok=True)
                with path.open("rb") as source, (run_files / name).open("xb") as copy:
                    shutil.copyfileobj(source, copy, _COPY_BYTES)
            owner = Caller(self.submitter(upload), Role.ADMIN)
            ingested = ingest_bundle(
                store, load_settings(store.data), owner, bundle, run_files if upload.sent else None
            )
        store.engine.dispose()
        place = str(self.data / store.folder.name / ingested.run)
        remarks = [*ingested.remarks, f"look at it with ccl-bench serve {self.data}"]
        return PublishResult(place, ingested.state.value, ingested.is_new, ingested.replaced, remarks)


def upload_traces(upload: Upload, progress: Progress | None = None) -> None:
    """Copy the files of a run to its address in object storage; existing ones are kept."""
    place = remote_path(upload.bundle.provenance.trace_url or "")
    with remote_errors(place):
        for done, (name, path) in enumerate(sorted(upload.run_files.items()), start=1):
            target = place / name
            if not (target.exists() and target.stat().st_size == path.stat().st_size):
                with path.open("rb") as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy, _COPY_BYTES)
            if progress:
                progress(done, len(upload.run_files))
