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


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_dump_that_was_cut_off_is_refused(form: str) -> None:
    content = dump([call("all_reduce", number) for number in range(1, 9)])
    code = pickle.dumps(content, protocol=2) if form == "pickle" else json.dumps(content).encode()
    for length in (len(code) // 2, len(code) - 1):
        with pytest.raises(InputError, match=r"truncated|cut off|is refused"):
            read_dump(io.BytesIO(code[:length]), "rank_0")
