"""Kept tables: the same as read ones, made anew when file or folder changed, never in the way."""

import hashlib
import io
import json
import multiprocessing
import os
import shutil
import zlib
from dataclasses import replace

import polars as pl
import pytest
from umasks import UMASKS, not_private, under_umask
from writing import compact, event, kernel

from ccl_bench.base.errors import InputError
from ccl_bench.trace import cache, discovery
from ccl_bench.trace.cache import read_content
from ccl_bench.trace.content import scratch_folder

ARGS = {
    "Collective name": "allreduce",
    "Out split size": "[1, 2]",
    "Process Group Ranks": "[0, 1]",
    "Comms Id": 2**64 - 1,
}
DEVICE = {"id": 0, "name": "H100", "totalGlobalMem": 1, "numSms": 132, "maxThreadsPerMultiprocessor": 2048}
TABLES = ("kernels", "memcpy", "collectives", "devices", "cpu_ops")


def trace_in(folder, name="rank0.json", count=3):
    events = [kernel(f"k{n}", n, **ARGS) for n in range(count)] + [
        event("cpu_op", ts=-1, dur=-5),
        event("odd"),
    ]
    (folder / name).write_bytes(compact(events, deviceProperties=[DEVICE], distributedInfo={"rank": 2}))
    (found,) = discovery.discover_traces(folder / name).traces
    return found


def same(one, other):
    (content, sha), (again, sha_again) = one, other
    assert sha == sha_again
    assert (content.rank, content.world_size, content.attributes) == (
        again.rank,
        again.world_size,
        again.attributes,
    )
    assert content.findings == again.findings
    for name in TABLES:
        assert content.table(name).schema == again.table(name).schema
        assert content.table(name).rows() == again.table(name).rows()


@pytest.fixture
def unreadable_format(monkeypatch):
    """Make any reading of a file fail, so that only kept tables can be given."""

    def refuse(*_):
        raise AssertionError("the file was read again")

    monkeypatch.setattr("ccl_bench.trace.formats.kineto.reader.read_kineto", refuse)


def _fail(stream, file):
    raise KeyError("kernels")


def test_an_error_of_a_reader_names_the_file_and_its_format(tmp_path, monkeypatch):
    monkeypatch.setattr(_fail, "__module__", "ccl_bench.trace.formats.kineto.reader")  # and no plug-in's
    trace = trace_in(tmp_path)
    broken = replace(trace, form=replace(trace.form, read=_fail))
    with pytest.raises(KeyError) as raised:
        read_content(broken, TABLES, use_cache=False)
    assert raised.value.__notes__ == ["raised while rank0.json was read as kineto"]


def test_kept_tables_equal_those_that_were_read(tmp_path):
    trace = trace_in(tmp_path)
    first = read_content(trace, TABLES)
    assert cache.is_cached(trace)
    same(first, read_content(trace, TABLES))
    same(first, read_content(trace, TABLES, use_cache=False))


@pytest.mark.parametrize("umask", UMASKS, ids=oct)
def test_kept_tables_are_their_owners_alone(tmp_path, own_cache, monkeypatch, umask):
    monkeypatch.setattr(cache, "LARGE_ROWS", 3)  # kernels, in a file of their own
    monkeypatch.setenv("CCL_BENCH_CACHE", str(own_cache / "made"))
    trace = trace_in(tmp_path, count=4)
    with under_umask(umask):
        read_content(trace, TABLES)
        assert cache.is_cached(trace)
        assert scratch_folder().path.parent == own_cache / "made" / "scratch"
    assert list((own_cache / "made").rglob("*.parquet"))
    assert not_private(own_cache / "made") == {}


def test_a_second_look_does_not_read_the_file(tmp_path, request):
    trace = trace_in(tmp_path)
    first = read_content(trace, TABLES)
    request.getfixturevalue("unreadable_format")
    same(first, read_content(trace, TABLES))


def test_findings_are_kept_with_the_tables(tmp_path):
    trace = trace_in(tmp_path)
    read_content(trace, TABLES)
    codes = [finding.code for finding in read_content(trace, ["kernels"])[0].findings]
    assert codes == ["categories-unknown", "impossible-time"]


