"""Energy of steps and of a benchmark, on samples whose integrals can be worked out by hand.

Rank 0 has steps of 1 and 3 s, rank 1 of 2, 2 and 2 s; all begin at 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from ccl_bench.analysis.facts import Fact, Facts
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics import METRICS
from ccl_bench.metrics.device_samples import power_draw
from ccl_bench.metrics.energy import (
    energy_per_output_token,
    energy_per_step,
    energy_per_token,
    output_throughput_per_watt,
    throughput_per_watt,
)
from ccl_bench.metrics.shared.energy import energy_in
from ccl_bench.schema import TABLES
from ccl_bench.side_files.device_samples import DeviceSamples, SampledDevice, SampleSeries

if TYPE_CHECKING:
    from collections.abc import Mapping

SECOND = 1_000_000_000
NO_DEVICES = pl.DataFrame(schema={"rank": pl.Int64, "device": pl.Int64})


def steps_of(lengths: dict[int | None, tuple[int, ...]]) -> pl.DataFrame:
    """Return steps of so many seconds, one after the other, of each rank."""
    rows = [
        {"trace": trace, "rank": rank, "step": place, "source": "mark"}
        | {"device_start_ns": sum(each[:place]) * SECOND, "device_end_ns": sum(each[: place + 1]) * SECOND}
        for trace, (rank, each) in enumerate(lengths.items())
        for place in range(len(each))
    ]
    return pl.DataFrame(rows, schema_overrides={"rank": pl.Int64})


STEPS = steps_of({0: (1, 3), 1: (2, 2, 2)})


def series(values: Mapping[float, float], index: int = 0, quantity: str = "power_w") -> SampleSeries:
    """Return samples given as second → value."""
    times = [round(second * SECOND) for second in values]
    return SampleSeries(SampledDevice("log", index=index), quantity, False, times, [*values.values()])


def logged(*by_rank: Mapping[float, float], quantity: str = "power_w") -> DeviceSamples:
    """Return samples of one device for each rank."""
    each = tuple(series(values, rank, quantity) for rank, values in enumerate(by_rank))
    return DeviceSamples(each, {f"log#{rank}": rank for rank in range(len(by_rank))})


def of_steps(of: Any, samples: DeviceSamples, facts: Facts | None = None, steps: pl.DataFrame = STEPS) -> Any:
    return of(samples, steps, NO_DEVICES, facts or Facts())


def evenly(first: float, last: float, watts: float) -> dict[float, float]:
    """Return a constant power, sampled each second and at the end."""
    return {first + second: watts for second in range(int(last - first))} | {last: watts}


@pytest.mark.parametrize(
    ("power", "windows", "joules"),
    [
        (evenly(0, 4, 250), [(0, 4)], 1000),
        (evenly(-1, 9, 250), [(1, 2.5), (4, 4.5)], 500),
        ({0: 0, 2: 200, 4: 400}, [(0, 4)], 800),  # a ramp of 100 W a second
        ({0: 0, 2: 200, 4: 400}, [(1, 3)], 400),  # 100 W to 300 W; both borders between samples
        ({-1: 100, 0: 100, 1: 300, 3: 300}, [(0, 3)], 200 + 600),  # a step, with its edge of a second
        ({0: 100, 2: 300}, [(0.5, 1.0)], 0.5 * 175),  # inside one interval: 150 W to 200 W
    ],
)
def test_power_is_integrated_by_the_trapezoid_rule(
    power: dict[float, float], windows: list[tuple[float, float]], joules: float
) -> None:
    spans = [(round(start * SECOND), round(end * SECOND)) for start, end in windows]
    assert energy_in(series(power), spans) == pytest.approx(joules)


WINDOW = [(0, 6 * SECOND)]


@pytest.mark.parametrize(
    ("power", "reason"),
    [
        ({0: 1, 2.9: 1, 5.9: 1, 6: 1}, None),  # gaps of 2.9 and 3.0 s
        ({0: 1, 2.9: 1, 6: 1}, "gap of 3.1 s"),
        ({-3.1: 1, 0: 1, 3: 1, 6: 1, 9.1: 1}, None),  # longer gaps end where the window begins
        ({-3.1: 1, 0.001: 1, 3: 1, 6: 1}, "gap of 3.1 s"),
        ({0.5: 1, 3: 1, 6: 1}, "they begin 0.5 s after it begins"),
        ({0: 1, 3: 1, 5.75: 1}, "they end 0.25 s before it ends"),
        ({1: 1, 3: 1, 5: 1}, "begin 1 s after it begins and end 1 s before it ends"),
    ],
)
def test_samples_reach_the_borders_without_a_gap_above_three_seconds(
    power: dict[float, float], reason: str | None
) -> None:
    if reason is None:
        assert energy_in(series(power), WINDOW) == pytest.approx(6)
        return
    with pytest.raises(NotMeasurable, match=reason) as refused:
        energy_in(series(power), WINDOW)
    assert refused.value.fix.startswith("sample")


@pytest.mark.parametrize(
    ("counter", "joules"),
    [
        ({0: 1000, 2: 1100, 6: 1560}, 560),  # what happens between the borders is counted
        ({-1: 900, 1: 1100, 5: 1500, 7: 1700}, 600),
        ({-1: 0, 2: 0, 6: 600, 8: 700}, 600),  # as much as before is no reset
        ({-1.1: 0, 2: 0, 6: 600}, "gap of 3.1 s"),
        ({0: 1000, 4: 1200, 5: 1199, 6: 1300}, "was reset"),
        ({0.5: 1000, 6: 1600}, "begin 0.5 s after"),
        ({0: 1000, 1: 1100, 5.5: 1600}, "end 0.5 s before"),
    ],
)
def test_a_counter_gives_its_increase_between_the_borders(
    counter: dict[float, float], joules: float | str
) -> None:
    if isinstance(joules, str):
        with pytest.raises(NotMeasurable, match=joules):
            energy_in(series(counter, quantity="energy_j"), WINDOW)
        return
    assert energy_in(series(counter, quantity="energy_j"), WINDOW) == pytest.approx(joules)


CONSTANT = (evenly(0, 4, 100), evenly(0, 6, 200))
STATED = Facts(world_size=Fact(2, "card"), tokens_per_step=Fact(800, "card"))


def test_energy_is_that_of_one_step_of_each_rank_added_up() -> None:
    # 100 W for 4 s in 2 steps, 200 W for 6 s in 3
    found = of_steps(energy_per_step, logged(*CONSTANT), STATED)
    assert found.details["per_rank_j"] == pytest.approx({"0": 200, "1": 400})
    assert (found.value, found.details["devices"]) == (pytest.approx(600), 2)
    assert (found.details["source"], found.window) == ("samples of power", "mark")
    assert found.ranks == [0, 1]


def test_energy_of_a_token_and_tokens_for_a_joule_are_inverse() -> None:
    each = of_steps(energy_per_token, logged(*CONSTANT), STATED)
    assert each.value == pytest.approx(600 / 800)
    assert (each.details["energy_per_step_j"], each.details["tokens_per_step"]) == (pytest.approx(600), 800)
    # 100 W and 200 W; 800 tokens in a step of 2 s
    assert of_steps(throughput_per_watt, logged(*CONSTANT), STATED).value == pytest.approx(800 / 2 / 300)
    with pytest.raises(NotMeasurable, match="number of tokens"):
        of_steps(energy_per_token, logged(*CONSTANT))
    with pytest.raises(NotMeasurable, match="power is 0"):
        of_steps(throughput_per_watt, logged(evenly(0, 4, 0), evenly(0, 6, 0)), STATED)


def test_exactly_the_devices_of_the_run_count() -> None:
    with pytest.raises(NotMeasurable, match="only 2 of 3 ranks"):
        of_steps(energy_per_step, logged(*CONSTANT), Facts(world_size=Fact(3, "card")))
    with pytest.raises(NotMeasurable, match="only 1 of 2 ranks"):
        of_steps(energy_per_step, logged(CONSTANT[0]))
    # Kernels name devices 0 and 1, but those may be the numbers of CUDA_VISIBLE_DEVICES.
    used = pl.DataFrame({"rank": [0, 1], "device": [0, 1]})
    three = DeviceSamples((*logged(*CONSTANT).series, series(evenly(0, 6, 900), 2)))
    with pytest.raises(
        NotMeasurable, match="3 devices were sampled, but the run has 2 ranks: others"
    ) as more:
        energy_per_step(three, STEPS, used, Facts())
    assert "ranks.json" in more.value.fix
    named = DeviceSamples(three.series, {"log#0": 0, "log#1": 1})
    assert energy_per_step(named, STEPS, used, Facts()).value == pytest.approx(600)
    twice = DeviceSamples(three.series, {"log#0": 0, "log#1": 1, "log#2": 1})
    with pytest.raises(NotMeasurable, match="3 devices were sampled"):
        energy_per_step(twice, STEPS, used, Facts())


def test_counters_are_used_if_every_device_has_one() -> None:
    counters = logged({0: 50, 1: 80, 4: 290}, {0: 0, 6: 600, 7: 700}, quantity="energy_j")
    both = DeviceSamples((*logged(*CONSTANT).series, *counters.series), counters.ranks)
    found = of_steps(energy_per_step, both)
    assert found.details["per_rank_j"] == pytest.approx({"0": 240 / 2, "1": 600 / 3})
    assert found.details["source"] == "counters of energy"
    one = DeviceSamples((*logged(*CONSTANT).series, counters.series[0]), counters.ranks)
    assert of_steps(energy_per_step, one).details["source"] == "samples of power"


def test_a_trace_of_no_known_rank_counts_all_steps_and_names_no_rank() -> None:
    samples = DeviceSamples(logged(evenly(0, 4, 100)).series)
    found = of_steps(energy_per_step, samples, steps=steps_of({None: (1, 3)}))
    assert (found.value, found.ranks) == (pytest.approx(200), [])
    assert found.details["per_rank_j"] == pytest.approx({"unknown": 200})


START = 1_790_000_000
ENDS = {"ok": (0.5, 4.5), "failed": (0, 6), "warmup": (-9, -8)}
"""How a request ended → second in which it was sent, and in which it ended."""


def requests(at: float = START, **changes: Any) -> pl.DataFrame:
    """Return two requests that succeed with 3 and 7 tokens, a failed one and one of the warm-up."""
    rows = [
        {
            "tool": "aiperf",
            "trace": 0,
            "benchmark": 0,
            "request": f"{status}{tokens}",
            "status": status,
            "start_ns": round((at + ENDS[status][0]) * SECOND),
            "end_ns": round((at + ENDS[status][1]) * SECOND),
            "output_tokens": tokens,
        }
        | changes
        for status, tokens in (("ok", 3), ("ok", 7), ("failed", None), ("warmup", 900))
    ]
    return pl.DataFrame(rows, schema_overrides={"start_ns": pl.Int64, "end_ns": pl.Int64}).pipe(_whole)


def _whole(rows: pl.DataFrame) -> pl.DataFrame:
    empty = TABLES["requests"].empty().with_columns(trace=pl.lit(None, pl.Int64))
    return pl.concat(
        [empty, rows.with_columns(pl.col("output_tokens").cast(pl.Int64))], how="diagonal_relaxed"
    )


STATISTICS = TABLES["serving_statistics"].empty().with_columns(trace=pl.lit(None, pl.Int64))
SERVER = Facts(world_size=Fact(2, "card"))


def of_benchmark(of: Any, samples: DeviceSamples, rows: pl.DataFrame, facts: Facts = SERVER) -> Any:
    return of(samples, rows, STATISTICS, facts)


def server(*watts: float) -> DeviceSamples:
    """Return samples without ranks of devices of constant power, from a second before to one after."""
    logs = (series(evenly(START - 1, START + 7, each), index) for index, each in enumerate(watts))
    return DeviceSamples(tuple(logs))


def test_a_benchmark_s_energy_is_that_of_all_its_time_without_warm_up() -> None:
    found = of_benchmark(energy_per_output_token, server(100, 150), requests())
    # 6 s from the failed request's start to its end, 10 tokens of those that succeeded
    assert found.value == pytest.approx(6 * 250 / 10)
    assert found.details["per_device_j"] == pytest.approx({"log#0": 600, "log#1": 900})
    assert (found.details["duration_s"], found.details["output_tokens"]) == (6, 10)
    assert found.window == "serving benchmark, AIPerf"
    rate = of_benchmark(output_throughput_per_watt, server(100, 150), requests())
    assert rate.value == pytest.approx(10 / 6 / 250)


def test_a_benchmark_gives_power_where_there_are_no_steps() -> None:
    (_, otherwise) = METRICS.get(power_draw.__name__).sources
    assert of_benchmark(otherwise.compute, server(100, 150), requests()).value == pytest.approx(125)


@pytest.mark.parametrize(
    ("samples", "rows", "facts", "reason"),
    [
        (server(100), requests(), SERVER, "1 device was sampled, but the run has 2 devices: some"),
        (server(1, 2, 3), requests(), SERVER, "3 devices were sampled, but the run has 2 devices: o"),
        (server(1, 2), requests(), Facts(), "number of devices of the run is unknown"),
        (server(1, 2), requests(5000.0), SERVER, "times of the benchmark are not those of a wall clock"),
        (server(1, 2), requests(end_ns=None), SERVER, "does not say when its requests were sent and ended"),
        (server(1, 2), requests(START + 2), SERVER, "log#0 miss a part of the measured time: they end 1 s"),
        (server(1, 2), requests(output_tokens=None), SERVER, "does not say how many output tokens"),
        (DeviceSamples(), requests(), SERVER, "no samples of a monitoring tool"),
    ],
)  # fmt: skip
def test_a_benchmark_without_what_its_energy_needs_is_refused(
    samples: DeviceSamples, rows: pl.DataFrame, facts: Facts, reason: str
) -> None:
    with pytest.raises(NotMeasurable, match=reason):
        of_benchmark(energy_per_output_token, samples, rows, facts)


def test_only_devices_that_ranks_json_names_count_in_a_benchmark() -> None:
    named = DeviceSamples(server(100, 150, 900).series, {"log#0": 0, "log#1": 1})
    assert of_benchmark(energy_per_output_token, named, requests()).value == pytest.approx(150)
