"""What an upload may cost before it is accepted: bytes as they are stored, files, time, room on the disk."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Semaphore
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from disks import image, mounted, small_disk
from publishing_archives import another, archive
from publishing_server import PATIENCE_S, Leaderboard, wait_for
from sqlalchemy import select

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.leaderboard.bundle import archive as archives
from ccl_bench.leaderboard.bundle.archive import unpack
from ccl_bench.leaderboard.bundle.format import Limits, open_bundle
from ccl_bench.leaderboard.publishing.publications import reconcile
from ccl_bench.leaderboard.publishing.settings import Settings
from ccl_bench.leaderboard.publishing.tokens import Role
from ccl_bench.leaderboard.store import open_store
from ccl_bench.leaderboard.store.tables import UPLOADS
from ccl_bench.leaderboard.web import publish_routes
from ccl_bench.storage import disk, gzip_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from publishing_archives import Files


MIB = 1 << 20
BLOCK = disk.BLOCK_BYTES


def _unpacked(sent: bytes, folder: Path, **limits: int) -> int:
    """Unpack an archive and return the bytes that it claims."""
    claimed: list[int] = []
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "archive").write_bytes(sent)
    unpack(folder / "archive", folder, Limits(**limits), claimed.append)
    return sum(claimed)


def _booked(leaderboard: Leaderboard) -> int:
    with leaderboard.store.engine.connect() as connection:
        return connection.execute(select(UPLOADS.c.bytes)).scalar_one()


def test_far_more_content_than_any_trace_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gzip_file, "FREE_BYTES", MIB)
    noise = os.urandom(MIB // 16)  # stays as large as it is, so the ratio is that of the zeros
    for zeros, is_refused in ((3 * MIB, False), (6 * MIB, True)):
        sent = archive({"run/noise": noise, "run/zeros": bytes(zeros)})
        with (
            pytest.raises(InputError, match="more than 64 times") if is_refused else contextlib.nullcontext()
        ):
            _unpacked(sent, tmp_path / "unpacked")


def test_a_file_claims_whole_blocks_and_one_more_before_it_is_made(tmp_path: Path) -> None:
    sizes = {0: 1, 1: 2, BLOCK: 2, BLOCK + 1: 3}
    assert {size: storage.stored_bytes(size) // BLOCK for size in sizes} == sizes
    assert _unpacked(archive({f"run/{n}": b"" for n in range(50)}), tmp_path / "a") == 50 * BLOCK
    # A file of no bytes fourteen folders deep.
    assert _unpacked(archive({f"run/{'a/' * 14}b": b""}), tmp_path / "b") == (1 + 14 * 2) * BLOCK

    def refuse(size: int) -> None:
        raise InputError(f"{size} are too many")

    (tmp_path / "c").mkdir()
    (tmp_path / "archive").write_bytes(archive({"run/a": b"1"}))
    with pytest.raises(InputError, match="8192 are too many"):
        unpack(tmp_path / "archive", tmp_path / "c", Limits(), refuse)
    assert [path for path in (tmp_path / "c").rglob("*") if path.is_file()] == []


def test_folders_count_as_files(tmp_path: Path) -> None:
    sent = archive({f"run/{n}/a": b"" for n in range(5)})
    _unpacked(sent, tmp_path / "unpacked", files=10)
    with pytest.raises(InputError, match="more than 9 files and folders"):
        _unpacked(sent, tmp_path / "unpacked", files=9)


def test_an_archive_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty members of gzip, of which 20 bytes make one, have no content."""
    monkeypatch.setattr(archives, "PATIENCE_S", 0.0)
    sent = archive({"run/a": b"1"})
    with pytest.raises(InputError, match="takes more than 0 s to unpack"):
        _unpacked(gzip.compress(b"") * 10_000 + sent, tmp_path / "unpacked")
    monkeypatch.setattr(archives, "PATIENCE_S", 60.0)
    _unpacked(gzip.compress(b"") * 10_000 + sent, tmp_path / "unpacked")


