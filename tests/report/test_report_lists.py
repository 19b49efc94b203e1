"""Lists to look into, made by hand: operators, ranges, kernels, products, calls, and who sends to whom."""

from __future__ import annotations

from typing import Any

import pytest
from observations import looked, quantity, rows

from ccl_bench.catalog import devices
from ccl_bench.report.page_model import Short
from ccl_bench.report.sections.drill_down import calls, kernel_table, operators, products
from ccl_bench.result.drill_down import (
    CallKind,
    DrillDown,
    KernelTime,
    OperatorTime,
    PairTraffic,
    ProductShape,
    RangeTime,
)
from ccl_bench.result.inspection import InspectedDevice

H100 = "NVIDIA H100 80GB HBM3"


def test_operators_are_listed_with_what_was_left_out() -> None:
    found = DrillDown(
        operators=[OperatorTime("aten::mm", 2.5, 0.004, 0.003, 2, 0.25)], left_out={"operators": 1200}
    )
    [shown] = operators(looked(drill_down=found)).tables
    assert rows(shown) == [["aten::mm", "2.5", "3 ms", "4 ms", "2", "250 ms"]]
    assert shown.note == "1,200 operators with less time not shown."
    assert (shown.numeric, shown.first) == ({1, 2, 3, 4, 5}, 10)


@pytest.mark.parametrize(("length", "is_short"), [(64, False), (65, True)])
def test_names_of_more_than_64_letters_are_shown_in_short(length: int, is_short: bool) -> None:
    found = DrillDown(operators=[OperatorTime("x" * length, 1, 1, 1, 0, 0)])
    [shown] = operators(looked(drill_down=found)).tables
    assert isinstance(shown.rows[0][0], Short) is is_short


RANGES = [
    RangeTime(["model"], 1, 0.010, 3, 0.002),
    RangeTime(["model", "layer"], 2, 0.004, 3, 0.005),
    RangeTime(["model", "layer", "norm"], 2, 0.0045, 0, 0.0),
]


def test_ranges_are_drawn_by_the_device_time_of_what_they_launched_themselves() -> None:
    section = operators(looked(drill_down=DrillDown(ranges=RANGES)))
    [chart], [shown] = section.charts, section.tables
    assert chart.title == "Device time by named range"
    assert chart.summary == "The largest part is model › layer itself: 5 ms of a mean step."
    assert rows(chart.table) == [["model", "2 ms"], ["model › layer", "5 ms"]]
    boxes = [(box["name"], box["value"], box["level"]) for box in chart.spec["data"]["values"]]
    assert boxes == [("model", pytest.approx(7), 0), ("layer", pytest.approx(5), 1)]
    assert rows(shown)[1] == ["model › layer", "2", "4 ms", "3", "5 ms"]
    assert (shown.numeric, shown.wide, shown.first) == ({1, 2, 3, 4}, {0}, 10)


def test_without_a_device_ranges_are_drawn_by_their_time_in_none_inside() -> None:
    on_cpu = [RangeTime(each.path, each.calls, each.host_s, 0, 0.0) for each in RANGES]
    [chart] = operators(looked(drill_down=DrillDown(ranges=on_cpu))).charts
    assert chart.title == "Time on the CPU by named range"
    # 10 - 4 ms of the model; 4 - 4.5 ms of the layer is nothing
    assert rows(chart.table) == [["model", "6 ms"], ["model › layer › norm", "4.5 ms"]]
    boxes = [(box["name"], box["value"]) for box in chart.spec["data"]["values"]]
    assert boxes == [
        ("model", pytest.approx(10.5)),
        ("layer", pytest.approx(4.5)),
        ("norm", pytest.approx(4.5)),
    ]
    assert chart.summary == "The largest part is model itself: 6 ms of a mean step."


def test_one_range_with_time_is_not_drawn() -> None:
    found = DrillDown(ranges=[RANGES[0], RANGES[2]])
    assert operators(looked(drill_down=found)).charts == ()


def test_kernels_have_their_mean_time() -> None:
    found = DrillDown(
        kernels=[
            KernelTime("gemm<float>", "gemm", "gemm", 4, 0.002, 12.5),
            KernelTime("copy", "copy", "other", 0, 0.0, 0.0),
        ],
        left_out={"kernels": 1},
    )
    shown = kernel_table(found)
    assert rows(shown) == [
        ["gemm", "gemm", "4", "2 ms", "500 µs", "12.50 %"],
        ["copy", "other", "0", "0 s", "-", "0.00 %"],
    ]
    assert shown.note == "1 kernel with less time not shown."
    assert (shown.numeric, shown.first) == ({2, 3, 4, 5}, 10)


def _product(rate: float | None, **more: object) -> ProductShape:
    known: dict[str, Any] = {"dtype": "c10::BFloat16", "is_tf32": False, "on_device": True}
    known |= {"calls": 4, "flops": 2.0, "time_s": 0.002, "flops_per_s": rate}
    return ProductShape("aten::mm", 1, 4096, 1024, 2048, **known | more)


