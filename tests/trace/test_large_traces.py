"""A trace too large for memory gives the same tables, which lie on disk for as long as they are needed.

"Large" begins at 40 rows in these tests, and pieces have 2,000 bytes.
"""

import errno
import gc
import io
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from both_ways import needs_native, read_by_decoder
from writing import compact, event, kernel, op, pretty, read

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.trace import cache, content, discovery, values
from ccl_bench.trace.cache import read_content
from ccl_bench.trace.content import OnDisk
from ccl_bench.trace.formats.kineto import rows as kineto_rows
from ccl_bench.trace.formats.kineto.reader import read_kineto

EXAMPLE = Path(__file__).parents[2] / "examples/runs/llama-tiny-fsdp2-tp2-gloo/kineto_trace_0.json.gz"


def events(count=200):
    """Return events of two tables that are large, out of order, with a copy and an impossible time."""
    ops = [op(f"op{n % 7}", 3 * ((n * 37) % count)) for n in range(count)]
    kernels = [kernel(f"kernel{n % 5}", 5 * n, correlation=n) for n in range(count)]
    few = [event("gpu_memcpy", "Memcpy HtoD", 7, bytes=64), event("cpu_op", "broken", ts=-1, dur=-5)]
    return [*ops, *few, *kernels, kernels[3]]


