"""Records of the NCCL Inspector, the profiler plug-in that comes with NCCL: one JSON object a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.trace.formats import Format, all_of, begins, holds, register

if TYPE_CHECKING:
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent

recognises = all_of(
    holds(b'"inspector_output_format_version"'), begins(rb'\s*\{\s*"header"\s*:\s*\{[^{}]*"n_ranks"\s*:')
)
"""A record. A process may hold several ranks, and their numbers are those in a communicator."""


def _read(stream: BinaryIO, file: str) -> TraceContent:
    from ccl_bench.trace.formats.nccl_inspector.reader import read_records

    return read_records(stream, file)


NCCL_INSPECTOR = register(
    Format(
        name="nccl_inspector",
        profile="nccl_inspector",
        revision=1,
        tables=frozenset({"nccl_records"}),
        recognises=recognises,
        read=_read,
        suffixes=(".log", ".log.gz", ".jsonl", ".jsonl.gz"),
        recorder="NCCL Inspector",
        of_rank=False,
        advice="record the same steps with torch.profiler too: the NCCL Inspector times collectives alone",
    )
)