def test_findings_name_the_file_as_it_is_called_in_the_run_that_is_looked_at(tmp_path):
    inner = tmp_path / "traces"
    inner.mkdir()
    trace_in(inner)
    for root, name in ((tmp_path, "traces/rank0.json"), (inner, "rank0.json")):
        (trace,) = discovery.discover_traces(root).traces
        for _ in range(2):
            findings = read_content(trace, TABLES)[0].findings
            assert {finding.file for finding in findings if finding.file} == {name}


def test_without_the_cache_nothing_is_kept(tmp_path, own_cache):
    read_content(trace_in(tmp_path), TABLES, use_cache=False)
    assert not own_cache.exists()


def test_a_changed_file_is_read_again(tmp_path):
    trace = trace_in(tmp_path)
    read_content(trace, TABLES)
    before = cache.cache_folder(trace)
    changed = trace_in(tmp_path, count=5)
    assert cache.cache_folder(changed) != before
    assert read_content(changed, TABLES)[0].table("kernels").height == 5


def test_traces_of_one_file_hash_it_once_in_each_of_its_states(tmp_path, monkeypatch):
    hashed = []
    real = cache.storage.sha256
    monkeypatch.setattr(cache.storage, "sha256", lambda path: hashed.append(path) or real(path))
    trace = trace_in(tmp_path)
    first, again = (read_content(trace, TABLES, use_cache=False)[1] for _ in range(2))
    assert first == again == hashlib.sha256(trace.path.read_bytes()).hexdigest()
    assert len(hashed) == 1
    changed = trace_in(tmp_path, count=5)
    expected = hashlib.sha256(trace.path.read_bytes()).hexdigest()
    assert read_content(changed, TABLES, use_cache=False)[1] == expected != first
    assert len(hashed) == 2


def test_a_file_that_could_not_be_hashed_is_hashed_again(tmp_path, monkeypatch):
    trace = trace_in(tmp_path)

    def refuse(_):
        raise OSError("the disk is away")

    with monkeypatch.context() as patched:
        patched.setattr(cache.storage, "sha256", refuse)
        with pytest.raises(InputError, match="the disk is away"):
            read_content(trace, TABLES, use_cache=False)
    assert read_content(trace, TABLES, use_cache=False)[1]


def test_versions_that_share_a_cache_keep_tables_of_their_own(tmp_path, monkeypatch):
    trace = trace_in(tmp_path)
    read_content(trace, TABLES)
    before = cache.cache_folder(trace)
    monkeypatch.setattr(cache, "__version__", "another")
    assert not cache.is_cached(trace)
    read_content(trace, TABLES)
    assert {before, cache.cache_folder(trace)} == {*before.parent.iterdir()}


def test_a_file_of_equal_size_and_another_time_is_read_again(tmp_path):
    trace = trace_in(tmp_path)
    before = cache.cache_folder(trace)
    os.utime(trace.path, ns=(1, 1))
    assert cache.cache_folder(trace) != before


def test_a_file_that_changes_while_it_is_read_gives_no_number_and_is_not_kept(tmp_path, monkeypatch):
    """Its hash and its tables would be of two files."""
    trace = trace_in(tmp_path)

    read = cache._read

    def overwritten(*given):
        found = read(*given)
        trace_in(tmp_path, count=9)
        return found

    monkeypatch.setattr(cache, "_read", overwritten)
    with pytest.raises(InputError, match="changed while it was read"):
        read_content(trace, TABLES)
    monkeypatch.undo()
    (now,) = discovery.discover_traces(trace.path).traces
    assert read_content(now, TABLES, use_cache=True)[0].table("kernels").height == 9


