"""Cost of steps and of tokens, at prices with which the arithmetic can be done by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from ccl_bench.analysis.derived import DERIVED
from ccl_bench.analysis.facts import Fact, Facts
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics.cost import cost_per_million_output_tokens, cost_per_million_tokens, cost_per_step
from ccl_bench.schema import TABLES
from ccl_bench.side_files import DevicePrice, Prices

DERIVED.load()
SECOND = 1_000_000_000
H100 = "NVIDIA H100 80GB HBM3"
# 8 devices for steps of 1 and 2 s
TIMES = DERIVED.get("step_times").table.frame(
    {"rank": [0, 0], "step": [0, 1], "duration_ns": [SECOND, 2 * SECOND], "source": ["mark"] * 2}
)


def facts(**more: Any) -> Facts:
    """Return the facts of a run of 8 devices and 5,000 tokens a step."""
    values = {"world_size": 8, "tokens_per_step": 5000} | more
    return Facts(**{name: Fact(value, "workload card") for name, value in values.items()})


def seen(*names: str) -> pl.DataFrame:
    """Return the devices that traces show."""
    return pl.DataFrame({"name": [*names]}, schema={"name": pl.String})


def listed(**usd: float) -> Prices:
    """Return a file of prices by device; `_` stands for a space."""
    each = (DevicePrice(name.replace("_", " "), price, "2026-03-01", "a bill") for name, price in usd.items())
    return Prices(tuple(each))


def test_a_step_costs_its_time_on_all_devices() -> None:
    found = cost_per_step(TIMES, seen(H100), facts(), listed(H100_SXM=4.5))
    # 4.5 USD an hour for 8 devices are 0.01 USD a second
    assert found.value == pytest.approx(0.015)
    assert found.details["per_step_usd"] == pytest.approx({"0": 0.01, "1": 0.02})
    assert found.details["price_source"] == "prices.toml: a bill"
    assert (found.details["price_date"], found.details["price_device"]) == ("2026-03-01", "H100 SXM")
    tokens = cost_per_million_tokens(TIMES, seen(H100), facts(), listed(H100_SXM=4.5))
    assert tokens.value == pytest.approx(0.015 * 200)
    assert tokens.details["per_step_usd_per_mtoken"] == pytest.approx({"0": 2, "1": 4})
    assert (tokens.details["cost_per_step_usd"], tokens.details["devices"]) == (pytest.approx(0.015), 8)
    with pytest.raises(NotMeasurable, match="number of tokens in a step"):
        cost_per_million_tokens(TIMES, seen(H100), Facts(), listed(H100_SXM=4.5))
    with pytest.raises(NotMeasurable, match="number of devices of the run is unknown"):
        cost_per_step(TIMES, seen(H100), Facts(), listed(H100_SXM=4.5))


def test_output_tokens_cost_the_time_of_the_benchmark() -> None:
    rows = pl.DataFrame(
        {"tool": "vllm", "trace": 0, "benchmark": 0, "request": ["a", "b"], "status": "ok"}
        | {"start_ns": [0, SECOND], "end_ns": [SECOND, 4 * SECOND], "output_tokens": [30, 50]}
    )
    empty = TABLES["requests"].empty().with_columns(trace=pl.lit(None, pl.Int64))
    statistics = TABLES["serving_statistics"].empty().with_columns(trace=pl.lit(None, pl.Int64))
    requests = pl.concat([empty, rows], how="diagonal_relaxed")
    found = cost_per_million_output_tokens(
        requests, statistics, seen(), facts(device=H100), listed(H100_SXM=4.5)
    )
    # 0.01 USD a second for 4 s and 80 tokens; vLLM's clock starts with the host, which does not matter here
    assert found.value == pytest.approx(0.04 / 80 * 1e6)
    assert found.details["output_throughput_tokens_per_s"] == pytest.approx(20)


@pytest.mark.parametrize(
    ("prices", "devices", "on_card", "usd"),
    [
        (None, (H100,), {"price_per_device_hour": 3.0}, 3.0),
        (listed(A100=1), (H100,), {"price_per_device_hour": 3.0}, 3.0),
        (listed(H100_SXM=2), (), {"device": "nvidia h100 sxm"}, 2),
        (listed(H100=2, A100=1), (H100,), {}, 2),  # of every H100
        (listed(H100=2, H100_SXM=4), (H100,), {}, 4),  # the price of fewer devices comes first
        (listed(Our_Chip_3=7), ("our-chip 3",), {}, 7),
        (listed(H100_SXM=2), (H100, "NVIDIA H100 SXM5 80GB"), {}, 2),  # two names of one model
    ],
)
def test_the_price_is_that_of_the_device_in_the_file_else_that_of_the_card(
    prices: Prices | None, devices: tuple[str, ...], on_card: dict[str, Any], usd: float
) -> None:
    found = cost_per_step(TIMES, seen(*devices), facts(**on_card), prices)
    assert found.details["price_per_device_hour_usd"] == usd
    assert found.value == pytest.approx(usd * 8 * 1.5 / 3600)
    assert found.findings == []


@pytest.mark.parametrize(
    ("prices", "devices", "reason"),
    [
        (None, (H100,), "price of a device is unknown"),
        (listed(A100=1, H100_PCIe=2), (H100,), f"no price for {H100}, only for A100, H100 PCIe"),
        (listed(H100_SXM=2), ("NVIDIA H100",), "no price for NVIDIA H100, only"),  # it may be an H100 PCIe
        (listed(H100_SXM=2), (), "the device of the run is unknown"),
        (listed(H100_SXM=2), (H100, "NVIDIA A100-SXM4-80GB"), "the run used several"),
        (listed(H100_SXM=2, H100_SXM5=3), (H100,), "several prices for .*: 2 of 2026-03-01 and 3 of"),
    ],
)
def test_without_a_price_of_the_device_there_is_no_cost(
    prices: Prices | None, devices: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(NotMeasurable, match=reason) as refused:
        cost_per_step(TIMES, seen(*devices), facts(), prices)
    assert "prices.toml" in refused.value.fix


def test_another_price_on_the_card_is_a_finding() -> None:
    found = cost_per_step(TIMES, seen(H100), facts(price_per_device_hour=3.0), listed(H100_SXM=4.5))
    (finding,) = found.findings
    assert (finding.code, found.details["price_per_device_hour_usd"]) == ("facts-disagree", 4.5)
    assert "4.5 in prices.toml and 3 in the workload card" in finding.message
