"""The data files: every fact has a source, and every pattern compiles and is reachable."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ccl_bench.catalog import load_data
from ccl_bench.catalog.devices import device
from ccl_bench.catalog.kernel_types import types

TABLES = [
    ("devices", "device"),
    ("dtypes", "dtype"),
    ("collectives", "collective"),
    ("collectives", "kernel"),
    ("collectives", "fused"),
    ("collectives", "launcher"),
    ("collectives", "carried_out_by_gloo"),
    ("models", "model"),
    ("kernel_types", "rule"),
    ("accelerators", "backend"),
    ("accelerators", "host_backend"),
    ("accelerators", "operator"),
    ("collective_reference", "system"),
]


@pytest.mark.parametrize(("file", "table"), TABLES)
def test_every_row_has_a_source_with_title_and_document(file: str, table: str) -> None:
    sources = load_data(file)["sources"]
    for row in load_data(file)[table]:
        keys = [row["source"], *row.get("sources", {}).values()]
        for key in keys:
            assert sources[key]["title"]
            assert sources[key]["document"].startswith("https://")


def test_every_figure_of_every_device_has_a_source() -> None:
    for row in load_data("devices")["device"]:
        figures = set(row) - {"source", "sources", "peak_flops"} | set(row["peak_flops"])
        found = device(row["name"])
        assert set(found.sources) == figures
        for figure in figures:
            assert found.source(figure)


def test_a_source_given_for_one_figure_belongs_to_a_figure_of_that_device() -> None:
    for row in load_data("devices")["device"]:
        assert set(row.get("sources", {})) <= set(row) | set(row["peak_flops"])


@pytest.mark.parametrize(
    "file", ["devices", "models", "dtypes", "collectives", "kernel_types", "accelerators"]
)
def test_no_source_is_left_unused(file: str) -> None:
    used: set[str] = set(load_data(file).get("spelling_sources", []))
    for name, table in TABLES:
        if name == file:
            for row in load_data(file)[table]:
                used |= {row["source"], *row.get("sources", {}).values()}
    assert used == set(load_data(file)["sources"])


def patterns() -> list[str]:
    rules: list[dict[str, Any]] = [
        *load_data("collectives")["kernel"],
        *load_data("collectives")["fused"],
        *load_data("collectives")["launcher"],
        load_data("collectives")["local"],
        *load_data("kernel_types")["rule"],
    ]
    return [
        *(rule["match"] for rule in rules),
        *(rule["pattern"] for rule in load_data("devices")["match"]),
        *load_data("collectives")["annotations"]["prefixes"],
    ]


@pytest.mark.parametrize("pattern", patterns())
def test_every_pattern_compiles_and_does_not_match_nothing(pattern: str) -> None:
    assert not re.compile(pattern).search("")


def test_every_match_names_devices_that_exist_or_says_why_not() -> None:
    known = {row["name"] for row in load_data("devices")["device"]}
    for rule in load_data("devices")["match"]:
        assert set(rule["devices"]) <= known
        assert bool(rule["devices"]) != ("why" in rule)


def test_every_rule_gives_a_type_that_exists() -> None:
    assert {rule["type"] for rule in load_data("kernel_types")["rule"]} <= set(types())


def test_peaks_rise_as_the_element_narrows() -> None:
    for row in load_data("devices")["device"]:
        peaks = row["peak_flops"]
        ladder = [peaks[dtype] for dtype in ("tf32", "bf16", "fp8", "fp4") if dtype in peaks]
        assert ladder == sorted(ladder)
        if "bf16" in peaks:
            assert peaks["bf16"] == peaks.get("fp16", peaks["bf16"])
