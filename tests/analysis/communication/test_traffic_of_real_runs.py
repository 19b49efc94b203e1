"""Bytes, kinds and dimensions of the calls of real runs against plain counts of the same files."""

from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from cross_plain import message_bytes, recorded_calls
from cross_runs import EXAMPLES, documents
from recorded_runs import results_of, tables_of

GLOO = EXAMPLES / "llama-tiny-fsdp2-tp2-gloo"


def test_bytes_split_between_tp_and_dp_shard_are_those_of_record_param_comms():
    sums: Counter[tuple[int, str, str]] = Counter()
    for rank, trace in documents(GLOO).items():
        for call in recorded_calls(trace):
            dimension = call["Process Group Description"].removeprefix("mesh_")
            sums[rank, dimension, call["Collective name"]] += message_bytes(call)
    names = {
        "all_reduce": "allreduce",
        "all_gather": "_allgather_base",
        "reduce_scatter": "_reduce_scatter_base",
    }
    traffic = tables_of(GLOO)["traffic"]
    rows = traffic.group_by("rank", "dimension", "collective").agg(pl.col("size_bytes").sum())
    found = {(r["rank"], r["dimension"], names[r["collective"]]): r["size_bytes"] for r in rows.to_dicts()}
    assert found == dict(sums)
    assert {dimension for _, dimension, _ in found} == {"tp", "dp_shard"}


def test_the_share_of_the_busiest_dimension_is_that_of_the_calls_inside_steps():
    inside = tables_of(GLOO)
    pairs = set(inside["steps"].select("trace", "step").iter_rows())
    assert set(inside["traffic"].drop_nulls("step").select("trace", "step").iter_rows()) <= pairs
    details = results_of(GLOO)["traffic_distribution"].details["per_dimension"]
    assert set(details) == {"tp", "dp_shard"}
    assert sum(one["share_pct"] for one in details.values()) == pytest.approx(100)


def test_sizes_of_the_data_parallel_run_are_those_its_kernels_carry(corpus: Path):
    folder = corpus / "kineto" / "nccl-args"
    [trace] = documents(folder).values()
    kernels = [
        e["args"]
        for e in trace["traceEvents"]
        if e.get("cat") == "kernel" and "Collective name" in e.get("args", {})
    ]
    names = {"allreduce": "all_reduce", "broadcast": "broadcast"}
    counted = Counter((names[k["Collective name"]], message_bytes(k)) for k in kernels)
    found = tables_of(folder)
    assert Counter(found["traffic"].select("collective", "size_bytes").iter_rows()) == counted
    assert found["traffic"].height == 21
    assert found["groups"].select("members", "known_from").rows() == [([0, 1], "recorded")]


def test_all_to_alls_are_distinguished_from_all_reduces_though_both_are_nccl_kernels(corpus: Path):
    folder = corpus / "kineto" / "dlrm-8rank"
    for trace in documents(folder).values():
        kinds = Counter(
            e["name"].split("_")[1] for e in trace["traceEvents"] if e["name"].startswith("ncclKernel")
        )
        assert kinds == {"SendRecv": 5, "AllReduce": 3}
    rows = tables_of(folder)["traffic"].group_by("rank", "collective").len().rows()
    assert sorted(rows) == sorted(
        (r, kind, n) for r in range(8) for kind, n in (("all_to_all", 5), ("all_reduce", 3))
    )


def test_sizes_of_old_traces_come_from_the_shapes_of_the_operators(corpus: Path):
    # 4 x 2048 x 4096 half-precision activations of the tensor-parallel run
    sizes = set(tables_of(corpus / "kineto" / "megatron-tp8")["traffic"]["size_bytes"])
    assert 4 * 2048 * 4096 * 2 in sizes


def test_messages_of_the_pipeline_are_paired_one_by_one():
    folder = EXAMPLES / "llama-tiny-pp4-gloo"
    ends: Counter[tuple[str, int]] = Counter()
    for rank, trace in documents(folder).items():
        for event in trace["traceEvents"]:
            if event.get("ph") == "X" and event["name"] in ("gloo:send", "gloo:recv"):
                ends[event["name"], rank] += 1
    messages = tables_of(folder)["messages"]
    pairs = Counter(messages.select("source", "target").iter_rows())
    # 8 microbatches in each of 2 steps, forward to the next stage and backward to the one before
    assert pairs == {(a, b): 16 for a in range(4) for b in range(4) if abs(a - b) == 1}
    for (name, rank), count in ends.items():
        place = 0 if name == "gloo:send" else 1
        assert sum(number for pair, number in pairs.items() if pair[place] == rank) == count
    assert messages["agrees"].all()
    assert set(messages["dimension"]) == {"pp"}
    # a microbatch of 2 sequences of 128 tokens, 256 floats each
    assert set(messages["size_bytes"]) == {2 * 128 * 256 * 4}
