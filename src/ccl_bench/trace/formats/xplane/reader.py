"""Reader of one device of a profile, with findings about missing data."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from ccl_bench.trace.formats.xplane.space import Plane
from ccl_bench.trace.protobuf import DamagedMessageError
from ccl_bench.trace.quality import drop_impossible, drop_repeated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.trace.device_steps import DeviceSteps, Moment
    from ccl_bench.trace.formats.xplane.devices import Device
    from ccl_bench.trace.formats.xplane.host import Call
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
            return _DeviceReader(profile, device, file).content()
        except DamagedMessageError as error:
            fix = "record the profile again, or copy the file again"
            raise InputError(f"the plane of {device.id} is damaged: {error}", where=file, fix=fix) from error


class _DeviceReader:
    """Reads the work of one device of a profile, and of the host for it."""

    def __init__(self, profile: Profile, device: Device, file: str) -> None:
        self.profile, self.device, self.file = profile, device, file
        self.start_ns = profile.start_ns
        plane = profile.host if device.kind == "CPU" else profile.plane(device.plane)
        self.plane = plane if plane is not None else Plane(device.plane, b"")
        self.base_ns = (self.start_ns or 0) if self._is_relative() else 0
        self.host = profile.host_from(self.base_ns)
        self.calls: dict[int, Call] = {}
        self.dispatches: dict[int, Moment] = {}
        """Run → when and on which thread the program asked for it."""
        self.runs: list[ProgramRun] = []

    def _is_relative(self) -> bool:
        planes = [plane for plane in (self.plane, self.profile.host) if plane is not None]
        return all(line.start_ns < _RELATIVE for plane in planes for line in plane.lines if line.count)

    def content(self) -> TraceContent:
        """Return tables and findings."""
        work, costs, steps = self._work()
        tables = {
            "kernels": rows.kernel_rows(work, self.device, self._chip()),
            "memcpy": rows.copy_rows(work, self.device),
            "cpu_ops": self._cpu_ops(),
            "products": rows.product_rows(work),
            "launches": self._launches(),
            "annotations": self._annotations(steps),
            "collectives": rows.collective_rows(work, self.device, self.profile.programs, self._ranks()),
            "devices": self._devices(),
            "hlo_operations": rows.operation_rows(costs, self.profile.programs),
        }
        tables, implausible = drop_impossible(tables, self.file)
        tables, repeats = drop_repeated(tables, self.file)
        disordered: list[Finding] = []
        if self.device.kind == "GPU":  # a core of a TPU runs asynchronous instructions beside others
            tables, disordered = drop_disordered(tables, self.file)
        return TraceContent(
            tables=tables,
            rank=self.device.rank,
            world_size=self.profile.job.world_size,
            findings=[*implausible, *repeats, *disordered, *self._findings(steps, tables)],
            attributes=self._attributes(),
        )

    def _work(self) -> tuple[Operations, Operations, DeviceSteps]:
        """Return the device's work, its instructions with their costs, and its steps."""
        programs = self.profile.programs
        if self.device.kind == "TPU":
            runs = tpu_runs(self.plane, self.base_ns)
            work = tpu_operations(self.plane, runs, programs, self.base_ns)
            costs = tpu_instructions(self.plane, programs, self.base_ns)
            queued = zip(runs.run.tolist(), map(self.host.enqueued, runs.flow), strict=True)
            self.calls = {run: call for run, call in queued if call}
            on_line = line_steps(self.plane, STEPS, self.base_ns)
            by_runs = runs_as_steps(runs.program, runs.start_ns, runs.end_ns)
            names = [name.partition("(")[0] for name in runs.program]
            self.runs = [*map(ProgramRun, names, runs.start_ns.tolist(), runs.end_ns.tolist())]
            return work, costs, self._steps(work, on_line if on_line.steps else by_runs)
        if self.device.kind == "GPU":
            work = gpu_operations(self.plane, programs, self.base_ns)
            self.calls = self._own_launches()
        else:
            work = self._numbered(cpu_operations(self.plane, self.device, programs, self.base_ns))
        begins = program_begins(work, programs)
        self.runs = [*program_runs(work, programs, begins)]
        return work, work, self._steps(work, work_as_steps(work, programs, begins))

    def _own_launches(self) -> dict[int, Call]:
        """Return the launches without those whose work ran on another GPU of the process."""
        elsewhere: set[int] = set()
        for other_device in self.profile.job.devices:
            plane = None if other_device == self.device else self.profile.plane(other_device.plane)
            for line in plane.lines if plane else ():
                elsewhere.update(line.numbers("correlation_id").tolist())
        return {call.run: call for call in self.host.launches() if call.run not in elsewhere}

    def _steps(self, work: Operations, on_device: DeviceSteps) -> DeviceSteps:
        self.dispatches = {run: self.host.dispatched(call) for run, call in self.calls.items()}
        return find_steps(self.host.marks, self.dispatches, work.ran(), on_device)

    def _numbered(self, work: Operations) -> Operations:
        """Return work with the runs numbered from 1 in order of time, as launches are elsewhere."""
        runs, first = np.unique(work.run, return_index=True)
        order = np.argsort(first)
        number = np.empty(runs.size, dtype=np.int64)
        number[order] = np.arange(1, runs.size + 1)
        for place, run in enumerate(runs.tolist()):
            call = self.host.execution(run)
            if call is not None:
                self.calls[int(number[place])] = call
        if not self.calls and len(self.profile.job.devices) == 1:
            in_order = self.host.executions_in_order(work.start_ns[first[order]].tolist())
            self.calls = dict(enumerate(in_order, start=1))
        return Operations(
            work.kinds,
            work.kind,
            work.start_ns,
            work.end_ns,
            work.stream,
            number[np.searchsorted(runs, work.run)] if runs.size else work.run,
        )

    def _ranks(self) -> dict[int, int]:
        """Return the rank of each device of the job, by its global id."""
        ids = {
            d for program in self.profile.programs.values() for replicas in program.devices for d in replicas
        }
        if self.device.kind != "CPU":
            return {device: device for device in ids}
        return {device: rank for rank, device in enumerate(sorted(ids))}

    def _chip(self) -> rows.Chip:
        units = self.plane.stats.get("core_count")
        return rows.Chip(units if isinstance(units, int) and units > 0 else None)

    def _cpu_ops(self) -> pl.DataFrame:
        ranges = self.host.ranges
        return TABLES["cpu_ops"].frame(
            {
                "start_ns": [item.start_ns for item in ranges],
                "end_ns": [item.end_ns for item in ranges],
                "name": [item.name for item in ranges],
                "thread": [item.thread for item in ranges],
            }
        )

    def _launches(self) -> pl.DataFrame:
        """Return the calls that started work, at the time when the program asked for it.

        Those of a CPU or TPU start a whole program, often long after that, on a thread of the runtime.
        """
        calls = ((run, self.dispatches[run].time_ns, call) for run, call in self.calls.items())
        by_start = sorted(calls, key=lambda item: item[1])
        columns: dict[str, list[object]] = {
            "start_ns": [start for _, start, _ in by_start],
            "end_ns": [start + call.end_ns - call.start_ns for _, start, call in by_start],
            "name": [call.name for _, _, call in by_start],
            "thread": [call.thread for _, _, call in by_start],
            "correlation": [run for run, _, _ in by_start],
        }
        return TABLES["launches"].frame(columns)

    def _annotations(self, steps: DeviceSteps) -> pl.DataFrame:
        """Return the ranges of the program; steps and runs of programs carry their number in the name."""
        step_ranges = [(item.label, item.start_ns, item.end_ns) for item in steps.steps]
        runs = [(run.label(number), run.start_ns, run.end_ns) for number, run in enumerate(self.runs)]
        marked_ranges = [item for item in self.host.ranges if is_of_program(item.name)]
        ranges = [(item.name, item.start_ns, item.end_ns) for item in marked_ranges]
        all_ranges = [*step_ranges, *runs, *ranges]
        on_device = [
            *([steps.source != MARKED] * len(step_ranges)),
            *([True] * len(runs)),
            *([False] * len(ranges)),
        ]
        return TABLES["annotations"].frame(
            {
                "start_ns": [start for _, start, _ in all_ranges],
                "end_ns": [end for _, _, end in all_ranges],
                "name": [name for name, _, _ in all_ranges],
                "on_device": on_device,
            }
        )

    def _devices(self) -> pl.DataFrame:
        stats = self.plane.stats
        if self.device.kind == "CPU":
            return TABLES["devices"].empty()
        rate = stats.get("peak_hbm_bw_gigabytes_per_second")
        bandwidth = rate * 1e9 if isinstance(rate, float) else stats.get("memory_bandwidth")
        peak = stats.get("peak_teraflops_per_second")
        return TABLES["devices"].frame(
            {
                "device": [self.device.ordinal],
                "name": [str(stats.get("device_type_string", ""))],
                "memory_bytes": [_positive(stats.get("memory_size"))],
                "sms": [_positive(stats.get("core_count"))],
                "peak_flops_per_s": [peak * 1e12 if isinstance(peak, float) and peak > 0 else None],
                "memory_bytes_per_s": [_positive(bandwidth)],
            }
        )

    def _attributes(self) -> dict[str, str]:
        plane = self.profile.plane("/host:metadata")
        stats = plane.stats if plane else {}
        names = {"jax_version": "jax_version", "jaxlib_version": "jaxlib_version"}
        return {name: str(stats[key])[:64] for name, key in names.items() if key in stats}

    def _findings(self, steps: DeviceSteps, tables: dict[str, pl.DataFrame]) -> Iterator[Finding]:
        yield from self._damage()
        if self.start_ns is None:
            message = (
                "the start of the recording is not stated: times cannot be compared with those of other files"
            )
            yield Finding("clock-unanchored", "warning", message, self.file)
        yield from step_findings(steps, self.file)
        if tables["kernels"].is_empty() and tables["memcpy"].is_empty():
            yield Finding("no-events", "error", "the profile holds no work of this device", self.file)

    def _damage(self) -> Iterator[Finding]:
        for text in self.profile.space.complaints:
            yield Finding(
                "events-dropped", "warning", f"the profiler reported: {text.strip()[:200]}", self.file
            )
        cut_at = self.profile.space.cut_at
        if cut_at is not None:
            message = f"the profile is truncated or damaged at byte {cut_at:,}; the part before is used"
            yield Finding("file-truncated", "error", message, self.file)
        damaged = dict(self.profile.damaged)
        for plane in filter(None, (self.plane, self.profile.host)):
            damaged |= {f"{part} of {plane.name}": why for part, why in plane.damage.items()}
        for name, why in damaged.items():
            yield Finding("table-damaged", "error", f"{name} is damaged: {why}", self.file)
        if not self.profile.programs and self.device.kind != "TPU":
            message = (
                "the profile holds no compiled program: groups and sizes of collectives, and products, "
                "are not known"
            )
            touched_tables = ("collectives", "products", "hlo_operations")
            yield Finding("programs-missing", "warning", message, self.file, touches=touched_tables)


def _positive(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and value > 0 else None
