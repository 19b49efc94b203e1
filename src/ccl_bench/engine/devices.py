"""The content of a trace as one for each device, where its process worked on several."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ccl_bench.analysis.derived import tables_behind
from ccl_bench.analysis.device.completeness import devices_at_work, on_device
from ccl_bench.base.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.trace.content import TraceContent

OF_DEVICES = ("kernels", "memcpy", "launches", "counters")
"""Raw tables that are told apart by device."""

_OF_THE_WHOLE = frozenset({"contents", "call_counts", "completeness"})
"""Tables that say what a file holds, whatever device it is of."""


@dataclass(frozen=True, slots=True)
class ByDevice:
    """One trace, device by device."""

    contents: tuple[TraceContent, ...]
    findings: tuple[Finding, ...]


def by_device(content: TraceContent, file: str) -> ByDevice | None:
    """Return the content for each device that its process worked on; None where it is at most one."""
    used = content.table("kernels", ("start_ns", "end_ns", "device"))
    if used["device"].drop_nulls().n_unique() < 2:
        return None
    devices, touched = devices_at_work(used)
    tables = {name: content.table(name) for name in OF_DEVICES}
    contents = []
    for device in devices:
        others = [other for other in (*devices, *touched) if other != device]
        own = on_device(tables, device, others, is_first=device == devices[0])
        contents.append(replace(content, tables={**content.tables, **own}))
    findings = [finding for finding in (_several(devices, file), _touched(touched, file)) if finding]
    return ByDevice(tuple(contents), tuple(findings))


def _several(devices: list[int], file: str) -> Finding | None:
    if len(devices) < 2:
        return None
    message = (
        f"{file} is of a process that worked on devices {_listed(devices)}: each counts for itself, "
        "numbers of a device are means over them, and nothing is matched with other ranks"
    )
    return Finding("several-devices", "note", message, file, count=len(devices), touches=OF_DEVICES)


def _touched(devices: list[int], file: str) -> Finding | None:
    if not devices:
        return None
    message = f"what {file} holds of devices {_listed(devices)} is left out: less than 1 % of its kernel time"
    return Finding("device-touched", "note", message, file, count=len(devices), touches=OF_DEVICES)


def _listed(devices: Iterable[int]) -> str:
    return ", ".join(map(str, devices))


def is_of_device(table: str) -> bool:
    """Whether a table differs from device to device of one trace."""
    if table in _OF_THE_WHOLE:
        return False
    return not tables_behind([table], but=frozenset()).isdisjoint({"kernels", "memcpy", "counters"})
