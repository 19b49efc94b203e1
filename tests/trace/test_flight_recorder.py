"""Dumps of torch's Flight Recorder: recognised by content, ranks from names, read without running code."""

from __future__ import annotations

import io
import json
import os
import pickle
from typing import TYPE_CHECKING

import pytest
from flight_recorder import call, dump, write_dumps

from ccl_bench.base.errors import InputError
from ccl_bench.evaluate.hang import hang_of_run
from ccl_bench.run import open_run
from ccl_bench.trace.discovery import discover_traces
from ccl_bench.trace.file_names import rank_at_end
from ccl_bench.trace.formats import recognised
from ccl_bench.trace.formats.flight_recorder.reader import read_dump

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_12", 12),
        ("worker-3_comm_lib_trace_rank_7", 7),
        ("node-1.cluster.local_rank_5", 5),
        ("gpu012-nccl-4", 4),
        ("0", 0),
        ("worker-3_rank_12.json", 12),
        ("json_2.json", 2),
        ("rank1_20240101.json", 1),
        ("trace.json", None),
    ],
)
def test_the_rank_is_what_a_name_ends_in(name: str, rank: int | None) -> None:
    assert rank_at_end(name) == rank


def test_dumps_are_found_beside_other_files_whatever_their_prefix(tmp_path: Path) -> None:
    folder = write_dumps(tmp_path / "fr", {rank: dump([call("all_reduce", 1)]) for rank in (0, 3)})
    (folder / "events.out.tfevents.1").write_bytes(b"\x18\0\0\0")
    (folder / "host1_rank_12").write_bytes(pickle.dumps(dump([call("barrier", 1)]), protocol=4))
    found = discover_traces(tmp_path)
    assert {trace.relative: trace.rank for trace in found.traces} == {
        "fr/comm_lib_trace_rank_0": 0,
        "fr/comm_lib_trace_rank_3": 3,
        "fr/host1_rank_12": 12,
    }
    assert [path.name for path in found.others] == ["events.out.tfevents.1"]


def test_of_the_two_forms_of_one_dump_the_one_with_stacks_is_read(tmp_path: Path) -> None:
    content = dump([call("all_reduce", 1)])
    write_dumps(tmp_path, {0: content})
    (tmp_path / "a_rank_0.json").write_text(json.dumps(content))
    found = discover_traces(tmp_path)
    assert [trace.relative for trace in found.traces] == ["comm_lib_trace_rank_0"]
    assert found.findings == []


def test_two_dumps_of_one_rank_from_other_times_are_a_finding(tmp_path: Path) -> None:
    write_dumps(tmp_path, {0: dump([call("all_reduce", 1)])})
    (tmp_path / "z_rank_0.json").write_text(json.dumps(dump([call("all_reduce", 9, at_ms=5)])))
    assert [finding.code for finding in discover_traces(tmp_path).findings] == ["rank-duplicate"]


def test_a_pickle_and_json_give_the_same_calls() -> None:
    content = dump([call("all_reduce", 1, ended_ms=2), call("send 0->1", 1)], {"0": [0, 1]})
    read = [
        read_dump(io.BytesIO(code), "rank_0")
        for code in (pickle.dumps(content, protocol=2), json.dumps(content).encode())
    ]
    for name in ("recorded_calls", "recorded_groups", "recorded_stacks"):
        assert read[0].table(name).equals(read[1].table(name))
    calls = read[0].table("recorded_calls")
    assert calls["operation"].to_list() == ["all_reduce", "send 0->1"]
    assert calls["completed_ns"].is_null().to_list() == [False, True]
    assert read[0].table("recorded_groups")["ranks"].to_list() == [[0, 1]]


def test_json_writes_a_time_that_has_not_come_as_zero() -> None:
    entry = call("all_reduce", 1) | {"time_discovered_completed_ns": 0, "time_discovered_started_ns": 0}
    calls = read_dump(io.BytesIO(json.dumps(dump([entry])).encode()), "rank_0").table("recorded_calls")
    assert calls["completed_ns"].to_list() == [None]


