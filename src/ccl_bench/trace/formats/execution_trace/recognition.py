"""Whether a file is an Execution Trace, and of which rank, from its first bytes."""

from __future__ import annotations

import re

from ccl_bench.trace.format import Identity

_NODES = re.compile(rb'"nodes"\s*+:\s*+\[')
_OWN = (b'"rf_id"', b'"fw_parent"', b"|execution_trace|", b"|execution_graph|")
_SCHEMA = re.compile(rb'"schema"\s*+:\s*+"\d+\.\d+\.\d+')
_STATED = {key: re.compile(rb'"%s"\s*+:\s*+(\d{1,9})\s*+[,}]' % key) for key in (b"rank", b"world_size")}
_DEFAULT_GROUP = re.compile(
    rb'\{\\"pg_name\\": ?\\"0\\"[^{}\[\]]{0,512}\\"ranks\\": ?\[[\d, .]*+\]'
    rb'[^{}]{0,64}\\"group_size\\": ?(\d{1,9})'
)


def recognises(head: bytes) -> bool:
    """Whether the first bytes of a file are those of an Execution Trace."""
    if b'"traceEvents"' in head or not (start := _NODES.search(head)):
        return False
    before = head[: start.start()]
    return any(word in head for word in _OWN) or bool(_SCHEMA.search(before) and b'"start_ts"' in before)


def identity(head: bytes) -> Identity:
    """Return what a file says: a rank that was added when it was gathered, the size of the default group.

    PyTorch itself writes no rank; it is in the file's name.
    """
    top = _NODES.split(head, maxsplit=1)[0]
    rank, world_size = (number.search(top) for number in _STATED.values())
    world_size = world_size or _DEFAULT_GROUP.search(head)
    return Identity(int(rank[1]) if rank else None, int(world_size[1]) if world_size else None)
