"""Samples of monitoring tools on the time of steps or of a benchmark: their devices and their time zone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.base.units import FIRST_WALL_CLOCK_NS, SECOND_NS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ccl_bench.side_files.device_samples import DeviceSamples, SampledDevice, SampleSeries

MINUTE_NS = 60 * SECOND_NS

_ZONES = (
    *(60 * hours for hours in range(-12, 15)),
    *(-570, -210, -150, 210, 270, 330, 345, 390, 525, 570, 630, 765, 825),
)
"""Offsets of the time zones from UTC, in minutes."""

_STATE = "write {FILE#DEVICE: rank} into ranks.json, the device by its number or UUID"
_UTC = "sample with TZ=UTC in the environment of nvidia-smi, over the time of the trace"
WALL_CLOCK = (
    "record with a tool that notes the wall clock, such as a recent torch.profiler or nsys, and for requests "
    "AIPerf; rocprofv3, old versions of Kineto and vLLM's benchmark have another clock"
)
STATED = "ranks.json"
"""How ranks are assigned to devices where a file states it."""

Rank = int | None
"""A rank; None is the only trace of a run, with unknown rank."""

_NO_RANK = -1

Spans = list[tuple[int, int]]
"""Intervals in ns, in order and disjoint."""

Windows = dict[Rank, Spans]

FEW = 10
"""Fewer samples than this in the steps of a rank make a mean doubtful: each weighs 10 % or more of it."""

LONGEST_GAP = 10
"""Gaps between samples longer than so many times the usual one are holes in a log.

