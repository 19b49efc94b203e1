"""Columns that are made at once hold what their values give one by one, whatever these are."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest
from allocator import Allocator, snapshot_of
from hypothesis import given
from hypothesis import strategies as st

from ccl_bench.base.lazy_imports import pl
from ccl_bench.trace.formats.memory_snapshot import reader
from ccl_bench.trace.formats.memory_snapshot.reader import (
    ACTIONS,
    numbers,
    read_memory_snapshot,
    text,
    texts,
    whole,
)

LARGEST = 1 << 63
VALUES = st.sampled_from([0, 1, -1, 7, LARGEST - 1, LARGEST, -LARGEST, -LARGEST - 1, LARGEST // 1000, None])
ODD = st.integers(-(1 << 70), 1 << 70) | st.booleans() | st.floats() | st.text(max_size=3) | st.just([])


@given(st.lists(VALUES) | st.lists(VALUES | ODD), st.sampled_from([(-LARGEST, 1), (0, 1), (1, 1000)]))
def test_numbers_are_those_that_fit(values: list[object], least_and_times: tuple[int, int]) -> None:
    least, times = least_and_times
    expected = [
        whole(value * times) if type(value) is int and whole(value) is not None and value >= least else None
        for value in values
    ]
    column = numbers(values, least, times)
    assert column.dtype == pl.Int64
    assert column.to_list() == expected


WORDS = st.sampled_from(["", "N/A", "a", "b" * 2000, "\ud55c", None])


@given(st.lists(WORDS) | st.lists(WORDS | ODD))
def test_texts_are_those_that_say_something(values: list[object]) -> None:
    column = texts(values)
    assert column.dtype == pl.String
    assert column.to_list() == [text(value) for value in values]


FRAMES = [[{"name": "f", "filename": "a.py", "line": 1}], [{"name": "g"}], [], None, ({"name": "f"},), 5]
EVENT = st.fixed_dictionaries(
    {"action": st.sampled_from(sorted(ACTIONS)), "addr": st.integers(0, 9), "size": st.integers(0, 9)},
    optional={
        "stream": VALUES,
        "time_us": VALUES,
        "device_free": VALUES,
        "category": WORDS,
        "user_metadata": WORDS,
        "compile_context": WORDS | ODD,
        "frames": st.sampled_from(FRAMES),
    },
)
DAMAGED = st.fixed_dictionaries(
    {}, optional={"action": WORDS | ODD | st.just("oom"), "addr": VALUES | ODD, "size": VALUES | ODD}
)


def _everything(snapshot: dict[str, Any]) -> object:
    content = read_memory_snapshot(io.BytesIO(pickle.dumps(snapshot)), "x")
    return {name: table.to_dict(as_series=False) for name, table in content.tables.items()}, content.findings


@given(st.lists(EVENT, max_size=6), st.lists(DAMAGED | ODD, max_size=1), st.lists(EVENT, max_size=2))
def test_histories_give_what_their_events_give_one_by_one(
    events: list[object], damaged: list[object], others: list[object]
) -> None:
    snapshot = {"segments": [], "device_traces": [events + damaged, others]}
    found = _everything(snapshot)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_are_whole", lambda _: False)
        assert found == _everything(snapshot)


def test_a_whole_history_is_not_looked_at_event_by_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_is_whole", lambda _: pytest.fail("looked at one by one"))
    allocator = Allocator()
    allocator.alloc(1 << 20)
    assert _everything(snapshot_of(allocator))
