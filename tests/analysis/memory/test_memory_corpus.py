"""The snapshot of a real training step, against counts of what Python's own unpickler gives."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from snapshot_tables import content_of, tables_of
from test_memory_replay import _brute_force

if TYPE_CHECKING:
    from pathlib import Path

NAME = "rank0_memory_snapshot.pickle"


@pytest.fixture(scope="module")
def code(corpus: Path) -> bytes:
    return (corpus / "memory" / NAME).read_bytes()


@pytest.fixture(scope="module")
def whole(code: bytes) -> dict:
    return pickle.loads(code)


def test_counts_equal_direct_counts(code: bytes, whole: dict) -> None:
    tables = content_of(code).tables
    events = tables["memory_events"]
    (history,) = whole["device_traces"]
    assert (tables["memory_segments"].height, events.height) == (216, 5163)
    assert tables["memory_blocks"].height == sum(len(segment["blocks"]) for segment in whole["segments"])
    assert Counter(events["action"].cast(str)) == Counter(event["action"] for event in history)
    with_frames = sum(bool(event["frames"]) for event in history)
    assert events["stack"].drop_nulls().len() == with_frames == 1421
    assert events["bytes"].sum() == sum(event["size"] for event in history)


def test_sums_equal_direct_sums(code: bytes, whole: dict) -> None:
    (segments,) = tables_of(code, "memory_segments")
    totals = segments.select("bytes", "allocated_bytes", "active_bytes", "requested_bytes").sum().row(0)
    keys = ("total_size", "allocated_size", "active_size", "requested_size")
    assert totals == tuple(sum(segment[key] for segment in whole["segments"]) for key in keys)
    assert [round(total / (1 << 30), 1) for total in totals[:2]] == [13.2, 1.3]


def test_a_stack_is_that_of_its_event(code: bytes, whole: dict) -> None:
    events, stacks, frames = tables_of(code, "memory_events", "memory_stacks", "memory_frames")
    known = {frame: (name, file, line) for frame, name, file, line in frames.rows()}
    reported = {stack: [known[frame] for frame in inside] for stack, inside in stacks.rows()}
    for event, stack in zip(whole["device_traces"][0], events["stack"], strict=True):
        plain = [(frame["name"], frame["filename"], frame["line"]) for frame in event["frames"]]
        assert reported.get(stack, []) == plain


def test_the_peak_is_that_of_a_brute_force_replay(code: bytes, whole: dict) -> None:
    (peaks,) = tables_of(code, "memory_peaks")
    row = peaks.row(0, named=True)
    assert row["peak_requested_bytes"] == _brute_force(whole) == 13_923_997_700
    assert row["peak_allocated_bytes"] == 13_927_832_064
    assert row["peak_reserved_bytes"] == 14_180_941_824
    assert (row["start_allocated_bytes"], row["contradictions"]) == (1_377_753_600, 0)


def test_blocks_in_use_never_overlap_and_stay_inside_segments(code: bytes) -> None:
    lives, segments = tables_of(code, "memory_lives", "memory_segments")
    ends = {address + size for address, size in segments.select("address", "bytes").rows()}
    starts = sorted(segments["address"])
    last = lives["died"].max() + 1
    rows = lives.select("born", "died", "address", "bytes").rows()
    for moment in range(-1, last, 97):
        used = sorted(
            (a, a + size)
            for born, died, a, size in rows
            if born <= moment and (died is None or died > moment)
        )
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(used))
        assert all(not any(low < edge < high for edge in starts) for low, high in used)
    assert ends


def test_sizes_that_the_rules_give_are_those_recorded(code: bytes, whole: dict) -> None:
    """Blocks that are in use at the snapshot have a recorded size, which the rules must give again."""
    recorded, forgotten = pickle.loads(code), pickle.loads(code)
    (lives,) = tables_of(recorded, "memory_lives")
    known = {a: size for a, size, died in lives.select("address", "bytes", "died").rows() if died is None}
    # Freed by events of their own after the snapshot, the same blocks have no recorded size.
    history = forgotten["device_traces"][0]
    for segment in forgotten["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                event = {"addr": block["address"], "size": block["requested_size"], "stream": 0, "frames": []}
                history += [event | {"action": "free_requested"}, event | {"action": "free_completed"}]
                block["state"] = "inactive"
    (lives,) = tables_of(forgotten, "memory_lives")
    again = lives.filter(lives["died"] >= 5163)
    wrong = [row for row in again.iter_rows(named=True) if row["bytes"] != known[row["address"]]]
    assert len(again) == len(known) == 229
    assert all(not row["is_exact"] for row in wrong)
    assert len(wrong) <= 5
