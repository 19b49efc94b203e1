"""The Kineto reader on damaged files: what is whole is read, what is lost is counted."""

import gzip
import io
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from writing import LAYOUTS, Text, bare, compact, event, finding_codes, kernel, lost, names, pretty, read

from ccl_bench import storage
from ccl_bench.errors import InputError
from ccl_bench.trace.formats.kineto import pieces

layouts = pytest.mark.parametrize("write", LAYOUTS.values(), ids=LAYOUTS.keys())


def op(name, ts, **more):
    return event("cpu_op", name, ts, 1, **more)


def many(count=40):
    """Return operators `op0`, `op1`, ... with arguments of the shapes that real ones have."""
    shapes = {"Input Dims": [[4, 2048], [], [[1]]], "Concrete Inputs": ["", "[-1]", "}, {"]}
    return [op(f"op{n}", n, **{"External id": n, **shapes}) for n in range(count)]


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 200)


# Boundaries between pieces.


@layouts
@pytest.mark.parametrize("size", [64, 65, 66, 67, 71, 97, 128, 211, 256, 331, 400])
def test_where_pieces_are_cut_changes_nothing(monkeypatch, write, size):
    data = write([*many(), kernel("k", 50)], {"baseTimeNanoseconds": 9_000, "traceName": "x"})
    whole = read(data)
    monkeypatch.setattr(pieces, "PIECE_BYTES", size)
    cut = read(data)
    assert {n: t.rows() for n, t in cut.tables.items()} == {n: t.rows() for n, t in whole.tables.items()}
    assert cut.findings == whole.findings == []


@layouts
def test_every_offset_of_a_piece_boundary_gives_the_same_rows(monkeypatch, write):
    data = write(many(6))
    expected = read(data).table("cpu_ops").rows()
    assert len(expected) == 6
    for size in range(64, 401):
        monkeypatch.setattr(pieces, "PIECE_BYTES", size)
        assert read(data).table("cpu_ops").rows() == expected


LOOKALIKES = [
    '}, {"ph": "X"',
    '},\n  {\n    "ph": "X"',
    '"}, {"name": "x"}',
    "}]",
    "]}",
    '\\"}]}',
    "[{",
    "\\",
    '"',
]


@layouts
@pytest.mark.parametrize("size", [64, 150, 1 << 20])
def test_names_that_look_like_boundaries_are_names(monkeypatch, write, size):
    monkeypatch.setattr(pieces, "PIECE_BYTES", size)
    content = read(write([op(name, n) for n, name in enumerate(LOOKALIKES)]))
    assert names(content) == LOOKALIKES
    assert content.findings == []


@layouts
@pytest.mark.parametrize("size", [64, 150, 300, 1 << 20])
@pytest.mark.parametrize(
    "nested",
    [
        [{"name": "a", "ts": 1}, {"name": "b", "ts": 2}],
        [{"ph": "X", "cat": "kernel", "name": "no kernel", "ts": 1, "dur": 1}] * 4,
        {"inner": [{"pid": 1}, {"pid": 2}, {"pid": [{"tid": 1}, {"tid": 2}]}]},
    ],
)
def test_objects_inside_arguments_are_no_events(monkeypatch, write, size, nested):
    monkeypatch.setattr(pieces, "PIECE_BYTES", size)
    content = read(write([op(f"op{n}", n, snapshot=nested) for n in range(10)]))
    assert names(content) == [f"op{n}" for n in range(10)]
    assert content.table("kernels").height == 0
    assert content.findings == []


@given(
    events=st.lists(
        st.builds(
            op,
            st.text(max_size=12),
            st.integers(0, 10**6),
            extra=st.recursive(
                st.none()
                | st.integers()
                | st.text(max_size=6)
                | st.floats(allow_nan=False, allow_infinity=False),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(st.sampled_from(["ph", "name", "pid", "x"]), inner, max_size=3)
                ),
                max_leaves=8,
            ),
        ),
        max_size=12,
    ),
    size=st.integers(64, 400),
    layout=st.sampled_from([pretty, compact]),
)
def test_whatever_is_valid_json_is_read_whole(events, size, layout):
    before = pieces.PIECE_BYTES
    try:
        pieces.PIECE_BYTES = size
        content = read(layout(events))
    finally:
        pieces.PIECE_BYTES = before
    in_order = sorted(events, key=lambda e: e["ts"])
    assert names(content) == [e["name"] for e in in_order]
    assert finding_codes(content) == ([] if events else ["no-events"])


