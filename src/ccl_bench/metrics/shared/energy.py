"""Energy of all devices of a run, over its steps and over its serving benchmark, from samples of devices."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.text import counted
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics.shared import per_step, serving
from ccl_bench.metrics.shared.monitored import integral, monitored, monitored_between

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.analysis.facts import Fact, Facts
    from ccl_bench.analysis.serving.benchmark import Benchmark
    from ccl_bench.base.findings import Finding
    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.side_files import DeviceSamples
    from ccl_bench.side_files.device_samples import SampleSeries

POWER, ENERGY = "power_w", "energy_j"

LONGEST_GAP_NS = 3 * SECOND_NS
"""Longest time between two samples over which power may be interpolated.

Tools sample once a second unless asked otherwise, and a busy host may miss two samples in a row.
"""

_COVER = "sample from before the run to after its end, at least every second (nvidia-smi -lms 100)"
_ONLY_THESE = (
    "log only the devices of the run (nvidia-smi -i 0,1), or name them in ranks.json, by number or UUID"
)


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy of every device of a run over one window."""

    per_device_j: list[float]
    """Joules of each device: over all of a benchmark, or in a mean step of the rank that used it."""
    details: dict[str, Any]
    window: str
    ranks: list[int] = field(default_factory=list)
    findings: Sequence[Finding] = ()
    window_s: float = 0.0
    """Length of a benchmark; 0 of steps, which differ in length."""

    @property
    def total_j(self) -> float:
        """Energy of all devices, J."""
        return math.fsum(self.per_device_j)


def energy_of_steps(
    device_samples: DeviceSamples | None, steps: pl.DataFrame, device_used: pl.DataFrame, facts: Facts
) -> Energy:
    """Return the energy of a mean step of each rank; NotMeasurable unless every rank has its own device."""
    per_step.need_rows(steps, "steps", per_step.RECORD)
    quantity = _quantity(device_samples)
    samples = monitored(device_samples, quantity, steps, device_used)
    ranks = facts.world_size.value if facts.world_size else steps["rank"].n_unique()
    if len(samples.series) < ranks:
        sampled = f"only {len(samples.series)} of {ranks} ranks have samples and a trace"
        fix = "sample every device, and keep the traces of all ranks"
        raise NotMeasurable(f"{sampled}; the energy of the job needs all", fix=fix)
    _need_devices(samples.devices, ranks, "ranks")
    joules = {}
    for rank, series in samples.series.items():
        count = (steps if rank is None else steps.filter(steps["rank"] == rank)).height
        joules[rank] = energy_in(series, samples.windows[rank]) / count
    details = {
        "per_rank_j": {per_step.label(rank): value for rank, value in joules.items()},
        "source": _SOURCES[quantity],
        "devices": len(joules),
        "rank_source": samples.how,
    }
    numbers = sorted(rank for rank in joules if rank is not None)
    return Energy([*joules.values()], details, per_step.window_of(steps), numbers, samples.findings)


def energy_of_benchmark(
    device_samples: DeviceSamples | None,
    requests: pl.DataFrame,
    serving_statistics: pl.DataFrame,
    facts: Facts,
) -> Energy:
    """Return the energy of each device from the first request sent to the end of the last one.

    Raises NotMeasurable unless requests have wall-clock times and only the devices of the run were sampled.
    """
    benchmark = serving.needed_benchmark(requests, serving_statistics)
    serving.need_success(benchmark)
    devices = needed_devices(facts)
    start, end = _span_of(requests, benchmark)
    quantity = _quantity(device_samples)
    all_series, findings = monitored_between(device_samples, quantity, start, end)
    _need_devices(len(all_series), devices.value, "devices")
    window = [(start, end)]
    joules = [energy_in(series, window) for series in all_series]
    details = {
        "per_device_j": {each.device.name: value for each, value in zip(all_series, joules, strict=True)},
        "source": _SOURCES[quantity],
        "devices": devices.value,
        "devices_source": devices.source,
        "duration_s": (end - start) / SECOND_NS,
    }
    return Energy(
        joules,
        details,
        findings=findings,
        window=serving.window_of(benchmark),
        window_s=(end - start) / SECOND_NS,
    )


def needed_devices(facts: Facts) -> Fact[int]:
    """Return the number of devices of the run, one for each rank, or raise NotMeasurable."""
    if facts.world_size is None:
        fix = "write total_count into the workload card, or world_size into run_metadata.json"
        raise NotMeasurable("the number of devices of the run is unknown", fix=fix, is_repairable=True)
    return facts.world_size


