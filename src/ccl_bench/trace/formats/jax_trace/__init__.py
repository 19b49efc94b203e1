"""The Chrome traces that JAX and TensorFlow write beside a profile: `<host>.trace.json.gz`.

They are made of the `.xplane.pb` of the same name, for viewers, and hold less: no compiled programs. They are
read where no profile lies beside them. Each device is a trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.trace.formats import (
    Format,
    Identity,
    InParts,
    TracePart,
    all_of,
    begins,
    holds,
    register,
    shows,
)

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.trace.content import TraceContent

_COPY = "perfetto_trace.json"
"""What `create_perfetto_trace` writes beside a profile and its trace."""


recognises = all_of(
    holds(b'"process_name"'),
    shows(rb'"name"\s*:\s*"/(?:host:CPU|device:\w+:\d+[^"]*)"'),
    begins(rb'\s*\{.{0,256}?"traceEvents"\s*:\s*\[\s*\{'),
)
"""A Chrome trace in which XLA's names of devices are the names of processes."""


def _parts(path: Path) -> list[TracePart]:
    from ccl_bench.trace.formats.jax_trace.events import read_events
    from ccl_bench.trace.formats.jax_trace.work import list_devices

    if path.name.startswith(_COPY) and any(path.parent.glob("*.xplane.pb")):
        return []
    devices = list_devices(read_events(path, path.name).events)
    is_single = len(devices) == 1
    return [
        TracePart("" if is_single else device.id, Identity(device.rank, device.world_size), device.ordinal)
        for device in devices
    ]


def _read(path: Path, file: str, part: str) -> TraceContent:
    from ccl_bench.trace.formats.jax_trace.reader import read_jax_trace

    return read_jax_trace(path, file, part)


JAX_TRACE = register(
    Format(
        name="jax_trace",
        profile="jax",
        revision=2,
        tables=frozenset({"kernels", "memcpy", "cpu_ops", "launches", "annotations", "collectives"}),
        recognises=recognises,
        in_parts=InParts(_parts, _read),
        recorder="JAX's profiler",
        step_marker=r"#step_num=(\d+)#$",
        advice="keep the .xplane.pb that JAX's profiler writes beside its .trace.json.gz",
        of_rank=False,
    )
)