# Files that end too early.


@layouts
@pytest.mark.parametrize("percent", range(0, 100, 3))
@pytest.mark.parametrize("size", [100, 1 << 20])
def test_what_survives_a_cut_is_the_beginning(monkeypatch, write, percent, size):
    monkeypatch.setattr(pieces, "PIECE_BYTES", size)
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
def test_every_place_of_a_cut_gives_a_beginning_and_a_finding(write):
    data = write(many(4))
    start = data.find(b"[", data.find(b'"traceEvents"')) + 1
    for end in range(start, len(data.rstrip()) - 1):
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


def test_a_cut_in_the_metadata_after_the_events_is_told():
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
    with storage.opened(path) as stream:
        from ccl_bench.trace.formats.kineto.reader import read_kineto

        return read_kineto(stream, path.name)


def test_a_compressed_file_is_read(tmp_path):
    assert names(zipped(tmp_path / "t.json.gz", gzip.compress(compact(many(3))))) == ["op0", "op1", "op2"]


def test_compression_is_told_by_content_and_not_by_name(tmp_path):
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


def test_a_wrong_checksum_is_told(tmp_path):
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


# Text that is no JSON.


DAMAGES = {
    "bad UTF-8": (b'"op3"', b'"op\xff\xfe3"', "op\ufffd\ufffd3"),
    "a control character": (b'"op3"', b'"op\x013"', "op 3"),
    "a line break in a name": (b'"op3"', b'"op\n3"', "op 3"),
    "a stray quote": (b'"op3"', b'"op"3"', 'op"3'),
    "two stray quotes": (b'"op3"', b'"op "a" 3"', 'op "a" 3'),
    "a stray backslash": (b'"op3"', rb'"op\q3"', r"op\q3"),
    "a Windows path and a control character": (b'"op3"', b'"C:\\\\Users\x01"', "C:\\Users "),
    "a lone surrogate": (b'"op3"', rb'"op\ud8003"', "op\ufffd3"),
}


@layouts
@pytest.mark.parametrize("size", [200, 1 << 20])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_text_is_mended_and_told(monkeypatch, write, size, damage):
    monkeypatch.setattr(pieces, "PIECE_BYTES", size)
    old, new, expected = damage
    content = read(write(many(8)).replace(old, new))
    assert names(content) == ["op0", "op1", "op2", expected, "op4", "op5", "op6", "op7"]
    assert [(f.code, f.count) for f in content.findings] == [("events-repaired", 1)]


@layouts
@pytest.mark.parametrize("value", ["NaN", "nan", "-nan", "inf", "-Infinity", ""])
def test_a_bare_nan_or_missing_argument_costs_that_argument_only(write, value):
    data = write([*many(3), op("odd", 7, **{"External id": Text(value), "Sequence number": 5})])
    content = read(data)
    row = content.table("cpu_ops").to_dicts()[-1]
    assert (row["name"], row["external_id"], row["sequence_number"]) == ("odd", None, 5)
    assert [(f.code, f.count) for f in content.findings] == [("events-repaired", 1)]


def test_mending_one_value_leaves_names_alone():
    content = read(compact([op("std::max:,inf,nan}", 1, **{"External id": Text("NaN")})]))
    assert names(content) == ["std::max:,inf,nan}"]


@layouts
def test_an_event_without_sense_is_lost_and_counted(write):
    data = write(many(8)).replace(b'"op3"', b'"op3" : : ]')
    content = read(data)
    assert names(content) == ["op0", "op1", "op2", "op4", "op5", "op6", "op7"]
    assert [(f.code, f.count) for f in content.findings] == [("events-lost", 1)]


@layouts
@pytest.mark.parametrize("size", [200, 1 << 20])
def test_damage_in_the_last_event_does_not_lose_the_metadata(monkeypatch, write, size):
    monkeypatch.setattr(pieces, "PIECE_BYTES", size)
    data = write(many(8), {"log": ["a ] b", "c } ]"], "baseTimeNanoseconds": 5_000})
    content = read(data.replace(b'"op7"', b'"o"p7]"'))
    assert content.table("cpu_ops")["start_ns"].to_list() == [5_000 + 1_000 * n for n in range(8)]
    assert finding_codes(content) == ["events-repaired"]


