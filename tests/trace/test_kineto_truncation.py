"""Kineto files that end too early: the beginning is read, and the loss is reported."""

import gzip
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from writing import (
    LAYOUTS,
    bare,
    compact,
    finding_codes,
    lost,
    many,
    names,
    pretty,
    read,
)

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.trace import values
from ccl_bench.trace.formats.kineto.reader import read_kineto

layouts = pytest.mark.parametrize("write", LAYOUTS.values(), ids=LAYOUTS.keys())


@layouts
@pytest.mark.parametrize("percent", range(0, 100, 7))
@pytest.mark.parametrize("size", [100, 1 << 20])
def test_what_survives_a_cut_is_the_beginning(monkeypatch, write, percent, size):
    monkeypatch.setattr(values, "BLOCK_BYTES", size)
    data = write(many())
    cut = data[: len(data) * percent // 100]
    if b'"traceEvents"' not in cut:
        with pytest.raises(InputError):
            read(cut)
        return
    whole = [cut.find(f'"op{n}"'.encode()) >= 0 for n in range(40)].count(True)
    content = read(cut)
    assert names(content) in ([f"op{n}" for n in range(whole)], [f"op{n}" for n in range(whole - 1)])
    assert content.table("cpu_ops").height + lost(content) in {whole, whole + 1}
    codes = finding_codes(content)
    assert "file-truncated" in codes or "metadata-damaged" in codes


@layouts
def test_a_cut_at_any_place_gives_a_beginning_and_a_finding(write):
    """At every third character: places between and inside of names, numbers and brackets."""
    data = write(many(2))
    start = data.find(b"[", data.find(b'"traceEvents"')) + 1
    for end in range(start, len(data.rstrip()) - 1, 5):
        content = read(data[:end])
        found = names(content)
        assert found == [f"op{n}" for n in range(len(found))]
        assert {"file-truncated", "metadata-damaged"} & set(finding_codes(content))
        assert lost(content) <= 1


def test_a_cut_between_events_loses_none():
    data = compact(many(5))
    end = data.rfind(b'{"ph"') - 1
    content = read(data[:end])
    assert names(content) == ["op0", "op1", "op2", "op3"]
    assert finding_codes(content) == ["file-truncated", "metadata-damaged"]


def test_a_cut_in_the_metadata_after_the_events_is_reported():
    data = pretty(many(5), {"traceName": "x", "baseTimeNanoseconds": 1_711_964_646_000_000_000})
    content = read(data[:-12])
    assert names(content) == [f"op{n}" for n in range(5)]
    assert finding_codes(content) == ["metadata-damaged"]
    assert content.table("cpu_ops")["start_ns"][0] == 0  # half a base time is no base time


def test_a_whole_base_time_before_a_cut_is_used():
    data = pretty(many(5), {"baseTimeNanoseconds": 1_000_000, "traceName": "x"})
    content = read(data[:-6])
    assert content.table("cpu_ops")["start_ns"][0] == 1_000_000
    assert finding_codes(content) == ["metadata-damaged"]


def zipped(path, data):
    path.write_bytes(data)
    with storage.open_file(path) as stream:
        from ccl_bench.trace.formats.kineto.reader import read_kineto

        return read_kineto(stream, path.name)


def test_a_compressed_file_is_read(tmp_path):
    assert names(zipped(tmp_path / "t.json.gz", gzip.compress(compact(many(3))))) == ["op0", "op1", "op2"]


def test_compression_is_recognised_by_content_and_not_by_name(tmp_path):
    assert names(zipped(tmp_path / "t.json", gzip.compress(compact(many(3))))) == ["op0", "op1", "op2"]
    assert names(zipped(tmp_path / "t.json.gz", compact(many(3)))) == ["op0", "op1", "op2"]


@pytest.mark.parametrize("percent", range(10, 100, 10))
def test_a_cut_compressed_file_gives_its_beginning(tmp_path, percent):
    data = gzip.compress(compact(many(2000)))
    content = zipped(tmp_path / "t.json.gz", data[: len(data) * percent // 100])
    found = names(content)
    assert found == [f"op{n}" for n in range(len(found))]
    assert len(found) < 2000
    assert "file-broken-off" in finding_codes(content)


def test_a_wrong_checksum_is_reported(tmp_path):
    data = bytearray(gzip.compress(compact(many(200))))
    data[-6] ^= 0xFF
    content = zipped(tmp_path / "t.json.gz", bytes(data))
    assert "file-broken-off" in finding_codes(content)
    assert names(content) == [f"op{n}" for n in range(200)][: len(names(content))]


COMPRESSED = gzip.compress(compact(many(200)))


@settings(max_examples=40)
@given(position=st.integers(0, len(COMPRESSED) - 1), value=st.integers(0, 255))
def test_a_damaged_compressed_stream_raises_nothing_else(tmp_path_factory, position, value):
    data = bytearray(COMPRESSED)
    data[position] = value
    try:
        content = zipped(tmp_path_factory.getbasetemp() / "damaged.json.gz", bytes(data))
    except InputError:
        return
    assert content.table("cpu_ops").height <= 200


def test_a_stream_that_fails_while_read_is_reported():
    class Failing(io.BytesIO):
        def read(self, size=-1):
            if self.tell() > 2000:
                raise OSError("the disk is gone")
            return super().read(500)

    content = read_kineto(Failing(compact(many(60))), "t.json")
    found = names(content)
    assert found == [f"op{n}" for n in range(len(found))]
    assert "file-broken-off" in finding_codes(content)


def test_a_bare_array_that_is_torn_gives_its_beginning():
    content = read(bare(many(10))[:-100])
    assert names(content)[:8] == [f"op{n}" for n in range(8)]
    assert "file-truncated" in finding_codes(content)
