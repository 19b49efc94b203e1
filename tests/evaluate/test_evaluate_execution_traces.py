"""Runs with Execution Traces alone: what was communicated is counted, and what needs times is refused."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from commands import invoke

from ccl_bench.evaluate.compute import evaluate
from ccl_bench.evaluate.load import needed_inputs
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result import Result

RECORDED = "execution_trace/gloo-fsdp2-tp2-args"
"""Two steps of four ranks: tensor parallel in pairs, and FSDP across them."""
SIZES = {"allreduce": "in", "_allgather_base": "out", "_reduce_scatter_base": "in"}
"""Collective as recorded → the side whose elements are the message."""


@pytest.fixture(scope="module")
def recorded(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(corpus / RECORDED, tmp_path_factory.mktemp("alone") / "run")


COUNTED = (
    "coll_call_num", "collective_volume_allreduce", "collective_volume_allgather",
    "collective_volume_reducescatter", "traffic_distribution", "traffic_distribution_16", "compute_intensity",
)  # fmt: skip
TIMED = ("comm_comp_overlap", "iteration_wall_clock_time", "straggler", "gpu_busy", "forward_time")


@cache
def _results(folder: Path) -> dict[str, Result]:
    """Return what is counted in a run, and what needs times, by name."""
    return {found.metric: found for found in evaluate(open_run(folder), (*COUNTED, *TIMED))}


@cache
def _calls(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Return the arguments of the communication calls of a rank, as the file has them."""
    with gzip.open(folder / f"rank{rank}_et.json.gz") as stream:
        nodes = msgspec.json.decode(stream.read())["nodes"]
    named = [node for node in nodes if node["name"] == "record_param_comms"]
    return [{entry["name"]: entry["value"] for entry in node["attrs"]} for node in named]


def _bytes(call: dict[str, Any]) -> int:
    assert call["dtype"] == "Float"
    return 4 * int(call[f"{SIZES[call['collective_name']]}_msg_nelems"])


def _gigabytes(folder: Path, *collectives: str) -> float:
    """Return the bytes of some collectives in one step of a rank, 10^9."""
    calls = [call for rank in range(4) for call in _calls(folder, rank)]
    return sum(_bytes(call) for call in calls if call["collective_name"] in collectives) / (4 * 2) / 1e9


def test_calls_are_counted_by_step_and_by_collective(recorded: Path) -> None:
    found = _results(recorded)["coll_call_num"]
    counted = Counter(call["collective_name"] for call in _calls(recorded, 0))
    assert (counted.total(), found.value) == (76, 76 / 2)
    assert sorted(found.details["per_collective"].values()) == sorted(n / 2 for n in counted.values())
    assert (found.window, [f.code for f in found.findings]) == (
        "ProfilerStep of Execution Traces",
        ["other-source"],
    )


def test_bytes_are_those_of_the_operands(recorded: Path) -> None:
    kinds = ("allreduce", "allgather", "reducescatter")
    found = _results(recorded)
    for kind, name in zip(kinds, SIZES, strict=True):
        assert found[f"collective_volume_{kind}"].value == pytest.approx(_gigabytes(recorded, name))
    assert found["traffic_distribution_16"].value == pytest.approx(_gigabytes(recorded, *SIZES))


def test_groups_show_which_dimension_carries_the_bytes(recorded: Path) -> None:
    found = _results(recorded)["traffic_distribution"]
    moved = Counter[str]()
    for rank in range(4):
        for call in _calls(recorded, rank):
            moved[call["pg_desc"]] += _bytes(call)
    assert found.value == pytest.approx(100 * max(moved.values()) / moved.total())
    assert set(found.details["per_dimension"]) == {"tp", "dp_shard"}
    for row in found.details["per_dimension"].values():
        assert "time_s_per_gpu_and_step" not in row


def test_the_counts_are_those_of_the_kineto_traces_of_the_same_steps(recorded: Path, corpus: Path) -> None:
    names = ["coll_call_num", "collective_volume_allreduce", "collective_volume_allgather"]
    found, kineto = _results(recorded), _results(corpus / "kineto/gloo-fsdp2-tp2-args")
    assert [found[name].value for name in names] == pytest.approx([kineto[name].value for name in names])


def test_what_needs_times_is_refused_by_name(recorded: Path) -> None:
    for result in (_results(recorded)[name] for name in TIMED):
        assert result.status == "not_measurable"
        assert result.reason.endswith(
            "only Execution Traces, which contain no times, and this metric needs them"
        )
        assert "torch.profiler" in result.fix


def test_a_number_that_needs_no_times_is_refused_for_what_it_lacks(corpus: Path) -> None:
    (found,) = evaluate(open_run(corpus / "execution_trace/dlrm-8rank"), ["traffic_distribution"])
    assert found.status == "not_measurable"
    assert found.reason == "no process group shows which parallelism dimension it serves"
    assert "parallel degrees" in found.fix