@pytest.mark.parametrize("size", [200, 1 << 20])
@pytest.mark.parametrize("chunk", [64, 100, 333])
def test_two_files_written_over_each_other_lose_only_what_was_torn(monkeypatch, size, chunk):
    monkeypatch.setattr(pieces, "PIECE_BYTES", size)
    one, other = pretty(many(30)), pretty([op(f"other{n}", n) for n in range(30)])
    blocks = [
        part[at : at + chunk] for at in range(0, max(len(one), len(other)), chunk) for part in (one, other)
    ]
    content = read(b"".join(blocks))
    known = {f"op{n}" for n in range(30)} | {f"other{n}" for n in range(30)}
    assert set(names(content)) <= known
    assert {"events-lost", "metadata-damaged"} & set(finding_codes(content))


@given(
    data=st.binary(max_size=400),
    at=st.integers(0, 3000),
    width=st.integers(0, 60),
    size=st.sampled_from([80, 400, 1 << 20]),
)
def test_random_damage_raises_nothing_but_a_refusal(data, at, width, size):
    whole = compact(many(8), {"displayTimeUnit": "ms"}, distributedInfo={"rank": 1})
    damaged = whole[:at] + data + whole[at + width :]
    before = pieces.PIECE_BYTES
    try:
        pieces.PIECE_BYTES = size
        content = read(damaged)
    except InputError:
        return
    finally:
        pieces.PIECE_BYTES = before
    try:
        events = json.loads(damaged)["traceEvents"]
    except (ValueError, KeyError, TypeError):
        return
    whole = [e for e in events if e.get("ph") == "X" and e.get("cat") == "cpu_op"]
    assert content.table("cpu_ops").height + sum(f.count for f in content.findings) >= len(whole)


# Times that cannot be true.


@pytest.mark.parametrize("base", [0, 1_711_964_646_000_000_000])
@pytest.mark.parametrize(
    "dur",
    [
        -1,
        -5.5,
        Text("18446744073709551615"),
        Text("18446744073709551.615"),
        Text("9223372036854775.807"),
        Text("1e300"),
        86_400_000_001,
        "abc",
        "1e999999",
        "NaN",
        None,
    ],
)
def test_an_impossible_duration_is_left_out_and_told(base, dur):
    events = [kernel(f"k{n}", 1_000 + n) for n in range(5)] + [kernel("odd", 1_100, dur)]
    content = read(compact(events, baseTimeNanoseconds=base))
    assert names(content, "kernels") == [f"k{n}" for n in range(5)]
    (finding,) = content.findings
    assert (finding.code, finding.count, finding.touches) == ("impossible-time", 1, ("kernels",))


@pytest.mark.parametrize(
    "ts", [0, -1, Text("18446744073709551615"), Text("9223372036854775807"), None, "x", "1e999999"]
)
def test_an_impossible_start_is_left_out_and_told(ts):
    events = [kernel(f"k{n}", 1_706_850_122_846_038 + n) for n in range(5)] + [kernel("odd", ts)]
    content = read(compact(events))
    assert names(content, "kernels") == [f"k{n}" for n in range(5)]
    assert [(f.code, f.count) for f in content.findings] == [("impossible-time", 1)]


def test_impossible_times_among_long_ones_are_left_out_too():
    stamps = [Text(f"170685012284603{n}.123") for n in range(5)]
    odd = [Text("0.001"), Text("1e999999"), Text("99999999999999999999.5"), "NaN", "sNaN"]
    events = [kernel(f"k{n}", ts) for n, ts in enumerate(stamps)] + [kernel("odd", ts) for ts in odd]
    content = read(compact(events))
    assert names(content, "kernels") == [f"k{n}" for n in range(5)]
    assert [(f.code, f.count) for f in content.findings] == [("impossible-time", 5)]


def test_an_event_of_no_length_is_kept():
    content = read(compact([kernel("set", 5, 0)]))
    row = content.table("kernels").to_dicts()[0]
    assert (row["start_ns"], row["end_ns"]) == (5_000, 5_000)
    assert content.findings == []