def test_products_have_their_rate_and_its_share_of_the_peak() -> None:
    peak = devices.device(H100).peak_flops("bf16")
    context = looked(
        drill_down=DrillDown(products=[_product(peak / 4), _product(None), _product(2e12, dtype="odd")])
    )
    context.inspection.devices.append(InspectedDevice(H100, 80 * 10**9, 132, 1))
    [shown] = products(context).tables
    assert (shown.numeric, shown.first) == ({1, 2, 3, 4, 6, 7, 8, 9, 10}, 10)
    assert quantity(shown.rows[2][9]).value == 2.0  # 2e12 operations per second
    assert quantity(shown.rows[0][10]).value == 25.0
    assert shown.note == ""
    first, unknown, odd = rows(shown)
    assert first[:9] == ["aten::mm", "1", "4,096", "1,024", "2,048", "bf16", "4", "2 ms", "500 µs"]
    assert first[10] == "25.00 %"
    assert unknown[9:] == ["-", "-"]
    assert (odd[5], odd[9:]) == ("odd", ["2", "-"])


def test_products_on_a_cpu_have_no_peak() -> None:
    context = looked(drill_down=DrillDown(products=[_product(2.5e12, on_device=False)]))
    context.inspection.devices.append(InspectedDevice(H100, 80 * 10**9, 132, 1))
    assert rows(products(context).tables[0])[0][9:] == ["2.5", "-"]


def test_calls_say_what_their_bandwidth_is_over() -> None:
    known: dict[str, Any] = {"collective": "all_reduce", "dtype": "float", "dimension": "tp", "calls": 2}
    known |= {"time_s": 0.006, "waiting_s": 0.001, "transfer_s": 0.002, "unknown_s": 0.003}
    kinds = [
        CallKind(size_bytes=2**20, size=4, skew_s=0.004, bus_gb_per_s=150.0, is_wait_free=True, **known),
        CallKind(size_bytes=None, size=None, skew_s=None, bus_gb_per_s=None, is_wait_free=True, **known),
        CallKind(size_bytes=8, size=2, skew_s=0.0, bus_gb_per_s=0.5, is_wait_free=False, **known),
    ]
    section = calls(looked(drill_down=DrillDown(calls=kinds)))
    shown = rows(section.tables[0])
    parts = ["6 ms", "1 ms", "2 ms", "3 ms"]
    assert shown[0] == ["all_reduce", "fp32", "1.05 MB", "tp", "4", "2", *parts, "4 ms", "150", "transfer"]
    assert shown[1][2:] == ["unknown", "tp", "unknown", "2", *parts, "-", "-", "-"]
    assert shown[2][-3:] == ["0 s", "0.5", "whole calls"]
    assert section.charts == ()
    assert len(section.notes) == 1
    assert (section.tables[0].numeric, section.tables[0].first) == ({2, 4, 5, 6, 7, 8, 9, 10, 11}, 10)


def _sent(pairs: list[PairTraffic]) -> tuple:
    kind = CallKind("send", "float", 8, "pp", 2, 1, 0.0, 0.0, 0.0, 0.0, None, None, True)
    return calls(looked(drill_down=DrillDown(calls=[kind], pairs=pairs))).charts


@pytest.mark.parametrize(
    ("scale", "unit", "drawn"),
    [
        (1, "B", [1.0, 900.0]), (1e3, "kB", [1.0, 900.0]), (1e6, "MB", [1.0, 900.0]),
        (1e9, "GB", [1.0, 900.0]), (1e12, "TB", [1.0, 900.0]), (1 / 900, "B", [1 / 900, 1.0]),
        (1000 / 900, "kB", [1 / 900, 1.0]), (1e6 / 900, "MB", [1 / 900, 1.0]),
        (1 / 1800, "B", [1 / 1800, 0.5]),
    ],
)  # fmt: skip
def test_who_sends_to_whom_is_drawn_in_the_unit_of_the_most(
    scale: float, unit: str, drawn: list[float]
) -> None:
    [chart] = _sent([PairTraffic(0, 1, 1, scale), PairTraffic(1, 2, 1, 900 * scale)])
    cells = chart.spec["data"]["values"]
    assert [(cell["row"], cell["column"]) for cell in cells] == [("0", "1"), ("1", "2")]
    assert [cell["value"] for cell in cells] == pytest.approx(drawn)
    assert chart.spec["encoding"]["color"]["legend"]["title"] == f"sent, {unit}"
    assert chart.summary.startswith("Rank 1 sends most, to rank 2: ")
    assert [row[0] for row in rows(chart.table)] == ["0", "1", "2"]
    assert [row[1] for row in rows(chart.table)] == ["", "", ""]


@pytest.mark.parametrize(("ranks", "is_drawn"), [(2, False), (3, True), (64, True), (65, False)])
def test_who_sends_to_whom_is_drawn_of_3_to_64_ranks(ranks: int, is_drawn: bool) -> None:
    pairs = [PairTraffic(rank, rank + 1, 1, 8.0) for rank in range(ranks - 1)]
    assert len(_sent(pairs)) == is_drawn


def test_pairs_are_listed_with_their_bytes() -> None:
    kind = CallKind("send", "float", 8, "pp", 2, 1, 0.0, 0.0, 0.0, 0.0, None, None, True)
    found = DrillDown(calls=[kind], pairs=[PairTraffic(3, 4, 1200, 2e6)], left_out={"pairs": 2})
    section = calls(looked(drill_down=found))
    shown = section.tables[1]
    assert rows(shown) == [["3", "4", "1,200", "2 MB"]]
    assert shown.note == "2 pairs with fewer bytes not shown."
    assert (shown.numeric, shown.first, section.notes) == ({2, 3}, 10, ())
