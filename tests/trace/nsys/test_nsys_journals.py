"""Exports beside which SQLite left a journal: they are read as SQLite recovers them, and never without it."""

import gzip
import os
import shutil
import sqlite3
import struct
from contextlib import closing

import pytest
from exports import OWNER, changed, codes, content, export, kernel, mark

from ccl_bench.base.errors import InputError
from ccl_bench.leaderboard.bundle.redaction import redact_export, stage_run
from ccl_bench.run import open_run
from ccl_bench.storage import content_sha256, journals_of, to_path
from ccl_bench.storage.journals import recovered
from ccl_bench.trace import discovery
from ccl_bench.trace.cache import cache_folder, read_content
from ccl_bench.trace.formats.nsys.processes import processes

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
MANY = 3_000
TIMES = f'SELECT count(*), sum("end" - start) FROM {KERNELS}'
MORE = (
    f"INSERT INTO {KERNELS} "
    f'SELECT start + 500, "end" + 504, globalPid, deviceId, streamId, 0, 1 FROM {KERNELS}'
)


def small(path):
    kernels = [kernel(1_000 * n, 1_000 * n + 200) for n in range(MANY)]
    return export(path, {"NVTX_EVENTS": [mark(1, 2, "a")], KERNELS: kernels}, ("mm",))


def copied_while_open(original, folder, mode, *scripts):
    """Copy a database, and what is beside it, as a process leaves them that dies after these scripts."""
    folder.mkdir(exist_ok=True)
    with closing(sqlite3.connect(original, isolation_level=None)) as writer:
        writer.execute(f"PRAGMA journal_mode={mode}").fetchone()
        writer.execute("PRAGMA cache_size=4")  # pages go to the disk before the transaction ends
        for script in scripts:
            writer.execute(script)
        for path in original.parent.glob(f"{original.name}*"):
            shutil.copy(path, folder)
        if writer.in_transaction:
            writer.execute("ROLLBACK")
    return folder / original.name


@pytest.fixture
def interrupted(tmp_path):
    """Return an export whose last transaction was interrupted: half of it is in the file."""
    return copied_while_open(
        small(tmp_path / "x.sqlite"), tmp_path / "run", "DELETE", "BEGIN", f'UPDATE {KERNELS} SET "end" = 9'
    )


@pytest.fixture
def logged(tmp_path):
    """Return an export of which the latest half is in a write-ahead log."""
    return copied_while_open(small(tmp_path / "x.sqlite"), tmp_path / "run", "WAL", MORE)


def as_sqlite_reads(path, tmp_path):
    """Return number and total time of kernels in a copy of the database, as SQLite itself recovers it."""
    folder = tmp_path / "by-sqlite"
    shutil.copytree(path.parent, folder)
    with closing(sqlite3.connect(folder / path.name)) as database:
        return database.execute(TIMES).fetchone()


def times(found):
    kernels = found.table("kernels")
    return kernels.height, (kernels["end_ns"] - kernels["start_ns"]).sum()


def state(folder):
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_an_interrupted_transaction_is_rolled_back_and_reported(interrupted, tmp_path):
    before = state(interrupted.parent)
    plain = sqlite3.connect(f"{interrupted.as_uri()}?mode=ro&immutable=1", uri=True)
    with closing(plain):
        assert plain.execute(TIMES).fetchone() != (MANY, 200 * MANY)
    found = content(interrupted)
    assert times(found) == (MANY, 200 * MANY) == as_sqlite_reads(interrupted, tmp_path)
    assert codes(found) == ["database-unfinished"]
    assert state(interrupted.parent) == before


def test_pages_in_a_write_ahead_log_are_read(logged, tmp_path):
    before = state(logged.parent)
    found = content(logged)
    assert times(found) == (2 * MANY, 200 * MANY + 204 * MANY) == as_sqlite_reads(logged, tmp_path)
    assert codes(found) == []
    assert state(logged.parent) == before


def test_an_export_that_is_wholly_in_its_log_is_recognised(tmp_path):
    tables = [f"{name} (id)" for name in ("StringIds", "NVTX_EVENTS")]
    columns = 'start, "end", globalPid, deviceId, streamId, correlationId, demangledName'
    scripts = [f"CREATE TABLE {table}" for table in (*tables, f"{KERNELS} ({columns})")]
    scripts.append(f"INSERT INTO {KERNELS} VALUES (1, 3, {OWNER}, 0, 7, 1, 1)")
    path = copied_while_open(tmp_path / "x.sqlite", tmp_path / "run", "WAL", *scripts)
    assert b"NVTX_EVENTS" not in path.read_bytes()
    (trace,) = discovery.discover_traces(path.parent).traces
    assert trace.size == sum(each.stat().st_size for each in (path, *journals_of(path)))
    assert times(read_content(trace, ["kernels"])[0]) == (1, 2)


def test_a_log_with_a_broken_frame_ends_there_with_a_finding(tmp_path):
    second = f'UPDATE {KERNELS} SET "end" = start + 4'
    path = copied_while_open(small(tmp_path / "x.sqlite"), tmp_path / "run", "WAL", MORE, second)
    log = path.with_name("x.sqlite-wal")
    damaged = bytearray(log.read_bytes())
    damaged[-100] ^= 1
    log.write_bytes(damaged)
    found = content(path)
    assert times(found) == as_sqlite_reads(path, tmp_path) == (2 * MANY, 404 * MANY)
    assert codes(found) == ["database-unfinished"]


