"""Execution Traces become tables, whichever schema wrote them."""

from __future__ import annotations

import json

import pytest
from et_files import all_reduce, chakra, codes, plain, read, tensor, text

from ccl_bench.trace import file_names, formats

GROUPS = [
    {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "ranks": [], "group_size": 4},
    {"pg_name": "3", "pg_desc": "mesh_tp", "backend_config": "cuda:nccl", "ranks": [2, 3], "group_size": 2},
]


def test_both_layouts_of_a_node_give_the_same_row() -> None:
    old = read(text([plain(5, "aten::mm", 2, rf_id=9, seq_id=4, scope=0, tid=2)]))
    new = read(text([chakra(5, "aten::mm", 2, rf_id=9, seq_id=4, scope=0, tid=2)], "1.1.1-chakra.0.0.4"))
    assert old.tables["et_nodes"].equals(new.tables["et_nodes"])
    assert old.tables["et_nodes"].row(0, named=True) == {
        "node": 5,
        "name": "aten::mm",
        "parent": 2,
        "forward_parent": 0,
        "rf_id": 9,
        "sequence_number": 4,
        "scope": 0,
        "thread": 2,
        "forward_thread": 0,
    }


def test_nodes_are_ordered_by_number_although_the_file_has_them_in_order_of_their_end() -> None:
    content = read(text([plain(7, "inner"), plain(5, "outer"), plain(9, "after")]))
    assert content.tables["et_nodes"]["node"].to_list() == [5, 7, 9]


def test_a_positional_call_gives_size_type_group_and_sequence() -> None:
    call = read(text([all_reduce(5, 1024, sequence=337)])).tables["et_communication"].row(0, named=True)
    assert (call["name"], call["dtype"], call["sequence"]) == ("allreduce", "c10::Half", 337)
    assert (call["in_elements"], call["in_bytes"]) == (1024, 2048)
    assert (call["group_size"], call["group_name"], call["rank_argument"]) == (8, "93825114103440", 3)


def test_a_call_of_schema_1_0_3_has_pairs_for_sequence_and_group_and_three_numbers_for_ranks() -> None:
    node = chakra(
        5,
        "record_param_comms",
        inputs=[[tensor(3, 10)], [57, False], ["3", "mesh_tp"], 1, "allreduce", [], [], 2, 1, 4, True],
        input_types=["GenericList[Tensor(float)]"],
    )
    call = read(text([node], "1.0.3-chakra.0.0.4")).tables["et_communication"].row(0, named=True)
    assert (call["sequence"], call["group_name"], call["group_description"]) == (57, "3", "mesh_tp")
    assert (call["group_start"], call["group_stride"], call["group_size"]) == (2, 1, 4)
    assert call["is_async"] is True


def test_named_attributes_are_believed_before_positions() -> None:
    node = chakra(
        5,
        "record_param_comms",
        inputs=[[tensor(3, 10)], 1, "old", 0, "allreduce", [], [], 2],
        input_types=["GenericList[Tensor(float)]"],
        collective_name="_allgather_base",
        dtype="BFloat16",
        in_msg_nelems=12,
        out_msg_nelems=24,
        pg_name="5",
        pg_size=2,
    )
    call = read(text([node])).tables["et_communication"].row(0, named=True)
    assert (call["name"], call["dtype"], call["group_name"]) == ("_allgather_base", "BFloat16", "5")
    assert (call["in_elements"], call["out_elements"], call["in_bytes"]) == (12, 24, 40)


def test_split_sizes_are_kept() -> None:
    node = plain(
        5,
        "record_param_comms",
        inputs=[tensor(3, 40), 1, 99, 0, "all_to_allv", [10, 30], [20, 20]],
        input_types=["Tensor(int)"],
        outputs=[tensor(4, 40)],
    )
    call = read(text([node])).tables["et_communication"].row(0, named=True)
    assert (call["in_split"], call["out_split"], call["group_size"]) == ([10, 30], [20, 20], None)


def test_waiting_has_no_tensor_before_its_arguments() -> None:
    node = plain(5, "record_param_comms", inputs=[337, 0, 3, "wait", [], [], 1], input_types=["Int"])
    call = read(text([node])).tables["et_communication"].row(0, named=True)
    assert (call["name"], call["sequence"], call["in_bytes"]) == ("wait", 337, None)


def test_c10d_operators_stand_for_calls_where_no_backend_recorded_any() -> None:
    gathered = [tensor(3, 20), tensor(5, 10), "<Object>", False, -1]
    operator = chakra(
        9, "c10d::_allgather_base_", inputs=gathered, input_types=["Tensor(float)", "Tensor(float)"]
    )
    alone = read(text([operator])).tables["et_communication"].row(0, named=True)
    assert (alone["name"], alone["in_elements"], alone["out_elements"]) == ("c10d::_allgather_base_", 10, 20)
    beside = read(text([all_reduce(10), operator])).tables["et_communication"]
    assert beside["name"].to_list() == ["allreduce"]


def test_process_groups_and_the_size_of_the_job_come_from_the_first_node() -> None:
    content = read(text([chakra(3, "## process_group:init ##", inputs=[json.dumps(GROUPS)])]))
    assert content.world_size == 4
    assert content.tables["et_groups"].select("name", "description", "size", "ranks").rows() == [
        ("0", "default_pg", 4, [0, 1, 2, 3]),
        ("3", "mesh_tp", 2, [2, 3]),
    ]


def test_the_first_bytes_show_the_format_and_the_size_of_the_job() -> None:
    head = text([chakra(3, "## process_group:init ##", inputs=[json.dumps(GROUPS)])]).encode()
    found = formats.recognised(head)
    assert found is not None
    assert found.name == "execution_trace"
    assert found.identity(head) == formats.Identity(None, 4)


def test_a_rank_that_somebody_added_is_believed() -> None:
    head = text([plain(5, "aten::mm")], rank=6, world_size=8).encode()
    found = formats.recognised(head)
    assert found is not None
    assert found.identity(head) == formats.Identity(6, 8)
    assert (read(head).rank, read(head).world_size) == (6, 8)


@pytest.mark.parametrize(
    "name", ["torch_et_3.json", "pytorch_et_3.json.gz", "rank3_et.json", "dlrm_eg_3.json"]
)
def test_the_rank_stands_in_the_name(name: str) -> None:
    assert file_names.rank_in_name(name) == 3


def test_a_kineto_trace_is_no_execution_trace() -> None:
    found = formats.recognised(b'{"schemaVersion": 1, "traceEvents": [], "nodes": [{"rf_id": 1}]}')
    assert found is not None
    assert found.name == "kineto"


def test_a_file_that_keeps_its_keys_sorted_is_read_too() -> None:
    source = json.dumps(json.loads(text([chakra(5, "aten::mm"), chakra(7, "aten::add")])), sort_keys=True)
    assert formats.recognised(source.encode()) is not None
    content = read(source)
    assert codes(content) == []
    assert content.tables["et_nodes"].height == 2
    assert content.attributes["et_schema"] == "1.0.1"
