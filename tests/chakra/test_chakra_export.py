"""Chakra traces of runs made by hand: dependencies, times, messages between ranks, refusals."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from chakra_wire import COMM_RECV_NODE, COMM_SEND_NODE, COMP_NODE, communication, read

from ccl_bench.base.errors import CclBenchError, InputError, UsageError
from ccl_bench.chakra import export, protobuf
from ccl_bench.chakra.graph import Dependencies, NodeStart
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from chakra_wire import ReadNode


def _node(number: int, name: str, parent: int = 2, **fields: Any) -> dict[str, Any]:
    node = {"name": name, "id": number, "rf_id": number, "parent": parent, "fw_parent": 0, "seq_id": -1}
    node |= {"scope": 0, "tid": 1, "fw_tid": 0, "op_schema": "", "input_shapes": [], "input_types": []}
    return node | {"inputs": [], "outputs": [], "output_shapes": [], "output_types": []} | fields


def _tensor(storage: int, elements: int = 4) -> list[Any]:
    return [storage + 100, storage, 0, elements, 4, "cuda:0"]


def _event(name: str, start: float, duration: float, kind: str = "cpu_op", **args: Any) -> dict[str, Any]:
    found = {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": duration}
    return found | {"args": args}


def _run(folder: Path, nodes: list[dict[str, Any]], events: list[dict[str, Any]] | None = None) -> Path:
    et = {"schema": "1.0.1", "pid": 7, "nodes": nodes, "finish_ts": 2}
    (folder / "torch_et_0.json").write_text(json.dumps(et))
    if events is not None:
        kineto = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events}
        (folder / "kineto_trace_0.json").write_text(json.dumps(kineto))
    return folder


def _exported(folder: Path, *parts: Any) -> dict[int, ReadNode]:
    (done,) = export(open_run(_run(folder, *parts)), folder / "out")
    return {node.id: node for node in read(done.path)[1]}


THREAD = _node(2, "[pytorch|profiler|execution_trace|thread]", 1, rf_id=0)


def test_an_operator_waits_for_who_made_its_tensor_and_for_its_thread(tmp_path: Path) -> None:
    nodes = _exported(
        tmp_path,
        [
            THREAD,
            _node(5, "aten::linear", outputs=[_tensor(50)]),
            _node(6, "aten::mm", 5, outputs=[_tensor(50)]),
            _node(7, "aten::zeros", outputs=[_tensor(51)]),
            _node(8, "aten::add", inputs=[_tensor(50), _tensor(51)]),
        ],
    )
    assert nodes[6].ctrl_deps == [5]
    assert nodes[6].data_deps == [5]
    # mm, inside linear, made storage 50; zeros made 51 and is also what the thread did before
    assert nodes[8].data_deps == [6, 7]


def test_an_operator_does_not_wait_for_the_caller_whose_result_it_makes() -> None:
    known = Dependencies()
    assert known.of(NodeStart(5, 2, 1, writes=(50,))) == []
    assert known.of(NodeStart(6, 5, 1, reads=(50,))) == [5]  # by its thread, not by the tensor
    assert known.of(NodeStart(7, 2, 2, reads=(50,))) == []  # on another thread, while 5 still runs


def test_time_on_the_cpu_is_without_that_of_the_operators_called(tmp_path: Path) -> None:
    events = [
        _event("aten::linear", 10, 100, **{"Record function id": 5}),
        _event("aten::mm", 20, 30, **{"Record function id": 6}),
        _event("cudaLaunchKernel", 25, 2, "cuda_runtime", correlation=9),
        _event("gemm", 60, 40.6, "kernel", correlation=9, device=0, stream=7),
        _event("Memcpy DtoD", 120, 3, "gpu_memcpy", correlation=11, device=0, stream=7),
    ]
    nodes = _exported(tmp_path, [THREAD, _node(5, "aten::linear"), _node(6, "aten::mm", 5)], events)
    assert (nodes[5].start_us, nodes[5].duration_us) == (10, 100 - 30)
    assert nodes[6].duration_us == 30
    gemm, copy = nodes[7], nodes[8]
    assert (gemm.name, gemm.duration_us, gemm.ctrl_deps, gemm.data_deps) == ("gemm", 41, [6], [6])
    assert (copy.name, copy.ctrl_deps, copy.data_deps) == ("Memcpy DtoD", [], [7])
    assert gemm.attributes["stream"] == 7


def test_messages_name_both_ends(tmp_path: Path) -> None:
    groups = json.dumps([{"pg_name": "0", "ranks": [], "group_size": 4}])
    types = ["GenericList[Tensor(float)]"]
    arguments: list[Any] = [[1, True], ["0", "default_pg"], 3, "send", [], [], 0, 1, 4]
    nodes = _exported(
        tmp_path,
        [
            THREAD,
            _node(3, "## process_group:init ##", inputs=[groups]),
            _node(5, "record_param_comms", inputs=[[_tensor(50)], *arguments], input_types=types),
            _node(
                6,
                "record_param_comms",
                inputs=[[_tensor(51, 8)], *arguments[:3], "recv", *arguments[4:]],
                input_types=types,
            ),
        ],
    )
    send, receive = communication(list(nodes.values()))
    assert (send.type, receive.type) == (COMM_SEND_NODE, COMM_RECV_NODE)
    assert (send.attributes["comm_src"], send.attributes["comm_dst"]) == (0, 3)
    assert (receive.attributes["comm_src"], receive.attributes["comm_dst"]) == (3, 0)
    assert (send.attributes["comm_size"], receive.attributes["comm_size"]) == (16, 32)


def test_an_address_is_no_group_name_because_every_rank_has_another(tmp_path: Path) -> None:
    arguments = [[_tensor(50)], 1, 93825114103440, 0, "allreduce", [], [], 8]
    call = _node(5, "record_param_comms", inputs=arguments, input_types=["GenericList[Tensor(float)]"])
    node = _exported(tmp_path, [THREAD, call])[5]
    assert "pg_name" not in node.attributes
    assert node.attributes["pg_size"] == 8


def test_what_chakra_has_no_type_for_stays_work(tmp_path: Path) -> None:
    arguments = [[_tensor(50)], 1, "0", 0, "coalesced", [], [], 8]
    call = _node(5, "record_param_comms", inputs=arguments, input_types=["GenericList[Tensor(float)]"])
    assert _exported(tmp_path, [THREAD, call])[5].type == COMP_NODE


def test_nothing_is_overwritten_unless_asked(tmp_path: Path) -> None:
    run = open_run(_run(tmp_path, [THREAD]))
    export(run, tmp_path / "out")
    with pytest.raises(UsageError, match=r"chakra\.0\.et already exists"):
        export(run, tmp_path / "out")
    export(run, tmp_path / "out", force=True)


def test_a_run_without_execution_traces_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kineto_trace_0.json").write_text(json.dumps({"traceEvents": []}))
    with pytest.raises(InputError, match="no Execution Trace"):
        export(open_run(tmp_path), tmp_path / "out")


def test_without_protobuf_the_way_out_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_run(_run(tmp_path, [THREAD]))
    protobuf.message.cache_clear()
    protobuf._pool.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf.descriptor_pb2", None)
    with pytest.raises(CclBenchError, match="protobuf") as caught:
        export(run, tmp_path / "out")
    assert "ccl-bench[chakra]" in caught.value.fix
    assert not list((tmp_path / "out").glob("*.et"))
    protobuf.message.cache_clear()
    protobuf._pool.cache_clear()


def test_a_hostile_execution_trace_is_written_as_far_as_it_makes_sense(tmp_path: Path) -> None:
    nodes = [
        THREAD,
        _node(5, "a\ud800b", 9, inputs=[[1, 2, 3, 4, 5, "x"], [[[[[[[]]]]]]]]),
        _node(5, "twice"),
        _node(-4, "negative"),
        _node(6, "itself", 6, outputs=[[1, -7, 0, 4, 4, "x"]]),
        _node(2**62, "far"),
    ]
    found = _exported(tmp_path, nodes)
    assert sorted(found) == [2, 5, 6, 2**62]
    assert found[5].ctrl_deps == []
    assert found[6].ctrl_deps == []
