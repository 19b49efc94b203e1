"""Devices of a profile, each a separate trace, and their ranks.

A device of XLA has a global id, which is its rank: a TPU's plane states it; elsewhere the ranges in which a
program was started on a device do, or the programs, where they run on as many devices as the profile holds.
JAX numbers the CPU devices of process p from 2048 p.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.trace.formats.xplane.space import HOST
from ccl_bench.trace.protobuf import DamagedMessageError, Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ccl_bench.trace.formats.xplane.space import Plane
    from ccl_bench.trace.hlo.program import HloProgram

_DEVICE = re.compile(r"\A/device:(TPU|GPU):(\d{1,6})\Z")
"""Planes of whole devices; a TPU's SparseCores have planes of their own beside it."""

_GLOBAL_CORE = 5
"""Number of the field of a TPU's `core_details` that holds its global id."""

CPU_DEVICES = 2048
"""Numbers that JAX keeps for the CPU devices of one process."""

_STARTED = re.compile(r"\A\[(\d{1,6})\] \w+::Execute\b")
"""Ranges in which a program was started on a device: the number is the device's in its process."""


@dataclass(frozen=True, slots=True)
class XlaDevice:
    """One device of a profile."""

    kind: str
    """`TPU`, `GPU` or `CPU`."""
    ordinal: int
    """Number in its process."""
    plane: str
    """Name of its plane; the host's for a CPU device."""
    global_id: int | None = None
    """XLA's number of the device; None if the profile does not state it."""
    rank: int | None = None
    """Its place among the devices of the job."""

    @property
    def id(self) -> str:
        """Name of the device in its file, such as `TPU:0`."""
        return f"{self.kind}:{self.ordinal}"


@dataclass(frozen=True, slots=True)
class JobDevices:
    """The devices of a profile and how many the job had, None if the profile does not state it."""

    devices: tuple[XlaDevice, ...]
    world_size: int | None


def plane_devices(names: Iterable[str]) -> list[XlaDevice]:
    """Return the devices that have planes, by their names."""
    matches = ((name, _DEVICE.match(name)) for name in names)
    return [XlaDevice(match[1], int(match[2]), name) for name, match in matches if match]


def identify(
    planes: Sequence[XlaDevice],
    plane_ids: Mapping[str, int | None],
    host: HostDevices,
    programs: Iterable[HloProgram],
) -> JobDevices:
    """Return the devices with their ranks.

    `planes` are those with planes of their own; `plane_ids` maps names of planes to the global ids in them.
    A profile without such planes is of CPU devices. The job has the devices of its programs, where these are
    all there can be: a program may run on a part of them, and then numbers below its highest are missing.
    """
    program_devices = {device for program in programs for replicas in program.devices for device in replicas}
    if planes:
        ids = [plane_ids.get(device.plane) for device in planes]
        ids = [
            host.ids.get(d.ordinal) if global_id is None else global_id
            for d, global_id in zip(planes, ids, strict=True)
        ]
        if None in ids and len(planes) == len(program_devices):
            ids = [*sorted(program_devices)]
        devices = [
            replace(d, global_id=global_id, rank=global_id) for d, global_id in zip(planes, ids, strict=True)
        ]
        is_all = program_devices == {*range(len(program_devices))}
    else:
        devices = _cpu_devices(host, program_devices)
        local = {divmod(device, CPU_DEVICES) for device in program_devices}
        processes, ordinals = len({process for process, _ in local}), len({ordinal for _, ordinal in local})
        is_all = local == {(process, ordinal) for process in range(processes) for ordinal in range(ordinals)}
    return JobDevices(tuple(devices), len(program_devices) if program_devices and is_all else None)


def _cpu_devices(host: HostDevices, program_devices: set[int]) -> list[XlaDevice]:
    """Return the CPU devices of a process: by their global ids, or by their numbers in the process.

    A process with one device states no pair of both: then its number is its id, if a program has it.
    """
    global_ids = {*host.ids.values()}
    by_number = not host.ordinals & global_ids and host.ordinals <= host.ids.keys()
    place = {device: rank for rank, device in enumerate(sorted(program_devices))}
    ids: dict[int, int | None]
    if by_number:
        ids = {number: host.ids[number] for number in host.ordinals}
    else:
        valid_ids = global_ids or program_devices
        ids = {number: number if number in valid_ids else None for number in host.ordinals | global_ids}
    return [
        XlaDevice("CPU", number, HOST, global_id, None if global_id is None else place.get(global_id))
        for number, global_id in sorted(ids.items())
    ]


def core_id(details: object) -> int | None:
    """Return the global id in a TPU's `core_details`; None if there is none."""
    if not isinstance(details, bytes):
        return None
    try:
        return Message(details).number(_GLOBAL_CORE)
    except DamagedMessageError:
        return None


@dataclass(frozen=True, slots=True)
class HostDevices:
    """Devices that the host's plane shows."""

    ids: Mapping[int, int]
    """Number in its process → global id, where a range states both."""
    ordinals: frozenset[int]
    """Numbers of the devices whose instructions ran on the host itself."""


def host_devices(plane: Plane | None) -> HostDevices:
    """Return the devices that the host's plane shows."""
    ids: dict[int, int] = {}
    ordinals: set[int] = set()
    for line in plane.lines if plane else ():
        on_host = line.holds("hlo_op") & line.holds("device_ordinal")
        ordinals.update(np.unique(line.numbers("device_ordinal")[on_host]).tolist())
        for event_name, (global_id,) in line.distinct("global_device_id")[0]:
            if isinstance(global_id, int) and (match := _STARTED.match(event_name.name)):
                ids[int(match[1])] = global_id
    return HostDevices(ids, frozenset(ordinals))
