"""Devices: names met in traces find the right data sheet, and nothing else does."""

from __future__ import annotations

import pytest

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.catalog.devices import SEARCHED, device, names

GIB = 2**30


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("A100-SXM4-40GB", "A100 SXM 40GB"),
        ("NVIDIA A100-PG509-200", "A100 SXM 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H800", "H800 SXM"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB200", "GB200"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2 16GB"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2 32GB"),
        ("Tesla V100-PCIE-16GB", "V100 PCIe 16GB"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A40", "A40"),
        ("NVIDIA GeForce RTX 3080", "RTX 3080"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("AMD Instinct MI250X", "MI250X GCD"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD_Instinct_MI300X_OAM", "MI300X"),
        ("AMD Instinct MI325X", "MI325X"),
        ("AMD Instinct MI355X", "MI355X"),
        ("TPU v4", "TPU v4"),
        ("TPU v5 lite", "TPU v5e"),
        ("TPU v5p", "TPU v5p"),
        ("TPU v5", "TPU v5p"),
        ("TPU v6e", "TPU v6e"),
        ("TPU v6 lite", "TPU v6e"),
        ("TPU7x", "TPU v7"),
    ],
)
def test_a_name_a_tool_writes_finds_its_device(seen: str, expected: str) -> None:
    assert device(seen).name == expected


def test_gb300_is_not_taken_for_b300() -> None:
    assert device("NVIDIA GB300").name == "GB300"
    assert device("NVIDIA GB300").peak_flops("bf16") == 2.5e15
    assert device("NVIDIA B300").peak_flops("bf16") == 2.25e15


def test_every_catalog_name_finds_itself() -> None:
    assert [device(name).name for name in names()] == names()


def test_reported_memory_shows_40_gb_from_80_gb() -> None:
    small = device("A100", memory_bytes=42_297_524_224)
    assert small.memory_bytes == 40 * GIB
    assert small.memory_bandwidth_bytes_per_s == 1555e9
    assert device("A100", memory_bytes=85_174_583_296).memory_bytes == 80 * GIB


def test_a_vague_name_keeps_only_what_its_models_share() -> None:
    vague = device("nvidia_a100")
    assert vague.peak_flops("bf16") == 312e12
    assert vague.compute_units == 108
    assert vague.memory_bytes is None
    assert vague.memory_bandwidth_bytes_per_s is None


@pytest.mark.parametrize("vague", ["H100", "nvidia-h100-80gb", "V100"])
def test_a_vague_name_whose_models_share_no_peak_is_refused(vague: str) -> None:
    with pytest.raises(NotMeasurable, match="does not say which") as refusal:
        device(vague)
    assert refusal.value.fix


@pytest.mark.parametrize(
    "unknown",
    [
        "",
        "NVIDIA A10G",
        "NVIDIA GH200 480GB",
        "AMD Instinct MI308X",
        "NVIDIA H20-3e",
        "Tesla V100S-PCIE-32GB",
    ],
)
def test_an_unknown_device_has_no_default(unknown: str) -> None:
    with pytest.raises(NotMeasurable) as refusal:
        device(unknown)
    assert refusal.value.fix


@pytest.mark.parametrize(
    "related",
    [
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3080 Laptop GPU",
        "NVIDIA GeForce RTX 3080 Ti",
        "Tesla V100-SXM3-32GB",
        "AMD Instinct MI250X/MI250",
    ],
)
def test_a_slice_or_a_sibling_is_not_taken_for_the_device(related: str) -> None:
    with pytest.raises(NotMeasurable, match="no figures are known"):
        device(related)


def test_memory_that_does_not_fit_the_name_is_refused() -> None:
    assert device("NVIDIA GeForce RTX 3080", memory_bytes=10_736_893_952).name == "RTX 3080"
    with pytest.raises(NotMeasurable, match="memory"):
        device("NVIDIA GeForce RTX 3080", memory_bytes=12 * GIB)


def test_memory_reduced_by_ecc_still_fits() -> None:
    assert device("NVIDIA A40", memory_bytes=46_068 * 2**20).name == "A40"


def test_a_near_miss_is_pointed_out() -> None:
    with pytest.raises(NotMeasurable, match=r"did you mean.*MI300X"):
        device("MI300")


@pytest.mark.parametrize(
    ("name", "dtype", "units", "clock_hz", "operations"),
    [
        # operations per unit and clock, from the architecture papers: an independent way to the same peak
        ("A100 SXM 80GB", "bf16", 108, 1.41e9, 2048),
        ("A100 SXM 80GB", "fp32", 108, 1.41e9, 128),
        ("V100 SXM2 16GB", "fp16", 80, 1.53e9, 1024),
        ("H100 SXM", "bf16", 132, 1.83e9, 4096),
        ("RTX 4090", "bf16", 128, 2.52e9, 512),
        ("RTX 3080", "bf16", 68, 1.71e9, 512),
        ("L40S", "fp32", 142, 2.52e9, 256),
        ("MI250X whole", "bf16", 220, 1.7e9, 1024),
        ("MI300X", "bf16", 304, 2.1e9, 2048),
        ("MI300X", "fp64", 304, 2.1e9, 256),
        ("MI355X", "fp8", 256, 2.4e9, 8192),
        ("MI355X", "fp4", 256, 2.4e9, 16384),
    ],
)
def test_the_peak_is_units_times_clock_times_operations(
    name: str, dtype: str, units: int, clock_hz: float, operations: int
) -> None:
    found = device(name)
    assert found.compute_units == units
    assert found.peak_flops(dtype) == pytest.approx(units * clock_hz * operations, rel=0.015)


def test_two_dies_make_one_mi250x() -> None:
    half, whole = device("MI250X GCD"), device("MI250X whole")
    assert {dtype: 2 * peak for dtype, peak in half.peaks.items()} == dict(whole.peaks)
    assert half.memory_bytes is not None
    assert 2 * half.memory_bytes == whole.memory_bytes


def test_the_peak_takes_any_spelling_of_the_dtype() -> None:
    hopper = device("NVIDIA H100 80GB HBM3")
    assert hopper.peak_flops("c10::BFloat16") == hopper.peak_flops("bf16") == 1979e12 / 2
    assert hopper.peak_flops("Float8_e4m3fn") == hopper.peak_flops("fp8") == 3958e12 / 2


def test_an_unknown_peak_is_not_guessed_from_another() -> None:
    with pytest.raises(NotMeasurable, match="no dense bf16 peak"):
        device("Tesla V100-SXM2-32GB").peak_flops("bf16")
    with pytest.raises(NotMeasurable, match="no dense int64 peak"):
        device("NVIDIA H200").peak_flops("int64")


def test_the_link_is_split_into_two_directions() -> None:
    h100, h800 = device("H100 SXM"), device("NVIDIA H800")
    assert h100.link_bytes_per_s_per_direction == 450e9
    assert h800.link_bytes_per_s == 400e9
    assert device("NVIDIA L4").link_bytes_per_s_per_direction is None


def test_a_figure_names_its_source() -> None:
    h100 = device("H100 SXM")
    assert "data sheet" in h100.source("bf16")
    assert "white paper" in h100.source("compute_units")


def test_only_the_beginning_of_a_name_is_searched() -> None:
    assert device("x" * (SEARCHED - 5) + " h200").name == "H200 SXM"
    with pytest.raises(NotMeasurable, match="unknown device"):
        device("x" * SEARCHED + " h200")
