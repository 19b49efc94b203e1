"""Chakra execution traces as input: the own export, files as Chakra's tools write them, and damaged ones."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from commands import invoke

from ccl_bench.analysis.execution_trace.calls import et_described_calls
from ccl_bench.base.errors import InputError
from ccl_bench.chakra import export
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run
from ccl_bench.schema import TABLES
from ccl_bench.trace.cache import read_content
from ccl_bench.trace.formats import recognised
from ccl_bench.trace.formats.chakra.reader import read_chakra

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.trace.content import TraceContent

REAL = {
    "megatron": ("megatron-tp8/megatron_et_0.json.gz", "megatron-tp8/megatron_kineto_0.json.gz"),
    "dlrm": ("dlrm-8rank/dlrm_eg_3.json.gz", "dlrm-8rank/worker3_step_12.pt.trace.json.gz"),
    "gloo": ("gloo-fsdp2-tp2-args/rank1_et.json.gz", "gloo-fsdp2-tp2-args/rank1_trace.json.gz"),
}
READ = ("et_nodes", "et_products", "et_communication", "et_groups")


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value % 2**64)
    raw = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(raw)) + raw


def _attribute(name: str, number: int, value: int | str) -> bytes:
    """Return an attribute as field 10 of a node; the number is that of its kind of value."""
    return _field(10, _field(1, name) + _field(number, value))


def _file(metadata: bytes, *nodes: bytes) -> bytes:
    return b"".join(_varint(len(each)) + each for each in (metadata, *nodes))


VERSION = _field(1, "0.0.4")
INT32, INT64, UINT64, BOOL, TEXT = 7, 9, 13, 27, 29


def _read(content: bytes) -> TraceContent:
    return read_chakra(io.BytesIO(content), "x.0.et")


def _both(name: str, corpus: Path, place: Path) -> tuple[TraceContent, TraceContent, Path]:
    """Return an Execution Trace, its export as read back, and the exported file."""
    et, kineto = REAL[name]
    run = place / "run"
    run.mkdir()
    for path in (corpus / "execution_trace" / et, corpus / "kineto" / kineto):
        (run / path.name).symlink_to(path)
    opened = open_run(run)
    (done,) = export(opened, place / "out")
    (exported,) = open_run(done.path).traces
    assert (exported.form.name, exported.rank, exported.rank_source) == ("chakra", done.rank, "file")
    (recorded,) = (trace for trace in opened.traces if trace.form.name == "execution_trace")
    return read_content(recorded, READ)[0], read_content(exported, READ)[0], done.path


@pytest.mark.parametrize("name", REAL)
def test_the_own_export_of_a_real_rank_reads_back_equal(name: str, corpus: Path, tmp_path: Path) -> None:
    before, after, path = _both(name, corpus, tmp_path)
    nodes = before.table("et_nodes")
    is_there = pl.col("parent").is_in(nodes["node"].implode()) & (pl.col("parent") > 0)
    called = pl.when(is_there & (pl.col("parent") < pl.col("node"))).then("parent")  # a root calls itself
    assert nodes.with_columns(called.alias("parent")).equals(after.table("et_nodes"))
    assert before.table("et_products").sort("node").equals(after.table("et_products").sort("node"))
    assert before.table("et_groups").equals(after.table("et_groups"))
    identity = TABLES["identity"].frame({"rank": [before.rank], "world_size": [before.world_size]})
    calls = et_described_calls(before.table("et_communication"), before.table("et_groups"), identity)
    sent = before.table("et_communication").select("node", sent_bytes="in_bytes")
    known = calls.drop("sent_bytes").join(sent, on="node", maintain_order="left")
    columns = ["collective", "sent_bytes", "group_size", "dtype"]
    found = after.table("et_communication").rename({"name": "collective", "in_bytes": "sent_bytes"})
    assert known.select(columns).sort(columns).equals(found.select(columns).sort(columns))
    metrics = ["coll_call_num", "compute_intensity", "collective_volume_allreduce"]
    recorded = corpus / "execution_trace" / REAL[name][0]
    alone = [evaluate(open_run(place), metrics, jobs=1, use_cache=False) for place in (recorded, path)]
    assert [one.value for one in alone[0]] == [other.value for other in alone[1]]
    assert all(one.value for one in alone[0])


def test_an_all_to_all_whose_parts_chakra_does_not_state_carries_a_finding(
    corpus: Path, tmp_path: Path
) -> None:
    before, after, _ = _both("dlrm", corpus, tmp_path)
    recorded = before.table("et_communication")["name"].str.starts_with("all_to_all").sum()
    [finding] = after.findings
    assert (finding.code, finding.count) == ("splits-unknown", recorded)


def test_files_of_chakras_generator_are_read_with_the_rank_in_their_name(tmp_path: Path) -> None:
    # generator.py: comm_type as int64, comm_size as uint64, no group, one file for each NPU
    attributes = [_attribute("is_cpu_op", BOOL, 0), _attribute("comm_type", INT64, 2)]
    node = _field(1, 0) + _field(2, "ALL_GATHER") + _field(3, 7) + b"".join(attributes)
    node += _attribute("comm_size", UINT64, 65536)
    for rank in range(4):
        (tmp_path / f"one_comm_coll_node_allgather.{rank}.et").write_bytes(_file(VERSION, node))
    run = open_run(tmp_path)
    assert [(trace.form.name, trace.rank) for trace in run.traces] == [("chakra", rank) for rank in range(4)]
    [row] = read_content(run.traces[0], READ)[0].table("et_communication").to_dicts()
    assert (row["name"], row["in_bytes"], row["in_elements"], row["dtype"]) == (
        "all_gather",
        65536,
        65536,
        "uint8",
    )
    assert row["group_name"] is None


def test_files_of_chakras_text_converter_have_no_version_and_no_kind_of_device() -> None:
    # text_converter.py: schema and the input as attributes, compute and communication by turns
    metadata = _field(2, _field(1, "schema") + _field(TEXT, "1.0.2-chakra.1.0.0"))
    metadata += _field(2, _field(1, "input_file") + _field(TEXT, "HYBRID_DATA_MODEL\n1\nlayer -1 5 ..."))
    compute = _field(1, 3) + _field(2, "COMP_NODE_layer_FWD") + _field(3, 4) + _field(7, 5)
    reduce = _field(1, 4) + _field(2, "COMM_COLL_NODE_layer_ALLREDUCE") + _field(3, 7) + _field(5, b"\x03")
    reduce += _attribute("comm_type", INT64, 0) + _attribute("comm_size", INT64, 1 << 20)
    content = _file(metadata, compute, reduce)
    assert recognised(content).name == "chakra"
    found = _read(content)
    assert found.attributes == {"et_schema": "1.0.2-chakra.1.0.0"}
    assert found.table("et_nodes")["name"].to_list() == [
        "COMP_NODE_layer_FWD",
        "COMM_COLL_NODE_layer_ALLREDUCE",
    ]
    [row] = found.table("et_communication").to_dicts()
    assert (row["node"], row["name"], row["in_bytes"]) == (4, "all_reduce", 1 << 20)


def test_operands_of_chakras_converter_are_python_text() -> None:
    # pytorch_converter.py writes str() of the lists; work of a device hangs below its operator
    operands = _field(1, "[[1, 2, 0, 6, 4, 'cuda:0'], [3, 4, 0, 12, 4, 'cuda:0']]")
    operands += _field(2, "[[2, 3], [3, 4]]") + _field(
        3, "['Tensor(c10::BFloat16)', 'Tensor(c10::BFloat16)']"
    )
    product = _field(1, 7) + _field(2, "aten::mm") + _field(3, 4) + _field(8, operands)
    product += _attribute("is_cpu_op", BOOL, 1) + _attribute("seq_id", INT64, -1)
    kernel = _field(1, 8) + _field(2, "ncclDevKernel_AllReduce_Sum_bf16") + _field(3, 7) + _field(4, b"\x07")
    kernel += _attribute("is_cpu_op", BOOL, 0) + _attribute("comm_type", INT64, 0)
    kernel += _attribute("comm_size", INT64, 24) + _attribute("pg_name", TEXT, "1")
    found = _read(_file(VERSION, product, kernel))
    [row] = found.table("et_products").to_dicts()
    assert (row["rows"], row["inner"], row["columns"], row["dtype"]) == (2, 3, 4, "c10::BFloat16")
    assert found.table("et_nodes")["sequence_number"].to_list() == [-1]
    [call] = found.table("et_communication").to_dicts()
    assert (call["node"], call["group_name"], call["in_bytes"]) == (7, "1", 24)


def test_a_cut_file_keeps_its_whole_nodes() -> None:
    node = _field(1, 1) + _field(2, "a") + _field(3, 4)
    found = _read(_file(VERSION, node, node)[:-2])
    assert [finding.code for finding in found.findings] == ["file-truncated"]
    assert found.table("et_nodes").height == 1


def test_nodes_of_an_older_schema_are_refused() -> None:
    node = _field(1, 1) + _field(2, "a") + _field(3, 4) + _field(17, 5)
    with pytest.raises(InputError, match=r"schema of Chakra other than 0\.0\.4"):
        _read(_file(VERSION, node))


@pytest.mark.parametrize("content", [b"", b"\n\x8f\x01\x08\x01", b"PK\x03\x04", b'{"a": 1}', b"\x80\x04\x95"])
def test_other_files_are_not_taken_for_chakras(content: bytes) -> None:
    found = recognised(content + bytes(300))
    assert found is None or found.name != "chakra"


JSON: dict[str, Any] = {
    "chakra_jsonizer": '{"version": "0.0.4"}{"id": "1", "type": "COMP_NODE", "attr": [{"int64Val": "1"}]}',
    "in JSON, as Chakra's feeder": '{"workload_graph": [{"Id": 0, "Name": "a", "NodeType": 4}]}',
}


@pytest.mark.parametrize("says", JSON)
def test_chakra_in_json_is_refused_by_its_name(says: str, tmp_path: Path) -> None:
    (tmp_path / "trace.0.json").write_text(JSON[says])
    with pytest.raises(InputError, match=says):
        open_run(tmp_path)


def test_an_export_inside_its_run_counts_nothing_twice(corpus: Path, tmp_path: Path) -> None:
    et = corpus / "execution_trace" / REAL["megatron"][0]
    (tmp_path / et.name).symlink_to(et)
    assert invoke(f"ccl-bench chakra {tmp_path} -o {tmp_path / 'chakra'}").returncode == 0
    run = open_run(tmp_path)
    assert [trace.form.name for trace in run.traces] == ["execution_trace"]
    assert [finding.code for finding in run.findings if "chakra" in finding.code] == ["chakra-set-aside"]
