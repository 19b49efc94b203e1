"""Real Execution Traces: counts equal those of plain JSON, operators are found in the Kineto traces."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from et_sets import FILES, argument, calls, content, et_path, kineto_path, run_directory
from plain_json import document

from ccl_bench.analysis.execution_trace.calls import completed
from ccl_bench.analysis.execution_trace.linking import link_operators, linkable_nodes, linkable_ops
from ccl_bench.analysis.findings import et_disagreements, unlinked
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.evaluate.load import load_tables
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.base.lazy_imports import pl

every_file = pytest.mark.parametrize(("name", "rank"), FILES, ids=lambda value: str(value))


@every_file
def test_nodes_are_those_of_the_file(corpus: Path, name: str, rank: int) -> None:
    path = et_path(corpus, name, rank)
    nodes = document(path)["nodes"]
    found = content(path)
    assert found.findings == []
    table = found.tables["et_nodes"]
    assert Counter(table["name"].cast(str).to_list()) == Counter(node["name"] for node in nodes)
    assert sorted(table["rf_id"].to_list()) == sorted(argument(node, "rf_id") for node in nodes)
    parents = {node["id"]: node.get("parent", node.get("ctrl_deps")) for node in nodes}
    assert dict(table.select("node", "parent").iter_rows()) == parents


@every_file
def test_communication_calls_are_those_of_the_file(corpus: Path, name: str, rank: int) -> None:
    path = et_path(corpus, name, rank)
    nodes = document(path)["nodes"]
    table = content(path).tables["et_communication"]
    assert table.height == sum(node["name"] == "record_param_comms" for node in nodes)
    moving = table.filter(table["in_bytes"].is_not_null())
    assert moving.select("node", "name", "in_bytes", "group_size").rows() == calls(nodes)


@every_file
def test_every_operator_of_a_kineto_trace_is_found_under_its_name(corpus: Path, name: str, rank: int) -> None:
    nodes = content(et_path(corpus, name, rank)).tables["et_nodes"]
    link = link_operators(
        linkable_nodes(nodes), linkable_ops(content(kineto_path(corpus, name, rank)).tables["cpu_ops"])
    )
    expected = {
        "megatron-tp8": ("external id", 2, 5337),
        "dlrm-8rank": ("order", None, 1633),
        "gloo-fsdp2-tp2-args": ("record function id", None, 10156 if rank in (0, 3) else 10152),
    }[name]
    assert (link.rule, link.offset, link.pairs.height) == expected
    assert link.rate == 1.0
    assert link.pairs["op"].is_unique().all()


def _tables(run: Path, *names: str) -> dict[str, pl.DataFrame]:
    return load_tables(open_run(run), names, jobs=1, use_cache=False).inputs


@pytest.mark.parametrize(
    ("name", "calls_of_a_rank"), [("megatron-tp8", 84), ("dlrm-8rank", 8), ("gloo-fsdp2-tp2-args", 76)]
)
def test_bytes_agree_with_those_of_kineto(
    corpus: Path, tmp_path: Path, name: str, calls_of_a_rank: int
) -> None:
    found = _tables(run_directory(tmp_path, corpus, name, 2), "et_links", "et_agreement")
    assert found["et_agreement"]["agrees"].to_list() == [True] * (2 * calls_of_a_rank)
    assert et_disagreements(found["et_agreement"]) == []
    assert unlinked(found["et_links"]) == []
    assert found["et_links"]["rate"].to_list() == [1.0, 1.0]


def test_sizes_that_kineto_lacks_come_from_the_execution_trace(corpus: Path, tmp_path: Path) -> None:
    run = run_directory(tmp_path, corpus, "dlrm-8rank", 1)
    found = _tables(run, "calls", "et_calls")
    assert found["calls"]["size_bytes"].null_count() == 1
    whole = completed(found["calls"], found["et_calls"])
    assert whole["size_bytes"].null_count() == 0
    # rank 0 sends 3,392 int32 of which 96 stay on it: (3392 - 96) x 4 bytes
    assert whole["size_bytes"].to_list()[3] == (3392 - 96) * 4
    # 768 of 6,144 floats stay: Kineto without split sizes took the call for an even all-to-all
    assert (found["calls"]["size_bytes"][0], whole["size_bytes"][0]) == (6144 * 4, (6144 - 768) * 4)


@pytest.mark.parametrize("name", ["megatron-tp8", "gloo-fsdp2-tp2-args"])
def test_execution_traces_beside_kineto_traces_change_no_number(
    corpus: Path, tmp_path: Path, name: str
) -> None:
    metrics = ["iteration_wall_clock_time", "coll_call_num", "comm_comp_overlap", "straggler"]
    both, alone = tmp_path / "both", tmp_path / "alone"
    both.mkdir(), alone.mkdir()
    run_directory(both, corpus, name, 2)
    for rank in range(2):
        path = kineto_path(corpus, name, rank)
        (alone / path.name).symlink_to(path)
    results = [evaluate(open_run(run), metrics, jobs=1, use_cache=False) for run in (both, alone)]
    assert [r.value for r in results[0]] == [r.value for r in results[1]]
    assert [r.status for r in results[0]] == ["ok"] * 4
    assert [{f.code for f in r.findings} for r in results[0]] == [
        {f.code for f in r.findings} for r in results[1]
    ]
