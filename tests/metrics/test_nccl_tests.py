"""Output of nccl-tests beside a run: what is read of it, and how close the collectives of the run come."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from commands import invoke

from ccl_bench.base.errors import InputError, NotMeasurable
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.metrics.nccl_tests_efficiency import nccl_tests_efficiency
from ccl_bench.metrics.shared.ceiling import with_ceiling
from ccl_bench.run import open_run
from ccl_bench.side_files import read_nccl_tests
from ccl_bench.side_files.nccl_tests import Measured, NcclTests, nccl_tests_in_text
from ccl_bench.testing import Message, Plan, write_run

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20
REAL = ("all_reduce.txt", "quiet/all_reduce.txt", "quiet/all_gather.txt", "quiet/reduce_scatter.txt")
NAMES = {
    "all_reduce.txt": "all_reduce",
    "all_gather.txt": "all_gather",
    "reduce_scatter.txt": "reduce_scatter",
}

PLAN = Plan(tp=4, steps=2, layers=2, devices_per_node=4, tp_all_reduce=Message(4 * MIB, 60_000))
"""All-reduces of 8 MiB of bf16 over four ranks, in 60 us."""

OLD = """mpirun -np 4 -x NCCL_COLLNET_ENABLE=1 ./build/all_reduce_perf -b 8 -e 2G -f 2 -g 1 -w 50 -n 50
# nThread 1 nGpus 1 minBytes 8 maxBytes 2147483648 step: 2(factor) warmup iters: 50 iters: 50 validation: 1
#
# Using devices
#   Rank  0 Pid 2916721 on      a0000 device  0 [0x27] NVIDIA A100-SXM4-40GB
#   Rank  1 Pid 2916722 on      a0000 device  1 [0x2a] NVIDIA A100-SXM4-40GB
#   Rank  2 Pid 3868300 on      a0001 device  0 [0x27] NVIDIA A100-SXM4-40GB
#   Rank  3 Pid 3868301 on      a0001 device  1 [0x2a] NVIDIA A100-SXM4-40GB
[a0000:0:2916721 - context.c:589] INFO job (ID: 2838387367436317) resource request quota: ( osts:0 )
#
#                                                       out-of-place                       in-place
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum    174.8    6.00    9.00  5e-07    177.0    5.93    8.89  5e-07
    16777216       4194304     float     sum    549.8   30.51   45.77  5e-07    548.9   30.56   45.85  5e-07
