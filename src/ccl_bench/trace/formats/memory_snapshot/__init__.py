"""PyTorch's CUDA memory snapshots: pickles of `torch.cuda.memory._dump_snapshot`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.trace.formats import Format, all_of, any_of, begins, holds, register

if TYPE_CHECKING:
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent

recognises = all_of(
    begins(rb"\x80[\x02-\x05]"),
    any_of(holds(b"device_traces"), begins(rb".{0,56}segments"), holds(b"total_size", b"blocks")),
)
"""A pickle that names what a snapshot holds."""


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
        read=_read,
        suffixes=(".pickle", ".pickle.gz", ".pkl", ".pkl.gz"),
    )
)
