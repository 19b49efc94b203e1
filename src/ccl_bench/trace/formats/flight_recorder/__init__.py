"""Dumps of PyTorch's Flight Recorder: the last communication calls of one rank, as a pickle or as JSON.

NCCL's watchdog writes `<prefix><rank>`, a pickle; the handlers of `torch.distributed.debug` answer with
JSON. Neither says whose it is: the number in the file's name counts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccl_bench.trace.formats import Format, Identity, all_of, any_of, begins, holds, none_of, register

if TYPE_CHECKING:
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent

_FIRST_TIME = re.compile(
    rb'time_created_ns(?:"\s*:\s*(?P<text>\d{1,20})|(?:q.|r.{4}|\x94)?\x8a\x08(?P<number>.{8}))', re.DOTALL
)


_ENTRY = holds(b"seq_id", b"profiling_name")
"""What every entry has, in each version."""

_WITHOUT_ENTRIES = holds(b"pg_config", b"entries", b"version")

recognises = all_of(
    any_of(_ENTRY, _WITHOUT_ENTRIES), begins(rb"\x80[\x02-\x05]|\s*\{"), none_of(holds(b'"traceEvents"'))
)
"""A pickle or JSON that names what a dump holds."""


def identity(head: bytes) -> Identity:
    """Return the time of the first call, which a pickle and the JSON of one dump have in common."""
    first = _FIRST_TIME.search(head)
    if first is None:
        return Identity()
    time_ns = int(first["text"]) if first["text"] else int.from_bytes(first["number"], "little")
    return Identity(recording=str(time_ns))


def _read(stream: BinaryIO, file: str) -> TraceContent:
    from ccl_bench.trace.formats.flight_recorder.reader import read_dump

    return read_dump(stream, file)


FLIGHT_RECORDER = register(
    Format(
        name="flight_recorder",
        profile="flight_recorder",
        revision=3,
        tables=frozenset(
            {"recorder_dumps", "recorded_calls", "recorded_groups", "recorded_status", "recorded_stacks"}
        ),
        recognises=recognises,
        identity=identity,
        read=_read,
        suffixes=(*"0123456789", ".pickle", ".pkl", ".json", ".json.gz"),
        recorder="torch's Flight Recorder",
        ends_in_rank=True,
    )
)
