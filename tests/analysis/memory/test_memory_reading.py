"""Snapshots to tables: layouts, damage, and files that stand for more than they hold."""

from __future__ import annotations

import gzip
import pickle
import struct
from typing import TYPE_CHECKING

import pytest
from allocator import MIB, Allocator, old_layout, segments_of, snapshot_of, write
from snapshot_tables import content_of, tables_of
from test_memory_replay import _busy

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.trace import discovery
from ccl_bench.trace.formats.memory_snapshot import reader, recognises
from ccl_bench.trace.formats.memory_snapshot.reader import read_memory_snapshot

if TYPE_CHECKING:
    from pathlib import Path

NAMES = (
    "memory_events",
    "memory_segments",
    "memory_blocks",
    "memory_stacks",
    "memory_frames",
    "memory_settings",
)


def test_every_event_segment_and_block_is_a_row() -> None:
    allocator = _busy(1)
    events, segments, blocks = tables_of(snapshot_of(allocator), *NAMES[:3])
    assert events["action"].cast(str).to_list() == [event["action"] for event in allocator.events]
    assert events["address"].to_list() == [event["addr"] for event in allocator.events]
    assert events["bytes"].to_list() == [event["size"] for event in allocator.events]
    assert events["time_ns"].to_list() == [event["time_us"] * 1000 for event in allocator.events]
    assert events["order"].to_list() == list(range(len(allocator.events)))
    assert segments["bytes"].to_list() == [segment.size for segment in allocator.segments]
    assert segments["kind"].to_list() == [segment.kind for segment in allocator.segments]
    inside = [block for segment in allocator.segments for block in segment.blocks]
    assert blocks["address"].to_list() == [block.address for block in inside]
    states = {"active_allocated": "allocated", "active_pending_free": "pending_free", "inactive": "inactive"}
    assert blocks["state"].to_list() == [states[block.state] for block in inside]


@pytest.mark.parametrize("protocol", range(2, 6))
def test_every_protocol_gives_the_same_tables(protocol: int) -> None:
    snapshot = snapshot_of(_busy(2))
    found = content_of(pickle.dumps(snapshot, protocol)).tables
    expected = content_of(snapshot).tables
    assert {name: table.equals(expected[name]) for name, table in found.items()} == dict.fromkeys(NAMES, True)


def test_an_old_layout_gives_the_same_places_and_sums() -> None:
    snapshot = snapshot_of(_busy(2))
    new, old = (tables_of(s, "memory_segments", "memory_blocks") for s in (snapshot, old_layout(snapshot)))
    sums = ("address", "bytes", "allocated_bytes", "active_bytes", "blocks")
    assert old[0].select(sums).equals(new[0].select(sums))
    assert old[0]["is_expandable"].null_count() == old[0].height
    places = ("segment", "address", "bytes", "state")
    assert old[1].select(places).equals(new[1].select(places))


def test_the_oldest_layout_is_a_list_of_segments() -> None:
    allocator = _busy(2)
    assert recognises(pickle.dumps(segments_of(allocator)))
    content = content_of(segments_of(allocator))
    assert content.table("memory_segments").height == len(allocator.segments)
    assert content.table("memory_events").is_empty()


def test_sums_that_a_segment_lacks_come_from_its_blocks() -> None:
    snapshot = snapshot_of(_busy(2))
    (expected,) = tables_of(snapshot, "memory_segments")
    for segment in snapshot["segments"]:
        for name in ("total_size", "allocated_size", "active_size"):
            del segment[name]
    (found,) = tables_of(snapshot, "memory_segments")
    assert found.equals(expected)


def test_equal_stacks_of_different_events_are_one() -> None:
    allocator = Allocator()
    for _ in range(3):
        allocator.alloc(1000, frames=[{"name": "f", "filename": "a.py", "line": 1}, {"name": "main"}])
    allocator.alloc(1000, frames=[{"name": "f", "filename": "a.py", "line": 2}])
    events, stacks, frames = tables_of(
        snapshot_of(allocator), "memory_events", "memory_stacks", "memory_frames"
    )
    assert events["stack"].to_list() == [None, 0, 0, 0, 1]
    assert stacks["frames"].to_list() == [[0, 1], [2]]
    assert frames.rows() == [(0, "f", "a.py", 1), (1, "main", None, None), (2, "f", "a.py", 2)]


def test_settings_that_are_numbers_are_kept_with_their_groups() -> None:
    snapshot = snapshot_of() | {
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            "max_split_size": 1 << 27,
            "expandable_segments": True,
            "roundup_power2_divisions": {"1": 0, "2": 4},
        }
    }
    content = content_of(snapshot)
    assert dict(content.table("memory_settings").rows()) == {
        "max_split_size": 1 << 27,
        "expandable_segments": 1,
        "roundup_power2_divisions.1": 0,
        "roundup_power2_divisions.2": 4,
    }
    assert content.attributes == {"cuda_allocator_settings": "expandable_segments:True"}


def test_unreadable_and_unknown_events_are_counted_and_left_out() -> None:
    allocator = Allocator()
    allocator.alloc(1 * MIB)
    strange = [7, {"size": 1}, {"action": "alloc", "addr": "x", "size": 1}, {"action": "defragment"}]
    strange.append({"action": "alloc", "addr": 1, "size": 1 << 80})
    snapshot = snapshot_of(allocator)
    snapshot["device_traces"] = [allocator.events + strange]
    content = content_of(snapshot)
    assert content.table("memory_events").height == len(allocator.events)
    assert [(f.code, f.count) for f in content.findings] == [("events-lost", 4), ("categories-unknown", 1)]
    assert set(content.findings[0].touches) == set(NAMES)