def test_operations_are_those_of_the_products_that_call_no_other(recorded: Path) -> None:
    with gzip.open(recorded / "rank0_et.json.gz") as stream:
        nodes = {node["id"]: node for node in msgspec.json.decode(stream.read())["nodes"]}
    first = {"aten::mm": 0, "aten::addmm": 1}
    products = {number: node for number, node in nodes.items() if node["name"] in first}
    outer = set()
    for number in products:
        while (number := nodes[number]["ctrl_deps"]) in nodes and nodes[number]["ctrl_deps"] != number:
            outer.add(number)
    flops = moved = 0
    for number in products.keys() - outer:
        place = first[products[number]["name"]]
        (m, k), (_, n) = products[number]["inputs"]["shapes"][place : place + 2]
        flops, moved = flops + 2 * m * k * n, moved + 4 * (m * k + k * n + m * n)
    found = _results(recorded)["compute_intensity"]
    assert found.details["per_rank_flop_per_byte"]["0"] == pytest.approx(flops / moved)
    assert found.details["flops_per_step"] == pytest.approx(flops / 2)  # all four ranks compute the same


def test_operations_follow_from_the_shapes_as_in_kineto(recorded: Path, corpus: Path) -> None:
    kineto = _results(corpus / "kineto/gloo-fsdp2-tp2-args")["compute_intensity"]
    found = _results(recorded)["compute_intensity"]
    assert found.value == pytest.approx(kineto.value)
    for name in ("flops_per_step", "bytes_per_step", "products_per_step"):
        assert found.details[name] == pytest.approx(kineto.details[name])


def test_without_a_marked_step_the_whole_trace_is_one(corpus: Path) -> None:
    (found,) = evaluate(open_run(corpus / "execution_trace/megatron-tp8"), ["coll_call_num"])
    assert (found.value, found.window) == (85, "whole trace of Execution Traces")
    assert "the whole trace counts as one" in found.findings[0].message


def _operands(path: Path) -> list[tuple[str, list[Any], int]]:
    """Return collective, arguments and bytes sent of each call of a trace of schema 1.0."""
    with gzip.open(path) as stream:
        nodes = msgspec.json.decode(stream.read())["nodes"]
    calls = [node["inputs"] for node in nodes if node["name"] == "record_param_comms"]
    calls = [call for call in calls if "wait" not in call]
    tensors = [call[0][0] if isinstance(call[0][0], list) else call[0] for call in calls]
    return [(call[4], call, tensor[3] * tensor[4]) for call, tensor in zip(calls, tensors, strict=True)]


def test_a_call_in_a_group_of_one_rank_is_counted_moves_nothing_and_is_named(corpus: Path) -> None:
    folder = corpus / "execution_trace/megatron-tp8"
    calls = [call for path in sorted(folder.glob("*.json.gz")) for call in _operands(path)]
    messages = [size for _, call, size in calls if call[-1] == 8]
    alone = [size for _, call, size in calls if call[-1] == 1]
    assert (len(calls), alone) == (8 * 85, 8 * [4])
    names = ["coll_call_num", "traffic_distribution_16", "collective_volume_allreduce"]
    count, whole, kind = evaluate(open_run(folder), names)
    assert count.value == len(calls) / 8
    assert [whole.value, kind.value] == [pytest.approx(sum(messages) / 8 / 1e9)] * 2
    mean = pytest.approx(sum(messages) / len(messages))
    assert whole.details["per_collective_mean_message_bytes"] == {"all_reduce": mean}
    assert kind.details["mean_message_bytes"] == mean
    for result in (count, whole, kind):
        assert "; 8 of 680 calls are in groups of one rank" in result.findings[0].message


def test_an_uneven_exchange_counts_without_the_own_part_and_an_even_one_with_it(corpus: Path) -> None:
    folder = corpus / "execution_trace/dlrm-8rank"
    size = 0.0
    for rank in range(8):
        for name, call, sent in _operands(folder / f"dlrm_eg_{rank}.json.gz"):
            if name == "all_to_all":
                size += sent
            elif name == "all_to_allv":
                row = sent // sum(call[5])
                size += row * max(sum(split) - split[rank] for split in call[5:7])
    (found,) = evaluate(open_run(folder), ["collective_volume_alltoall"])
    assert found.value == pytest.approx(size / 8 / 1e9)
    assert "groups of one" not in found.findings[0].message


def test_beside_kineto_traces_they_are_not_asked(recorded: Path, corpus: Path) -> None:
    beside = open_run(recorded).traces
    run = open_run(corpus / "kineto/gloo-fsdp2-tp2-args")
    run.traces += beside
    assert not [name for name in needed_inputs(run, ["coll_call_num", "compute_intensity"]) if "et_" in name]


def test_inspect_shows_calls_and_groups(recorded: Path) -> None:
    shown = json.loads(invoke(f"ccl-bench inspect {recorded} --format json").stdout)
    counted = Counter(call["collective_name"] for rank in range(4) for call in _calls(recorded, rank))
    assert sorted(shown["calls"].values()) == sorted(counted.values())
    assert {(group["dimension"], tuple(group["ranks"])) for group in shown["groups"] if group["users"]} == {
        ("tp", (0, 1)), ("tp", (2, 3)), ("dp_shard", (0, 2)), ("dp_shard", (1, 3)),
    }  # fmt: skip
