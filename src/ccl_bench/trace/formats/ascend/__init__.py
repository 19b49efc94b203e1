"""Traces of Ascend devices: the `trace_view.json` that torch_npu's and MindSpore's profilers write."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccl_bench.trace.formats import Format, Identity, register

if TYPE_CHECKING:
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent

_EVENTS = re.compile(rb'\A\s*(?:\[|\{.*?"traceEvents"\s*:\s*\[)\s*\{', re.DOTALL)
_HARDWARE = re.compile(rb'"name"\s*:\s*"Ascend Hardware"')
_TIME_AS_TEXT = re.compile(rb'"ts"\s*:\s*"\d')
_QUEUE = re.compile(rb'"cat"\s*:\s*"(?:enqueue|dequeue|async_npu|async_task_queue)"|"name"\s*:\s*"CANN"')


def recognises(head: bytes) -> bool:
    """Whether a file begins as such a trace: it names the hardware, or its queues beside times as text."""
    if not _EVENTS.match(head):
        return False
    return bool(_HARDWARE.search(head) or (_TIME_AS_TEXT.search(head) and _QUEUE.search(head)))


def identity(_: bytes) -> Identity:
    """Return nothing: the file does not say whose trace it is."""
    return Identity()


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
        identity=identity,
        read=_read,
        recorder="torch's profiler",
    )
)
