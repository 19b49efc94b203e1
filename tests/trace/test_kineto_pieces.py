"""Where a Kineto file is cut into pieces changes nothing."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from writing import LAYOUTS, compact, finding_codes, kernel, many, names, op, pretty, read

from ccl_bench.trace import values
from ccl_bench.trace.formats.kineto.document import EVENTS
from ccl_bench.trace.json_array import Document, array_pieces

layouts = pytest.mark.parametrize("write", LAYOUTS.values(), ids=LAYOUTS.keys())


@layouts
@pytest.mark.parametrize("size", [64, 65, 66, 67, 71, 97, 128, 211, 256, 331, 400])
def test_where_pieces_are_cut_changes_nothing(monkeypatch, write, size):
    data = write([*many(), kernel("k", 50)], {"baseTimeNanoseconds": 9_000, "traceName": "x"})
    whole = read(data)
    monkeypatch.setattr(values, "BLOCK_BYTES", size)
    cut = read(data)
    assert {n: t.rows() for n, t in cut.tables.items()} == {n: t.rows() for n, t in whole.tables.items()}
    assert cut.findings == whole.findings == []


@layouts
def test_every_offset_of_a_piece_boundary_gives_the_same_rows(monkeypatch, write):
    data = write(many(3))
    expected = read(data).table("cpu_ops").rows()
    assert len(expected) == 3
    event = len(write(many(3))) - len(write(many(2)))
    for size in range(64, 64 + event + 1):
        monkeypatch.setattr(values, "BLOCK_BYTES", size)
        assert read(data).table("cpu_ops").rows() == expected


def spaced(events):
    """Return a trace with spaces before its commas, which no known writer leaves."""
    return compact(events).replace(b"},{", b"} , {")


@pytest.mark.parametrize("write", [*LAYOUTS.values(), spaced])
@pytest.mark.parametrize("size", [64, 150, 400, 1 << 20])
def test_every_piece_holds_whole_events_and_together_they_are_all(monkeypatch, write, size):
    monkeypatch.setattr(values, "BLOCK_BYTES", size)
    events = many(12)
    data = write(events)
    found = list(array_pieces(io.BytesIO(data), Document(), EVENTS))
    read_back = [event for piece in found[:-1] for event in json.loads(b"[" + piece.text + b"]")]
    assert read_back == events[: len(read_back)]
    assert (len(read_back) == 0) == (size == 1 << 20)
    assert all(data[piece.offset :].startswith(piece.text[:20]) for piece in found)
    assert [piece.is_last for piece in found] == [False] * (len(found) - 1) + [True]


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
    monkeypatch.setattr(values, "BLOCK_BYTES", size)
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
    monkeypatch.setattr(values, "BLOCK_BYTES", size)
    content = read(write([op(f"op{n}", n, snapshot=nested) for n in range(10)]))
    assert names(content) == [f"op{n}" for n in range(10)]
    assert content.table("kernels").height == 0
    assert content.findings == []


@given(
    events=st.lists(
        st.builds(
            op,
            st.text(min_size=1, max_size=12),
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
        unique_by=lambda event: (event["name"], event["ts"]),
    ),
    size=st.integers(64, 400),
    layout=st.sampled_from([pretty, compact]),
)
def test_whatever_is_valid_json_is_read_whole(events, size, layout):
    before = values.BLOCK_BYTES
    try:
        values.BLOCK_BYTES = size
        content = read(layout(events))
    finally:
        values.BLOCK_BYTES = before
    in_order = sorted(events, key=lambda e: e["ts"])
    assert names(content) == [e["name"] for e in in_order]
    assert finding_codes(content) == ([] if events else ["no-events"])