def test_a_log_whose_header_is_broken_is_reported(logged):
    log = logged.with_name("x.sqlite-wal")
    log.write_bytes(bytes(32) + log.read_bytes()[32:])
    found = content(logged)
    assert times(found) == (MANY, 200 * MANY)
    assert codes(found) == ["database-unfinished"]


@pytest.mark.parametrize("mode", ["PERSIST", "TRUNCATE", "DELETE"])
def test_the_journal_of_a_finished_transaction_changes_nothing(tmp_path, mode):
    path = copied_while_open(small(tmp_path / "x.sqlite"), tmp_path / "run", mode, MORE)
    assert path.with_name("x.sqlite-journal").exists() == (mode != "DELETE")
    assert not journals_of(path)
    assert times(content(path)) == (2 * MANY, 404 * MANY)
    assert codes(content(path)) == []


def test_the_journal_of_a_link_lies_beside_its_target(logged, tmp_path):
    link = tmp_path / "elsewhere" / "y.sqlite"
    link.parent.mkdir()
    link.symlink_to(logged)
    link.with_name("y.sqlite-wal").write_bytes(b"no log of this database, and SQLite does not look here")
    assert times(content(link)) == (2 * MANY, 404 * MANY)


def test_a_journal_that_names_another_file_is_refused_and_that_file_stays(interrupted, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    name = str(victim).encode()
    check = sum(struct.unpack(f"{len(name)}b", name)) % (1 << 32)
    with interrupted.with_name("x.sqlite-journal").open("ab") as journal:
        journal.write(b"\0\0\0\0" + name + struct.pack(">II", len(name), check))
        journal.write(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7")
    with pytest.raises(InputError, match="several databases"):
        content(interrupted)
    assert victim.exists()
    as_sqlite_reads(interrupted, tmp_path)
    assert not victim.exists()  # what SQLite itself does with it


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "closed"])
def test_a_journal_that_is_no_readable_file_is_refused(tmp_path, kind):
    path = small(tmp_path / "x.sqlite")
    journal = path.with_name("x.sqlite-wal")
    if kind == "link":
        journal.symlink_to("/dev/zero")
    elif kind == "fifo":
        os.mkfifo(journal)
    elif kind == "folder":
        journal.mkdir()
    else:
        journal.symlink_to("nothing")
    with pytest.raises(InputError, match="journal that"):
        content(path)
    found = discovery.discover_traces(tmp_path)
    leads_out = ["links-outside"] if kind == "link" else []
    assert [finding.code for finding in found.findings] == ["file-unreadable", *leads_out]


def test_a_copy_that_does_not_fit_on_the_disk_is_refused(logged, monkeypatch):
    usage = shutil.disk_usage(logged)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 10))
    with pytest.raises(InputError, match="free disk"):
        content(logged)


def test_the_private_copy_is_closed_to_others_and_goes_away(logged):
    with recovered(logged, "x") as whole:
        assert whole.path.parent.stat().st_mode & 0o777 == 0o700
        folder = whole.path.parent
    assert not folder.exists()


def test_another_journal_is_another_trace(logged):
    (trace,) = discovery.discover_traces(logged.parent).traces
    place, digest = cache_folder(trace), content_sha256(logged)
    assert times(read_content(trace, ["kernels"])[0]) == (2 * MANY, 404 * MANY)
    logged.with_name("x.sqlite-wal").unlink()
    assert cache_folder(trace) != place
    assert content_sha256(logged) != digest
    assert times(read_content(trace, ["kernels"])[0]) == (MANY, 200 * MANY)


def test_the_journal_of_a_remote_database_is_fetched(logged):
    place = to_path("memory://journals")
    for path in logged.parent.iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    (trace,) = discovery.discover_traces(place).traces
    assert times(read_content(trace, ["kernels"], use_cache=False)[0]) == (2 * MANY, 404 * MANY)


def test_a_packed_export_beside_its_journal_is_refused(logged):
    packed = logged.with_name("x.sqlite.gz")
    packed.write_bytes(gzip.compress(logged.read_bytes()))
    logged.unlink()
    with pytest.raises(InputError, match="is packed, and its journal is not"):
        processes(packed)


def test_what_is_published_of_an_export_contains_its_log(logged, tmp_path):
    target = tmp_path / "public.sqlite"
    redact_export(logged, target)
    assert times(content(target)) == (2 * MANY, 404 * MANY)


def test_a_database_that_would_be_published_without_its_log_is_refused(tmp_path):
    script = "CREATE TABLE rocpd_kernel_dispatch_a (id, event_id, start, end)"
    row = "INSERT INTO rocpd_kernel_dispatch_a VALUES (1, 1, 2, 3)"
    original = changed(tmp_path / "x.db", script)
    path = copied_while_open(original, tmp_path / "run", "WAL", row)
    run = open_run(path.parent)
    assert [trace.form.name for trace in run.traces] == ["rocpd"]
    with pytest.raises(InputError, match="has a journal beside it"):
        stage_run(run, tmp_path / "staged")


def test_files_that_sqlite_keeps_beside_a_database_are_understood(logged):
    logged.with_name("x.sqlite-shm").write_bytes(bytes(64))
    assert open_run(logged.parent).others == []