_ODD = [None, 1 << 70, "x", {"a": {}}]


@pytest.mark.parametrize("value", _ODD, ids=repr)
def test_a_value_of_another_kind_never_ends_the_reading(value: object) -> None:
    allocator = Allocator()
    allocator.alloc(3 * MIB, frames=[{"name": "f", "filename": "a", "line": 1}])
    allocator.request_free(allocator.alloc(100))
    whole = pickle.dumps(snapshot_of(allocator))
    for table in ("segments", "device_traces"):
        for key in {key for row in _rows(pickle.loads(whole), table) for key in row} | {None}:
            snapshot = pickle.loads(whole)
            for row in _rows(snapshot, table):
                if key in row:
                    row[key] = value
            snapshot["allocator_settings"] = value
            try:
                tables_of(
                    snapshot, "memory_peaks", "memory_layouts", "memory_holders", "memory_ooms", "memory_map"
                )
            except InputError as error:
                assert error.fix


def _rows(snapshot: dict, name: str) -> list[dict]:
    rows = snapshot[name] if name == "segments" else [event for trace in snapshot[name] for event in trace]
    inner = [item for row in rows for key in ("blocks", "frames") for item in row.get(key, [])]
    return [*rows, *inner]


@pytest.mark.parametrize(
    "root", [None, 5, [], {}, {"segments": None}, {"segments": [1]}, {"device_traces": [[]]}, [[]]]
)
def test_what_is_no_snapshot_says_so(root: object) -> None:
    if root == []:
        assert content_of(root).table("memory_segments").is_empty()
        return
    with pytest.raises(InputError, match="is not a memory snapshot"):
        content_of(root)


def test_one_block_that_stands_for_a_million_rows_is_refused() -> None:
    shared = b"](" + b"h\x00" * 1000 + b"e"
    segments = (b"}\x8c\x06blocks" + shared + b"s") * 1000
    code = b"\x80\x04}(\x8c\x05block}\x94\x8c\x08segments](" + segments + b"eu."
    with pytest.raises(InputError, match="stand for 1,001,000 rows"):
        content_of(code)


def test_a_long_stack_shared_by_many_events_is_kept_once() -> None:
    frames = [{"name": f"f{i}", "filename": "a", "line": i} for i in range(1000)]
    allocator = Allocator()
    for _ in range(1000):
        allocator.alloc(512, frames=frames)
    stacks, events = tables_of(snapshot_of(allocator), "memory_stacks", "memory_events")
    assert stacks["frames"].list.len().to_list() == [1000]
    assert events["stack"].null_count() == events["action"].cast(str).is_in(["segment_alloc"]).sum()


def test_a_name_of_a_megabyte_is_cut() -> None:
    allocator = Allocator()
    allocator.alloc(1, frames=[{"name": "f" * (1 << 20), "filename": "a", "line": 1}])
    (frames,) = tables_of(snapshot_of(allocator), "memory_frames")
    assert frames["function"].str.len_chars().to_list() == [1000]


def test_an_action_that_would_take_for_ever_to_print_or_hash_is_lost() -> None:
    doubled = b")\x94" + b"".join(
        b"j" + struct.pack("<I", i) + b"j" + struct.pack("<I", i) + b"\x86\x94" for i in range(60)
    )
    event = b"}\x8c\x06action(" + doubled + b"ts"
    code = b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](](" + event + b"eeu."
    content = content_of(code)
    assert [finding.code for finding in content.findings] == ["events-lost"]


@pytest.mark.parametrize(
    "name", ["rank3_memory_snapshot.pickle", "snapshot_rank3.pkl", "memory_snapshot_3.pickle.gz"]
)
def test_a_snapshot_is_found_by_its_content_and_its_rank_by_its_name(tmp_path, name: str) -> None:
    path = write(tmp_path / "iteration_20" / name, snapshot_of(_busy(1, events=20)))
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    (trace,) = discovery.discover_traces(tmp_path).traces
    assert (trace.form.name, trace.rank, trace.iteration) == ("memory_snapshot", 3, 20)


def test_a_compressed_snapshot_that_was_cut_short_says_so(tmp_path: Path) -> None:
    packed = gzip.compress(pickle.dumps(snapshot_of(_busy(1))))
    path = tmp_path / "memory_snapshot.pickle.gz"
    path.write_bytes(packed[: len(packed) // 2])
    with storage.open_file(path) as stream, pytest.raises(InputError, match="cannot be read to its end"):
        read_memory_snapshot(stream, path.name)


def test_a_file_of_gigabytes_is_refused_before_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LARGEST_BYTES", 1000)
    with pytest.raises(InputError, match="is larger than"):
        content_of(snapshot_of(_busy(1)))


def test_other_pickles_are_no_snapshots(tmp_path) -> None:
    write(tmp_path / "rank0_memory_snapshot.pickle", {"weights": [1, 2]})
    (tmp_path / "old.pickle").write_bytes(b"(lp0\n.")
    assert discovery.discover_traces(tmp_path).traces == []
