"""XLA's profiles, `*.xplane.pb`: JAX on TPUs, GPUs and CPUs, and PyTorch/XLA. Each device is a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.trace.formats import Format, Identity, InParts, TracePart, all_of, begins, register

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.trace.content import TraceContent


recognises = all_of(
    begins(rb"\x0a"),  # a plane is field 1 of the file
    begins(rb".{0,4095}?(?:/host:metadata|/host:CPU|/device:TPU:|/device:GPU:|Task Environment)"),
)
"""A profile: its first plane has one of these names."""


def _parts(path: Path) -> list[TracePart]:
    from ccl_bench.trace.formats.xplane.profile import list_devices

    job = list_devices(path)
    is_single = len(job.devices) == 1
    return [
        TracePart("" if is_single else device.id, Identity(device.rank, job.world_size), device.ordinal)
        for device in job.devices
    ]


def _read(path: Path, file: str, part: str) -> TraceContent:
    from ccl_bench.trace.formats.xplane.reader import read_xplane

    return read_xplane(path, file, part)


XPLANE = register(
    Format(
        name="xplane",
        profile="jax",
        revision=4,
        tables=frozenset(
            {
                "kernels",
                "memcpy",
                "cpu_ops",
                "products",
                "launches",
                "annotations",
                "collectives",
                "devices",
                "hlo_operations",
            }
        ),
        recognises=recognises,
        in_parts=InParts(_parts, _read),
        suffixes=(".xplane.pb", ".xplane.pb.gz"),
        exports=((".trace.json.gz", ".xplane.pb"), (".trace.json", ".xplane.pb")),
        recorder="JAX's profiler",
        step_marker=r"#step_num=(\d+)#$",
        of_rank=False,
    )
)