def test_content_adds_to_the_time_of_an_archive(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(gzip.compress(bytes(64 * MIB)))
    with (tmp_path / "archive").open("rb") as raw:
        content = archives._Content(raw)
        content.read_exactly(64 * MIB)
        assert content._file.allowed_s == archives.PATIENCE_S + 4.0


def test_a_bundle_is_flushed_once_however_many_files_it_has(
    opened: Callable[..., Leaderboard], whole: Files, bundle: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes: list[str] = []
    for module, name in ((os, "fsync"), (storage, "sync_file_system")):
        called = getattr(module, name)

        def flush(target: object, called: Callable[..., None] = called, name: str = name) -> None:
            flushes.append(name)
            called(target)

        monkeypatch.setattr(module, name, flush)
    leaderboard = opened()
    token = leaderboard.token("ada")
    for files, folders in ((whole, 2), (another(bundle, "without traces"), 1)):
        flushes.clear()
        assert leaderboard.sent(archive(files), token).status_code == 201
        # Everything, its history, and the folders into which it was moved.
        assert flushes == ["sync_file_system", "fsync", *["fsync"] * folders], len(files)


@pytest.fixture
def small_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let disks of a few MiB be large ones."""
    monkeypatch.setattr(disk, "KEPT_FREE_BYTES", 8 * MIB)
    monkeypatch.setattr(disk, "KEPT_FREE_FILES", 10)


@pytest.mark.parametrize(("more", "is_full"), [(0, True), (10, False)])
def test_a_disk_with_room_for_few_files_is_full(tmp_path: Path, more: int, *, is_full: bool) -> None:
    options = f"size=300m,nr_inodes={disk.KEPT_FREE_FILES + more}"
    refused = pytest.raises(OSError, match="No space left") if is_full else contextlib.nullcontext()
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", options, "tmpfs") as place, refused:
        disk.check_space(place, 0)


@pytest.mark.usefixtures("small_reserve")
def test_an_accepted_run_survives_a_loss_of_power(whole: Files, tmp_path: Path) -> None:
    """What was not flushed is not in the file below the file system when the answer arrives."""
    file = image(tmp_path / "image", 48)
    with mounted(tmp_path / "disk", "-o", "loop", str(file)) as place:
        leaderboard = Leaderboard(place / "data")
        try:
            leaderboard.serve()
            run = leaderboard.sent(archive(whole), leaderboard.token("ada")).json()["id"]
            shutil.copyfile(file, tmp_path / "later")
        finally:
            leaderboard.close()
    with mounted(tmp_path / "again", "-o", "loop", str(tmp_path / "later")) as place:
        store = open_store(place / "data")
        store.catch_up()
        assert (store.refused, store.count) == ({}, 1)
        assert open_bundle(store.folder / run).history[-1].by == "ada"
        traces = place / "data" / "traces" / run
        kept = {f"run/{path.relative_to(traces)}": path.read_bytes() for path in traces.rglob("*.*")}
        assert kept == {name: content for name, content in whole.items() if name.startswith("run/")}
        store.engine.dispose()


def test_what_is_stored_counts_and_not_what_was_sent(opened: Callable[..., Leaderboard]) -> None:
    leaderboard = opened(f"upload_bytes_per_hour = {100 * MIB}")
    ada, bob = leaderboard.token("ada"), leaderboard.token("bob")
    sent = archive({"run/a": bytes(60 * MIB)})
    assert len(sent) < MIB
    assert [leaderboard.sent(sent, ada).status_code for _ in range(2)] == [422, 429]
    assert _booked(leaderboard) >= 100 * MIB
    assert list((leaderboard.data / "uploads").glob("incoming-*")) == []
    assert leaderboard.sent(archive({}), bob).status_code == 422


def test_an_archive_that_is_larger_than_its_content_counts_as_it_was_sent(
    opened: Callable[..., Leaderboard],
) -> None:
    leaderboard = opened()
    sent = archive({"run/a": os.urandom(3 * MIB)})
    assert leaderboard.sent(sent, leaderboard.token("ada")).status_code == 422
    assert 0 <= _booked(leaderboard) - len(sent) < MIB


def test_an_upload_that_breaks_off_counts_with_what_arrived(opened: Callable[..., Leaderboard]) -> None:
    leaderboard = opened()
    with _unfinished(leaderboard, leaderboard.token("ada"), 64 * MIB):
        assert _booked(leaderboard) == 0
    assert 0 < _booked(leaderboard) < MIB


def test_an_upload_that_would_exceed_the_hour_is_refused_before_it_is_sent(
    opened: Callable[..., Leaderboard],
) -> None:
    leaderboard = opened(f"upload_bytes_per_hour = {2 * MIB}")
    refused = leaderboard.sent(os.urandom(3 * MIB), leaderboard.token("ada"))
    assert (refused.status_code, _booked(leaderboard)) == (429, 0)


def test_the_runs_of_a_submitter_take_so_much_of_the_disk_and_no_more(
    opened: Callable[..., Leaderboard], bundle: Files, database: str | None
) -> None:
    """Room for two runs; one that the operator removes makes room, and the same one again takes none."""
    size = sum(map(storage.stored_bytes, map(len, bundle.values())))
    leaderboard = opened(f"submitter_bytes = {2 * size + 4 * BLOCK}", database=database)
    ada, bob = leaderboard.token("ada"), leaderboard.token("bob")
    first, second, third, fourth = (archive(another(bundle, name)) for name in "abcd")
    sent = [leaderboard.sent(each, ada) for each in (first, second, first, third)]
    assert [answer.status_code for answer in sent] == [201, 201, 200, 413]
    assert "are allowed" in sent[-1].json()["detail"]
    assert leaderboard.sent(third, leaderboard.token("mae", Role.MAINTAINER)).status_code == 201
    assert leaderboard.sent(fourth, bob).status_code == 201
    shutil.rmtree(leaderboard.data / "runs" / sent[0].json()["id"])
    reconcile(leaderboard.store, Settings())
    assert leaderboard.sent(archive(another(bundle, "e")), ada).status_code == 201


@contextlib.contextmanager
def _unfinished(leaderboard: Leaderboard, token: str, size: int) -> Iterator[None]:
    """Keep an upload of so many bytes open, of which few are sent."""
    there = urlsplit(leaderboard.address)
    before = len(list((leaderboard.data / "uploads").glob("incoming-*/bundle.tar.gz")))
    with socket.create_connection((there.hostname, there.port)) as line:
        head = f"POST /api/v1/bundles HTTP/1.1\r\nhost: {there.netloc}\r\nauthorization: Bearer {token}\r\n"
        head += f"content-type: application/gzip\r\ncontent-length: {size}\r\n\r\n"
        line.sendall(head.encode() + b"\x1f\x8b")
        uploads = leaderboard.data / "uploads"
        wait_for(lambda: len(list(uploads.glob("incoming-*/bundle.tar.gz"))) > before)
        yield
    wait_for(lambda: len(list(uploads.glob("incoming-*/bundle.tar.gz"))) <= before)


def test_two_uploads_of_a_submitter_keep_nobody_else_waiting(
    opened: Callable[..., Leaderboard], bundle: Files
) -> None:
    leaderboard = opened()
    ada, bob = leaderboard.token("ada"), leaderboard.token("bob")
    with ThreadPoolExecutor(1) as one:
        with _unfinished(leaderboard, ada, MIB), _unfinished(leaderboard, ada, MIB):
            third = one.submit(leaderboard.sent, archive(bundle), ada)
            assert leaderboard.sent(archive({}), bob).status_code == 422
            assert leaderboard.sent(archive({}), bob).status_code == 422
            assert not third.done()
            assert len(list((leaderboard.data / "uploads").glob("incoming-*"))) == 2
        assert third.result().status_code == 201


def test_four_archives_are_unpacked_at_a_time(
    opened: Callable[..., Leaderboard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of five submitters, so that none waits for an upload of its own."""
    leaderboard = opened()
    begun, goes_on = Semaphore(0), Event()

    def unpacked(*_: object) -> None:
        begun.release()
        goes_on.wait(PATIENCE_S)
        raise InputError("unpacked")

    monkeypatch.setattr(publish_routes, "ingest_archive", unpacked)
    with ThreadPoolExecutor(5) as many:
        sent = [
            many.submit(leaderboard.sent, archive({}), leaderboard.token(f"submitter{number}"))
            for number in range(5)
        ]
        uploads = leaderboard.data / "uploads"
        wait_for(lambda: len(list(uploads.glob("incoming-*/bundle.tar.gz"))) == 5)
        are_begun = [begun.acquire(timeout=wait_s) for wait_s in (*[PATIENCE_S] * 4, 1.0)]
        goes_on.set()
        assert [each.result().status_code for each in sent] == [422] * 5
    assert are_begun == [True] * 4 + [False]
    assert begun.acquire(blocking=False)  # the fifth, as soon as there is room


@pytest.mark.usefixtures("small_reserve")
def test_what_an_unfinished_upload_announced_is_not_free_for_others(tmp_path: Path) -> None:
    """A disk of 48 MiB keeps 8 free: beside 16 announced ones, another 16 and their content do not fit."""
    with small_disk(tmp_path / "disk", 48) as place:
        leaderboard = Leaderboard(place)
        try:
            leaderboard.serve()
            ada, bob = leaderboard.token("ada"), leaderboard.token("bob")
            with _unfinished(leaderboard, ada, 16 * MIB):
                refused = leaderboard.sent(os.urandom(16 * MIB), bob)
                assert (refused.status_code, "is full" in refused.json()["detail"]) == (507, True)
                chunks = (os.urandom(MIB) for _ in range(25))
                assert leaderboard.sent(chunks, bob).status_code == 507
                assert leaderboard.sent(archive({"run/a": bytes(25 * MIB)}), bob).status_code == 507
                assert leaderboard.sent(archive({}), bob).status_code == 422
                assert leaderboard.asked("GET", "health").status_code == 200
            assert leaderboard.sent(os.urandom(16 * MIB), bob).status_code == 422
        finally:
            leaderboard.close()
