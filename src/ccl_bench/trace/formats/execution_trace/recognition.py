"""Recognition of Execution Traces and their rank by the first bytes."""

from __future__ import annotations

import re

from ccl_bench.trace.formats import Identity, all_of, any_of, holds, none_of, shows

_NODES = rb'"nodes"\s*+:\s*+\['
_HEADER = all_of(shows(rb'"schema"\s*+:\s*+"\d+\.\d+\.\d+'), holds(b'"start_ts"'))
_STATED = {key: re.compile(rb'"%s"\s*+:\s*+(\d{1,9})\s*+[,}]' % key) for key in (b"rank", b"world_size")}
_DEFAULT_GROUP = re.compile(
    rb'\{\\"pg_name\\": ?\\"0\\"[^{}\[\]]{0,512}\\"ranks\\": ?\[[\d, .]*+\]'
    rb'[^{}]{0,64}\\"group_size\\": ?(\d{1,9})'
)


def _before_nodes(head: bytes) -> bytes:
    return re.split(_NODES, head, maxsplit=1)[0]


def _begins_with_header(head: bytes) -> bool:
    return _HEADER(_before_nodes(head))


recognises = all_of(
    shows(_NODES),
    none_of(holds(b'"traceEvents"')),
    any_of(
        *map(holds, (b'"rf_id"', b'"fw_parent"', b"|execution_trace|", b"|execution_graph|")),
        _begins_with_header,
    ),
)
"""JSON with nodes, in the words or behind the header of an Execution Trace."""


def identity(head: bytes) -> Identity:
    """Return the rank that was added when a file was gathered, and the size of the default group.

    PyTorch itself writes no rank; it is in the file's name.
    """
    top = _before_nodes(head)
    rank, world_size = (number.search(top) for number in _STATED.values())
    world_size = world_size or _DEFAULT_GROUP.search(head)
    return Identity(int(rank[1]) if rank else None, int(world_size[1]) if world_size else None)
