"""The Kineto reader on real traces, against plain `json` with exact decimal numbers."""

import gzip
import json
import math
from collections import Counter
from decimal import Decimal
from functools import cache

import pytest
from plain_json import document
from writing import read

FILES = {
    "deepseek-dualpipe": ["train.json.gz"],
    "gloo-fsdp2-tp2-args": [f"rank{rank}_trace.json.gz" for rank in (0, 3)],
    "nccl-args": ["rank0.nccl_data.json.gz"],
    "dlrm-8rank": [f"worker{rank}_step_12.pt.trace.json.gz" for rank in (0, 7)],
    "megatron-tp8": [f"megatron_kineto_{rank}.json.gz" for rank in (0, 7)],
}
every_file = pytest.mark.parametrize(
    "file", [f"{folder}/{name}" for folder, names in FILES.items() for name in names]
)

TABLE_OF = {
    "kernel": "kernels",
    "gpu_memcpy": "memcpy",
    "gpu_memset": "memcpy",
    "cpu_op": "cpu_ops",
    "cuda_runtime": "launches",
    "cuda_driver": "launches",
    "user_annotation": "annotations",
    "gpu_user_annotation": "annotations",
}


@cache
def content(path):
    return read(gzip.decompress(path.read_bytes()))


@pytest.fixture
def path(corpus, file):
    return corpus / "kineto" / file


def complete(path):
    return [e for e in document(path)["traceEvents"] if e["ph"] == "X" and e.get("cat") in TABLE_OF]


def nanoseconds(microseconds):
    return int(Decimal(microseconds) * 1000)


@every_file
def test_each_table_has_as_many_rows_as_the_file_has_events(path):
    expected = Counter(TABLE_OF[event["cat"]] for event in complete(path))
    found = content(path)
    assert {name: found.table(name).height for name in set(TABLE_OF.values())} == {
        name: expected[name] for name in set(TABLE_OF.values())
    }
    assert found.findings == []


@every_file
def test_every_start_and_end_is_exact_to_the_nanosecond(path):
    base = document(path).get("baseTimeNanoseconds", 0)
    for table in set(TABLE_OF.values()):
        expected = Counter(
            (base + nanoseconds(e["ts"]), base + nanoseconds(e["ts"]) + nanoseconds(e["dur"]), e["name"])
            for e in complete(path)
            if TABLE_OF[e["cat"]] == table
        )
        rows = content(path).table(table)
        if table == "memcpy":
            expected = Counter((start, end) for start, end, _ in expected.elements())
            assert Counter(rows.select("start_ns", "end_ns").iter_rows()) == expected
        else:
            assert Counter(rows.select("start_ns", "end_ns", rows["name"].cast(str)).iter_rows()) == expected


@every_file
def test_rows_are_in_order_of_start(path):
    for name in set(TABLE_OF.values()):
        assert content(path).table(name)["start_ns"].is_sorted()


@every_file
def test_correlation_device_and_stream_are_those_of_the_file(path):
    base = document(path).get("baseTimeNanoseconds", 0)
    for table, categories in (("kernels", {"kernel"}), ("memcpy", {"gpu_memcpy", "gpu_memset"})):
        expected = Counter(
            (
                base + nanoseconds(e["ts"]),
                e["args"]["correlation"],
                e["args"]["device"],
                e["args"]["stream"],
                e["args"].get("External id"),
            )
            for e in complete(path)
            if e["cat"] in categories
        )
        columns = ("start_ns", "correlation", "device", "stream", "external_id")
        assert Counter(content(path).table(table).select(columns).iter_rows()) == expected


@every_file
def test_launch_sizes_of_kernels_are_those_of_the_file(path):
    expected = Counter()
    for e in complete(path):
        if e["cat"] == "kernel":
            args = e["args"]
            x, y, z = args["grid"]
            i, j, k = args["block"]
            expected[float(args["blocks per SM"]), x * y * z, i * j * k, args["registers per thread"]] += 1
    columns = ("blocks_per_sm", "grid_blocks", "block_threads", "registers")
    assert Counter(content(path).table("kernels").select(columns).iter_rows()) == expected


