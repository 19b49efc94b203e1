"""Nodes that are decoded with types give what they give one by one, whatever stands in them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from et_files import all_reduce, chakra, plain, read, tensor, text
from hypothesis import given, settings
from hypothesis import strategies as st

from ccl_bench.base.errors import InputError
from ccl_bench.trace import values
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
PLACES = max(3, settings().max_examples // 50)
"""Places in which each odd value is tried."""
VALUE = re.compile(r'-?\d+|"[^"]*"|\[[^\[\]]*\]|\{[^{}]*\}')
ODD = [
    *(
        "null",
        "true",
        "NaN",
        "-1",
        "-0",
        "0.0",
        "5.0",
        "5.5",
        "1e3",
        "1e999",
        str(2**63),
        str(-(2**63)),
        str(2**64),
    ),
    *(
        str(-(2**63) - 1),
        "9" * 400,
        "9" * 5000,
        '"7"',
        '"x"',
        '"rf_id"',
        '"tid"',
        '"pg_name"',
        '"\\ud800"',
        '"\\q"',
    ),
    *(
        '"tab\there"',
        "[]",
        "{}",
        '{"name": "rf_id"}',
        '{"value": 5}',
        '[{"name": "tid", "value": 5}]',
        "[1 2]",
        "",
    ),
    *(",", "]", "}", '}, {"id": 9', "\x00", "\udcff", "[" * 2000, '"name": "tid"', '"id": 8', '"value": "8"'),
]


def _everything(raw: bytes) -> object:
    """Return all that reading comes to."""
    try:
        content = read(raw)
    except InputError as error:
        return str(error)
    tables = {name: repr(table.to_dict(as_series=False)) for name, table in content.tables.items()}
    return tables, content.rank, content.world_size, content.findings, content.attributes


def _same(source: str) -> None:
    raw = source.encode("utf-8", "surrogateescape")
    found = _everything(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "usual_nodes", lambda _: None)
        assert found == _everything(raw)


@pytest.mark.parametrize("source", WHOLE.values(), ids=WHOLE)
def test_an_odd_value_anywhere_gives_what_it_gives_one_by_one(source: str) -> None:
    values = [*VALUE.finditer(source)]
    apart = 1 + len(values) // PLACES
    for number, odd in enumerate(ODD):
        for value in values[number % apart :: apart]:
            _same(source[: value.start()] + odd + source[value.end() :])


@given(st.sampled_from([*WHOLE.values()]), st.integers(0, 10_000), st.sampled_from(ODD), st.integers(0, 30))
def test_an_odd_text_at_any_place_gives_what_it_gives_one_by_one(
    source: str, place: int, odd: str, dropped: int
) -> None:
    at = place % len(source)
    _same(source[:at] + odd + source[at + dropped :])


NUMBER = (
    st.integers(-1, 9)
    | st.integers()
    | st.floats()
    | st.none()
    | st.booleans()
    | st.sampled_from(["5", "x", " 7"])
)
KEY = st.sampled_from([*nodes._COUNTED, *nodes._UNREAD, *nodes._OF_CALLS, "later", "name", ""])
ATTRIBUTE = st.fixed_dictionaries({"name": KEY, "value": NUMBER | st.lists(NUMBER, max_size=2)})


@given(
    st.lists(st.tuples(st.sampled_from(["aten::mm", "record_param_comms", "c10d::send", "n"]), st.booleans()))
)
def test_nodes_of_both_schemas_in_one_file_are_read(kinds: list[tuple[str, bool]]) -> None:
    _same(text([(plain if old else chakra)(place, name) for place, (name, old) in enumerate(kinds)]))


@given(st.sampled_from([*nodes._COUNTED, "id", "parent", "ctrl_deps", "op_schema", "name"]), NUMBER)
def test_any_number_gives_what_it_gives_one_by_one(name: str, value: Any) -> None:
    for write in (plain, chakra):
        _same(
            text(
                [
                    write(3, "a"),
                    write(4, "record_param_comms") | {name: value},
                    write(5, "b", tid=value),
                ]
            )
        )


@given(st.lists(ATTRIBUTE, max_size=8), st.booleans())
def test_any_attributes_give_what_they_give_one_by_one(attributes: list[dict[str, Any]], usual: bool) -> None:
    call = chakra(4, "record_param_comms")
    call["attrs"] = call["attrs"] * usual + attributes
    _same(text([chakra(3, "a"), call]))


@pytest.mark.parametrize("source", WHOLE.values(), ids=WHOLE)
def test_usual_nodes_are_decoded_with_types(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "nodes_in", lambda *_, **__: pytest.fail("decoded one by one"))
    assert read(source).tables["et_nodes"].height == source.count('"inputs"')


def test_tables_of_many_parts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    source = text([plain(n, f"aten::op{n}", tid=2**70 if n == 9 else n) for n in range(3, 23)])
    at_once = _everything(source.encode())
    monkeypatch.setattr(reader, "_ROWS_TOGETHER", 3)
    monkeypatch.setattr(values, "next_block", _small_blocks)
    assert _everything(source.encode()) == at_once


def _small_blocks(stream: Any, document: values.Document, _: int) -> bytes:
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
            patch.setattr(values, "_LAST_BYTES", size)
            assert values._cut(buffer, nodes.NODES) == last
