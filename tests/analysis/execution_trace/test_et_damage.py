"""Damaged and hostile Execution Traces: what is whole is read, what is lost is counted."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import time

import pytest
from et_files import all_reduce, chakra, codes, plain, read, text
from hypothesis import given
from hypothesis import strategies as st

from ccl_bench.base.errors import InputError
from ccl_bench.storage.gzip_file import GzipFile
from ccl_bench.trace.formats.execution_trace import EXECUTION_TRACE

OLD = text([plain(n, f"aten::op{n}") for n in range(3, 23)])
NEW = text([chakra(n, f"aten::op{n}") for n in range(3, 23)], "1.1.1-chakra.0.0.4")


@pytest.mark.parametrize("source", [OLD, NEW], ids=["plain", "chakra"])
def test_a_file_cut_anywhere_gives_exactly_the_nodes_that_are_whole(source: str) -> None:
    node_end = "\n  }"
    for cut in range(source.index('"nodes"') + 10, len(source) - 1, 37):
        content = read(source[:cut])
        assert content.tables["et_nodes"].height == source.count(node_end, 0, cut)
        assert "file-truncated" in codes(content)
        assert "events-lost" not in codes(content)


@pytest.mark.parametrize("source", [OLD, NEW], ids=["plain", "chakra"])
def test_a_whole_file_has_no_finding(source: str) -> None:
    content = read(source)
    assert codes(content) == []
    assert content.tables["et_nodes"].height == 20


@pytest.mark.parametrize("write", [plain, chakra])
@pytest.mark.parametrize("changes", [{}, {"seq_id": 9}], ids=["alike", "different"])
def test_of_nodes_with_one_number_the_first_counts(write, changes) -> None:
    nodes = [write(n, f"aten::op{n}") for n in range(3, 23)]
    content = read(text([*nodes[:9], write(7, "aten::op7", **changes), *nodes[9:], nodes[0]]))
    assert content.tables["et_nodes"]["name"].cast(str).to_list() == [node["name"] for node in nodes]
    assert set(content.tables["et_nodes"]["sequence_number"]) <= {None, -1}
    (finding,) = content.findings
    assert (finding.code, finding.count) == ("events-repeated", 2)
    assert "et_communication" in finding.touches


def test_calls_written_twice_count_once() -> None:
    calls = [all_reduce(n) for n in range(3, 9)]
    content = read(text([*calls, *calls[:4]]))
    assert content.tables["et_communication"]["node"].to_list() == [*range(3, 9)]
    assert codes(content) == ["events-repeated"]


def test_a_node_that_cannot_be_read_is_counted_and_the_others_are_kept() -> None:
    content = read(OLD.replace('"rf_id": 7,', '"rf_id": 7 7,'))
    assert content.tables["et_nodes"].height == 19
    assert [(f.code, f.count) for f in content.findings] == [("events-lost", 1)]


@pytest.mark.parametrize("name", ['a "quoted" name', "tab\there", "back\\slash", "\x01"])
def test_names_that_torch_did_not_escape_are_mended(name: str) -> None:
    content = read(OLD.replace("aten::op7", name))
    assert content.tables["et_nodes"].height == 20
    assert codes(content) == ["events-repaired"]


def test_bad_utf_8_in_a_name_is_mended() -> None:
    content = read(OLD.encode().replace(b"aten::op7", b"aten::\xff\xfe"))
    assert (content.tables["et_nodes"].height, codes(content)) == (20, ["events-repaired"])


def test_a_damaged_last_node_does_not_make_the_file_a_cut_one() -> None:
    content = read(NEW.replace('"id": 22,', '"id": 22 22,'))
    assert (content.tables["et_nodes"].height, codes(content)) == (19, ["events-lost"])


@pytest.mark.parametrize("broken", ['"outputs": 5 5', '"outputs": [', "null"])
def test_a_last_node_without_its_end_does_not_make_the_file_a_cut_one(broken: str) -> None:
    cut = OLD.rindex('"outputs"')
    content = read(f'{OLD[:cut]}{broken} ], "finish_ts": 2}}')
    assert (content.tables["et_nodes"].height, codes(content)) == (19, ["events-lost"])


def test_a_number_that_json_does_not_have_costs_that_number_alone() -> None:
    content = read(NEW.replace('"value": 7', '"value": NaN', 1))
    assert content.tables["et_nodes"]["rf_id"].to_list()[4:6] == [None, 8]
    assert codes(content) == ["events-repaired"]


def test_the_place_of_the_first_lost_node_is_reported() -> None:
    damaged = OLD.replace('"rf_id": 7,', '"rf_id": 7 7,')
    (finding,) = read(damaged).findings
    place = damaged.rindex("},", 0, damaged.index("7 7")) + 1
    assert finding.message == f"1 node is unreadable, first at byte {place:,}"


def test_a_damaged_gzip_file_is_read_up_to_the_damage() -> None:
    nodes = text([plain(n, f"aten::op{n * 7919}", outputs=[n * 104729]) for n in range(3, 4000)])
    packed = bytearray(gzip.compress(nodes.encode()))
    packed[len(packed) // 2] ^= 0xFF
    stream = GzipFile(io.BytesIO(bytes(packed)))
    content = EXECUTION_TRACE.read(stream, "x")  # type: ignore[arg-type]
    assert "file-broken-off" in codes(content) or "events-lost" in codes(content)


def test_a_file_without_nodes_is_refused() -> None:
    with pytest.raises(InputError, match="no array of nodes"):
        read('{"schema": "1.0.1", "pid": 1}')


def test_an_empty_array_of_nodes_is_said() -> None:
    assert codes(read(text([]))) == ["no-events"]


def test_values_of_the_wrong_kind_become_null_or_lose_their_node_only() -> None:
    odd = plain(5, "record_param_comms", inputs={"a": 1}, rf_id="x", parent=[], tid=1e300, seq_id=2**70)
    content = read(text([odd, plain(6, "aten::mm"), {"id": 7, "name": 8}, {}, all_reduce(9)]))
    nodes = content.tables["et_nodes"]
    assert {6, 9} <= set(nodes["node"].to_list())
    assert content.tables["et_communication"].filter(node=9)["in_bytes"].to_list() == [2048]


def test_numbers_that_fit_no_column_become_null() -> None:
    node = all_reduce(9)
    node["inputs"][0] = [[1, 2, 0, 2**62, 2**62, "cuda:0"]]
    call = read(text([node])).tables["et_communication"].row(0, named=True)
    assert (call["in_elements"], call["in_bytes"]) == (2**62, None)


def test_a_group_of_a_trillion_ranks_lists_none() -> None:
    groups = json.dumps([{"pg_name": "0", "ranks": [], "group_size": 10**12}])
    content = read(text([chakra(3, "## process_group:init ##", inputs=[groups])]))
    assert content.tables["et_groups"]["ranks"].to_list() == [None]


@pytest.mark.parametrize("filling", ["[" * 100_000, '"x": [{' * 20_000, "}, " * 300_000, " " * 2_000_000])
def test_deep_and_long_nonsense_takes_no_time(filling: str) -> None:
    started = time.process_time()
    read('{"schema": "1.0.1", "nodes": [{"id": 3, "name": "a", "rf_id": 1, "inputs": ' + filling)
    assert time.process_time() - started < 20


@given(st.binary(max_size=200), st.integers(0, len(OLD)), st.integers(0, 60))
def test_no_damage_raises_anything_but_an_input_error(noise: bytes, at: int, cut: int) -> None:
    raw = OLD.encode()
    with contextlib.suppress(InputError):
        read(raw[:at] + noise + raw[at + cut :])