def test_an_entry_that_is_none_is_left_out_and_counted() -> None:
    entries = [call("all_reduce", 1), {"record_id": 1}, 7, call("all_reduce", 2) | {"process_group": "0"}]
    content = {**dump([]), "entries": [entries[0] | {"record_id": 0}, *entries[1:]]}
    read = read_dump(io.BytesIO(json.dumps(content).encode()), "rank_0")
    assert read.table("recorded_calls").height == 1
    assert [(finding.code, finding.count) for finding in read.findings] == [("events-lost", 3)]


class _Program:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self.command,)


def test_a_dump_that_calls_code_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    content = dump([call("all_reduce", 1) | {"state": _Program(f"touch '{mark}'")}])
    code = pickle.dumps(content, protocol=4)
    assert recognised(code) is not None
    with pytest.raises(InputError, match="imports or calls code") as caught:
        read_dump(io.BytesIO(code), "comm_lib_trace_rank_0")
    assert caught.value.where == "comm_lib_trace_rank_0"
    assert not mark.exists()


def test_what_is_shared_over_and_over_in_the_place_of_a_text_costs_nothing() -> None:
    shared: object = {}
    for _ in range(60):
        shared = [shared, shared]
    content = dump([call("all_reduce", 1)]) | {"pg_config": {"0": {"desc": "", "ranks": {"a": shared}}}}
    listed = [{"profiling_name": shared, "record_id": 0}]
    for code in (pickle.dumps(content, protocol=4), pickle.dumps(listed, protocol=4)):
        read_dump(io.BytesIO(code), "rank_0")