# Out of bounds values : 0 OK
"""
"""The layout before version 2.17, which does not state the collective; a run of ABCI cut to four ranks."""


def halves(path: Path) -> dict[int, float]:
    """Return size → the shorter of the two times, us, of a table as it is printed today."""
    rows = [line.split() for line in path.read_text().splitlines() if line.strip() and line[0] != "#"]
    return {int(row[0]): min(float(row[5]), float(row[9])) for row in rows if int(row[0])}


@pytest.mark.parametrize("name", REAL)
def test_the_faster_half_of_each_row_of_real_tables_is_read(name: str, corpus: Path) -> None:
    path = corpus / "nccl-tests" / "results" / name
    found = read_nccl_tests(path)
    assert not found.issues
    assert {one.size_bytes: one.time_s * 1e6 for one in found.value.measured} == pytest.approx(halves(path))
    assert {(one.collective, one.ranks, one.hosts) for one in found.value.measured} == {(path.stem, 4, 1)}
    assert found.value.device_names == {"NVIDIA H100 80GB HBM3"}


def test_a_run_is_compared_with_a_real_table_at_its_size(tmp_path: Path, corpus: Path) -> None:
    write_run(PLAN, tmp_path)
    ceiling = corpus / "nccl-tests" / "results" / "all_reduce.txt"
    shown = invoke(
        f"ccl-metrics {tmp_path} --metric nccl_tests_efficiency --metric bandwidth_utilization_allreduce "
        f"--ceiling {ceiling} --format json --no-cache"
    )
    efficiency, bandwidth = json.loads(shown.stdout)
    # 61.90 us in place; 8 layer passes of 8 MiB take 60 us each
    assert efficiency["value"] == pytest.approx(61.90 / 60)
    [by_size] = efficiency["details"]["by_size"]
    assert by_size["message_bytes"] == 8 * MIB
    assert by_size["ceiling_bus_bandwidth_gb_per_s"] == pytest.approx(203.29, abs=0.02)  # as printed
    assert bandwidth["details"]["nccl_tests_efficiency_ratio"] == pytest.approx(61.90 / 60)
    assert {f["code"] for f in efficiency["findings"]} == {"ceiling-of-other-device"}
    assert efficiency["provenance"]["files"]


def test_a_table_beside_the_traces_is_found_by_its_content_and_shown_in_the_report(
    tmp_path: Path, corpus: Path
) -> None:
    write_run(PLAN, tmp_path)
    text = (corpus / "nccl-tests" / "results" / "all_reduce.txt").read_text()
    (tmp_path / "nccl_tests.log").write_text(text)
    (tmp_path / "nccl_debug.log").write_text("NCCL INFO Bootstrap")
    assert [*map(str, open_run(tmp_path).documents.nccl_tests.files)] == ["nccl_tests.log"]
    report = invoke(f"ccl-bench report {tmp_path} --format text --no-cache").stdout
    row = next(line for line in report.splitlines() if line.split()[:1] == ["all_reduce"] and "GB/s" in line)
    assert "103.17 %" in row
    assert "OF NCCL-TESTS" in report


def test_the_old_layout_takes_the_collective_from_the_command_and_a_launcher_may_mark_lines() -> None:
    tagged = "\n".join(f"[1,0]<stdout>:{line}" for line in OLD.splitlines())
    for text in (OLD, tagged):
        found = nccl_tests_in_text(text, file="slurm-12.out")
        assert not found.issues
        assert found.value.measured == (
            Measured("all_reduce", 4, 2, 1048576, pytest.approx(174.8e-6)),
            Measured("all_reduce", 4, 2, 16777216, pytest.approx(548.9e-6)),
        )
    assert found.value.device_names == {"NVIDIA A100-SXM4-40GB"}


def test_several_tests_in_one_log_are_told_apart() -> None:
    other = OLD.replace("all_reduce_perf", "alltoall_perf").replace("9.00", "4.50").replace("8.89", "4.45")
    other = other.replace("45.77", "22.88").replace("45.85", "22.92")
    found = nccl_tests_in_text(OLD + other, file="both.log")
    assert not found.issues
    assert [one.collective for one in found.value.measured] == ["all_reduce"] * 2 + ["all_to_all"] * 2


@pytest.mark.parametrize(
    ("before", "after", "file", "message"),
    [
        ("./build/all_reduce_perf", "./job", "job.log", "does not state which collective"),
        ("./build/all_reduce_perf", "./job", "all_gather.log", "is not that of all_gather over 4 ranks"),
        ("#   Rank", "# rank", "job.log", "how many ranks took part"),
        ("Rank  1", "Rank  0", "job.log", "lists a rank twice"),
        ("all_reduce_perf", "hypercube_perf", "job.log", "hypercube is not a collective"),
        ("busbw  error", "busbw #wrong", "job.log", "results of 2 sizes were wrong"),
        ("     1048576", "#", "job.log", ""),
    ],
)
def test_what_a_table_does_not_say_is_reported_and_not_guessed(
    before: str, after: str, file: str, message: str
) -> None:
    found = nccl_tests_in_text(OLD.replace(before, after), file=file)
    assert [message in issue.message for issue in found.errors] == [True] * bool(message)
    assert len(found.value.measured) == (0 if message else 1)


def test_json_of_nccl_tests_says_the_same_as_its_table() -> None:
    rows = [line.split() for line in OLD.splitlines() if line[:4] == "    "]
    body = [
        {key: {"time": float(r[at]), "alg_bw": float(r[at + 1]), "bus_bw": float(r[at + 2]), "nwrong": 0.0}}
        for r in rows
        for key, at in (("out_of_place", 4), ("in_place", 8))
    ]
    results = [
        {"size": int(r[0]), "count": int(r[1]), **body[2 * at], **body[2 * at + 1]}
        for at, r in enumerate(rows)
    ]
    devices = [{"rank": r, "hostname": f"a000{r}", "device_info": "NVIDIA A100-SXM4-40GB"} for r in (0, 1)]
    config = {"nthreads": 1, "ngpus": 2, "devices": devices}
    written: dict[str, Any] = {
        "version": 2,
        "start_time": "now",
        "args": ["./all_reduce_perf_mpi", "-g", "2"],
    }
    found = nccl_tests_in_text(json.dumps(written | {"config": config, "results": results}), file="a.json")
    assert not found.issues
    assert found.value.measured == nccl_tests_in_text(OLD, file="a.log").value.measured


def transfer(size_bytes: int, **other: Any) -> pl.DataFrame:
    row = {"collective": "all_reduce", "size": 4, "spans_nodes": False, "size_bytes": size_bytes}
    row |= {"bus_factor": 1.5, "time_ns": 1} | other
    return pl.DataFrame([row], schema_overrides={"size": pl.Int64, "spans_nodes": pl.Boolean})


CURVE = NcclTests(
    tuple(Measured("all_reduce", 4, 1, size, time) for size, time in ((MIB, 3e-5), (4 * MIB, 5e-5)))
)


@pytest.mark.parametrize(
    ("size", "time_s"), [(MIB, 3e-5), (2 * MIB, math.sqrt(3e-5 * 5e-5)), (4 * MIB, 5e-5)]
)
def test_between_two_sizes_the_time_is_their_geometric_mean(size: int, time_s: float) -> None:
    found = with_ceiling(transfer(size), CURVE)
    assert found["ceiling_ns"].to_list() == pytest.approx([time_s * 1e9])
    assert found["lacks"].to_list() == [None]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"size_bytes": 4 * MIB + 1}, "from 1048576 to 4194304 bytes"),
        ({"size_bytes": MIB - 1}, "from 1048576 to 4194304 bytes"),
        ({"collective": "all_gather"}, "no all_gather was measured"),
        ({"size": 8, "bus_factor": 1.75}, "over 4 ranks, not over 8"),
        ({"size": None}, "group is unknown"),
        ({"spans_nodes": True}, "between nodes"),
        ({"bus_factor": 1.0}, "parts have different sizes"),
    ],
)
def test_what_was_not_measured_has_no_ceiling(other: dict[str, Any], why: str) -> None:
    found = with_ceiling(transfer(**{"size_bytes": 2 * MIB, **other}), CURVE)
    assert found["ceiling_ns"].to_list() == [None]
    assert why in found["lacks"][0]


def timed(*measured: tuple[int, int | None, float]) -> NcclTests:
    """Return times of all-reduces of 1 MiB, given as (ranks, hosts, us)."""
    return NcclTests(
        tuple(Measured("all_reduce", ranks, hosts, MIB, time * 1e-6) for ranks, hosts, time in measured)
    )


@pytest.mark.parametrize(
    ("measured", "spans_nodes", "time_us"),
    [
        ([(4, 1, 30), (4, 1, 20), (4, 1, 40)], False, 20),  # the shortest of all
        ([(4, 1, 30), (4, 2, 50), (4, 3, 60)], True, 50),
        ([(4, 1, 30), (4, 2, 20)], False, 30),
        ([(4, 1, 30), (4, None, 25), (4, 2, 20)], False, 25),
        ([(4, 1, 20), (4, None, 25), (4, 2, 30)], True, 25),
        ([(4, 1, 30), (4, None, 35)], None, 30),
        ([(4, 2, 30), (8, 1, 20)], None, 30),
        ([(4, None, 35)], None, 35),
        ([(4, 1, 30), (4, 2, 35)], None, "whether they cross nodes is unknown"),
        ([(4, 2, 35)], False, "inside a node"),
        ([(4, 1, 35)], True, "between nodes"),
        ([(16, 1, 5), (2, 1, 5), (8, 1, 5)], False, "over 2 and 8 and 16 ranks, not over 4"),
    ],
)
def test_the_ceiling_is_the_shortest_time_over_the_same_ranks_and_reach(
    measured: list[tuple[int, int | None, float]], spans_nodes: bool | None, time_us: float | str
) -> None:
    found = with_ceiling(transfer(MIB, spans_nodes=spans_nodes), timed(*measured))
    if isinstance(time_us, str):
        assert found["ceiling_ns"].to_list() == [None]
        assert time_us in found["lacks"][0]
        return
    assert found["ceiling_ns"].to_list() == pytest.approx([time_us * 1000])


def test_between_two_sizes_the_time_lies_on_the_line_of_their_logarithms() -> None:
    # from 1 to 16 MiB the time grows from 2 to 32 us: as fast as the size, whose quarter is 4 MiB
    sizes = ((MIB, 2e-6), (16 * MIB, 32e-6), (64 * MIB, 64e-6))
    tests = NcclTests(tuple(Measured("all_reduce", 4, 1, size, time) for size, time in sizes))
    times = {MIB: 2_000, 2 * MIB: 4_000, 4 * MIB: 8_000, 16 * MIB: 32_000, 64 * MIB: 64_000}
    for size, time_ns in times.items():
        assert with_ceiling(transfer(size), tests)["ceiling_ns"].to_list() == pytest.approx([time_ns])
    # between 16 and 64 MiB only the root of it
    assert with_ceiling(transfer(32 * MIB), tests)["ceiling_ns"][0] == pytest.approx(32_000 * 2**0.5)


def test_messages_are_compared_with_send_and_receive_together() -> None:
    tests = NcclTests((Measured("send_recv", 2, 1, MIB, 7e-6),))
    for name in ("send", "recv", "send_recv"):
        call = transfer(MIB, collective=name, size=2, bus_factor=1.0)
        assert with_ceiling(call, tests)["ceiling_ns"].to_list() == pytest.approx([7_000])


def test_calls_without_a_ceiling_are_counted_and_in_no_number(tmp_path: Path, corpus: Path) -> None:
    write_run(Plan(dp_shard=2, tp=4, steps=2, layers=2, devices_per_node=4), tmp_path)
    ceiling = corpus / "nccl-tests" / "results" / "all_reduce.txt"
    [found] = evaluate(
        open_run(tmp_path, ceiling=ceiling), ["nccl_tests_efficiency"], jobs=1, use_cache=False
    )
    assert found.value == pytest.approx(61.90 / 60)
    lacking = {row["collective"]: row["lacks"] for row in found.details["uncovered"]}
    assert lacking == {name: f"no {name} was measured" for name in ("all_gather", "reduce_scatter")}
    assert "ceiling-incomplete" in {finding.code for finding in found.findings}


def test_without_a_usable_table_the_metric_says_why(tmp_path: Path, corpus: Path) -> None:
    write_run(PLAN, tmp_path)
    [nothing] = evaluate(open_run(tmp_path), ["nccl_tests_efficiency"], jobs=1, use_cache=False)
    assert "no output of nccl-tests" in nothing.reason
    assert "--ceiling" in nothing.fix
    (tmp_path / "nccl.log").write_text(OLD.replace("Rank  1", "Rank  0"))
    [damaged] = evaluate(open_run(tmp_path), ["nccl_tests_efficiency"], jobs=1, use_cache=False)
    assert damaged.reason == "nccl.log contains no usable data"
    assert "lists a rank twice" in damaged.findings[0].message
    for place in (tmp_path / "run_metadata.json", tmp_path / "workload_card.yaml"):
        with pytest.raises(InputError, match=r"nccl-tests|measured size"):
            open_run(tmp_path, ceiling=place)
    folder = corpus / "nccl-tests" / "results" / "quiet"
    assert len(open_run(tmp_path, ceiling=folder).documents.nccl_tests.files) == 3


def calls(*given: tuple[str, int, int]) -> pl.DataFrame:
    """Return calls over four ranks of one node, given as (collective, bytes, ns)."""
    made = [transfer(size, collective=name, time_ns=time, basis="wait-free") for name, size, time in given]
    return pl.concat(made)


def test_efficiency_is_the_sum_of_ceilings_over_the_sum_of_times() -> None:
    moved = calls(
        ("all_reduce", MIB, 50_000), ("all_reduce", MIB, 25_000), ("all_reduce", 4 * MIB, 80_000),
        ("broadcast", MIB, 5_000), ("all_gather", MIB, 15_000), ("all_gather", MIB, 25_000),
    )  # fmt: skip
    found = nccl_tests_efficiency(moved, CURVE)
    ceiling_ns, time_ns = 30_000 + 30_000 + 50_000, 50_000 + 25_000 + 80_000
    assert found.value == pytest.approx(ceiling_ns / time_ns)
    assert found.details["calls_count"] == 3
    assert found.details["covered_time_pct"] == pytest.approx(100 * 155 / 200)
    kind = {"collective": "all_reduce", "group_size": 4, "reach": "inside a node"}
    whole, one_mib, four_mib = (
        {
            **kind,
            **size,
            "calls_count": count,
            "time_s": pytest.approx(time * 1e-9),
            "ceiling_s": pytest.approx(ceiling * 1e-9),
            "bus_bandwidth_gb_per_s": pytest.approx(1.5 * moved_bytes / time),
            "ceiling_bus_bandwidth_gb_per_s": pytest.approx(1.5 * moved_bytes / ceiling),
            "efficiency_ratio": pytest.approx(ceiling / time),
        }
        for size, count, time, ceiling, moved_bytes in (
            ({}, 3, time_ns, ceiling_ns, 6 * MIB),
            ({"message_bytes": MIB}, 2, 75_000, 60_000, 2 * MIB),
            ({"message_bytes": 4 * MIB}, 1, 80_000, 50_000, 4 * MIB),
        )
    )
    assert found.details["by_collective"] == [whole]
    assert found.details["by_size"] == [one_mib, four_mib]
    assert [(row["collective"], row["calls_count"], row["time_s"]) for row in found.details["uncovered"]] == [
        ("all_gather", 2, pytest.approx(40e-6)),
        ("broadcast", 1, pytest.approx(5e-6)),
    ]
    [finding] = found.findings
    assert (finding.code, finding.count) == ("ceiling-incomplete", 3)
    assert "no time for 3 of 6 calls, 22.5 % of their time: no all_gather" in finding.message


@pytest.mark.parametrize(
    ("time_ns", "codes"), [(27_000, ["ceiling-exceeded"]), (27_800, []), (30_000, [])]
)  # 30 us in the test: 1.11, 1.08 and 1 times as fast
def test_a_run_that_is_faster_than_the_test_is_doubtful(time_ns: int, codes: list[str]) -> None:
    found = nccl_tests_efficiency(calls(("all_reduce", MIB, time_ns)), CURVE)
    assert [finding.code for finding in found.findings] == codes


@pytest.mark.parametrize(
    ("names", "codes"),
    [
        (["H100"], []),
        (["H100", "A100"], []),
        (["A100"], ["ceiling-of-other-device"]),
        ([""], []),
        ([None], []),
    ],
)
def test_a_test_of_another_device_is_doubtful(names: list[str | None], codes: list[str]) -> None:
    tests = NcclTests(CURVE.measured, device_names=frozenset({"H100"}))
    devices = pl.DataFrame({"name": names}, schema={"name": pl.String})
    found = nccl_tests_efficiency(calls(("all_reduce", MIB, 30_000)), tests, devices)
    assert [finding.code for finding in found.findings] == codes


@pytest.mark.parametrize("tests", [None, NcclTests()])
def test_a_file_without_times_is_no_output(tests: NcclTests | None) -> None:
    with pytest.raises(NotMeasurable, match="no output of nccl-tests"):
        nccl_tests_efficiency(calls(("all_reduce", MIB, 30_000)), tests)
