"""Communication calls in Kineto files, as each generation of PyTorch recorded them."""

import pytest
from writing import LAYOUTS, Text, compact, event, kernel, pretty, read

layouts = pytest.mark.parametrize("write", LAYOUTS.values(), ids=LAYOUTS.keys())


def rows(content, table):
    return content.table(table).to_dicts()


def test_an_unsigned_64_bit_communicator_is_kept_as_text():
    args = {"Collective name": "allreduce", "Comms Id": 18446744073709551615}
    content = read(compact([kernel("ncclDevKernel_AllReduce", **args)]))
    assert rows(content, "collectives")[0]["communicator"] == "18446744073709551615"


@layouts
def test_a_kernel_with_collective_arguments_becomes_a_call(write):
    args = {
        "Collective name": "_allgather_base",
        "In msg nelems": 1048576,
        "Out msg nelems": 8388608,
        "Group size": 8,
        "dtype": "BFloat16",
        "In split size": "[]",
        "Out split size": "[1, 2, 3]",
        "Process Group Name": "3",
        "Process Group Description": "mesh_tp",
        "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
        "Global rank start": 0,
        "Global rank stride": 1,
        "Seq": 57,
        "Is asynchronized op": True,
        "Src Rank": 4,
    }
    content = read(
        write([kernel("ncclDevKernel_AllGather_RING_LL", 10, 5, stream=20, correlation=9, **args)])
    )
    assert rows(content, "collectives") == [
        {
            "start_ns": 10_000,
            "end_ns": 15_000,
            "source": "kernel",
            "name": "_allgather_base",
            "thread": 20,
            "correlation": 9,
            "external_id": None,
            "dtype": "BFloat16",
            "in_elements": 1048576,
            "out_elements": 8388608,
            "in_split": [],
            "out_split": [1, 2, 3],
            "group_size": 8,
            "group_name": "3",
            "group_description": "mesh_tp",
            "group_ranks": [0, 1, 2, 3, 4, 5, 6, 7],
            "group_start": 0,
            "group_stride": 1,
            "sequence": 57,
            "communicator": None,
            "peer": 4,
            "peer_position": None,
            "is_async": True,
        }
    ]


def test_a_rank_list_that_was_cut_is_not_believed():
    args = {"Collective name": "allreduce", "Process Group Ranks": "[0, 1, 2, ...]"}
    assert rows(read(compact([kernel(**args)])), "collectives")[0]["group_ranks"] is None


def test_positional_arguments_of_old_traces_are_understood():
    inputs = ["", "41", "139913", "0", "allreduce", "[]", "[]", "8"]
    args = {"Concrete Inputs": inputs, "Input Dims": [[4, 2048, 16], [], [], [], [], [], [], []]}
    (row,) = rows(read(pretty([event("cpu_op", "record_param_comms", **args)])), "collectives")
    assert (row["source"], row["in_elements"], row["group_size"]) == ("host", 4 * 2048 * 16, 8)
    assert (row["sequence"], row["group_name"]) == (41, "139913")


@pytest.mark.parametrize(
    "args",
    [
        {"Concrete Inputs": ["", ["1"], {"a": 1}]},
        {"Concrete Inputs": "no list", "Input Dims": 5},
        {"Input Dims": [[2**62, 4]]},
        {"Input Dims": [[[2**62], [2**62], [2**62]]]},
        {"Input Dims": [[["x"], [None, 1]]]},
        {"Input type": [["float"], 7]},
        {"Input type": [7, 8, 9], "Input Dims": [[1], [2], [3]]},
        {"Concrete Inputs": Text("[1e999]")},
    ],
)
@pytest.mark.parametrize("name", ["record_param_comms", "gloo:all_reduce", "c10d::allreduce_", "c10d::send"])
def test_odd_positional_arguments_do_not_lose_the_call(name, args):
    category = "user_annotation" if name.startswith("gloo") else "cpu_op"
    content = read(compact([event(category, name, **args)]))
    assert content.table("collectives").height == 1
