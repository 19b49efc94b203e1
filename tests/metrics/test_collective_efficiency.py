"""Collectives compared with a clean measurement: the arithmetic, the reference that counts, the refusals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from commands import invoke

from ccl_bench.analysis.facts import CommunicationLibrary, Fact, Facts
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics.collective_efficiency import collective_efficiency
from ccl_bench.side_files.nccl_tests import Measured, NcclTests
from ccl_bench.testing import Message, Plan, write_run

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.metrics import Measurement

MIB = 1 << 20
A100 = pl.DataFrame({"name": ["NVIDIA A100-SXM4-80GB"]})


def calls(*each: tuple[int, int, float], spans_nodes: bool | None = False, **more: Any) -> pl.DataFrame:
    """Return all-reduces of (ranks, MiB, µs)."""
    known = {"collective": "all_reduce", "dimension": "tp", "spans_nodes": spans_nodes, "basis": "wait-free"}
    rows = [
        known
        | {
            "size": size,
            "size_bytes": mib * MIB,
            "time_ns": round(us * 1e3),
            "bus_factor": 2 * (size - 1) / size,
        }
        | more
        for size, mib, us in each
    ]
    return pl.DataFrame(rows, schema_overrides={"spans_nodes": pl.Boolean})


def efficiency(moved: pl.DataFrame, **given: Any) -> Measurement:
    """Return the metric of calls on A100s, with other inputs where given."""
    inputs = {
        "facts": Facts(), "devices": A100, "nccl_tests": None, "communication_library": None,
        "traffic": pl.DataFrame({"is_paired": [None]}),
    }  # fmt: skip
    return collective_efficiency(moved, **{**inputs, **given})


def test_the_value_is_reference_time_over_recorded_time() -> None:
    # A100, NCCL 2.27.3: 64 MiB over 8 take 595.3 µs, 128 MiB over 8 1169.1, 64 MiB over 4 544.3
    moved = calls((8, 64, 1000), (8, 64, 1400), (8, 128, 2000), (4, 64, 544.3), (6, 64, 700))
    measured = efficiency(moved)
    reference, recorded = 2 * 595.3 + 1169.1 + 544.3, 1000 + 1400 + 2000 + 544.3
    assert measured.value == pytest.approx(100 * reference / recorded)
    assert [
        (row["members"], row["size_bytes"], row["calls_count"], row["efficiency_pct"])
        for row in measured.details["calls"]
    ] == [
        (4, 64 * MIB, 1, pytest.approx(100)),
        (8, 64 * MIB, 2, pytest.approx(100 * 595.3 / 1200)),
        (8, 128 * MIB, 1, pytest.approx(100 * 1169.1 / 2000)),
    ]
    row = measured.details["calls"][1]
    assert (row["library"], row["library_version"]) == ("nccl", "2.27.3")
    assert (row["reference_s"], row["recorded_s"]) == (pytest.approx(595.3e-6), pytest.approx(1200e-6))
    assert measured.details["without_reference_s"] == pytest.approx(700e-6)
    [without] = measured.details["without_reference"]
    assert without["reason"] == "all_reduce was measured over 2, 4 and 8 A100 SXM, not over 6"
    assert "`all_reduce_perf -b 8 -e 8G -f 2 -g 6`" in without["fix"]


def test_output_of_nccl_tests_comes_first_and_the_catalog_fills_in() -> None:
    own = NcclTests((Measured("all_reduce", 8, 1, 64 * MIB, 500e-6),))
    measured = efficiency(calls((8, 64, 1000), (8, 128, 1169.1)), nccl_tests=own)
    rows = [(row["library"], row["efficiency_pct"]) for row in measured.details["calls"]]
    assert rows == [("nccl-tests", pytest.approx(50)), ("nccl", pytest.approx(100))]


def test_the_nearest_version_of_the_library_counts() -> None:
    b200 = pl.DataFrame({"name": ["NVIDIA B200"]})
    for version, nearest in (("2.27.7", "2.27.5"), ("2.28.3", "2.28.9"), (None, "2.29.2")):
        library = CommunicationLibrary(name="NCCL", version=version)
        measured = efficiency(calls((8, 64, 300)), devices=b200, communication_library=library)
        assert [row["library_version"] for row in measured.details["calls"]] == [nearest]


@pytest.mark.parametrize(
    ("moved", "given", "reason", "command"),
    [
        (calls((6, 64, 700)), {}, "not over 6", "all_reduce_perf -b 8 -e 8G -f 2 -g 6"),
        (calls((8, 64, 700), spans_nodes=True), {}, "spans several", "mpirun -np 8 all_reduce_perf"),
        (calls((8, 1024, 9000)), {}, "from 512 to 536870912 bytes", "all_reduce_perf"),
        (
            calls((8, 64, 700)),
            {"devices": pl.DataFrame({"name": ["NVIDIA A100 80GB PCIe"]})},
            "no collectives were measured on NVIDIA A100 80GB PCIe",
            "all_reduce_perf",
        ),
        (calls((8, 64, 700)), {"devices": A100.clear()}, "the device is unknown", "all_reduce_perf"),
        (
            calls((2, 64, 700)),
            {"facts": Facts(world_size=Fact(16, "card"), devices_per_node=Fact(4, "card"))},
            "nodes with 8 A100 SXM, and these have 4",
            "all_reduce_perf",
        ),
        (
            calls((8, 64, 700)),
            {"traffic": pl.DataFrame({"is_paired": [True]})},
            "gloo moves data through the CPU",
            "all_reduce_perf",
        ),
        (calls((8, 64, 700), basis="raw"), {}, "all members were recorded", "sizes and groups"),
    ],
)
def test_what_has_no_reference_is_refused_with_the_measurement(
    moved: pl.DataFrame, given: dict[str, Any], reason: str, command: str
) -> None:
    with pytest.raises(NotMeasurable, match=reason) as refusal:
        efficiency(moved, **given)
    assert command in refusal.value.fix


def test_a_node_of_one_job_may_be_used_in_part() -> None:
    facts = Facts(world_size=Fact(4, "card"), devices_per_node=Fact(4, "card"))
    assert efficiency(calls((4, 64, 544.3)), facts=facts).value == pytest.approx(100)


def test_a_whole_run_is_compared_by_what_its_traces_state(tmp_path: Path) -> None:
    plan = Plan(tp=4, steps=2, layers=2, devices_per_node=4, tp_all_reduce=Message(4 * MIB, 60_000))
    write_run(plan, tmp_path)
    shown = invoke(f"ccl-metrics {tmp_path} --metric collective_efficiency --format json --no-cache")
    [found] = json.loads(shown.stdout)
    # 8 MiB over 4 A100 take 111.0 µs in the table, and 60 µs here
    assert found["value"] == pytest.approx(100 * 111.0 / 60)
    assert found["details"]["without_reference_s"] == 0


def test_megatron_on_eight_a100_moves_as_fast_as_the_reference(corpus: Path) -> None:
    run = corpus / "kineto/megatron-tp8"
    shown = invoke(f"ccl-metrics {run} --metric collective_efficiency --format json --no-cache")
    [found] = json.loads(shown.stdout)
    [large] = [row for row in found["details"]["calls"] if row["size_bytes"] == 64 * MIB]
    # 81 all-reduces of 64 MiB at 190.2 GB/s over 197.3 GB/s, which 595.3 µs of the table are
    assert large["calls_count"] == 81
    assert large["efficiency_pct"] == pytest.approx(
        100 * 190.2346 / (1.75 * 64 * MIB / 595.3e-6 / 1e9), rel=1e-5
    )
    assert found["value"] == pytest.approx(96.4, abs=0.1)
