"""Publish a parcel: to a leaderboard over HTTP, or into a directory that one is made from."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.leaderboard.bundle.archive import write_archive
from ccl_bench.leaderboard.publishing.client import TOKEN_VARIABLE
from ccl_bench.storage import remote

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from ccl_bench.engine import Progress
    from ccl_bench.leaderboard.bundle.parcel import Parcel
    from ccl_bench.leaderboard.publishing.client import Leaderboard
    from ccl_bench.leaderboard.publishing.models import Terms

_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a parcel."""

    place: str
    """Address of its page, or its folder."""
    state: str
    is_new: bool
    replaced: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


class Destination(Protocol):
    """Where a parcel can go."""

    @property
    def metrics(self) -> Collection[str] | None:
        """Metrics that are known there; None where all are."""

    def take(self, parcel: Parcel, scratch: Path, told: Progress | None) -> Outcome:
        """Take a parcel; files of the run are handed out where it has some and no address for them."""


@dataclass(frozen=True)
class Server:
    """A leaderboard over HTTP."""

    leaderboard: Leaderboard

    @cached_property
    def terms(self) -> Terms:
        """What it takes."""
        return self.leaderboard.terms()

    @property
    def metrics(self) -> Collection[str]:
        """Metrics that it knows."""
        return self.terms.metrics

    def take(self, parcel: Parcel, scratch: Path, told: Progress | None) -> Outcome:
        """Send a parcel."""
        where = self.leaderboard.address
        if self.terms.submitter is None:
            fix = f"ask its operator for one, and put it into {TOKEN_VARIABLE}"
            raise UsageError("publishing takes a token", where=where, fix=fix)
        archive = scratch / "bundle.tar.gz"
        write_archive(archive, parcel.bundle.folder, parcel.sent)
        size, most = archive.stat().st_size, self.terms.archive_bytes
        if size > most:
            fix = "put the traces into object storage: --traces s3://bucket/folder"
            raise InputError(f"takes up to {most:,} bytes, and this is {size:,}", where=where, fix=fix)
        found = self.leaderboard.publish(archive, told=told)
        place = self.leaderboard.page(found.id)
        return Outcome(place, found.state, found.is_new, found.replaced, found.remarks)


@dataclass(frozen=True)
class Directory:
    """A directory that `serve` and `site` make a leaderboard from."""

    data: Path
    database: str | None = None
    metrics: Collection[str] | None = None

    def take(self, parcel: Parcel, scratch: Path, told: Progress | None) -> Outcome:  # noqa: ARG002  copies only
        """Put a parcel into the directory, which is made where it is missing."""
        from ccl_bench.leaderboard.publishing.accepting import accept
        from ccl_bench.leaderboard.publishing.incoming import incoming
        from ccl_bench.leaderboard.publishing.settings import settings_of
        from ccl_bench.leaderboard.publishing.tokens import Caller, Role
        from ccl_bench.leaderboard.store import open_store
        from ccl_bench.leaderboard.store.bundle import Bundle
        from ccl_bench.leaderboard.store.rows import plain

        store = open_store(self.data, self.database, create=True)
        submitter = plain(parcel.bundle.card.card.contributor or "", 64)
        with incoming(store.data) as folder:
            bundle = Bundle(shutil.copytree(parcel.bundle.folder, folder / "bundle"))
            run_files = _copied(parcel.sent, folder / "run") if parcel.sent else None
            owner = Caller(submitter, Role.ADMIN)
            found = accept(store, settings_of(store.data), owner, bundle, run_files)
        store.engine.dispose()
        place = str(self.data / store.folder.name / found.run)
        remarks = [*found.remarks, f"look at it with ccl-bench serve {self.data}"]
        return Outcome(place, found.state.value, found.is_new, found.replaced, remarks)


def store_traces(parcel: Parcel, told: Progress | None = None) -> None:
    """Copy the files of a run to its address in object storage; those that are there are left alone."""
    place = remote.remote_path(parcel.bundle.provenance.trace_url or "")
    with remote.remote_errors(place):
        for done, (name, path) in enumerate(sorted(parcel.run_files.items()), start=1):
            target = place / name
            if not (target.exists() and target.stat().st_size == path.stat().st_size):
                with path.open("rb") as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy, _BLOCK_BYTES)
            if told:
                told(done, len(parcel.run_files))


def _copied(files: dict[str, Path], folder: Path) -> Path:
    for name, path in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as source, (folder / name).open("xb") as copy:
            shutil.copyfileobj(source, copy, _BLOCK_BYTES)
    return folder