# Sizes that a careless reader would choke on.


def timed(data):
    started = time.process_time()
    content = read(data)
    return content, time.process_time() - started


BIG = 1 << 20
HOSTILE = {
    "one name of a megabyte": compact([op("x" * BIG, 1)]),
    "a cut name of a megabyte": compact([op("x" * BIG, 1)])[:-200],
    "a cut name of escaped quotes": compact([op('"' * (BIG // 2), 1)])[:-200],
    "a name that never ends among many": compact(many(3)) + b'"name":"' * (BIG // 8),
    "many unfinished names": b'{"traceEvents":[' + b'{"name":"' * (BIG // 9),
    "braces": b'{"traceEvents":[' + b"{" * BIG,
    "brackets": b'{"traceEvents":[' + b"[" * BIG,
    "closings": b'{"traceEvents":[' + b"}]" * (BIG // 2),
    "closed brackets after an event": compact(many(3))[:-2] + b" \x01 " + b"]}" * (BIG // 2),
    "commas": b'{"traceEvents":[' + b"," * BIG,
    "blanks": b'{"traceEvents":[' + b" " * BIG,
    "an event, then blanks": b'{"traceEvents":[{"ph":"X"}' + b" " * BIG,
    "events that open and never close": b'{"traceEvents":[' + b'{"ph":"X","args":{"a":{"b":1},' * (BIG // 30),
    "torn events": b'{"traceEvents":[' + b'{"ph":"X","args":{"a":[{"b":1},{"ph":"X"},' * (BIG // 42),
    "colons": b'{"traceEvents":[{"ph":"X",' + b":" * BIG,
    "not numbers": b'{"traceEvents":[{"ph":"X","ts":' + b"nan," * (BIG // 4),
    "backslashes": b'{"traceEvents":[{"name":"' + b"\\" * BIG,
    "a deep nest": compact([op("deep", 1, deep=Text("[" * 100_000 + "]" * 100_000))]),
    "bad bytes": b'{"traceEvents":[{"name":"' + b"\xff" * BIG + b'"}]}',
    "empty objects": b'{"traceEvents":[' + b"{}," * (BIG // 3),
    "a long head": b'{"a":"' + b"x" * BIG + b'","traceEvents":[]}',
    "a long broken tail": compact(many(3))[:-1] + b',"a":[' + b'{"name":1},' * (BIG // 11),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_megabyte_is_done_within_two_seconds(data):
    content, seconds = timed(data)
    assert seconds < 2 * max(1, len(data) / BIG)
    assert content.table("cpu_ops").height <= 3


@pytest.mark.parametrize("piece", [1 << 12, 1 << 16])
def test_an_event_larger_than_a_piece_is_read(monkeypatch, piece):
    monkeypatch.setattr(pieces, "PIECE_BYTES", piece)
    data = compact(
        [op("first", 1), op("x" * 300_000, 2, **{"Input Dims": [[n] for n in range(9999)]}), op("last", 3)]
    )
    content, seconds = timed(data)
    assert [len(name) for name in names(content)] == [5, 300_000, 4]
    assert content.findings == []
    assert seconds < 2


def test_a_file_without_any_end_of_an_event_is_given_up(monkeypatch):
    monkeypatch.setattr(pieces, "EVENT_LIMIT", 1 << 16)
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1 << 12)
    content = read(b'{"traceEvents":[{"ph":"X","name":"' + b"x" * (1 << 18))
    assert "file-broken-off" in finding_codes(content)


def test_a_stream_that_fails_while_read_is_told():
    class Failing(io.BytesIO):
        def read(self, size=-1):
            if self.tell() > 2000:
                raise OSError("the disk is gone")
            return super().read(500)

    from ccl_bench.trace.formats.kineto.reader import read_kineto

    content = read_kineto(Failing(compact(many(60))), "t.json")
    found = names(content)
    assert found == [f"op{n}" for n in range(len(found))]
    assert "file-broken-off" in finding_codes(content)


def test_a_bare_array_that_is_torn_gives_its_beginning():
    content = read(bare(many(10))[:-100])
    assert names(content)[:8] == [f"op{n}" for n in range(8)]
    assert "file-truncated" in finding_codes(content)
