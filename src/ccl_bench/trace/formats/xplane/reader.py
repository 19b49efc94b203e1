"""Reader of one device of a profile, with findings about missing data."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.schema import TABLES
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.device_order import drop_disordered
from ccl_bench.trace.device_steps import (
    MARKED,
    ProgramRun,
    find_steps,
    is_of_program,
    runs_as_steps,
    step_findings,
)
from ccl_bench.trace.formats.xplane import rows
from ccl_bench.trace.formats.xplane.host import Range
from ccl_bench.trace.formats.xplane.operations import (
    STEPS,
    Operations,
    cpu_operations,
    gpu_operations,
    tpu_instructions,
    tpu_operations,
    tpu_runs,
)
from ccl_bench.trace.formats.xplane.profile import (
    line_steps,
    open_profile,
    program_begins,
    program_runs,
    work_as_steps,
)
from ccl_bench.trace.formats.xplane.space import PROGRAMS, Plane
from ccl_bench.trace.protobuf import DamagedMessageError
from ccl_bench.trace.quality import drop_impossible, drop_repeated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.trace.device_steps import DeviceSteps, Moment
    from ccl_bench.trace.formats.xplane.devices import XlaDevice
    from ccl_bench.trace.formats.xplane.host import HostCall, HostThreads
    from ccl_bench.trace.formats.xplane.profile import Profile

_RELATIVE = 10**17
"""Times below this, ns, count from the start of the recording: since the epoch it would be March 1973."""


def read_xplane(path: Path, file: str, part: str) -> TraceContent:
    """Return the content of a profile for one of its devices; `file` names it in messages.

    `part` is the id of the device, empty for the only one. Raises InputError if it is no profile.
    """
    with open_profile(path, file) as profile:
        device = next((candidate for candidate in profile.job.devices if part in ("", candidate.id)), None)
        if device is None:
            raise InputError(
                "the profile does not hold this device", where=f"{file}#{part}", fix="read it anew"
            )
        try:
            return _content(profile, device, file)
        except DamagedMessageError as error:
            fix = "record the profile again, or copy the file again"
            raise InputError(f"the plane of {device.id} is damaged: {error}", where=file, fix=fix) from error


def _content(profile: Profile, device: XlaDevice, file: str) -> TraceContent:
    """Return tables and findings of one device of a profile, and of the host for it."""
    plane = profile.host if device.kind == "CPU" else profile.plane(device.plane)
    plane = Plane(device.plane, b"") if plane is None else plane
    planes = [each for each in (plane, profile.host) if each is not None]
    is_relative = all(line.start_ns < _RELATIVE for each in planes for line in each.lines if line.count)
    base_ns = (profile.start_ns or 0) if is_relative else 0
    host = profile.host_from(base_ns)
    work, costs, calls, runs, on_device = _work(profile, device, plane, base_ns)
    dispatches = {run: host.dispatched(call) for run, call in calls.items()}
    steps = find_steps(host.marks, dispatches, work.ran(), on_device)
    job_programs = profile.programs.values()
    ids = {number for program in job_programs for replicas in program.devices for number in replicas}
    # XLA numbers the CPU devices of processes with gaps between them.
    ranks = dict(zip(sorted(ids), range(len(ids)) if device.kind == "CPU" else sorted(ids), strict=True))
    tables = {
        "kernels": rows.kernel_rows(work, device, _positive(plane.stats.get("core_count"))),
        "memcpy": rows.copy_rows(work, device),
        "cpu_ops": TABLES["cpu_ops"].frame(
            {key: [getattr(each, key) for each in host.ranges] for key in Range._fields}
        ),
        "products": rows.product_rows(work),
        "launches": _launches(calls, dispatches),
        "annotations": _annotations(host, steps, runs),
        "collectives": rows.collective_rows(work, device, profile.programs, ranks),
        "devices": _devices(device, plane),
        "hlo_operations": rows.operation_rows(costs, profile.programs),
    }
    tables, implausible = drop_impossible(tables, file)
    tables, repeats = drop_repeated(tables, file)
    disordered: list[Finding] = []
    if device.kind == "GPU":  # a core of a TPU runs asynchronous instructions beside others
        tables, disordered = drop_disordered(tables, file)
    findings = [*implausible, *repeats, *disordered, *_damage(profile, planes, device, file)]
    if profile.start_ns is None:
        message = (
            "the start of the recording is not stated: times cannot be compared with those of other files"
        )
        findings.append(Finding("clock-unanchored", "warning", message, file))
    findings += step_findings(steps, file)
    if tables["kernels"].is_empty() and tables["memcpy"].is_empty():
        findings.append(Finding("no-events", "error", "the profile holds no work of this device", file))
    metadata = profile.plane(PROGRAMS)
    stats = metadata.stats if metadata else {}
    attributes: dict[str, str] = {
        key: str(stats[key])[:64] for key in ("jax_version", "jaxlib_version") if key in stats
    }
    return TraceContent(tables, device.rank, profile.job.world_size, findings, attributes)


class _DeviceWork(NamedTuple):
    """What a device ran, and the calls of the host that started it."""

    work: Operations
    costs: Operations
    """Its instructions with their costs."""
    calls: dict[int, HostCall]
    """Run of a program or launch → the call that started it."""
    runs: list[ProgramRun]
    steps: DeviceSteps
    """Those that the device itself shows."""


def _work(profile: Profile, device: XlaDevice, plane: Plane, base_ns: int) -> _DeviceWork:
    programs, host = profile.programs, profile.host_from(base_ns)
    if device.kind == "TPU":
        recorded = tpu_runs(plane, base_ns)
        work = tpu_operations(plane, recorded, programs, base_ns)
        costs = tpu_instructions(plane, programs, base_ns)
        queued = zip(recorded.run.tolist(), map(host.enqueued, recorded.flow), strict=True)
        steps = line_steps(plane, STEPS, base_ns)
        if not steps.steps:
            steps = runs_as_steps(recorded.program, recorded.start_ns, recorded.end_ns)
        names = [name.partition("(")[0] for name in recorded.program]
        runs = [*map(ProgramRun, names, recorded.start_ns.tolist(), recorded.end_ns.tolist())]
        return _DeviceWork(work, costs, {run: call for run, call in queued if call}, runs, steps)
    if device.kind == "GPU":
        work = gpu_operations(plane, programs, base_ns)
        # Without the launches whose work ran on another GPU of the process.
        others = (profile.plane(other.plane) for other in profile.job.devices if other != device)
        lines = (line for other_plane in others if other_plane for line in other_plane.lines)
        elsewhere = {launch for line in lines for launch in line.numbers("correlation_id").tolist()}
        calls = {call.run: call for call in host.launches if call.run not in elsewhere}
    else:
        work = cpu_operations(plane, device, programs, base_ns)
        # Runs are numbered from 1 in order of time, as launches are elsewhere.
        ids, first = np.unique(work.run, return_index=True)
        order = np.argsort(first)
        number = np.empty(ids.size, dtype=np.int64)
        number[order] = np.arange(1, ids.size + 1)
        executions = zip(number.tolist(), map(host.executions.get, ids.tolist()), strict=True)
        calls = {run: call for run, call in executions if call}
        if not calls and len(profile.job.devices) == 1:
            in_order = host.executions_in_order(work.start_ns[first[order]].tolist())
            calls = dict(enumerate(in_order, start=1))
        work = replace(work, run=number[np.searchsorted(ids, work.run)] if ids.size else work.run)
    begins = program_begins(work, programs)
    runs = [*program_runs(work, programs, begins)]
    return _DeviceWork(work, work, calls, runs, work_as_steps(work, programs, begins))


def _launches(calls: Mapping[int, HostCall], dispatches: Mapping[int, Moment]) -> pl.DataFrame:
    """Return the calls that started work, at the time when the program asked for it.

    Those of a CPU or TPU start a whole program, often long after that, on a thread of the runtime.
    """
    by_start = sorted(calls.items(), key=lambda item: dispatches[item[0]].time_ns)
    starts = [dispatches[run].time_ns for run, _ in by_start]
    columns: dict[str, Sequence[object]] = {
        "start_ns": starts,
        "end_ns": [
            start + call.end_ns - call.start_ns for start, (_, call) in zip(starts, by_start, strict=True)
        ],
        "name": [call.name for _, call in by_start],
        "thread": [call.thread for _, call in by_start],
        "correlation": [run for run, _ in by_start],
    }
    return TABLES["launches"].frame(columns)


def _annotations(host: HostThreads, steps: DeviceSteps, runs: Sequence[ProgramRun]) -> pl.DataFrame:
    """Return the ranges of the program; steps and runs of programs carry their number in the name."""
    is_shown = steps.source != MARKED
    ranges = [
        *((step.start_ns, step.end_ns, step.label, is_shown) for step in steps.steps),
        *((run.start_ns, run.end_ns, run.label(number), True) for number, run in enumerate(runs)),
        *((each.start_ns, each.end_ns, each.name, False) for each in host.ranges if is_of_program(each.name)),
    ]
    columns = zip(*ranges, strict=True) if ranges else [()] * 4
    keys = ("start_ns", "end_ns", "name", "on_device")
    return TABLES["annotations"].frame(dict(zip(keys, columns, strict=True)))


def _devices(device: XlaDevice, plane: Plane) -> pl.DataFrame:
    stats = plane.stats
    if device.kind == "CPU":
        return TABLES["devices"].empty()
    rate = stats.get("peak_hbm_bw_gigabytes_per_second")
    bandwidth = rate * 1e9 if isinstance(rate, float) else stats.get("memory_bandwidth")
    peak = stats.get("peak_teraflops_per_second")
    return TABLES["devices"].frame(
        {
            "device": [device.ordinal],
            "name": [str(stats.get("device_type_string", ""))],
            "memory_bytes": [_positive(stats.get("memory_size"))],
            "sms": [_positive(stats.get("core_count"))],
            "peak_flops_per_s": [peak * 1e12 if isinstance(peak, float) and peak > 0 else None],
            "memory_bytes_per_s": [_positive(bandwidth)],
        }
    )


def _positive(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and value > 0 else None


def _damage(profile: Profile, planes: Sequence[Plane], device: XlaDevice, file: str) -> Iterator[Finding]:
    for text in profile.space.complaints:
        message = f"the profiler reported: {text.strip()[:200]}"
        yield Finding("events-dropped", "warning", message, file)
    if profile.space.cut_at is not None:
        at = f"{profile.space.cut_at:,}"
        message = f"the profile is truncated or damaged at byte {at}; the part before is used"
        yield Finding("file-truncated", "error", message, file)
    damaged = dict(profile.damaged)
    for plane in planes:
        damaged |= {f"{part} of {plane.name}": why for part, why in plane.damage.items()}
    for name, why in damaged.items():
        yield Finding("table-damaged", "error", f"{name} is damaged: {why}", file)
    if not profile.programs and device.kind != "TPU":
        message = (
            "the profile holds no compiled program: groups and sizes of collectives, and products, "
            "are not known"
        )
        touches = ("collectives", "products", "hlo_operations")
        yield Finding("programs-missing", "warning", message, file, touches=touches)
