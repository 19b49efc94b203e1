"""How much each call of a rank moves: elements in and out, splits, and the name torch records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccl_bench.testing.instructions import Call
    from ccl_bench.testing.timeline import Timeline

DTYPE_BYTES = {"BFloat16": 2, "Half": 2, "Float": 4, "Double": 8, "Int": 4, "Long": 8, "Byte": 1, "Char": 1}

_RECORDED = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
}


@dataclass(frozen=True, slots=True)
class Moved:
    """What one call of one rank moves."""

    recorded: str
    """`Collective name`."""
    dtype: str
    in_elements: int
    """Elements that the rank puts in."""
    out_elements: int
    """Elements that the rank gets out."""
    in_split: tuple[int, ...] = ()
    """Rows (tokens) for each member of an uneven all-to-all; a row is hidden_size elements."""
    out_split: tuple[int, ...] = ()
    """Rows (tokens) from each member of an uneven all-to-all."""
    message_bytes: int = 0
    """The message as nccl-tests counts it, bytes; an uneven all-to-all leaves out what stays on the rank."""


def moved(made: Timeline, rank: int, call: Call) -> Moved:
    """Return what a call of `rank` moves."""
    if call.message is None:
        return _tokens_moved(made, rank, returns=call.returns_tokens)
    message = call.message
    width = DTYPE_BYTES[message.dtype]
    if call.peer:
        both = (message.elements, message.elements)
        return Moved(call.collective, message.dtype, *both, message_bytes=message.elements * width)
    size = len(made.mesh.group(rank, call.dimension).ranks)
    share = -(-message.elements // size)
    whole = message.elements if call.collective == "all_reduce" else share * size
    if call.collective == "all_reduce" and call.dimension == "dp_replicate":
        whole = -(-message.elements // (made.plan.dp_shard * made.plan.cp))
    gives, gets = {"all_gather": (share, whole), "reduce_scatter": (whole, share)}.get(
        call.collective, (whole, whole)
    )
    return Moved(_RECORDED[call.collective], message.dtype, gives, gets, message_bytes=whole * width)


def _tokens_moved(made: Timeline, rank: int, *, returns: bool) -> Moved:
    experts = made.plan.experts
    if experts is None:
        raise AssertionError("an all-to-all without experts")
    me = made.mesh.group(rank, "ep").ranks.index(rank)
    sent, got = tuple(experts.tokens[me]), tuple(row[me] for row in experts.tokens)
    if returns:
        sent, got = got, sent
    hidden, width = experts.hidden_size, DTYPE_BYTES[experts.dtype]
    gives, gets = sum(sent) * hidden, sum(got) * hidden
    if experts.is_even:
        return Moved("all_to_all", experts.dtype, gives, gets, message_bytes=gives * width)
    others = max(sum(sent) - sent[me], sum(got) - got[me]) * hidden
    return Moved("all_to_allv", experts.dtype, gives, gets, sent, got, others * width)
