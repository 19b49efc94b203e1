"""PyTorch's Kineto traces: Chrome trace JSON written by `torch.profiler`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from ccl_bench.trace.formats import Format, Identity, all_of, any_of, begins, holds, none_of, register

if TYPE_CHECKING:
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent

_DISTRIBUTED = re.compile(rb'"distributedInfo"\s*:\s*(?=\{)')
_NUMBERS = {key: re.compile(rb'"%s"\s*:\s*(\d{1,9})\s*[,}]' % key) for key in (b"rank", b"world_size")}
_MANY = 10**9
_OF_NCCL = holds(b'"CommHash"')
"""The events of NCCL's example profiler plug-in, which times callbacks."""

recognises = any_of(
    holds(b'"traceEvents"'),
    all_of(begins(rb'\s*\[\s*\{[^{}]*"ph"\s*:'), none_of(_OF_NCCL)),
    holds(b'"deviceProperties"', b'"schemaVersion"'),
)
"""A Chrome trace."""


def identity(head: bytes) -> Identity:
    """Return rank and world size from `distributedInfo`, if it is in the first bytes."""
    start = _DISTRIBUTED.search(head)
    if not start:
        return Identity()
    info = head[start.end() :].partition(b'"traceEvents"')[0]
    try:
        whole: dict[str, object] = json.JSONDecoder().raw_decode(info.decode("utf-8", "replace"))[0]
    except (ValueError, RecursionError):
        matches = {key.decode(): number.search(info) for key, number in _NUMBERS.items()}
        whole = {key: int(match[1]) for key, match in matches.items() if match}
    return Identity(_count(whole.get("rank")), _count(whole.get("world_size")))


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < _MANY else None


def _read(stream: BinaryIO, file: str) -> TraceContent:
    from ccl_bench.trace.formats.kineto.reader import read_kineto

    return read_kineto(stream, file)


def _reads_in_threads() -> bool:
    from ccl_bench.trace.native.library import absence

    return absence() is None


KINETO = register(
    Format(
        name="kineto",
        profile="torch",
        revision=5,
        tables=frozenset(
            {
                "kernels",
                "memcpy",
                "cpu_ops",
                "products",
                "launches",
                "annotations",
                "collectives",
                "autograd_links",
                "devices",
                "process_groups",
            }
        ),
        recognises=recognises,
        identity=identity,
        read=_read,
        recorder="torch's profiler",
        reads_in_threads=_reads_in_threads,
    )
)
