"""PyTorch's Kineto traces: Chrome trace JSON written by `torch.profiler`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccl_bench.trace.formats import Format, Identity, register

if TYPE_CHECKING:
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent

_DISTRIBUTED = re.compile(rb'"distributedInfo"\s*:\s*\{(?P<info>.{0,4096})', re.DOTALL)
_RANK = re.compile(rb'"rank"\s*:\s*(\d+)')
_WORLD_SIZE = re.compile(rb'"world_size"\s*:\s*(\d+)')
_EVENT = re.compile(rb'\A\s*\[\s*\{[^{}]*"ph"\s*:')


def recognises(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a Chrome trace."""
    if b'"traceEvents"' in head or _EVENT.match(head):
        return True
    return b'"deviceProperties"' in head and b'"schemaVersion"' in head


def identity(head: bytes) -> Identity:
    """Return rank and world size from `distributedInfo`, if it stands in the first bytes."""
    info = _DISTRIBUTED.search(head)
    if not info:
        return Identity()
    rank, world_size = _RANK.search(info["info"]), _WORLD_SIZE.search(info["info"])
    return Identity(int(rank[1]) if rank else None, int(world_size[1]) if world_size else None)


def _read(stream: BinaryIO, file: str) -> TraceContent:
    from ccl_bench.trace.formats.kineto.reader import read_kineto

    return read_kineto(stream, file)


KINETO = register(
    Format(
        name="kineto",
        profile="torch",
        revision=1,
        tables=frozenset(
            {
                "kernels",
                "memcpy",
                "cpu_ops",
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
    )
)
