"""XLA's profiles, `*.xplane.pb`: JAX on TPUs, GPUs and CPUs, and PyTorch/XLA. Each device is a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.trace.formats import Format, Identity, InParts, Part, register

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.trace.content import TraceContent


_FIRST_PLANE = b"\x0a"
"""The tag of a plane, which is field 1 of the file."""

_NAMES = (b"/host:metadata", b"/host:CPU", b"/device:TPU:", b"/device:GPU:", b"Task Environment")

_HEAD_BYTES = 4096
"""Bytes in which the name of the first plane stands."""


def recognises(head: bytes) -> bool:
    """Whether a file begins with a plane that has the name of one of these profiles."""
    beginning = head[:_HEAD_BYTES]
    return beginning[:1] == _FIRST_PLANE and any(name in beginning for name in _NAMES)


def _nobody(head: bytes) -> Identity:  # noqa: ARG001 (a profile says more only once it is opened)
    return Identity()


def _parts(path: Path) -> list[Part]:
    from ccl_bench.trace.formats.xplane.profile import list_devices

    job = list_devices(path)
    alone = len(job.devices) == 1
    return [
        Part("" if alone else device.id, Identity(device.rank, job.world_size), device.ordinal)
        for device in job.devices
    ]


def _read(path: Path, file: str, part: str) -> TraceContent:
    from ccl_bench.trace.formats.xplane.reader import read_xplane

    return read_xplane(path, file, part)


XPLANE = register(
    Format(
        name="xplane",
        profile="jax",
        revision=3,
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
        identity=_nobody,
        in_parts=InParts(_parts, _read),
        suffixes=(".xplane.pb", ".xplane.pb.gz"),
        exports=((".trace.json.gz", ".xplane.pb"), (".trace.json", ".xplane.pb")),
        recorder="JAX's profiler",
        step_marker=r"#step_num=(\d+)#$",
        of_rank=False,
    )
)
