"""Nodes with odd values are rewritten as usual ones: they lose no more than what is odd."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from et_files import all_reduce, chakra, plain, read, tensor, text
from hypothesis import given, settings
from hypothesis import strategies as st

from ccl_bench.trace import json_array
from ccl_bench.trace.formats.execution_trace import nodes, reader

GROUPS = json.dumps([{"pg_name": "0", "ranks": [], "group_size": 4}])
MATRIX = {"inputs": [tensor(1, 6), tensor(3, 6)], "input_types": ["Tensor(float)"] * 2}
CALL = {"collective_name": "allreduce", "pg_name": "0", "pg_size": 4, "in_msg_nelems": 9, "dtype": "Float"}

PLAIN = text(
    [
        plain(3, "## process_group:init ##", inputs=[GROUPS]),
        plain(4, "aten::mm", input_shapes=[[2, 3], [3, 2]], **MATRIX),
        all_reduce(5),
        plain(6, "c10d::allreduce_", inputs=[[tensor(7, 4)]]),
    ]
)
CHAKRA = text(
    [
        chakra(3, "## process_group:init ##", inputs=[GROUPS]),
        chakra(4, "aten::mm", **MATRIX),
        chakra(5, "record_param_comms", inputs=[[tensor(4, 8)]], **CALL),
        chakra(6, "aten::add_", op_schema="aten::add_()", kernel_backend="", kernel_file="", tensor_range=""),
        chakra(7, "c10d::allreduce_", inputs=[[tensor(7, 4)]]),
    ],
    "1.1.1-chakra.0.0.4",
)
WHOLE = {"plain": PLAIN, "chakra": CHAKRA, "operators": PLAIN.replace("record_param_comms", "other")}
NUMBERS = [
    *((value, value) for value in (0, -1, 7, 2**62)),
    *((5.0, 5), ("7", 7), ("-7", -7), (None, None)),
    *((value, None) for value in (5.5, True, "x", "", 2**63, -(2**63) - 1, 10**400, 1e300)),
]
"""What may stand in place of a number, and what is read there."""
COLUMNS = {
    "fw_parent": "forward_parent",
    "rf_id": "rf_id",
    "seq_id": "sequence_number",
    "scope": "scope",
    "tid": "thread",
    "fw_tid": "forward_thread",
}


def _everything(source: str) -> object:
    """Return all that reading comes to."""
    content = read(source.encode())
    tables = {name: repr(table.to_dict(as_series=False)) for name, table in content.tables.items()}
    return tables, content.rank, content.world_size, content.findings, content.attributes


@pytest.mark.parametrize(("value", "expected"), NUMBERS)
@pytest.mark.parametrize("write", [plain, chakra])
@pytest.mark.parametrize("name", COLUMNS)
def test_an_odd_number_is_read_or_costs_that_number_alone(name, write, value, expected) -> None:
    content = read(text([write(3, "a"), write(4, "b", **{name: value}), write(5, "c")]))
    usual = read(text([write(3, "a"), write(4, "b"), write(5, "c")]))
    rows, others = (each.tables["et_nodes"].drop(COLUMNS[name]) for each in (content, usual))
    assert rows.equals(others)
    assert content.tables["et_nodes"][COLUMNS[name]][1] == expected
    assert content.findings == []


@pytest.mark.parametrize(("value", "expected"), NUMBERS)
def test_an_odd_parent_is_read_or_unknown(value, expected) -> None:
    for node in (plain(4, "b", parent=value), chakra(4, "b", parent=value)):
        content = read(text([node]))
        assert content.tables["et_nodes"]["parent"].to_list() == [expected]


@pytest.mark.parametrize("later", ["new", "id", ""])
def test_an_attribute_of_a_later_schema_changes_nothing(later: str) -> None:
    known, unknown = (
        chakra(4, "record_param_comms", inputs=[[tensor(4, 8)]], **CALL, **more)
        for more in ({}, {later: [1, {"value": 2}]})
    )
    assert _everything(text([chakra(3, "a"), unknown])) == _everything(text([chakra(3, "a"), known]))


def test_attributes_may_come_in_any_order() -> None:
    call = chakra(4, "record_param_comms", inputs=[[tensor(4, 8)]], **CALL)
    turned = call | {"attrs": call["attrs"][::-1]}
    assert _everything(text([chakra(3, "a"), turned])) == _everything(text([chakra(3, "a"), call]))


def test_of_an_attribute_that_is_there_twice_the_first_counts() -> None:
    node = chakra(4, "a", tid=5)
    node["attrs"].append({"name": "tid", "value": "6"})
    assert read(text([node])).tables["et_nodes"]["thread"].to_list() == [5]


@given(st.lists(st.tuples(st.sampled_from(["aten::mm", "record_param_comms", "n"]), st.booleans())))
def test_nodes_of_both_schemas_in_one_file_are_read(kinds: list[tuple[str, bool]]) -> None:
    nodes = [(plain if old else chakra)(place, name, tid=place) for place, (name, old) in enumerate(kinds)]
    content = read(text(nodes))
    table = content.tables["et_nodes"]
    assert table["name"].cast(str).to_list() == [name for name, _ in kinds]
    assert table["thread"].to_list() == table["node"].to_list() == [*range(len(kinds))]


VALUE = re.compile(r'-?\d+|"[^"]*"|\[[^\[\]]*\]|\{[^{}]*\}')
ODD = [
    *(
        "null",
        "true",
        "NaN",
        "-0",
        "1e3",
        "1e999",
        "9" * 5000,
        '"\\ud800"',
        '"\\q"',
        '"tab\there"',
        '"pg_name"',
    ),
    *("[]", "{}", '{"name": "rf_id"}', '{"value": 5}', '[{"name": "tid", "value": 5}]', "[1 2]", "", ","),
    *("\x00", "\udcff", '"name": "tid"', '"id": 8', '"value": "8"', "[" * 2000),
]
PLACES = max(3, settings().max_examples // 50)
"""Places in which each odd value is tried."""


@pytest.mark.parametrize("source", WHOLE.values(), ids=WHOLE)
def test_what_an_odd_value_anywhere_costs_is_reported(source: str) -> None:
    start, end = source.index('"nodes"') + 10, source.index('"finish_ts"')
    places = [*VALUE.finditer(source, start, end)]
    whole = read(source).tables["et_nodes"].height
    apart = 1 + len(places) // PLACES
    for number, odd in enumerate(ODD):
        for place in places[number % apart :: apart]:
            changed = source[: place.start()] + odd + source[place.end() :]
            content = read(changed.encode("utf-8", "surrogateescape"))
            assert content.tables["et_nodes"].height == whole or content.findings


@pytest.mark.parametrize("source", WHOLE.values(), ids=WHOLE)
def test_usual_nodes_are_read_as_they_stand(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_readable", lambda _: pytest.fail("rewritten"))
    assert read(source).tables["et_nodes"].height == source.count('"inputs"')


def test_tables_of_many_parts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    source = text([plain(n, f"aten::op{n}", tid=2**70 if n == 9 else n) for n in range(3, 23)])
    at_once = _everything(source)
    monkeypatch.setattr(reader, "_ROWS_TOGETHER", 3)
    monkeypatch.setattr(json_array, "next_block", _small_blocks)
    assert _everything(source) == at_once


def _small_blocks(stream: Any, document: json_array.Document, _: int) -> bytes:
    block = stream.read(700)
    document.size += len(block)
    return block


@given(
    st.lists(
        st.sampled_from(['}, {"id": 1', '}, {"name": "x", "id": 2', "}", "{", ",", '"name": "', "x" * 50])
    )
)
def test_the_last_cut_is_found_from_the_end(parts: list[str]) -> None:
    buffer = "".join(parts).encode()
    last = max((match.start() + 1 for match in nodes.BOUNDARY.finditer(buffer)), default=0)
    for size in (1, 5, 60, 4096):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_array, "_LAST_BYTES", size)
            assert json_array._cut(buffer, nodes.NODES) == last
