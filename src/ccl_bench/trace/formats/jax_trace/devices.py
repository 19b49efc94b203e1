"""The devices in a trace that JAX wrote for viewers, and the rank of each where an event states it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.trace.formats.jax_trace.events import number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ccl_bench.trace.formats.jax_trace.events import Event

HOST = "/host:CPU"
_DEVICE = re.compile(r"\A/device:(TPU|GPU):(\d{1,6})\Z")
_STARTED = re.compile(r"\A\[(\d{1,6})\] \w+::Execute\b")
"""Ranges in which a program was started on a device: the number is the device's in its process."""

_EXECUTE = re.compile(r"\A\w+::Execute \(")
"""Ranges in which a program was started on all devices of a process."""

_CPU_DEVICES = 2048
"""JAX numbers the CPU devices of process p from 2048 p."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device of the trace."""

    kind: str
    """`TPU`, `GPU` or `CPU`."""
    ordinal: int
    """Number in its process."""
    pid: int
    """Process of the trace that holds its events."""
    rank: int | None = None
    world_size: int | None = None

    @property
    def id(self) -> str:
        """What names the device in its file, such as `TPU:0`."""
        return f"{self.kind}:{self.ordinal}"


def list_devices(events: Sequence[Event]) -> list[Device]:
    """Return the devices, those of the CPU where the trace has no others, in order of their numbers."""
    names = {e.pid: str(e.args.name or "") for e in events if e.ph == "M" and e.name == "process_name"}
    ids = _global_ids(events)
    found = [
        Device(match[1], int(match[2]), pid, ids.get(int(match[2])))
        for pid, name in names.items()
        if (match := _DEVICE.match(name))
    ]
    if not found:
        hosts = [pid for pid, name in names.items() if name == HOST]
        found = [device for pid in hosts for device in _cpu_devices(pid, events)]
    return sorted(found, key=lambda device: (device.kind, device.ordinal))


def _cpu_devices(pid: int, events: Sequence[Event]) -> list[Device]:
    """Return the devices that ran instructions on the host's threads; their numbers are XLA's global ones."""
    known = {number(e.args.device_ordinal) for e in events if e.args.hlo_op is not None and e.pid == pid}
    each, world = _sizes(events)
    found = []
    for ordinal in sorted(ordinal for ordinal in known if ordinal is not None):
        process, place = divmod(ordinal, _CPU_DEVICES)
        rank = process * each + place if each and place < each else None
        found.append(Device("CPU", ordinal, pid, rank, world))
    return found


def _global_ids(events: Iterable[Event]) -> dict[int, int]:
    """Return the global id of each device by its number in the process, where a range states both."""
    found = {}
    for event in events:
        known = number(event.args.global_device_id)
        if known is not None and (match := _STARTED.match(event.name)):
            found[int(match[1])] = known
    return found


def _sizes(events: Iterable[Event]) -> tuple[int | None, int | None]:
    """Return the devices of one process and of the job, as the largest program states them."""
    largest: tuple[int | None, int | None] = (None, None)
    for event in events:
        partitions, replicas = number(event.args.num_partitions), number(event.args.num_replicas)
        each = number(event.args.num_addressable_devices)
        if not (partitions and replicas and each and _EXECUTE.match(event.name)):
            continue
        if (partitions * replicas) > (largest[1] or 0):
            largest = each, partitions * replicas
    return largest
