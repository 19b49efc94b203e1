"""The metric `memory_bandwidth_utilization`: share of the peak bandwidth that copies reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotApplicable, NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog import devices as device_catalog
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared.per_step import (
    RECORD,
    by_rank,
    each_rank,
    mean_of,
    need_rows,
    ranks_in,
    window_of,
)

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts
    from ccl_bench.catalog.devices import Device


@metric(unit="%", better="higher", revision=3)
def memory_bandwidth_utilization(
    copies: pl.DataFrame, devices: pl.DataFrame, steps: pl.DataFrame, facts: Facts
) -> Measurement:
    """Share of the device's peak memory bandwidth that copies within its memory reach while they run.

    Formula:
        memory_bandwidth_utilization = 100 * 2 * bytes of DtoD copies / their durations / peak bandwidth

        mean over ranks; each byte is read once and written once.

    Caveats:
        It does not describe kernels, whose memory traffic is not in a trace: that needs hardware counters
        (Nsight Compute, or DRAM bandwidth sampled by Nsight Systems). Small copies are bound by latency,
        and may stay in the cache; a rate above the memory's peak gives no value.

    Reference:
        Device-to-device rate of NVIDIA's bandwidthTest, which counts both directions; peaks from the
        catalog of devices.
    """
    need_rows(steps, "steps", RECORD)
    copies_by_rank = copies.filter(pl.col("kind") == "DtoD").group_by(*each_rank())
    within = copies_by_rank.agg(pl.col("bytes", "duration_ns").sum()).filter(pl.col("duration_ns") > 0)
    if within.is_empty():
        raise NotMeasurable(
            "no step contains a copy within the device's memory, and traces hold no "
            "memory traffic of kernels",
            fix="measure DRAM bandwidth with Nsight Compute or Nsight Systems",
        )
    device, source = _device(devices, facts)
    peak = device.memory_bandwidth_bytes_per_s
    if peak is None:
        raise NotMeasurable(f"the memory bandwidth of {device.name} is unknown")
    rate = pl.col("bytes") * 2 / pl.col("duration_ns")
    shares = within.select("rank", gb_per_s=rate, pct=100 * rate * 1e9 / peak).sort("rank")
    return Measurement(
        mean_of(shares, "pct"),
        details={
            "per_rank_pct": by_rank(shares, "pct"),
            "achieved_gb_per_s": mean_of(shares, "gb_per_s"),
            "peak_gb_per_s": peak / 1e9,
            "device": device.name,
            "device_source": source,
            "counts": "copies within the device's memory, read and write; not kernels",
        },
        window=window_of(steps),
        ranks=ranks_in(shares),
    )


def _device(devices: pl.DataFrame, facts: Facts) -> tuple[Device, str]:
    """Return the device in the catalog and where its name comes from: the traces, else the card."""
    seen = devices.filter(pl.col("name") != "").select("name", "memory_bytes").unique()
    try:
        candidates = [device_catalog.device(name, memory_bytes=size) for name, size in seen.iter_rows()]
        if len({device.name for device in candidates}) == 1:
            return candidates[0], "deviceProperties of the traces"
        if facts.device:
            return device_catalog.device(facts.device.value), facts.device.source
    except NotMeasurable as error:
        raise NotMeasurable(
            error.message, fix="name the device in full in the workload card", is_repairable=True
        ) from error
    if candidates:
        names = ", ".join(sorted({device.name for device in candidates}))
        raise NotMeasurable(
            f"the ranks saw different devices: {names}",
            fix="name the device in the workload card",
            is_repairable=True,
        )
    raise NotApplicable(
        "the run names no accelerator, so there is no peak to compare with",
        fix="write the device into the workload card",
        is_repairable=True,
    )
