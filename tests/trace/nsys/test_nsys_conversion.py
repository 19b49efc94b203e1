"""Reports become exports: by the real nsys, and by stand-ins that fail."""

import gzip
import os
import shutil
import stat
import time
from pathlib import Path

import pytest
from exports import content, export, kernel, rows
from real_nsys import needs_nsys
from umasks import not_private, under_umask

from ccl_bench.base.errors import InputError
from ccl_bench.trace.formats.nsys import export as nsys_export
from ccl_bench.trace.formats.nsys import recognises
from ccl_bench.trace.formats.nsys.export import export_of
from ccl_bench.trace.formats.nsys.processes import processes
from ccl_bench.trace.formats.nsys.recognition import REPORT_MAGIC

RANK_2, RANK_3 = "rank2_report4.qdrep", "rank3_report1.qdrep"


@pytest.fixture
def jacobi(corpus):
    return corpus / "nsys" / "jacobi-mpi"


@pytest.fixture
def report(tmp_path):
    """Write a file that begins as a report does."""
    folder = tmp_path / "run"
    folder.mkdir()
    place = folder / "my report.nsys-rep"
    place.write_bytes(REPORT_MAGIC + b" 1.\n" + bytes(100))
    return place


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Return a function that puts a shell script in the place of nsys."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def put(script):
        place = folder / "nsys"
        place.write_text(f"#!/bin/sh\n{script}\n")
        place.chmod(place.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")

    return put


def calls_last_end(found):
    calls = found.table("collectives")
    return calls.filter(calls["name"] == "MPI_Allreduce")["end_ns"].max()


@needs_nsys
def test_reports_of_two_ranks_share_a_clock(jacobi):
    second, third = (content(jacobi / name) for name in (RANK_2, RANK_3))
    assert [(found.rank, found.world_size) for found in (second, third)] == [(2, 8), (3, 8)]
    assert abs(calls_last_end(second) - calls_last_end(third)) <= 50


@needs_nsys
def test_a_report_reads_as_its_export_does(jacobi):
    ours, theirs = content(jacobi / RANK_3), content(jacobi / "rank3_report1.sqlite.gz")
    assert ours.table("kernels").height == 2002
    for name, table in ours.tables.items():
        assert table.equals(theirs.table(name)), name


@needs_nsys
def test_a_report_is_exported_once_and_not_beside_itself(jacobi, tmp_path, own_cache):
    place = shutil.copy(jacobi / RANK_3, tmp_path / "rank3.qdrep")
    with under_umask(0):
        first = export_of(place)
    assert not_private(first.parent) == {}
    made = first.stat().st_mtime_ns
    assert export_of(place) == first
    assert first.stat().st_mtime_ns == made
    assert first.is_relative_to(own_cache)
    assert [path.name for path in tmp_path.iterdir()] == ["rank3.qdrep"]
    assert [path.name for path in first.parent.iterdir()] == [first.name]


@needs_nsys
def test_a_compressed_report_is_unpacked_and_exported(jacobi, tmp_path):
    place = tmp_path / "rank3.qdrep.gz"
    place.write_bytes(gzip.compress((jacobi / RANK_3).read_bytes(), 1))
    assert [process.rank for process in processes(place)] == [3]


@needs_nsys
def test_the_real_nsys_refuses_what_only_begins_as_a_report(report):
    with pytest.raises(InputError, match="cannot export it") as error:
        export_of(report)
    assert "install the nsys that recorded it or a later one" in error.value.fix


def test_a_report_is_recognised_by_its_first_bytes(corpus):
    assert recognises((corpus / "nsys" / "jacobi-mpi" / RANK_3).read_bytes()[:1024])


def test_without_nsys_the_error_says_what_to_install_and_what_to_run_elsewhere(report, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="nsys is not on PATH") as error:
        export_of(report)
    assert "apt-get install nsight-systems" in error.value.fix
    stem = str(report).removesuffix(".nsys-rep")
    assert f"nsys export --type sqlite -o '{stem}.sqlite' '{report}'" in error.value.fix


def test_a_report_of_a_newer_nsys_is_an_error_that_says_so(report, stand_in, own_cache):
    stand_in('echo "The file was created by a newer version of Nsight Systems." >&2; exit 1')
    with pytest.raises(InputError, match="created by a newer version") as error:
        export_of(report)
    assert "a later one" in error.value.fix
    assert "nsys export --type sqlite" in error.value.fix
    assert not list((own_cache / "nsys").iterdir())


def test_an_nsys_that_writes_nothing_is_an_error(report, stand_in):
    stand_in("exit 0")
    with pytest.raises(InputError, match="cannot export it"):
        export_of(report)


def test_an_nsys_that_hangs_is_ended_with_all_it_started(report, stand_in, tmp_path, monkeypatch, own_cache):
    monkeypatch.setattr(nsys_export, "EXPORT_SECONDS", 0.5)
    child = tmp_path / "child"
    stand_in(
        f'case "$*" in *--help*) exit 0;; *--version*) exit 0;; esac\nsleep 600 & echo $! >> {child}\nwait'
    )
    with pytest.raises(InputError, match="took longer than"):
        export_of(report)
    assert is_gone(int(child.read_text()))
    assert not list((own_cache / "nsys").iterdir())


def is_gone(pid):
    """Return whether a process ends, looking for at most 5 min."""
    for _ in range(3000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize(("said", "expected"), [("--include-blobs=", True), ("--lazy=", False)])
def test_payloads_are_asked_for_where_nsys_can_export_them(report, stand_in, tmp_path, said, expected):
    made = export(tmp_path / "made.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": [kernel(3, 4)]}, ("mm",))
    log = tmp_path / "log"
    stand_in(
        f"""case "$*" in *--help*) echo "{said}"; exit;; esac
        echo "$*" > {log}; while [ "$1" != -o ]; do shift; done; cp {made} "$2" """
    )
    assert rows(content(report).table("kernels"), "start_ns") == [(3,)]
    assert ("--include-blobs=true" in log.read_text()) is expected
    assert str(report) in log.read_text()


def test_a_report_that_changed_is_exported_again(report, stand_in, tmp_path):
    made = export(tmp_path / "made.sqlite", {}, ())
    stand_in(f'case "$*" in *--help*) exit;; esac; while [ "$1" != -o ]; do shift; done; cp {made} "$2"')
    first = export_of(report)
    report.write_bytes(report.read_bytes() + b"more")
    assert export_of(report) != first


def test_a_cache_that_cannot_be_written_is_an_error(report, stand_in, tmp_path, monkeypatch):
    stand_in("exit 0")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CCL_BENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="cannot be written") as error:
        export_of(report)
    assert "CCL_BENCH_CACHE" in error.value.fix


def test_an_export_is_read_where_it_lies(tmp_path, own_cache):
    place = export(tmp_path / "x.sqlite", {})
    assert export_of(place) == place
    assert not (own_cache / "nsys").exists()


def test_a_gzip_file_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    from ccl_bench.trace.formats.nsys import export as unpacking

    monkeypatch.setattr(unpacking, "MOST_UNPACKED_BYTES", 1 << 20)
    place = tmp_path / "x.sqlite.gz"
    place.write_bytes(gzip.compress(bytes(8 << 20)))
    with pytest.raises(InputError, match="unpacks to more than"):
        export_of(place)
