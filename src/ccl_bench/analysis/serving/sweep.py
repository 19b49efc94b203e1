"""A serving sweep: the results of one configuration under several loads, as points of a curve."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ccl_bench.analysis.serving.benchmark import (
    Benchmark,
    all_tokens,
    benchmark_of,
    ends_of,
    gaps,
    list_results,
    load_words,
    rows_by_source,
    times_per_output_token,
    times_to_first_token,
    total,
    within_objectives,
)
from ccl_bench.analysis.serving.curves import interpolated, knee, pareto_front
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.result.sweep import Repeated, Sweep, SweepObjective, SweepPoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ccl_bench.analysis.facts import Fact, Facts

    BySource = tuple[pl.DataFrame, Mapping[tuple[int, int], pl.DataFrame]]
    """A table, and its rows by source."""

TABLES = ("requests", "serving_statistics", "serving_settings")
"""Tables behind a sweep."""

_QUANTITIES = ("ttft", "tpot", "latency")
_LENGTHS = ("input_tokens", "output_tokens")

_SAME_LENGTH = 0.05
"""Share by which the mean lengths of results may differ if none states a length.

Random lengths from 0.8 to 1 times the longest have a standard deviation of 6.4 % of their mean. The means
of 40, the fewest requests that InferenceX sends, then differ by 1.4 % (one sigma), and by 5 % once in 2,000
pairs.
"""

_ONE_CONFIGURATION = "keep the results of one configuration in a run directory, and compare directories"


@dataclass(frozen=True, slots=True)
class _Result:
    """One result of a serving benchmark."""

    benchmark: Benchmark
    settings: Mapping[str, str]
    concurrency: float | None
    request_rate: float | None


def sweep_of(
    requests: pl.DataFrame, statistics: pl.DataFrame, settings: pl.DataFrame, facts: Facts
) -> Sweep | None:
    """Return the sweep that several results of a run form, None if it has at most one result.

    Raises NotMeasurable if configurations or lengths differ, or a load is unknown.
    """
    sources = list_results(requests, statistics)
    if len(sources) < 2:
        return None
    tables = [(table, dict(rows_by_source(table))) for table in (requests, statistics, settings)]
    results = [_result(each, tables) for each in sources]
    configuration = _configuration(results)
    input_tokens, output_tokens = (_length(results, configuration, name) for name in _LENGTHS)
    if unknown := sum(each.concurrency is None and each.request_rate is None for each in results):
        raise NotMeasurable(
            f"{unknown} of {len(results)} results state neither a concurrency nor a request rate, so they "
            "have no place on the curve",
            fix="leave out summaries over several loads; limit the load, for example with --max-concurrency",
        )
    objectives = _objectives(results, facts)
    loads: defaultdict[tuple[float | None, float | None], list[_Result]] = defaultdict(list)
    for each in results:
        loads[each.concurrency, each.request_rate].append(each)
    rising = sorted(loads, key=lambda load: [math.inf if value is None else value for value in load])
    points = [_point(load, loads[load], objectives) for load in rising]
    devices, source, why = _devices(configuration, facts)
    sweep = Sweep(
        results[0].benchmark.tool,
        configuration,
        points,
        input_tokens,
        output_tokens,
        devices=devices,
        devices_from=source,
        why_no_devices=why,
        objectives_s=dict(objectives),
    )
    return _with_curve(sweep)


def throughput_at(sweep: Sweep, interactivity: float) -> float | None:
    """Return the output tokens per second, per device if known, at an interactivity in tokens/s per user.

    It is interpolated between neighbours of the Pareto front, both axes logarithmic; None out of its range.
    """
    xs, ys = _curve(sweep, sweep.front)
    return interpolated(xs, ys, interactivity)


def _with_curve(sweep: Sweep) -> Sweep:
    """Return a sweep with the front of its points, its knee, and the throughput at its objective."""
    drawn = [
        place
        for place, point in enumerate(sweep.points)
        if point.interactivity is not None and sweep.throughput(place)
    ]
    xs, ys = _curve(sweep, drawn)
    turn = knee(xs, ys)
    sweep = replace(
        sweep,
        front=[drawn[place] for place in pareto_front(xs, ys)],
        knee=None if turn is None else drawn[turn],
    )
    tpot_s = sweep.objectives_s.get("tpot")
    if not tpot_s:  # AIPerf accepts an objective of 0
        return sweep
    at = SweepObjective(tpot_s, 1 / tpot_s, throughput_at(sweep, 1 / tpot_s))
    return replace(sweep, objective=at)


def _curve(sweep: Sweep, places: Iterable[int]) -> tuple[list[float], list[float]]:
    """Return interactivity and throughput of points that have both."""
    xs, ys = [], []
    for place in places:
        interactivity, throughput = sweep.points[place].interactivity, sweep.throughput(place)
        if interactivity is not None and throughput is not None:
            xs.append(interactivity.median)
            ys.append(throughput)
    return xs, ys


def _result(sources: Sequence[tuple[int, int]], tables: Sequence[BySource]) -> _Result:
    """Return one result, of one source or of requests in one file and their summary in another."""
    requests, statistics, settings = (
        pl.concat([rows[source] for source in sources if source in rows] or [table.clear()])
        for table, rows in tables
    )
    benchmark = benchmark_of(requests, statistics)
    if benchmark is None:
        raise ValueError("a source of a result has neither requests nor statistics")
    pairs = settings.select("setting", "value")
    concurrency, rate = (
        benchmark.stored.get((name, "total")) or None for name in ("concurrency", "request_rate")
    )
    return _Result(benchmark, dict(pairs.iter_rows()), concurrency, rate)


def _configuration(results: Sequence[_Result]) -> dict[str, str]:
    """Return the settings that all results share; NotMeasurable if some differ."""
    all_settings = [{"tool": each.benchmark.tool, **each.settings} for each in results]
    names = list(dict.fromkeys(name for settings in all_settings for name in settings))
    values = {
        name: list(dict.fromkeys(settings.get(name, "not stated") for settings in all_settings))
        for name in names
    }
    differing = [
        f"{name.replace('_', ' ')} is {' or '.join(each)}" for name, each in values.items() if len(each) > 1
    ]
    if differing:
        raise NotMeasurable(
            f"the run holds results of different configurations: {'; '.join(differing)}",
            fix=_ONE_CONFIGURATION,
        )
    return {name: each for name, (each,) in values.items()}


def _length(results: Sequence[_Result], configuration: Mapping[str, str], name: str) -> float | None:
    """Return the length that all results state, else the mean of theirs; NotMeasurable if they differ."""
    setting = configuration.get(name, "")
    if setting.replace(".", "", 1).isdecimal():
        return float(setting)
    means = [mean for each in results if (mean := _mean_length(each.benchmark, name)) is not None]
    if not means:
        return None
    if not are_same_length(min(means), max(means)):
        raise NotMeasurable(
            f"the {name.replace('_', ' ')} of the results differ: {min(means):.4g} to {max(means):.4g} "
            "per request on average",
            fix="sweep one set of lengths; compare results of equal lengths only",
        )
    return math.fsum(means) / len(means)


def are_same_length(one: float, other: float) -> bool:
    """Whether two lengths differ by no more than means of random lengths do."""
    return max(one, other) <= min(one, other) * (1 + _SAME_LENGTH)


def _mean_length(benchmark: Benchmark, name: str) -> float | None:
    """Return the mean tokens of a request; None if unknown."""
    tokens, count = total(benchmark, name), ends_of(benchmark).get("ok")
    return tokens / count if tokens and count else None


def _objectives(results: Sequence[_Result], facts: Facts) -> Mapping[str, float]:
    """Return the objectives of the run, else those that all results state alike, s."""
    of_run = {name: getattr(facts, f"slo_{name}_s") for name in _QUANTITIES}
    if any(of_run.values()):
        return {name: fact.value for name, fact in of_run.items() if fact}
    of_tool = [each.benchmark.objectives for each in results]
    is_one = all(each == of_tool[0] for each in of_tool) and set(of_tool[0]) <= set(_QUANTITIES)
    return of_tool[0] if is_one else {}


def _point(
    load: tuple[float | None, float | None], results: Sequence[_Result], objectives: Mapping[str, float]
) -> SweepPoint:
    """Return the point of the results at one load."""
    benchmarks = [each.benchmark for each in results]
    tpots = [_mean(each, "tpot", times_per_output_token(each.ok)) for each in benchmarks]
    ends = [ends_of(each) for each in benchmarks]
    return SweepPoint(
        load_words({"concurrency": load[0], "request_rate": load[1]}),
        *load,
        len(results),
        ttft_s=_repeated(_mean(each, "ttft", times_to_first_token(each.ok)) for each in benchmarks),
        tpot_s=_repeated(tpots),
        itl_s=_repeated(_mean(each, "itl", gaps(each.ok)) for each in benchmarks),
        interactivity=_repeated(1 / tpot if tpot else None for tpot in tpots),
        output_throughput=_repeated(
            _rate(each, total(each, "output_tokens"), "output_throughput") for each in benchmarks
        ),
        total_throughput=_repeated(
            _rate(each, all_tokens(each), "total_token_throughput") for each in benchmarks
        ),
        goodput=_repeated(_goodput(each, objectives) for each in benchmarks),
        failed=sum(each.get("failed", 0) + each.get("cancelled", 0) for each in ends),
    )


def _repeated(values: Iterable[float | None]) -> Repeated | None:
    """Return the median and extremes of the repeats that measured a value."""
    measured = [value for value in values if value is not None]
    return Repeated(statistics.median(measured), min(measured), max(measured)) if measured else None


def _mean(benchmark: Benchmark, quantity: str, values: Sequence[float]) -> float | None:
    """Return the mean of single times, s; without any the mean that the tool stored."""
    return math.fsum(values) / len(values) if values else benchmark.stored.get((quantity, "mean"))


def _rate(benchmark: Benchmark, amount: int | None, quantity: str) -> float | None:
    """Return an amount per second of the benchmark, else the rate that the tool stored."""
    if amount is not None and benchmark.duration_s:
        return amount / benchmark.duration_s
    return benchmark.stored.get((quantity, "total")) or None


def _goodput(benchmark: Benchmark, objectives: Mapping[str, float]) -> float | None:
    """Return the requests per second within the objectives; None without objectives, requests or times."""
    if not objectives or not benchmark.duration_s or benchmark.ok.is_empty():
        return None
    needed = {"latency_s" if name == "latency" else "ttft_s" for name in objectives}
    if any(benchmark.ok[name].null_count() == benchmark.ok.height for name in needed):
        return None
    limits = {f"{name}_s": objectives.get(name) for name in _QUANTITIES}
    return within_objectives(benchmark.ok, **limits).height / benchmark.duration_s


def _devices(configuration: Mapping[str, str], facts: Facts) -> tuple[int | None, str, str]:
    """Return the number of devices that serve, its source, and why it is unknown."""
    counts = dict(_device_counts(configuration, facts))
    if len(set(counts.values())) == 1:
        source, count = next(iter(counts.items()))
        return count, source, ""
    if counts:
        by_source = ", ".join(f"{source}: {count}" for source, count in counts.items())
        return None, "", f"sources disagree on the number of devices ({by_source})"
    return None, "", "neither the results nor card or metadata state the number of devices"


def _device_counts(configuration: Mapping[str, str], facts: Facts) -> Iterator[tuple[str, int]]:
    """Yield the number of devices by each source."""
    of_parts = [_count(configuration, f"{part}_devices") for part in ("prefill", "decode")]
    if of_parts[0] is not None and of_parts[1] is not None:
        yield "the results, prefill + decode", sum(filter(None, of_parts))
    elif (count := _count(configuration, "devices")) is not None:
        yield "the results", count
    elif (tp := _count(configuration, "tp")) is not None:
        axes = {axis: _count(configuration, axis) or 1 for axis in ("pp", "dp")}
        words = " · ".join(f"{axis} {degree}" for axis, degree in {"tp": tp, **axes}.items())
        yield f"the results, {words}", tp * math.prod(axes.values())
    if facts.world_size:
        yield facts.world_size.source, facts.world_size.value
    elif facts.tp:
        degrees: list[Fact[int] | None] = [facts.tp, facts.pp, facts.dp]
        yield (
            f"{facts.tp.source}, tp · pp · dp",
            math.prod(degree.value for degree in degrees if degree is not None),
        )


def _count(configuration: Mapping[str, str], name: str) -> int | None:
    value = configuration.get(name, "")
    return int(value) if value.isdecimal() else None
