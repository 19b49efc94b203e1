"""Kineto files made to choke a careless reader."""

import time

import pytest
from writing import Text, compact, finding_codes, many, names, op, read

from ccl_bench.trace import json_array, values


def timed(data):
    started = time.process_time()
    content = read(data)
    return content, time.process_time() - started


BIG = 1 << 18


HOSTILE = {
    "one long name": compact([op("x" * BIG, 1)]),
    "a cut long name": compact([op("x" * BIG, 1)])[:-200],
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
def test_a_hostile_file_is_done_in_time_that_its_size_bounds(data):
    content, seconds = timed(data)
    assert seconds < max(1, len(data) / BIG)
    assert content.table("cpu_ops").height <= 3


@pytest.mark.parametrize("piece", [1 << 12, 1 << 16])
def test_an_event_larger_than_a_piece_is_read(monkeypatch, piece):
    monkeypatch.setattr(values, "BLOCK_BYTES", piece)
    data = compact(
        [op("first", 1), op("x" * 300_000, 2, **{"Input Dims": [[n] for n in range(9999)]}), op("last", 3)]
    )
    content, seconds = timed(data)
    assert [len(name) for name in names(content)] == [5, 300_000, 4]
    assert content.findings == []
    assert seconds < 2


def test_a_file_without_any_end_of_an_event_is_given_up(monkeypatch):
    monkeypatch.setattr(json_array, "OBJECT_LIMIT", 1 << 16)
    monkeypatch.setattr(values, "BLOCK_BYTES", 1 << 12)
    content = read(b'{"traceEvents":[{"ph":"X","name":"' + b"x" * (1 << 18))
    assert "file-broken-off" in finding_codes(content)
