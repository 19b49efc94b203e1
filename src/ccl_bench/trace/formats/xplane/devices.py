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
    from ccl_bench.trace.hlo.program import Program

_DEVICE = re.compile(r"\A/device:(TPU|GPU):(\d{1,6})\Z")
"""Planes of whole devices; a TPU's SparseCores have planes of their own beside it."""

_GLOBAL_CORE = 5
"""Number of the field of a TPU's `core_details` that holds its global id."""

CPU_DEVICES = 2048
"""Numbers that JAX keeps for the CPU devices of one process."""

_STARTED = re.compile(r"\A\[(\d{1,6})\] \w+::Execute\b")
"""Ranges in which a program was started on a device: the number is the device's in its process."""


@dataclass(frozen=True, slots=True)
class Device:
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
        """What names the device in its file, such as `TPU:0`."""
        return f"{self.kind}:{self.ordinal}"


@dataclass(frozen=True, slots=True)
class Job:
    """The devices of a profile and how many the job had, None if the profile does not state it."""

    devices: tuple[Device, ...]
    world_size: int | None


def plane_devices(names: Iterable[str]) -> list[Device]:
    """Return the devices that have planes, by their names."""
    found = ((name, _DEVICE.match(name)) for name in names)
    return [Device(match[1], int(match[2]), name) for name, match in found if match]


def identify(
    planes: Sequence[Device], stated: Mapping[str, int | None], host: HostDevices, programs: Iterable[Program]
) -> Job:
    """Return the devices with their ranks.

    `planes` are those with planes of their own; `stated` maps the names of planes to the global ids in them.
    A profile without such planes is of CPU devices.
    """
    used = {device for program in programs for replicas in program.devices for device in replicas}
    if planes:
        ids = [stated.get(device.plane) for device in planes]
        ids = [
            host.ids.get(d.ordinal) if known is None else known for d, known in zip(planes, ids, strict=True)
        ]
        if None in ids and len(planes) == len(used):
            ids = [*sorted(used)]
        found = [replace(d, global_id=known, rank=known) for d, known in zip(planes, ids, strict=True)]
    else:
        found = _cpu_devices(host, used)
    world = _world_size(used, is_cpu=not planes)
    return Job(tuple(found), world)


def _cpu_devices(host: HostDevices, used: set[int]) -> list[Device]:
    """Return the CPU devices of a process: by their global ids, or by their numbers in the process.

    A process with one device states no pair of both: then its number is its id, if a program has it.
    """
    known = {*host.ids.values()}
    by_number = not host.used & known and host.used <= host.ids.keys()
    place = {device: rank for rank, device in enumerate(sorted(used))}
    ids: dict[int, int | None]
    if by_number:
        ids = {number: host.ids[number] for number in host.used}
    else:
        stated = known or used
        ids = {number: number if number in stated else None for number in host.used | known}
    return [
        Device("CPU", number, HOST, own, None if own is None else place.get(own))
        for number, own in sorted(ids.items())
    ]


def _world_size(used: set[int], *, is_cpu: bool) -> int | None:
    """Return the number of devices of the job: those of its programs, where these are all there can be.

    A program may run on a part of the devices: then numbers below its highest are missing.
    """
    if not used or (is_cpu and not _all_of_each_process(used)):
        return None
    return len(used) if is_cpu or used == {*range(len(used))} else None


def _all_of_each_process(used: set[int]) -> bool:
    local = {(device // CPU_DEVICES, device % CPU_DEVICES) for device in used}
    processes = {process for process, _ in local}
    ordinals = {ordinal for _, ordinal in local}
    whole = {*range(len(processes))} == processes and {*range(len(ordinals))} == ordinals
    return whole and len(local) == len(processes) * len(ordinals)


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
    """What the host's plane shows of devices."""

    ids: Mapping[int, int]
    """Number in its process → global id, where a range states both."""
    used: frozenset[int]
    """Numbers of the devices whose instructions ran on the host itself."""


def host_devices(plane: Plane | None) -> HostDevices:
    """Return what the host's plane shows of devices."""
    ids: dict[int, int] = {}
    used: set[int] = set()
    for line in plane.lines if plane else ():
        on_host = line.holds("hlo_op") & line.holds("device_ordinal")
        used.update(np.unique(line.numbers("device_ordinal")[on_host]).tolist())
        for about, (known,) in line.distinct("global_device_id")[0]:
            if isinstance(known, int) and (match := _STARTED.match(about.name)):
                ids[int(match[1])] = known
    return HostDevices(ids, frozenset(used))