@every_file
def test_launches_carry_correlation_process_and_thread(path):
    expected = Counter(
        (e["name"], e["pid"], e["tid"], e["args"].get("correlation"))
        for e in complete(path)
        if e["cat"] in {"cuda_runtime", "cuda_driver"}
    )
    rows = content(path).table("launches")
    found = rows.select(rows["name"].cast(str), "process", "thread", "correlation")
    assert Counter(found.iter_rows()) == expected


@every_file
def test_operators_carry_their_ids(path):
    keys = ("External id", "Record function id", "Sequence number", "Fwd thread id")
    expected = Counter(
        (e["pid"], e["tid"], *(e["args"].get(key) for key in keys))
        for e in complete(path)
        if e["cat"] == "cpu_op"
    )
    columns = ("process", "thread", "external_id", "record_function_id", "sequence_number", "forward_thread")
    assert Counter(content(path).table("cpu_ops").select(columns).iter_rows()) == expected


@every_file
def test_autograd_links_join_the_ends_of_equal_id(path):
    base = document(path).get("baseTimeNanoseconds", 0)
    ends = {"s": {}, "f": {}}
    for e in document(path)["traceEvents"]:
        if e.get("cat") == "fwdbwd":
            ends[e["ph"]][e["id"]] = (base + nanoseconds(e["ts"]), e["tid"])
    expected = Counter(ends["s"][i] + ends["f"][i] for i in ends["s"] if i in ends["f"])
    assert Counter(content(path).table("autograd_links").iter_rows()) == expected


@every_file
def test_devices_rank_and_groups_are_those_of_the_file(path):
    whole = document(path)
    info = whole["distributedInfo"]
    assert content(path).rank == info["rank"]
    assert content(path).world_size == info["world_size"]
    assert content(path).table("devices").rows() == [
        (d["id"], d["name"], d["totalGlobalMem"], d["numSms"], d["maxThreadsPerMultiprocessor"], None, None)
        for d in whole["deviceProperties"]
    ]
    assert content(path).table("process_groups").rows() == [
        (g["pg_name"], g["pg_desc"], g["backend_config"], g["pg_size"], g["ranks"])
        for g in info.get("pg_config", [])
    ]


@every_file
def test_collective_arguments_are_those_of_the_file(path):
    keys = {
        "name": "Collective name",
        "dtype": "dtype",
        "in_elements": "In msg nelems",
        "out_elements": "Out msg nelems",
        "group_size": "Group size",
        "group_name": "Process Group Name",
        "group_description": "Process Group Description",
        "group_start": "Global rank start",
        "group_stride": "Global rank stride",
        "sequence": "Seq",
    }
    described = [e for e in complete(path) if "Collective name" in e["args"]]
    expected = Counter(
        (
            *(None if e["args"].get(key) == "" else e["args"].get(key) for key in keys.values()),
            str(e["args"]["Comms Id"]) if "Comms Id" in e["args"] else None,
            tuple(json.loads(e["args"]["Process Group Ranks"])),
        )
        for e in described
    )
    rows = content(path).table("collectives")
    named = rows.filter(rows["group_ranks"].is_not_null())
    found = Counter(
        (*row[:-1], tuple(row[-1])) for row in named.select(*keys, "communicator", "group_ranks").iter_rows()
    )
    assert found == expected


def test_record_param_comms_of_a_trace_without_names_give_sizes(corpus):
    for name in FILES["megatron-tp8"]:
        path = corpus / "kineto" / "megatron-tp8" / name
        operators = [e for e in complete(path) if e["name"] == "record_param_comms"]
        assert len(operators) == 170
        rows = content(path).table("collectives")
        host = rows.filter(rows["source"] == "host")
        assert host.height == 170
        expected = Counter()
        for e in operators:
            first = e["args"]["Input Dims"][0]
            is_tensor_list = bool(first) and isinstance(first[0], list)
            shapes = first if is_tensor_list else [first] if first else []
            size = sum(math.prod(shape) for shape in shapes)  # a shape without sides is one number
            expected[nanoseconds(e["ts"]), size if shapes else None] += 1
        assert Counter(host.select("start_ns", "in_elements").iter_rows()) == expected
