"""Metrics from monitoring tools: power, clocks, throttling, temperature and NVLink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.units import GIGA
from ccl_bench.catalog import load_data
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared.energy import POWER, energy_of_benchmark
from ccl_bench.metrics.shared.monitored import inside, mean_in, monitored
from ccl_bench.metrics.shared.per_step import RECORD, label, need_rows, window_of

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts
    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.metrics.shared.monitored import Monitored, Rank
    from ccl_bench.side_files import DeviceSamples

LEAST_COVERED = 0.5
"""Share of the time of steps that samples must cover: below it, more of the mean is assumed than sampled."""


def _power_of_benchmark(
    device_samples: DeviceSamples | None,
    requests: pl.DataFrame,
    serving_statistics: pl.DataFrame,
    facts: Facts,
) -> Measurement:
    """Return the mean power of a device over the time of a serving benchmark."""
    energy = energy_of_benchmark(device_samples, requests, serving_statistics, facts)
    watts = energy.total_j / energy.window_s / len(energy.per_device_j)
    return Measurement(watts, energy.details, energy.window, findings=energy.findings)


@metric(unit="W", better="lower", otherwise=(_power_of_benchmark,))
def power_draw(
    device_samples: DeviceSamples | None, steps: pl.DataFrame, device_used: pl.DataFrame
) -> Measurement:
    """Electric power of a device over the time of steps, as the device reports it.

    Formula:
        power_draw = integral of power over steps / time of steps, mean over ranks
        of a run without steps: energy over the time of its serving benchmark / time / devices

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


def _numbers(by_rank: dict[Rank, float]) -> list[int]:
    return sorted(rank for rank in by_rank if rank is not None)
