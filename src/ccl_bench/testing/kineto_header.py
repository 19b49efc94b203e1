"""What a Kineto file says outside its events: devices, process groups, the base of its clock."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ccl_bench.testing.kineto_calls import group_name
from ccl_bench.testing.kineto_layout import BASE_NS

if TYPE_CHECKING:
    from ccl_bench.testing.kineto_layout import Style
    from ccl_bench.testing.timeline import Timeline

_NCCL_VERSION = "2.21.5"


def opening(made: Timeline, rank: int, style: Style) -> str:
    """Return everything up to the first event."""
    device = _device(made)
    count = min(made.plan.devices_per_node, made.plan.world_size)
    described = [{"id": number} | device for number in range(count)]
    job = _distributed(made, rank, style)
    if style.is_pretty:
        devices = ",\n".join(f"    {json.dumps(one)}" for one in described)
        lines = ['  "schemaVersion": 1', f'  "deviceProperties": [\n{devices}\n  ]']
        lines += [f'  "distributedInfo": {json.dumps(job)}', '  "traceEvents": [\n']
        return "\n{\n" + ",\n".join(lines)
    known = {"schemaVersion": 1, "deviceProperties": described, "cupti_version": 24}
    known |= {"record_shapes": 1, "distributedInfo": job, "displayTimeUnit": "ms"}
    if not style.has_absolute_times:
        known["baseTimeNanoseconds"] = BASE_NS
    return json.dumps(known, separators=(",", ":"))[:-1] + ',"traceEvents":['


def closing(rank: int, style: Style) -> str:
    """Return everything after the last event."""
    if not style.is_pretty:
        return "]}"
    base = "" if style.has_absolute_times else f',\n  "baseTimeNanoseconds": {BASE_NS}'
    return f'\n  ],\n  "traceName": "rank{rank}_trace.json",\n  "displayTimeUnit": "ms"{base}\n}}\n'


def _device(made: Timeline) -> dict[str, object]:
    device = made.plan.device
    return {
        "name": device.name,
        "totalGlobalMem": device.memory_bytes,
        "computeMajor": 8,
        "computeMinor": 0,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerMultiprocessor": 2048,
        "regsPerBlock": 65_536,
        "warpSize": 32,
        "sharedMemPerBlock": 49_152,
        "numSms": device.sms,
        "regsPerMultiprocessor": 65_536,
        "sharedMemPerBlockOptin": 166_912,
        "sharedMemPerMultiprocessor": 167_936,
    }


def _distributed(made: Timeline, rank: int, style: Style) -> dict[str, object]:
    groups = made.mesh.groups_of(rank)
    return {
        "backend": "nccl",
        "rank": rank // style.devices_in_process,
        "world_size": made.plan.world_size // style.devices_in_process,
        "pg_count": len(groups),
        "pg_config": [
            {
                "pg_name": group_name(made, rank, group, style=style),
                "pg_desc": group.description,
                "backend_config": "cuda:nccl",
                "pg_size": len(group.ranks),
                "ranks": list(group.ranks),
            }
            for group in groups
        ],
        "nccl_version": _NCCL_VERSION,
    }
