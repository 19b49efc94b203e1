"""Records of the NCCL Inspector: what they say of bandwidth, and what they do not say."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from ccl_bench.evaluate.compute import evaluate
from ccl_bench.metrics.shared.other_sources import OTHER_SOURCE
from ccl_bench.run import open_run
from ccl_bench.trace.cache import read_content

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result import Result

HEADER = {"id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 1}
METADATA = {
    "inspector_output_format_version": "v4.0",
    "git_rev": "",
    "rec_mechanism": "profiler_plugin",
    "dump_timestamp_us": 1748030377748202,
    "hostname": "example-hostname",
    "pid": 1639453,
}
PUBLISHED = [
    ("AllReduce", 1407, 17179869184, 61974, 277.210914, 485.119099),
    ("ReduceScatter", 1231, 2147483648, 41057, 418.439467, 366.134533),
]
"""Records of its README, of eight ranks: operation, number, bytes, us, algorithm and bus bandwidth, GB/s."""


def record(
    coll: str, sn: int, size: int, time_us: int, algbw: float, busbw: float = 0.0, **other: Any
) -> dict[str, Any]:
    perf: dict[str, Any] = {"coll": coll, "coll_sn": sn, "coll_msg_size_bytes": size}
    perf |= {"coll_exec_time_us": time_us, "coll_timing_source": other.pop("source", "kernel_gpu")}
    perf |= {"coll_algobw_gbs": algbw, "coll_busbw_gbs": busbw}
    return {"header": HEADER | other, "metadata": METADATA, "coll_perf": perf}


def written(folder: Path, name: str, records: list[dict[str, Any]]) -> Path:
    path = folder / name
    text = "".join(f"{json.dumps(each)}\n" for each in records).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def measured(folder: Path, *names: str) -> list[Result]:
    return evaluate(open_run(folder), list(names), jobs=1, use_cache=False)


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda row: row[0])
def test_published_records_give_the_bandwidths_that_stand_beside_them(
    published: tuple[Any, ...], tmp_path: Path
) -> None:
    coll, _, _, _, algbw, busbw = published
    written(tmp_path, "example-hostname-pid1639453.log", [record(*published)])
    [found] = measured(tmp_path, f"bandwidth_utilization_{coll.lower()}")
    assert found.value == pytest.approx(busbw, rel=1e-6)
    assert found.details["algorithm_bandwidth_gb_per_s"] == pytest.approx(algbw, rel=1e-6)
    # one rank of eight: nothing shows how long it waited
    assert (found.details["basis"], found.details["reach"]) == ("raw", "inside a node")
    assert OTHER_SOURCE in {finding.code for finding in found.findings}


def test_the_shortest_time_of_all_ranks_is_free_of_waiting(tmp_path: Path) -> None:
    mib = 1 << 20
    times = {0: 100, 1: 140}
    for rank, time_us in times.items():
        both = {"n_ranks": 2, "rank": rank}
        records = [
            # an all-gather states what one rank gives: 2 MiB together
            record("AllGather", 7, mib, time_us, 2 * mib / time_us / 1e3, **both),
            record("AllReduce", 8, mib, time_us, mib / time_us / 1e3, **both, nnodes=2),
        ]
        written(tmp_path, f"node0-pid{rank}.log.gz", records)
    gather, reduce = measured(tmp_path, "bandwidth_utilization_allgather", "bandwidth_utilization_allreduce")
    assert gather.value == pytest.approx(2 * mib / 100e-6 / 1e9 / 2)
    assert (gather.details["basis"], gather.details["calls_count"]) == ("wait-free", 1)
    assert reduce.value == pytest.approx(mib / 100e-6 / 1e9)
    assert reduce.details["reach"] == "between nodes"


def test_a_ceiling_counts_for_records_too(tmp_path: Path, corpus: Path) -> None:
    mib = 1 << 20
    for rank in range(4):
        one = record("AllReduce", 1, 8 * mib, 124, 8 * mib / 124e3, rank=rank, n_ranks=4)
        written(tmp_path, f"node0-pid{rank}.jsonl", [one])
    run = open_run(tmp_path, ceiling=corpus / "nccl-tests" / "results" / "all_reduce.txt")
    [found] = evaluate(run, ["nccl_tests_efficiency"], jobs=1, use_cache=False)
    assert found.value == pytest.approx(61.90 / 124)


def test_records_are_compared_with_the_reference_of_the_stated_device(tmp_path: Path) -> None:
    mib = 1 << 20
    for rank in range(4):
        one = record("AllReduce", 1, 64 * mib, 600, 64 * mib / 600e3, rank=rank, n_ranks=4)
        written(tmp_path, f"node0-pid{rank}.jsonl", [one])
    card = tmp_path / "workload_card.yaml"
    card.write_text("workload: {hardware: {xpu_spec: {type: GPU, model: NVIDIA A100-SXM4-80GB}}}\n")
    [found] = measured(tmp_path, "collective_efficiency")
    # 64 MiB over four A100 take 544.3 us in the catalog
    assert found.value == pytest.approx(100 * 544.3 / 600)
    assert OTHER_SOURCE in {finding.code for finding in found.findings}


def test_later_formats_state_the_header_once_and_count_what_they_lost(tmp_path: Path) -> None:
    whole = [record(*row) for row in PUBLISHED]
    marker = {"header": HEADER, "metadata": METADATA | {"inspector_output_format_version": "v4.3"}}
    marker |= {"dump_stats": {"coll_records": 2, "coll_dropped_since_last_dump": 512, "p2p_records": 1}}
    message = {"p2p": "Send", "p2p_sn": 8, "p2p_peer": 1, "p2p_msg_size_bytes": 524288}
    message |= {"p2p_exec_time_us": 50, "p2p_timing_source": "kernel_gpu", "p2p_algobw_gbs": 10.48576}
    lines = [marker, *({"coll_perf": each["coll_perf"]} for each in whole), {"p2p_perf": message}]
    path = written(tmp_path, "a-pid1.log", lines)
    content, _ = read_content(open_run(tmp_path).traces[0], ("nccl_records",))
    rows = content.table("nccl_records").select("collective", "size_bytes", "ranks", "host").rows()
    assert rows == [
        ("all_reduce", 17179869184, 8, "example-hostname"),
        ("reduce_scatter", 8 * 2147483648, 8, "example-hostname"),
        ("send", 524288, 8, "example-hostname"),
    ]
    assert [(found.code, found.count) for found in [*content.findings]] == [("records-dropped", 512)]
    [bandwidth] = measured(path.parent, "bandwidth_utilization_p2p")
    assert bandwidth.value == pytest.approx(10.48576)


def test_records_that_contradict_themselves_or_are_cut_count_nowhere(tmp_path: Path) -> None:
    good, other = record(*PUBLISHED[0]), record("AllReduce", 2, 1 << 20, 100, 99.0)
    path = written(tmp_path, "a-pid1.log", [good, other])
    path.write_bytes(path.read_bytes() + json.dumps(good).encode()[:-40])
    content, _ = read_content(open_run(tmp_path).traces[0], ("nccl_records",))
    assert content.table("nccl_records").height == 1
    codes = {(found.code, found.count) for found in content.findings}
    assert codes == {("events-lost", 1), ("records-contradict", 1)}


def test_times_of_the_cpu_are_no_bandwidth_and_numbers_of_a_step_are_refused(tmp_path: Path) -> None:
    written(tmp_path, "a-pid1.log", [record(*PUBLISHED[0], source="collective_cpu")])
    found = measured(
        tmp_path, "bandwidth_utilization_allreduce", "coll_call_num", "exposed_communication_time"
    )
    assert [one.status for one in found] == ["not_measurable"] * 3


def test_other_logs_are_no_records(tmp_path: Path) -> None:
    written(tmp_path, "a-pid1.log", [record(*PUBLISHED[0])])
    (tmp_path / "stdout.log").write_text("step 1 loss 2.3\n")
    (tmp_path / "events.jsonl").write_text('{"header": 1}\n')
    assert [trace.relative for trace in open_run(tmp_path).traces] == ["a-pid1.log"]
