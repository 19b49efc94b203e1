"""Kineto files whose text is not JSON: what is whole is read, what is lost is counted."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from writing import LAYOUTS, Text, compact, finding_codes, many, names, op, pretty, read

from ccl_bench.base.errors import InputError
from ccl_bench.trace import values

layouts = pytest.mark.parametrize("write", LAYOUTS.values(), ids=LAYOUTS.keys())


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
def test_damaged_text_is_mended_and_reported(monkeypatch, write, size, damage):
    monkeypatch.setattr(values, "BLOCK_BYTES", size)
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
    monkeypatch.setattr(values, "BLOCK_BYTES", size)
    data = write(many(8), {"log": ["a ] b", "c } ]"], "baseTimeNanoseconds": 5_000})
    content = read(data.replace(b'"op7"', b'"o"p7]"'))
    assert content.table("cpu_ops")["start_ns"].to_list() == [5_000 + 1_000 * n for n in range(8)]
    assert finding_codes(content) == ["events-repaired"]


@pytest.mark.parametrize("size", [200, 1 << 20])
@pytest.mark.parametrize("chunk", [64, 100, 333])
def test_two_files_written_over_each_other_lose_only_what_was_torn(monkeypatch, size, chunk):
    monkeypatch.setattr(values, "BLOCK_BYTES", size)
    one, other = pretty(many(30)), pretty([op(f"other{n}", n) for n in range(30)])
    torn = [
        part[at : at + chunk] for at in range(0, max(len(one), len(other)), chunk) for part in (one, other)
    ]
    content = read(b"".join(torn))
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
    before = values.BLOCK_BYTES
    try:
        values.BLOCK_BYTES = size
        content = read(damaged)
    except InputError:
        return
    finally:
        values.BLOCK_BYTES = before
    try:
        events = json.loads(damaged)["traceEvents"]
    except (ValueError, KeyError, TypeError):
        return
    whole = [e for e in events if e.get("ph") == "X" and e.get("cat") == "cpu_op"]
    assert content.table("cpu_ops").height + sum(f.count for f in content.findings) >= len(whole)
