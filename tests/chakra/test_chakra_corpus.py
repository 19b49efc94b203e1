"""Real runs as Chakra traces, read by a decoder of their own and compared with the JSON they come from."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from chakra_wire import ALL_REDUCE, ALL_TO_ALL, COMM_COLL_NODE, METADATA_NODE, communication, read

from ccl_bench.chakra import export
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from pathlib import Path


def _linked(folder: Path, *files: Path) -> Path:
    folder.mkdir()
    for path in files:
        (folder / path.name).symlink_to(path)
    return folder


def _json(path: Path) -> Any:
    return msgspec.json.decode(gzip.decompress(path.read_bytes()))


def test_the_collectives_of_a_megatron_rank_equal_those_of_its_execution_trace(
    corpus: Path, tmp_path: Path
) -> None:
    et = corpus / "execution_trace" / "megatron-tp8" / "megatron_et_5.json.gz"
    kineto = corpus / "kineto" / "megatron-tp8" / "megatron_kineto_5.json.gz"
    (done,) = export(open_run(_linked(tmp_path / "run", et, kineto)), tmp_path / "out")
    metadata, nodes = read(done.path)
    # inputs are tensors (place 3 elements, 4 bytes of one), sequence, group, rank, name, splits, size
    recorded = [
        n for n in _json(et)["nodes"] if n["name"] == "record_param_comms" and "allreduce" in n["inputs"]
    ]
    expected = Counter((n["inputs"][0][0][3] * n["inputs"][0][0][4], n["inputs"][7]) for n in recorded)
    collectives = communication(nodes)
    assert {node.attributes["comm_type"] for node in collectives} == {ALL_REDUCE}
    assert {node.type for node in collectives} == {COMM_COLL_NODE}
    found = Counter((node.attributes["comm_size"], node.attributes["pg_size"]) for node in collectives)
    assert found == expected
    assert (done.collectives, done.nodes, done.rank) == (85, len(nodes), 5)
    assert (done.rule, done.rate) == ("external id", 1.0)
    assert (metadata["schema"], metadata["rank"], metadata["version"]) == ("1.0.1", 5, "0.0.4")


def test_device_work_is_that_of_kineto_with_its_durations(corpus: Path, tmp_path: Path) -> None:
    et = corpus / "execution_trace" / "megatron-tp8" / "megatron_et_0.json.gz"
    kineto = corpus / "kineto" / "megatron-tp8" / "megatron_kineto_0.json.gz"
    (done,) = export(open_run(_linked(tmp_path / "run", et, kineto)), tmp_path / "out")
    _, nodes = read(done.path)
    work = [node for node in nodes if not node.attributes["is_cpu_op"]]
    events = _json(kineto)["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    copies = [event for event in events if event.get("cat") in ("gpu_memcpy", "gpu_memset")]
    assert len(work) == len(kernels) + len(copies)
    named = Counter((node.name, node.duration_us) for node in work)
    assert named >= Counter((event["name"], event["dur"]) for event in kernels)
    # every kernel hangs below the operator that launched it, and 84 of them are the collectives
    assert all(node.ctrl_deps for node in work if node.name.startswith("nccl"))
    assert len([node for node in work if node.type == COMM_COLL_NODE]) == 84


def test_the_all_to_alls_of_dlrm_keep_their_sizes(corpus: Path, tmp_path: Path) -> None:
    et = corpus / "execution_trace" / "dlrm-8rank" / "dlrm_eg_3.json.gz"
    kineto = corpus / "kineto" / "dlrm-8rank" / "worker3_step_12.pt.trace.json.gz"
    (done,) = export(open_run(_linked(tmp_path / "run", et, kineto)), tmp_path / "out")
    collectives = communication(read(done.path)[1])
    sizes = sorted(n.attributes["comm_size"] for n in collectives if n.attributes["comm_type"] == ALL_TO_ALL)
    expected = [
        n["inputs"][0][3] * n["inputs"][0][4]
        for n in _json(et)["nodes"]
        if n["name"] == "record_param_comms" and str(n["inputs"][4]).startswith("all_to_all")
    ]
    assert sizes == sorted(expected)
    assert len(collectives) == 8


def test_groups_by_name_and_process_groups_of_a_gloo_run(corpus: Path, tmp_path: Path) -> None:
    et = corpus / "execution_trace" / "gloo-fsdp2-tp2-args" / "rank1_et.json.gz"
    kineto = corpus / "kineto" / "gloo-fsdp2-tp2-args" / "rank1_trace.json.gz"
    (done,) = export(open_run(_linked(tmp_path / "run", et, kineto)), tmp_path / "out")
    metadata, nodes = read(done.path)
    named = Counter(node.attributes["pg_name"] for node in communication(nodes))
    recorded = [n for n in _json(et)["nodes"] if n["name"] == "record_param_comms"]
    assert named == Counter(n["inputs"]["values"][2][0] for n in recorded)
    assert metadata["world_size"] == 4
    (groups,) = [node for node in nodes if "process_group:init" in node.name]
    assert groups.type == METADATA_NODE
    listed = json.loads(json.loads(groups.inputs[1])[0])
    assert {group["pg_name"] for group in listed} >= set(named)
    # a call on the CPU lasts as long as its gloo range
    assert all(node.duration_us > 0 for node in communication(nodes))


def test_an_execution_trace_alone_becomes_a_graph_without_times(corpus: Path, tmp_path: Path) -> None:
    et = corpus / "execution_trace" / "megatron-tp8" / "megatron_et_0.json.gz"
    (done,) = export(open_run(_linked(tmp_path / "run", et)), tmp_path / "out")
    _, nodes = read(done.path)
    assert (done.nodes, done.collectives, done.rule) == (5424, 85, "none")
    assert sum(node.duration_us for node in nodes) == 0


def test_dependencies_point_back_in_time_so_that_a_simulator_never_hangs(
    corpus: Path, tmp_path: Path
) -> None:
    et = corpus / "execution_trace" / "dlrm-8rank" / "dlrm_eg_0.json.gz"
    kineto = corpus / "kineto" / "dlrm-8rank" / "worker0_step_12.pt.trace.json.gz"
    (done,) = export(open_run(_linked(tmp_path / "run", et, kineto)), tmp_path / "out")
    seen: set[int] = set()
    for node in read(done.path)[1]:
        assert set(node.data_deps) | set(node.ctrl_deps) <= seen
        assert node.id not in seen
        seen.add(node.id)
