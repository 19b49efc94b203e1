"""Metrics from monitoring tools: power, energy, clocks, throttling, temperature and NVLink."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.facts import needed_tokens_per_step
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.units import GIGA, SECOND_NS
from ccl_bench.catalog import load_data
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared.monitored import inside, mean_in, monitored
from ccl_bench.metrics.shared.per_step import RECORD, label, need_rows, window_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.analysis.facts import Facts
    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.metrics.shared.monitored import Monitored, Rank
    from ccl_bench.side_files import DeviceSamples
    from ccl_bench.side_files.device_samples import SampleSeries

POWER, ENERGY = "power_w", "energy_j"

LEAST_COVERED = 0.5
"""Share of the time of steps that samples must cover: below it, more of the mean is assumed than sampled."""


@metric(unit="W", better="lower")
def power_draw(
    device_samples: DeviceSamples | None, steps: pl.DataFrame, device_used: pl.DataFrame
) -> Measurement:
    """Electric power of a device over the time of steps, as the device reports it.

    Formula:
        power_draw = integral of power over steps / time of steps, mean over ranks

        between samples, power changes evenly.

    Caveats:
        It is the power of the device or board, not of the host. `power.draw` of nvidia-smi is a mean over up
        to a second on some devices, so single short steps do not show in it. Which device belongs to which
        rank, and the time zone of the samples, are in the details and findings.

    Reference:
        NVML nvmlDeviceGetPowerUsage; DCGM_FI_DEV_POWER_USAGE; AMD SMI socket power.
    """
    samples = _of(device_samples, POWER, steps, device_used)
    return _mean(samples, steps, "w", lambda points: {"max_w": max(value for _, value in points)})


@metric(unit="J", better="lower")
def energy_per_step(
    device_samples: DeviceSamples | None, steps: pl.DataFrame, device_used: pl.DataFrame, facts: Facts
) -> Measurement:
    """Energy that all devices of the job take for one step.

    Formula:
        energy_per_step = sum over ranks of (integral of power over steps / number of steps)

        from the devices' own counters of energy where they were sampled.

    Caveats:
        Hosts, network and cooling are not in it. Every rank must have samples. See `power_draw`.

    Reference:
        MLPerf Power measures whole systems instead; DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION.
    """
    need_rows(steps, "steps", RECORD)
    counted = device_samples is not None and any(s.quantity == ENERGY for s in device_samples.series)
    quantity = ENERGY if counted else POWER
    samples = _of(device_samples, quantity, steps, device_used)
    ranks = facts.world_size.value if facts.world_size else steps["rank"].n_unique()
    if len(samples.series) < ranks:
        sampled = f"only {len(samples.series)} of {ranks} ranks have samples and a trace"
        fix = "sample every device, and keep the traces of all ranks"
        raise NotMeasurable(f"{sampled}; the energy of the job needs all", fix=fix)
    joules: dict[Rank, float] = {}
    for rank, series in samples.series.items():
        windows = samples.windows[rank]
        if counted:
            energy = _counted(series, windows)
        else:
            mean, covered = mean_in(series, windows)
            _need_covered({rank: covered})
            energy = mean * sum(end - start for start, end in windows) / SECOND_NS
        joules[rank] = energy / (steps if rank is None else steps.filter(steps["rank"] == rank)).height
    details: dict[str, Any] = {
        "per_rank_j": {label(rank): value for rank, value in joules.items()},
        "source": "counters of energy" if counted else "samples of power",
        "devices": len(joules),
        "rank_source": samples.how,
    }
    return Measurement(sum(joules.values()), details, window_of(steps), _numbers(joules), samples.findings)


@metric(unit="J/token", better="lower")
def energy_per_token(
    device_samples: DeviceSamples | None, steps: pl.DataFrame, device_used: pl.DataFrame, facts: Facts
) -> Measurement:
    """Energy that all devices of the job take for one token.

    Formula:
        energy_per_token = energy_per_step / tokens_per_step

    Caveats:
        The caveats of `energy_per_step` apply, and for the tokens in a step those of
        `throughput_tokens_sec`.

    Reference:
        Joules per token as serving benchmarks report them, over devices only.
    """
    tokens = needed_tokens_per_step(facts)
    energy = energy_per_step(device_samples, steps, device_used, facts)
    details = {
        **energy.details,
        "energy_per_step_j": energy.value,
        "tokens_per_step": tokens.value,
        "tokens_per_step_source": tokens.source,
    }
    return Measurement(energy.value / tokens.value, details, energy.window, energy.ranks, energy.findings)


@metric(unit="MHz", better="higher")
def sm_clock(
    device_samples: DeviceSamples | None, steps: pl.DataFrame, device_used: pl.DataFrame
) -> Measurement:
    """Clock of the multiprocessors over the time of steps.

    Formula:
        sm_clock = integral of the clock over steps / time of steps, mean over ranks

    Caveats:
        A device lowers its clock where it is idle, too: see `gpu_busy`. `per_rank_below_maximum_pct` in the
        details is the share of samples below the highest clock of the device, where that was sampled too.

    Reference:
        NVML clocks.sm; DCGM_FI_DEV_SM_CLOCK; AMD SMI gfx clock.
    """
    samples = _of(device_samples, "sm_clock_mhz", steps, device_used)
    limits = {
        each.device: each.values[-1]
        for each in (device_samples.series if device_samples else ())
        if each.quantity == "sm_clock_max_mhz"
    }
    shares = {}
    for rank, series in samples.series.items():
        if limit := limits.get(series.device):
            points = inside(series, samples.windows[rank])
            shares[label(rank)] = 100 * sum(value < limit for _, value in points) / len(points)
    measured = _mean(samples, steps, "mhz", lambda points: {"min_mhz": min(value for _, value in points)})
    more = {"per_rank_below_maximum_pct": shares} if shares else {}
    return Measurement(
        measured.value, {**measured.details, **more}, measured.window, measured.ranks, measured.findings
    )


@metric(unit="%", better="lower")
def throttled_time(
    device_samples: DeviceSamples | None, steps: pl.DataFrame, device_used: pl.DataFrame
) -> Measurement:
    """Share of samples in steps in which power, heat or hardware held the clocks of the device down.

    Formula:
        throttled_time = 100 * samples with a reason that limits clocks / samples, in steps, mean over ranks

    Caveats:
        Idleness and clocks that an administrator set are excluded. A device reaches its power cap by design
        under full load: `sw_power_cap` alone is no fault. The details list each reason.

    Reference:
        NVML nvmlClocksEventReasons (formerly throttle reasons).
    """
    samples = _of(device_samples, "clock_reasons", steps, device_used)
    reasons = {row["name"]: row["bit"] for row in load_data("device_samples")["reason"]}
    limiting = sum(reasons.values())
    shares: dict[Rank, float] = {}
    each = dict.fromkeys(reasons, 0.0)
    for rank, series in samples.series.items():
        masks = [int(value) for _, value in inside(series, samples.windows[rank])]
        shares[rank] = 100 * sum(bool(mask & limiting) for mask in masks) / len(masks)
        for name, bit in reasons.items():
            each[name] += 100 * sum(bool(mask & bit) for mask in masks) / len(masks) / len(samples.series)
    details = {
        "per_rank_pct": {label(rank): share for rank, share in shares.items()},
        "per_reason_pct": each,
        "rank_source": samples.how,
    }
    value = sum(shares.values()) / len(shares)
    return Measurement(value, details, window_of(steps), _numbers(shares), samples.findings)


@metric(unit="°C", better="lower")
def device_temperature(
    device_samples: DeviceSamples | None, steps: pl.DataFrame, device_used: pl.DataFrame
) -> Measurement:
    """Highest temperature of a device in steps.

    Formula:
        device_temperature = max over ranks of the samples in steps

    Caveats:
        It is the temperature of the die as the device reports it; on AMD devices that of the hottest spot.

    Reference:
        NVML temperature.gpu; DCGM_FI_DEV_GPU_TEMP; AMD SMI hotspot.
    """
    samples = _of(device_samples, "temperature_c", steps, device_used)
    highest = {
        rank: max(value for _, value in inside(series, samples.windows[rank]))
        for rank, series in samples.series.items()
    }
    details = {
        "per_rank_max_c": {label(rank): value for rank, value in highest.items()},
        "rank_source": samples.how,
    }
    return Measurement(max(highest.values()), details, window_of(steps), _numbers(highest), samples.findings)


@metric(unit="GB/s", better="neither")
def nvlink_throughput(
    device_samples: DeviceSamples | None, steps: pl.DataFrame, device_used: pl.DataFrame
) -> Measurement:
    """Rate at which a device sent and received over NVLink, over the time of steps.

    Formula:
        nvlink_throughput = mean of bytes per second sent + mean of those received, in steps, mean over ranks

    Caveats:
        Headers are included. It is a mean over the whole step, not over communication.

    Reference:
        DCGM_FI_PROF_NVLINK_TX_BYTES and DCGM_FI_PROF_NVLINK_RX_BYTES, which are rates in bytes per second.
    """
    ways = {way: _of(device_samples, f"nvlink_{way}_bytes_per_s", steps, device_used) for way in ("tx", "rx")}
    means = {way: _mean(samples, steps, "bytes_per_s", lambda _: {}) for way, samples in ways.items()}
    details = {f"{way}_gb_per_s": rate.value / GIGA for way, rate in means.items()}
    first = means["tx"]
    return Measurement(sum(details.values()), details, first.window, first.ranks, [*first.findings])


def _of(
    samples: DeviceSamples | None, quantity: str, steps: pl.DataFrame, device_used: pl.DataFrame
) -> Monitored:
    need_rows(steps, "steps", RECORD)
    return monitored(samples, quantity, steps, device_used)


def _mean(samples: Monitored, steps: pl.DataFrame, unit: str, extreme: Any) -> Measurement:
    """Return the mean over steps and ranks, and that of each rank; `extreme` is a detail over all samples."""
    means, covered = {}, {}
    for rank, series in samples.series.items():
        means[rank], covered[rank] = mean_in(series, samples.windows[rank])
    _need_covered(covered)
    every = [
        pair for rank, series in samples.series.items() for pair in inside(series, samples.windows[rank])
    ]
    details = {
        f"per_rank_{unit}": {label(rank): mean for rank, mean in means.items()},
        **extreme(every),
        "samples_count": len(every),
        "covered_pct": 100 * min(covered.values()),
        "rank_source": samples.how,
    }
    value = sum(means.values()) / len(means)
    return Measurement(value, details, window_of(steps), _numbers(means), samples.findings)


def _need_covered(covered: dict[Rank, float]) -> None:
    """Raise NotMeasurable if samples cover too little of the steps of some rank."""
    least = min(covered, key=lambda rank: covered[rank])
    if covered[least] < LEAST_COVERED:
        share = f"{100 * covered[least]:.0f} %"
        raise NotMeasurable(
            f"samples cover {share} of the steps of rank {label(least)}", fix="sample the whole recording"
        )


def _counted(series: SampleSeries, windows: Sequence[tuple[int, int]]) -> float:
    """Return the increase of an energy counter over intervals."""
    if any(later < earlier for earlier, later in zip(series.values, series.values[1:], strict=False)):
        raise NotMeasurable("the energy counter was reset while it was sampled", fix="sample power as well")
    if windows[0][0] < series.times_ns[0] or windows[-1][1] > series.times_ns[-1]:
        raise NotMeasurable("energy samples do not cover the steps", fix="sample the whole recording")
    return sum(_at(series, end) - _at(series, start) for start, end in windows)


def _at(series: SampleSeries, time: int) -> float:
    """Return the value at a time between samples."""
    place = max(bisect_left(series.times_ns, time), 1)
    left, right = series.times_ns[place - 1], series.times_ns[place]
    share = (time - left) / (right - left)
    return series.values[place - 1] + share * (series.values[place] - series.values[place - 1])


def _numbers(by_rank: dict[Rank, float]) -> list[int]:
    return sorted(rank for rank in by_rank if rank is not None)