@pytest.mark.parametrize(
    "damage", ["truncate", "empty", "junk", "bad UTF-8", "list", "foreign", "delete", "folder"]
)
@pytest.mark.parametrize("name", ["about.json", "tables.arrow"])
def test_a_damaged_folder_is_made_again(tmp_path, name, damage, request):
    trace = trace_in(tmp_path)
    first = read_content(trace, TABLES)
    path = cache.cache_folder(trace) / name
    data = path.read_bytes()
    path.unlink()
    match damage:
        case "truncate":
            path.write_bytes(data[: len(data) // 2])
        case "empty":
            path.write_bytes(b"")
        case "junk":
            path.write_bytes(b"\xff\xff\xff\xff" + b"\x00\xff" * 200)
        case "bad UTF-8":
            path.write_bytes(b'{"rank": "\xff"}')
        case "list":
            path.write_bytes(b'{"tables": [], "findings": 5}')
        case "foreign":
            shutil.copy(trace.path, path)
        case "folder":
            path.mkdir()
    same(first, read_content(trace, TABLES))
    request.getfixturevalue("unreadable_format")
    same(first, read_content(trace, TABLES))


@pytest.mark.parametrize(("rows", "is_check_right"), [(0, True), (2, True), (4, True), (3, False)])
def test_other_kept_rows_than_were_read_are_made_again(tmp_path, rows, is_check_right):
    """They are fewer, more, or as many with other times, of which only the check shows it."""
    trace = trace_in(tmp_path)
    first = read_content(trace, TABLES)
    place = cache.cache_folder(trace)
    about = json.loads((place / "about.json").read_text())
    start, size, check = about["streams"]["kernels"]
    data = (place / "tables.arrow").read_bytes()
    kernels = pl.read_ipc_stream(data[start : start + size]).with_columns(pl.col("end_ns") + 1)
    other = io.BytesIO()
    pl.concat([kernels, kernels]).head(rows).write_ipc_stream(other)
    right = zlib.crc32(other.getbuffer())
    about["streams"]["kernels"] = (len(data), other.tell(), right if is_check_right else check)
    (place / "about.json").write_text(json.dumps(about))
    (place / "tables.arrow").write_bytes(data + other.getvalue())
    same(first, read_content(trace, TABLES))


@pytest.mark.parametrize("at", range(0, 100, 4))
def test_a_flipped_byte_in_kept_tables_changes_nothing(tmp_path, at):
    trace = trace_in(tmp_path)
    first = read_content(trace, TABLES)
    path = cache.cache_folder(trace) / "tables.arrow"
    data = bytearray(path.read_bytes())
    data[len(data) * at // 100] ^= 0xFF
    path.write_bytes(data)
    same(first, read_content(trace, TABLES))


@pytest.mark.parametrize("where", ["", "traces", "traces/x"])
def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, own_cache, where):
    blocked = own_cache / where.removesuffix("/x")
    trace = trace_in(tmp_path)
    if where.endswith("/x"):
        place = cache.cache_folder(trace)
        place.parent.mkdir(parents=True)
        place.write_text("a file where the folder should be")
    else:
        shutil.rmtree(own_cache, ignore_errors=True)
        blocked.parent.mkdir(parents=True, exist_ok=True)
        blocked.write_text("a file where the folder should be")
    for _ in range(2):
        assert read_content(trace, TABLES)[0].table("kernels").height == 3


def test_a_full_disk_leaves_nothing_half_written(tmp_path, own_cache, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "_write", full)
    trace = trace_in(tmp_path)
    assert read_content(trace, TABLES)[0].table("kernels").height == 3
    assert not cache.is_cached(trace)
    assert list((own_cache / "traces").iterdir()) == []


def test_what_a_killed_process_would_leave_lies_in_scratch(tmp_path, own_cache, monkeypatch):
    """Scratch of two days ago is removed; what lies among kept tables stays."""
    seen = []

    def look(folder, *_):
        seen.append((folder.parent.parent, list((own_cache / "traces").iterdir())))

    monkeypatch.setattr(cache, "_write", look)
    read_content(trace_in(tmp_path), TABLES)
    assert seen == [(own_cache / "scratch", [])]


def test_a_file_that_vanished_is_an_input_error(tmp_path):
    trace = trace_in(tmp_path)
    trace.path.unlink()
    for use_cache in (True, False):
        with pytest.raises(InputError, match="cannot be read"):
            read_content(trace, TABLES, use_cache=use_cache)


def _reads(path):
    (trace,) = discovery.discover_traces(path).traces
    return [read_content(trace, TABLES)[0].table("kernels").height for _ in range(3)]


def test_processes_that_write_at_once_all_succeed(tmp_path, own_cache):
    trace = trace_in(tmp_path, count=500)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_reads, [trace.path] * 4) == [[500] * 3] * 4
    assert [path.name for path in (own_cache / "traces").iterdir()] == [cache.cache_folder(trace).name]
