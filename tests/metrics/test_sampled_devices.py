"""Metrics of monitoring tools on samples of three ranks that can be followed by hand.

Rank 0 has steps of 1 and 3 s, rank 1 of 2, 2 and 2 s, rank 2 one of 4 s; all begin at 0.
"""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics.device_samples import (
    device_temperature,
    nvlink_throughput,
    power_draw,
    sm_clock,
    throttled_time,
)
from ccl_bench.side_files.device_samples import DeviceSamples, SampledDevice, SampleSeries

SECOND = 1_000_000_000
NO_DEVICES = pl.DataFrame(schema={"rank": pl.Int64, "device": pl.Int64})
LENGTHS = {0: (1, 3), 1: (2, 2, 2), 2: (4,)}


def steps_of(lengths: dict[int, tuple[int, ...]]) -> pl.DataFrame:
    """Return steps of so many seconds, one after the other, of each rank."""
    rows = []
    for rank, each in lengths.items():
        for place, length in enumerate(each):
            begin = sum(each[:place])
            rows.append(
                {"trace": rank, "rank": rank, "step": place, "source": "mark"}
                | {"device_start_ns": begin * SECOND, "device_end_ns": (begin + length) * SECOND}
            )
    return pl.DataFrame(rows)


STEPS = steps_of(LENGTHS)


def samples(
    quantity: str, *by_rank: dict[float, float], more: tuple[SampleSeries, ...] = ()
) -> DeviceSamples:
    """Return samples of one quantity on the device of each rank, second → value."""
    own = tuple(
        SampleSeries(
            SampledDevice("log", index=rank), quantity, False, [int(at * SECOND) for at in values],
            [*values.values()],
        )
        for rank, values in enumerate(by_rank)
    )  # fmt: skip
    return DeviceSamples((*own, *more), {f"log#{rank}": rank for rank in range(len(by_rank))})


def measured(of: Any, logged: DeviceSamples, *more: Any, steps: pl.DataFrame = STEPS) -> Any:
    return of(logged, steps, NO_DEVICES, *more)


def test_power_has_its_extreme_its_samples_and_how_much_of_the_steps_they_cover() -> None:
    # rank 0 rises from 100 to 500 W over its 4 s; rank 1 is known for the last 4.5 of its 6 s
    logged = samples("power_w", {0: 100, 4: 500}, {1.5: 200, 3: 200, 6: 200}, {0: 40, 3: 40, 5: 40})
    found = measured(power_draw, logged)
    assert found.value == pytest.approx((300 + 200 + 40) / 3)
    assert found.details["per_rank_w"] == pytest.approx({"0": 300, "1": 200, "2": 40})
    # a sample at the end of the last step is in none: 1, 2 and 2 are left
    assert (found.details["samples_count"], found.details["max_w"]) == (5, 200)
    assert found.details["covered_pct"] == pytest.approx(75)
    assert found.ranks == [0, 1, 2]


@pytest.mark.parametrize(("known_s", "is_measured"), [(2.0, True), (1.75, False)])
def test_samples_must_cover_half_of_the_steps_of_every_rank(known_s: float, is_measured: bool) -> None:
    short = {0: 60, known_s: 60}
    logged = samples("power_w", {0: 10, 4: 10}, {0: 70, 6: 70}, short)
    if is_measured:
        assert measured(power_draw, logged).value > 0
        return
    with pytest.raises(NotMeasurable, match="cover 44 % of the steps of rank 2"):
        measured(power_draw, logged)


def test_clocks_below_the_latest_limit_are_a_share_of_samples() -> None:
    clocks = ({0: 1500, 1: 1600, 2: 1300, 3: 1200, 3.5: 1599}, {0: 1700, 5: 1400}, {0: 900, 3: 800})
    limits = [([2000.0, 1600.0], 0), ([1700.0], 1)]
    more = tuple(
        SampleSeries(
            SampledDevice("log", index=rank), "sm_clock_max_mhz", False, [*range(len(values))], values
        )
        for values, rank in limits
    )
    found = measured(sm_clock, samples("sm_clock_mhz", *clocks, more=more))
    # 4 of 5 below 1,600; 1 of 2 below 1,700; the third limit is unknown
    assert found.details["per_rank_below_maximum_pct"] == pytest.approx({"0": 80, "1": 50})
    assert (found.details["min_mhz"], found.ranks) == (800, [0, 1, 2])
    alone = measured(sm_clock, samples("sm_clock_mhz", *clocks))
    assert "per_rank_below_maximum_pct" not in alone.details


IDLE, POWER_CAP, HARDWARE, HEAT = 0x1, 0x4, 0x8, 0x20


def test_reasons_that_hold_clocks_down_are_shares_of_samples_of_each_rank() -> None:
    masks = (
        {0: POWER_CAP, 1: POWER_CAP | HEAT, 2: IDLE, 3: HEAT, 3.5: 0},
        {0: IDLE, 1: HARDWARE, 2: 0, 5: 0},
        {0: POWER_CAP | IDLE},
    )
    found = measured(throttled_time, samples("clock_reasons", *masks))
    # 3 of 5, 1 of 4 and 1 of 1
    assert found.details["per_rank_pct"] == pytest.approx({"0": 60, "1": 25, "2": 100})
    assert found.value == pytest.approx(185 / 3)
    shares = {name: share for name, share in found.details["per_reason_pct"].items() if share}
    expected = {"sw_power_cap": (40 + 0 + 100) / 3, "hw_slowdown": 25 / 3, "sw_thermal_slowdown": 40 / 3}
    assert shares == pytest.approx(expected)
    assert found.ranks == [0, 1, 2]


def test_the_highest_temperature_is_of_any_rank_inside_its_steps() -> None:
    heat = ({0: 61, 3: 64, 4.5: 90}, {0: 66, 1: 73, 5: 70}, {-1: 88, 0: 50})
    found = measured(device_temperature, samples("temperature_c", *heat))
    assert found.value == 73
    assert found.details["per_rank_max_c"] == {"0": 64, "1": 73, "2": 50}
    assert found.ranks == [0, 1, 2]


def test_both_directions_of_nvlink_add_up_to_the_rate() -> None:
    ways = {
        "tx": ({0: 30e9, 4: 30e9}, {0: 60e9, 6: 60e9}, {0: 30e9, 4: 30e9}),
        "rx": ({0: 8e9, 4: 8e9}, {0: 5e9, 6: 5e9}, {0: 5e9, 4: 5e9}),
    }
    both = [samples(f"nvlink_{way}_bytes_per_s", *by_rank) for way, by_rank in ways.items()]
    found = measured(nvlink_throughput, DeviceSamples((*both[0].series, *both[1].series), both[0].ranks))
    assert found.details == pytest.approx({"tx_gb_per_s": 40, "rx_gb_per_s": 6})
    assert (found.value, found.ranks) == (pytest.approx(46), [0, 1, 2])
