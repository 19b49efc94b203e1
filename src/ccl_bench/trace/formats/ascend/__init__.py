"""Traces of Ascend devices: the `trace_view.json` that torch_npu's and MindSpore's profilers write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.trace.formats import Format, all_of, any_of, begins, register, shows

if TYPE_CHECKING:
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent

_HARDWARE = rb'"name"\s*:\s*"Ascend Hardware"'
_TIME_AS_TEXT = rb'"ts"\s*:\s*"\d'
_QUEUE = rb'"cat"\s*:\s*"(?:enqueue|dequeue|async_npu|async_task_queue)"|"name"\s*:\s*"CANN"'

recognises = all_of(
    any_of(shows(_HARDWARE), all_of(shows(_TIME_AS_TEXT), shows(_QUEUE))),
    begins(rb'\s*(?:\[|\{.*?"traceEvents"\s*:\s*\[)\s*\{'),
)
"""A Chrome trace that names the hardware, or its queues beside times as text."""


def _read(stream: BinaryIO, file: str) -> TraceContent:
    from ccl_bench.trace.formats.ascend.reader import read_ascend

    return read_ascend(stream, file)


ASCEND = register(
    Format(
        name="ascend",
        profile="torch",
        revision=1,
        tables=frozenset({"kernels", "memcpy", "cpu_ops", "launches", "annotations"}),
        recognises=recognises,
        read=_read,
        recorder="torch's profiler",
    )
)