def limited(patch, rows=40):
    """Make a trace large that has a few dozen rows."""
    patch.setattr(kineto_rows, "MOST_ROWS", rows)
    patch.setattr(content, "LARGE_ROWS", rows)
    patch.setattr(cache, "LARGE_ROWS", rows)
    patch.setattr(kineto_rows, "_TAKEN_AT_A_TIME", 25 * rows)
    patch.setattr(kineto_rows, "_EVENTS_AT_A_TIME", rows // 4)
    patch.setattr(values, "BLOCK_BYTES", 50 * rows)


@pytest.fixture
def large(monkeypatch):
    limited(monkeypatch)


def as_large(data, monkeypatch, how=read, rows=40):
    with monkeypatch.context() as patch:
        limited(patch, rows)
        return how(data)


def on_disk(content):
    return {name for name, table in content.tables.items() if isinstance(table, OnDisk)}


def assert_alike(one, other):
    assert one.tables.keys() == other.tables.keys()
    for name in one.tables:
        assert one.table(name).schema == other.table(name).schema
        assert one.table(name).equals(other.table(name), null_equal=True), name
        assert one.height(name) == other.height(name)
    assert (one.findings, one.rank, one.attributes) == (other.findings, other.rank, other.attributes)


def files_of_scratch():
    place = storage.cache_directory() / "scratch"
    return [path for path in place.rglob("*") if path.is_file()] if place.exists() else []


@pytest.mark.parametrize("layout", [pretty, compact])
@pytest.mark.parametrize("how", [pytest.param(read, marks=needs_native), read_by_decoder])
def test_a_large_trace_gives_the_tables_of_one_held_in_memory(monkeypatch, layout, how):
    data = layout(events(), baseTimeNanoseconds=1_000_000, distributedInfo={"rank": 3})
    held, found = how(data), as_large(data, monkeypatch, how)
    assert on_disk(held) == set()
    assert on_disk(found) == {"cpu_ops", "kernels"}
    assert_alike(held, found)
    codes = {finding.code for finding in found.findings}
    assert codes == {"impossible-time", "events-repeated", "streams-overlap"}


def test_a_real_trace_is_the_same_from_disk(monkeypatch):
    def whole(path):
        with storage.open_file(path) as stream:
            return read_kineto(stream, path.name)

    held, found = whole(EXAMPLE), as_large(EXAMPLE, monkeypatch, whole, rows=1_000)
    assert "cpu_ops" in on_disk(found)
    assert_alike(held, found)


def test_some_columns_can_be_read_alone(large):
    found = read(compact(events()))
    assert found.table("kernels", ("end_ns", "start_ns")).columns == ["end_ns", "start_ns"]
    assert found.table("memcpy", ("bytes",))["bytes"].to_list() == [64]


def test_nothing_stays_on_disk_once_a_large_trace_is_done_with(large):
    before = len(files_of_scratch())
    found = read(compact(events()))
    assert len(files_of_scratch()) > before
    del found
    gc.collect(1)  # of the young, not of all that a session keeps
    assert len(files_of_scratch()) == before


@pytest.mark.parametrize("sign", [-1, 1])
def test_what_a_killed_process_left_on_disk_is_removed_after_two_days(large, sign):
    """Its clock may have been ahead, too."""
    left = [storage.cache_directory() / "scratch" / name for name in ("left", "in-use")]
    for folder, more in zip(left, (60, -60), strict=True):
        folder.mkdir(parents=True)
        then = time.time() + sign * (content.FORGOTTEN_S + more)
        os.utime(folder, (then, then))
    read(compact(events()))
    assert [folder.exists() for folder in left] == [False, True]


def test_a_large_trace_of_nothing_but_arrows_is_read(monkeypatch):
    ends = [event("fwdbwd", ts=n, ph=phase) | {"id": n} for n in range(60) for phase in "sf"]
    found = as_large(compact(ends), monkeypatch)
    assert found.height("autograd_links") == 60


def test_a_large_trace_is_held_in_memory_where_there_is_no_room_on_disk(monkeypatch):
    def full():
        raise OSError(errno.ENOSPC, "No space left on device")

    data = compact(events())
    held = read(data)
    monkeypatch.setattr(content, "scratch_folder", full)
    found = as_large(data, monkeypatch)
    assert on_disk(found) == set()
    assert_alike(held, found)


def test_a_large_trace_that_is_torn_gives_what_is_whole_and_says_what_is_lost(monkeypatch):
    data = compact(events())[:-3_000]
    held, found = read(data), as_large(data, monkeypatch)
    for each in (held, found):  # separators before an event count, unless a piece begins with it
        each.findings = [replace(f, message=re.sub(r", first at .*", "", f.message)) for f in each.findings]
    assert_alike(held, found)
    assert "file-truncated" in {finding.code for finding in found.findings}


def test_kept_tables_of_a_large_trace_are_read_when_they_are_asked_for(tmp_path, large):
    (tmp_path / "rank0.json").write_bytes(compact(events()))
    (trace,) = discovery.discover_traces(tmp_path / "rank0.json").traces
    first, sha = read_content(trace, ["kernels"])
    assert cache.is_cached(trace)
    again, sha_again = read_content(trace, ["kernels", "cpu_ops"])
    assert on_disk(again) == {"cpu_ops", "kernels"}
    assert sha == sha_again
    assert again.table("cpu_ops").equals(first.table("cpu_ops"), null_equal=True)


def test_a_damaged_kept_table_is_an_error_with_a_way_out_and_is_made_anew(tmp_path, large):
    (tmp_path / "rank0.json").write_bytes(compact(events()))
    (trace,) = discovery.discover_traces(tmp_path / "rank0.json").traces
    whole = read_content(trace, ["kernels"])[0].table("kernels")
    damaged, _ = read_content(trace, ["kernels"])
    kept = damaged.tables["kernels"].path
    data = kept.read_bytes()
    kept.write_bytes(data[:8] + bytes(len(data) - 200) + data[-192:])
    with pytest.raises(InputError, match="the kept table is damaged"):
        damaged.table("kernels")
    assert not cache.is_cached(trace)
    assert read_content(trace, ["kernels"])[0].table("kernels").equals(whole, null_equal=True)


def test_a_stream_that_ends_in_the_middle_of_a_block_is_read_to_its_end(large):
    data = compact(events(30))
    assert read_kineto(io.BytesIO(data), "x").height("cpu_ops") == 30