def test_a_pickle_that_was_cut_off_is_refused() -> None:
    code = pickle.dumps(dump([call("all_reduce", number) for number in range(1, 9)]), protocol=2)
    for length in (len(code) // 2, len(code) - 1):
        with pytest.raises(InputError, match=r"truncated|is refused"):
            read_dump(io.BytesIO(code[:length]), "rank_0")


@pytest.mark.parametrize("is_sorted", [False, True], ids=["calls last", "calls among the first"])
def test_of_json_that_was_cut_off_the_whole_calls_are_read(is_sorted: bool) -> None:
    """torch sorts the keys; how many calls are whole is counted by their ends in the text."""
    content = dump([call("all_reduce", number) for number in range(1, 9)], {"0": [0, 1]}, {0: 8})
    entries: list[dict[str, object]] = content["entries"]  # type: ignore[assignment]
    status = json.dumps(content["pg_status"], sort_keys=is_sorted)
    code = json.dumps(content, sort_keys=is_sorted)
    ends, at = [], 0
    for entry in entries:
        text = json.dumps(entry, sort_keys=is_sorted)
        at = code.index(text, at) + len(text)
        ends.append(at)
    for length in range(code.index('"entries"'), len(code), 97):
        whole = sum(end <= length for end in ends)
        if not whole:
            with pytest.raises(InputError, match="cut off"):
                read_dump(io.BytesIO(code[:length].encode()), "rank_0")
            continue
        read = read_dump(io.BytesIO(code[:length].encode()), "rank_0")
        assert read.table("recorded_calls")["sequence"].to_list() == [*range(1, whole + 1)]
        assert read.table("recorder_dumps")["is_whole"].to_list() == [False]
        assert [finding.code for finding in read.findings] == ["events-lost"]
        states_whole = length >= code.index(status) + len(status)
        assert read.table("recorded_status").height == states_whole


def status_of(content: dict[str, object]) -> dict[str, int]:
    """Return {group: last call} as the reader finds it in a dump."""
    read = read_dump(io.BytesIO(json.dumps(content).encode()), "rank_0")
    return dict(read.table("recorded_status").iter_rows())


def test_the_status_of_a_group_is_found_by_the_calls_that_have_its_id() -> None:
    calls = [call("all_reduce", 4, group=("7f", "tp"), group_id=1), call("all_reduce", 9)]
    assert status_of(dump(calls, {"0": [0, 1], "7f": [0, 1]}, {0: 9, 1: 4, 2: 5})) == {"0": 9, "7f": 4}


def test_without_calls_ids_count_the_listed_groups_in_the_order_of_their_numbers() -> None:
    listed = {"10": [0, 2], "0": [0, 1, 2], "9": [0, 1]}
    assert status_of(dump([], listed, {0: 3, 1: 4, 2: 5})) == {"0": 3, "9": 4, "10": 5}
    agreeing = [call("all_reduce", 4, group=("9", "tp"), group_id=1)]
    assert status_of(dump(agreeing, listed, {0: 3, 1: 4, 2: 5})) == {"0": 3, "9": 4, "10": 5}
    contradicting = [call("all_reduce", 5, group=("9", "tp"), group_id=2)]
    assert status_of(dump(contradicting, listed, {0: 3, 1: 4, 2: 5})) == {"9": 5}
    assert status_of(dump([], {"0": [0, 1], "a hash": [0, 1]}, {0: 3, 1: 4})) == {}


def test_a_status_of_minus_one_is_none_and_texts_are_numbers() -> None:
    content = dump([], {"0": [0, 1], "1": [0, 1]})
    content["pg_status"] = {
        "0": {"last_enqueued_collective": "7"},
        "1": {"last_enqueued_collective": "-1"},
        "x": {"last_enqueued_collective": 3},
        "2": 4,
    }
    assert status_of(content) == {"0": 7}


def old_call(operation: str, sequence: int, group_id: int = 0, state: str = "completed") -> dict[str, object]:
    """Return an entry as `TraceUtils.h` of torch 2.2 writes it."""
    return {
        "pg_id": group_id,
        "seq_id": sequence,
        "profiling_name": f"nccl:{operation}",
        "time_created_us": 1_700_000_000_000_000 + sequence,
        "input_sizes": [[8]],
        "output_sizes": [[8]],
        "state": state,
        "retired": state == "completed",
        "frames": [{"name": "train", "filename": "/src/train.py", "line": 7}],
    }


def test_of_a_list_of_torch_2_2_the_calls_of_all_ranks_show_who_is_missing(tmp_path: Path) -> None:
    whole = [old_call("all_reduce", 1), old_call("all_gather", 1, group_id=1)]
    waits = [*whole, old_call("all_reduce", 2, state="started")]
    for rank in range(3):
        entries = whole if rank == 1 else waits
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(entries, protocol=2))
    hang = hang_of_run(open_run(tmp_path), use_cache=False)
    assert (hang.culprits, hang.calls) == ([1], 5)
    (message,) = {finding.message for finding in hang.findings}
    assert message.endswith("nor process groups, so 1 call of other groups cannot be compared")


def test_the_fields_of_a_list_of_torch_2_2_are_those_of_later_dumps() -> None:
    entries = [old_call("all_reduce", 3), old_call("send 0->1", 4), {"pg_id": []}, 7]
    read = read_dump(io.BytesIO(pickle.dumps(entries, protocol=2)), "rank_0")
    columns = ["group", "sequence", "p2p_sequence", "is_p2p", "created_ns", "is_retired"]
    assert read.table("recorded_calls").select(columns).rows() == [
        ("0", 3, None, False, 1_700_000_000_000_003_000, True),
        ("0", None, 4, True, 1_700_000_000_000_004_000, True),
    ]
    assert [(f.code, f.count) for f in read.findings] == [("dump-of-old-torch", 1), ("events-lost", 2)]


def test_a_list_of_torch_2_2_that_calls_code_is_refused(tmp_path: Path) -> None:
    code = pickle.dumps(
        [old_call("all_reduce", 1) | {"state": _Program(f"touch '{tmp_path}/ran'")}], protocol=2
    )
    assert recognised(code) is not None
    with pytest.raises(InputError):
        read_dump(io.BytesIO(code), "rank_0")
    assert [*tmp_path.iterdir()] == []