Tools on a busy host miss a few samples in a row; a tool that was stopped and started again misses many.
"""


@dataclass(slots=True)
class Monitored:
    """One quantity on the time of the steps of each rank."""

    quantity: str
    windows: Windows
    """Rank → intervals of its steps, sorted and disjoint."""
    series: dict[Rank, SampleSeries]
    """Rank → samples of its device, on the clock of its trace."""
    findings: list[Finding] = field(default_factory=list)
    how: str = ""
    """How ranks were assigned to devices."""
    devices: int = 0
    """Devices of which the quantity was sampled, without those that `ranks.json` leaves out."""


def monitored(
    samples: DeviceSamples | None, quantity: str, steps: pl.DataFrame, device_used: pl.DataFrame
) -> Monitored:
    """Return a quantity on the time of the steps, of every rank whose device was sampled.

    Raises NotMeasurable if it was not sampled, or belongs to no known rank or time.
    """
    samples, of_quantity = _sampled(samples, quantity)
    windows = _windows(steps)
    owners, how, doubts = _ranks(samples, [*windows], device_used)
    by_rank = {
        owners[each.device]: each for each in of_quantity if owners.get(each.device, _NO_RANK) in windows
    }
    if not by_rank:
        raise NotMeasurable(
            f"{quantity} was sampled only on devices that no rank of the run used", fix=_STATE
        )
    clocked, zones = _on_clock(by_rank, windows)
    parts = {f"the steps of rank {rank}": (each, windows[rank]) for rank, each in clocked.items()}
    findings = [*doubts, *zones, *_sparse(quantity, parts)]
    devices = sum(each.device in owners for each in of_quantity) if how == STATED else len(of_quantity)
    return Monitored(quantity, {rank: windows[rank] for rank in clocked}, clocked, findings, how, devices)


def monitored_between(
    samples: DeviceSamples | None, quantity: str, start_ns: int, end_ns: int
) -> tuple[list[SampleSeries], list[Finding]]:
    """Return a quantity of every device between two wall-clock times, and the findings about it.

    If `ranks.json` names devices, only those count. Raises NotMeasurable if it was not sampled in that time.
    """
    samples, of_quantity = _sampled(samples, quantity)
    counted_series = [each for each in of_quantity if _stated_rank(samples, each.device) is not None]
    numbered: dict[Rank, SampleSeries] = dict(enumerate(counted_series or of_quantity))
    windows: Windows = {number: [(start_ns, end_ns)] for number in numbered}
    clocked, zones = _on_clock(numbered, windows, "the benchmark")
    parts = {f"the benchmark on {each.device.name}": (each, windows[n]) for n, each in clocked.items()}
    return list(clocked.values()), [*zones, *_sparse(quantity, parts)]


def _sampled(samples: DeviceSamples | None, quantity: str) -> tuple[DeviceSamples, list[SampleSeries]]:
    """Return the samples, and the series of a quantity; raise NotMeasurable if there are none."""
    if samples is None or not samples.series:
        fix = "log nvidia-smi, DCGM or amd-smi into the run's directory, see the manual on file formats"
        raise NotMeasurable("the run holds no samples of a monitoring tool", fix=fix)
    of_quantity = [each for each in samples.series if each.quantity == quantity]
    if not of_quantity:
        quantities = ", ".join(sorted({each.quantity for each in samples.series}))
        raise NotMeasurable(f"{quantity} was not sampled, only {quantities}", fix="add it to what is logged")
    return samples, of_quantity


def _windows(steps: pl.DataFrame) -> Windows:
    windows: Windows = {}
    columns = ("rank", "device_start_ns", "device_end_ns")
    rank_steps = steps if steps["trace"].n_unique() == 1 else steps.drop_nulls("rank")
    ordered = rank_steps.sort("rank", "device_start_ns").select(columns).unique(maintain_order=True)
    for rank, start, end in ordered.iter_rows():
        rank_windows = windows.setdefault(rank, [])
        begin = max(start, rank_windows[-1][1]) if rank_windows else start
        if begin < end:
            rank_windows.append((begin, end))
    return {rank: rank_windows for rank, rank_windows in windows.items() if rank_windows}


def _ranks(
    samples: DeviceSamples, ranks: Sequence[Rank], device_used: pl.DataFrame
) -> tuple[dict[SampledDevice, Rank], str, list[Finding]]:
    """Return the rank of each device, how it was assigned, and the findings about it; `ranks` are sorted."""
    devices = list(dict.fromkeys(each.device for each in samples.series))
    stated_ranks: dict[SampledDevice, Rank] = {
        device: rank for device in devices if (rank := _stated_rank(samples, device)) is not None
    }
    if stated_ranks:
        return stated_ranks, STATED, []
    if not ranks:
        raise NotMeasurable(
            "the ranks of the traces are unknown, so samples cannot be assigned to them", fix=_STATE
        )
    hosts = {(device.host or device.file) for device in devices}
    if len(hosts) > 1:
        what = f"samples of {len(hosts)} hosts or files do not show which rank ran where"
        raise NotMeasurable(what, fix=_STATE)
    devices_by_rank = (
        device_used.drop_nulls(["rank", "device"]).group_by("rank").agg(pl.col("device").unique())
    )
    used: dict[Rank, int] = {
        rank: numbers[0] for rank, numbers in devices_by_rank.iter_rows() if len(numbers) == 1
    }
    by_index = {device.index: device for device in devices if device.index is not None}
    # Numbers identify devices only if every rank used exactly one, and no two ranks the same.
    numbered = {*used.values()}
    if {*ranks} <= used.keys() and len(numbered) == len(ranks) and numbered <= by_index.keys():
        return {by_index[number]: rank for rank, number in used.items()}, "device numbers of the kernels", []
    if len(devices) == len(ranks):
        ordered = sorted(devices, key=lambda device: (device.index is None, device.index or 0, device.uuid))
        message = "ranks and devices are matched in order: the traces do not show which device a rank used"
        doubt = Finding(
            "sampled-devices-assumed", "warning", message, devices[0].file, touches=("device_samples",)
        )
        in_order = dict(zip(ordered, ranks, strict=True))
        return in_order, "order of ranks and devices", [] if len(ranks) == 1 else [doubt]
    what = f"{counted(len(devices), 'device was', 'devices were')} sampled"
    traced = f"{counted(len(ranks), 'rank')} traced"
    raise NotMeasurable(f"{what}, but {traced}: samples cannot be assigned to ranks", fix=_STATE)


def _stated_rank(samples: DeviceSamples, device: SampledDevice) -> int | None:
    """Return the rank that `ranks.json` states for a device, by its number or UUID."""
    names = (f"{device.file}#{device.index}", f"{device.file}#{device.uuid}")
    return next((samples.ranks[name] for name in names if name in samples.ranks), None)


def _on_clock(
    by_rank: dict[Rank, SampleSeries], windows: Windows, what: str = "the steps"
) -> tuple[dict[Rank, SampleSeries], list[Finding]]:
    """Return the series with times of the clock of `what` the windows are.

    Local times are taken in the zone in which they overlap it. Raises NotMeasurable if no zone fits,
    or several do.
    """
    first, last = (
        min(spans[0][0] for spans in windows.values()),
        max(spans[-1][1] for spans in windows.values()),
    )
    local = [each for each in by_rank.values() if each.is_local]
    joined = local or [*by_rank.values()]
    begin, end = min(each.times_ns[0] for each in joined), max(each.times_ns[-1] for each in joined)
    zones = [
        zone
        for zone in (_ZONES if local else (0,))
        if begin - zone * MINUTE_NS <= last and end - zone * MINUTE_NS >= first
    ]
    if last < FIRST_WALL_CLOCK_NS and not zones:
        message = f"the times of {what} are not those of a wall clock, so samples cannot be joined with it"
        raise NotMeasurable(message, fix=WALL_CLOCK)
    if not zones:
        where = "in any time zone" if local else "in time"
        apart = "" if local else f" (they are {max(first - end, begin - last) / SECOND_NS:.0f} s apart)"
        message = f"the samples and {what} do not overlap {where}{apart}"
        raise NotMeasurable(message, fix="sample while the run is recorded")
    if len(zones) > 1:
        message = (
            f"the samples' local times overlap {what} in {len(zones)} time zones, so their zone is unknown"
        )
        raise NotMeasurable(message, fix=_UTC)
    if not local:
        return by_rank, []
    zone = zones[0]
    moved = {
        rank: replace(each, is_local=False, times_ns=[time - zone * MINUTE_NS for time in each.times_ns])
        if each.is_local
        else each
        for rank, each in by_rank.items()
    }
    name = f"UTC{'-' if zone < 0 else '+'}{abs(zone) // 60:02d}:{abs(zone) % 60:02d}"
    message = f"the samples state no time zone: {name} is the only one in which they overlap {what}"
    file = local[0].device.file
    return moved, [Finding("sample-zone-assumed", "note", message, file, touches=("device_samples",))]


def _sparse(quantity: str, parts: Mapping[str, tuple[SampleSeries, Spans]]) -> list[Finding]:
    """Return a finding if few samples are in some part of the measured time; raise NotMeasurable if none is.

    `parts` are the name of each part, the samples of its device and its intervals.
    """
    counts = {where: len(inside(each, spans)) for where, (each, spans) in parts.items()}
    where = min(counts, key=lambda part: counts[part])
    count, (least, _) = counts[where], parts[where]
    if count == 0:
        times = least.times_ns
        often = f"one comes every {_usual_gap(times) / SECOND_NS:.3g} s" if len(times) > 1 else "there is one"
        message = f"no sample of {quantity} falls in {where}: {often}"
        raise NotMeasurable(message, fix="sample more often (nvidia-smi -lms 100), or record for longer")
    if count >= FEW:
        return []
    message = (
        f"only {counted(count, 'sample')} of {quantity} in {where}: linear change is assumed between them"
    )
    touches = ("device_samples",)
    return [Finding("samples-sparse", "warning", message, least.device.file, count=count, touches=touches)]


def _usual_gap(times: Sequence[int]) -> float:
    return median(later - earlier for earlier, later in pairwise(times))


def inside(series: SampleSeries, windows: Iterable[tuple[int, int]]) -> list[tuple[int, float]]:
    """Return the samples in intervals."""
    return [
        pair
        for start, end in windows
        for pair in zip(
            series.times_ns[bisect_left(series.times_ns, start) : bisect_left(series.times_ns, end)],
            series.values[bisect_left(series.times_ns, start) : bisect_left(series.times_ns, end)],
            strict=True,
        )
    ]


def integral(
    series: SampleSeries, start: int, end: int, *, longest_ns: float | None = None
) -> tuple[float, int]:
    """Return the area under straight lines between samples, value times ns, and the ns that they cover.

    Holes in the log, which are gaps longer than `longest_ns` or than many times the usual one, and time
    before its first or after its last sample, are not covered.
    """
    times, values = series.times_ns, series.values
    if len(times) < 2:
        return 0.0, 0
    longest = LONGEST_GAP * _usual_gap(times) if longest_ns is None else longest_ns
    area, covered = 0.0, 0
    for place in range(max(bisect_right(times, start), 1), min(bisect_left(times, end) + 1, len(times))):
        left, right = times[place - 1], times[place]
        if right - left > longest:
            continue
        low, high = max(left, start), min(right, end)
        slope = (values[place] - values[place - 1]) / (right - left)
        middle = values[place - 1] + slope * ((low + high) / 2 - left)
        area += middle * (high - low)
        covered += high - low
    return area, covered


def mean_in(series: SampleSeries, windows: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Return the mean over intervals, and the share of them that the samples cover."""
    parts = [integral(series, start, end) for start, end in windows]
    covered = sum(length for _, length in parts)
    whole = sum(end - start for start, end in windows)
    if not covered:
        raise NotMeasurable("no two samples are near each other in the steps", fix="sample more often")
    return sum(area for area, _ in parts) / covered, covered / whole