def energy_in(series: SampleSeries, windows: Sequence[tuple[int, int]]) -> float:
    """Return the energy of a device over disjoint intervals in order, ns, in J.

    A counter of energy gives its increase, interpolated linearly at the borders; power is integrated by the
    trapezoid rule, with the power at the borders interpolated. Raises NotMeasurable if samples do not reach
    the borders, if a gap of more than `LONGEST_GAP_NS` is interpolated, or if a counter was reset.
    """
    times, name = series.times_ns, series.device.name
    early, late = windows[0][0] - times[0], times[-1] - windows[-1][1]
    if early < 0 or late < 0:
        begin = f"begin {-early / SECOND_NS:.3g} s after it begins" if early < 0 else ""
        end = f"end {-late / SECOND_NS:.3g} s before it ends" if late < 0 else ""
        missing = " and ".join(filter(None, (begin, end)))
        raise NotMeasurable(
            f"the samples of {name} miss a part of the measured time: they {missing}", fix=_COVER
        )
    is_counter = series.quantity == ENERGY
    # Where one interval begins at the end of the one before, the value between them cancels.
    borders = {start for start, _ in windows} ^ {end for _, end in windows}
    for left, right in pairwise(times):
        if right - left <= LONGEST_GAP_NS:
            continue
        # Of a counter only its values at the borders count.
        is_used = (
            any(left < border < right for border in borders)
            if is_counter
            else any(left < end and start < right for start, end in windows)
        )
        if is_used:
            gap, longest = (right - left) / SECOND_NS, LONGEST_GAP_NS // SECOND_NS
            message = (
                f"the samples of {name} have a gap of {gap:.3g} s in the measured time, above {longest} s"
            )
            raise NotMeasurable(message, fix=_COVER)
    if not is_counter:
        return math.fsum(integral(series, *window, longest_ns=math.inf)[0] for window in windows) / SECOND_NS
    if any(later < earlier for earlier, later in pairwise(series.values)):
        raise NotMeasurable(
            f"the energy counter of {name} was reset while it was sampled", fix="sample power as well"
        )
    return math.fsum(_at(series, end) - _at(series, start) for start, end in windows)


def _at(series: SampleSeries, time: int) -> float:
    """Return the value at a time between samples."""
    place = max(bisect_left(series.times_ns, time), 1)
    left, right = series.times_ns[place - 1], series.times_ns[place]
    share = (time - left) / (right - left)
    return series.values[place - 1] + share * (series.values[place] - series.values[place - 1])


_SOURCES = {ENERGY: "counters of energy", POWER: "samples of power"}


def _quantity(samples: DeviceSamples | None) -> str:
    """Return what energy is computed from: counters if as many devices have one as samples of power."""
    quantities = [each.quantity for each in samples.series] if samples else []
    return ENERGY if quantities.count(ENERGY) >= max(quantities.count(POWER), 1) else POWER


def _need_devices(sampled: int, of_run: int, unit: str) -> None:
    """Raise NotMeasurable unless as many devices were sampled as the run has."""
    if sampled != of_run:
        were = counted(sampled, "device was", "devices were")
        other = "others count too" if sampled > of_run else "some are missing"
        message = f"{were} sampled, but the run has {counted(of_run, unit.removesuffix('s'))}: {other}"
        raise NotMeasurable(
            message, fix=_ONLY_THESE if sampled > of_run else "sample every device of the run"
        )


def _span_of(requests: pl.DataFrame, benchmark: Benchmark) -> tuple[int, int]:
    """Return when the first request was sent and the last one ended, ns on the clock of the requests."""
    measured = requests.filter(requests["status"] != "warmup")
    start, end = measured["start_ns"].min(), measured["end_ns"].max()
    has_all = (
        benchmark.ok.height and not benchmark.ok.select("start_ns", "end_ns").null_count().sum_horizontal()[0]
    )
    if not has_all or not isinstance(start, int) or not isinstance(end, int) or end <= start:
        message = (
            f"the {serving.title(benchmark.tool)} result does not say when its requests were sent and ended"
        )
        raise NotMeasurable(
            message, fix=f"use AIPerf, which notes both in wall-clock time; or {serving.BENCHMARK_IT}"
        )
    return start, end
