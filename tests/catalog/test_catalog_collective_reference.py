"""The reference of collectives: values of the source's tables, and what has none."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.catalog import load_data
from ccl_bench.catalog.collective_reference import measurement, reference_curve, system

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


@pytest.mark.parametrize(
    ("device", "time_ms", "bus_gb_per_s"),
    [
        ("NVIDIA A100-SXM4-80GB", 1.1691, 201),
        ("NVIDIA H100 80GB HBM3", 0.57874, 406),  # the middle of 0.5781, 0.57874 and 0.57997
        ("NVIDIA B200", 0.39784, 590),  # between 0.3976 and 0.39808, of four
    ],
)
def test_64_mi_half_elements_over_8_devices_are_those_of_the_source(
    device: str, time_ms: float, bus_gb_per_s: float
) -> None:
    time_s = reference_curve(device, "all_reduce", 8).time_s(64 * MIB * 2)
    assert time_s * 1e3 == pytest.approx(time_ms, rel=1e-3)
    # 2 (n - 1) / n of 128 MiB cross the links
    assert 2 * 7 / 8 * 128 * MIB / time_s / 1e9 == pytest.approx(bus_gb_per_s, abs=1)


@pytest.mark.parametrize(
    ("device", "collective", "size", "size_bytes", "options", "time_ms"),
    [
        # rows of a100_sxm/nccl/2.27.3, in which 33,554,432 elements of `half` are 64 MiB
        ("NVIDIA A100-SXM4-80GB", "all_reduce", 8, 64 * MIB, {}, 0.5953),
        ("NVIDIA A100-SXM4-80GB", "all_reduce", 8, 64 * MIB, {"dtype": "int8"}, 0.6377),
        ("NVIDIA A100-SXM4-80GB", "all_reduce", 2, 64 * MIB, {}, 0.3915),
        ("NVIDIA A100-SXM4-80GB", "all_gather", 8, 64 * MIB, {}, 0.3516),
        ("NVIDIA A100-SXM4-80GB", "reduce_scatter", 8, 64 * MIB, {}, 0.3272),
        ("NVIDIA A100-SXM4-80GB", "all_to_all", 8, 64 * MIB, {}, 0.3476),
        ("a100_sxm", "all_reduce", 8, 4096, {}, 0.02143),
    ],
)
def test_a_measured_size_has_the_time_of_its_row(
    device: str, collective: str, size: int, size_bytes: int, options: dict[str, str], time_ms: float
) -> None:
    time_s = reference_curve(device, collective, size, **options).time_s(size_bytes)  # type: ignore[arg-type]
    assert time_s * 1e3 == pytest.approx(time_ms, rel=1e-6)


def test_between_two_sizes_the_curve_is_a_power_law() -> None:
    # 64 MiB take 0.5953 ms and 128 MiB 1.1691 ms: t = 0.5953 · (S / 64 MiB)^log2(1.1691 / 0.5953)
    time_s = reference_curve("a100_sxm", "all_reduce", 8).time_s(96 * MIB)
    assert time_s * 1e3 == pytest.approx(0.5953 * 1.5**0.973700, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100_sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100_sxm"),
        ("NVIDIA A100 80GB PCIe", None),
        ("nvidia_a100_80g", None),  # the card of either
        ("A100", None),
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("H100", None),
        ("NVIDIA H200", "h200_sxm"),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA B200", "b200_sxm"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300_sxm"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx_pro_6000_server"),
        ("Intel(R) Arc(TM) Pro B60 Graphics", "b60"),
        ("AMD Instinct MI300X", None),
        ("", None),
    ],
)
def test_a_device_is_of_a_system_if_all_that_its_name_can_mean_are(name: str, key: str | None) -> None:
    assert system(name) == key


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device": "NVIDIA A100 80GB PCIe"}, "no collectives were measured on NVIDIA A100 80GB PCIe"),
        ({"group_size": 6}, "measured over 2, 4 and 8 A100 SXM, not over 6"),
        ({"spans_nodes": True}, "this group of 8 spans several"),
        ({"per_node": 4}, "nodes with 8 A100 SXM, and these have 4"),
        ({"job_size": 9}, "whether groups of 8 of the 9 ranks cross nodes is unknown"),
        ({"collective": "broadcast"}, "no broadcast of NCCL"),
        ({"library": "gloo"}, "no all_reduce of gloo"),
    ],
)
def test_what_was_not_measured_is_refused_with_the_measurement(
    change: dict[str, object], reason: str
) -> None:
    asked = {"device": "NVIDIA A100-SXM4-80GB", "collective": "all_reduce", "group_size": 8, **change}
    with pytest.raises(NotMeasurable, match=reason) as refusal:
        reference_curve(**asked)  # type: ignore[arg-type]
    assert f"{asked['collective']}_perf -b 8 -e 8G -f 2" in refusal.value.fix
    assert "--ceiling" in refusal.value.fix


def test_a_group_of_unknown_place_is_inside_a_node_if_the_job_fits_into_one() -> None:
    assert reference_curve("a100_sxm", "all_reduce", 8, job_size=8).group_size == 8
    assert reference_curve("a100_sxm", "all_reduce", 8, job_size=16, spans_nodes=False).group_size == 8


def test_a_size_is_refused_from_the_first_byte_outside_the_measured_ones() -> None:
    curve = reference_curve("a100_sxm", "all_reduce", 8)
    assert (curve.sizes[0], curve.sizes[-1]) == (512, 512 * MIB)
    assert curve.time_s(512) < curve.time_s(512 * MIB)
    for size in (511, 512 * MIB + 1):
        with pytest.raises(NotMeasurable, match=f"from 512 to 536870912 bytes, not with {size}") as refusal:
            curve.time_s(size)
        assert "`all_reduce_perf -b 8 -e 8G -f 2 -g 8`" in refusal.value.fix


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [("", "2.29.2"), ("2.29.7", "2.29.2"), ("2.27.3", "2.27.5"), ("2.28.3", "2.28.9"), ("2.10.3", "2.27.5")],
)
def test_the_nearest_version_counts_and_the_newest_if_unknown(asked: str, nearest: str) -> None:
    assert reference_curve("b200_sxm", "all_reduce", 8, version=asked).version == nearest


def test_an_engine_has_a_curve_for_calls_in_a_graph() -> None:
    eager = reference_curve("a100_sxm", "all_reduce", 8, library="vllm")
    graph = reference_curve("a100_sxm", "all_reduce", 8, library="vllm", in_graph=True)
    assert len(eager.sizes) == len(graph.sizes) == 23
    assert eager.time_s(256) > graph.time_s(256)


def test_the_measurement_names_the_program_and_the_ranks() -> None:
    assert "`alltoall_perf -b 8 -e 8G -f 2 -g 8`" in measurement("all_to_all", 8)
    assert "`mpirun -np 16 all_reduce_perf -b 8 -e 8G -f 2 -g 1`" in measurement(
        "all_reduce", 16, spans_nodes=True
    )


def test_another_laboratory_measured_the_same_within_5_percent() -> None:
    """Compare with vTrain's all-reduces of `float` over A100, from 16 MiB, where links decide."""
    folder = Path(os.environ.get("CCL_BENCH_CORPUS", ""), "config-ground-truth/allreduce-a100")
    if not folder.is_dir():
        pytest.skip("no corpus")
    for size in (2, 4, 8):
        curve = reference_curve("a100_sxm", "all_reduce", size)
        with (folder / f"ar_a100_{size}.csv").open(encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if row[0].isdigit()]
        ratios = [
            min(float(row[3]), float(row[5])) / 1e9 / curve.time_s(int(row[0]))
            for row in rows
            if 16 * MIB <= int(row[0]) <= 512 * MIB
        ]
        assert len(ratios) > 400
        ratios.sort()
        assert ratios[len(ratios) // 2] == pytest.approx(1, abs=0.05)


def test_the_licence_of_the_measurements_is_in_the_package() -> None:
    folder = ROOT / "src/ccl_bench/catalog"
    notice = (folder / "collective_reference-licence.txt").read_text(encoding="utf-8")
    assert "NVIDIA CORPORATION" in notice
    assert "END OF TERMS AND CONDITIONS" in notice
    assert "collective_reference-licence.txt" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert load_data("collective_reference")["changes"]
    assert (folder / "collective_reference.parquet").stat().st_size < MIB
