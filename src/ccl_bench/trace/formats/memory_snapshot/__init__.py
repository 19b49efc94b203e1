"""PyTorch's CUDA memory snapshots: pickles of `torch.cuda.memory._dump_snapshot`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.trace.formats import Format, Identity, register

if TYPE_CHECKING:
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent

_PROTO = 0x80
_PROTOCOLS = range(2, 6)


def recognises(head: bytes) -> bool:
    """Whether the first bytes are those of a pickle that names what a snapshot holds."""
    if len(head) < 2 or head[0] != _PROTO or head[1] not in _PROTOCOLS:
        return False
    return (
        b"device_traces" in head
        or (b"segments" in head[:64])
        or (b"total_size" in head and b"blocks" in head)
    )


def identity(_: bytes) -> Identity:
    """Return nothing: a snapshot does not say whose it is."""
    return Identity()


def _read(stream: BinaryIO, file: str) -> TraceContent:
    from ccl_bench.trace.formats.memory_snapshot.reader import read_memory_snapshot

    return read_memory_snapshot(stream, file)


MEMORY_SNAPSHOT = register(
    Format(
        name="memory_snapshot",
        profile="memory",
        revision=1,
        tables=frozenset(
            {
                "memory_events",
                "memory_segments",
                "memory_blocks",
                "memory_stacks",
                "memory_frames",
                "memory_settings",
            }
        ),
        recognises=recognises,
        identity=identity,
        read=_read,
        suffixes=(".pickle", ".pickle.gz", ".pkl", ".pkl.gz"),
    )
)
