"""Every collective of a run: bytes, arrival and waiting of each member."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.testing.simulation import slow_link_ns, transfer_ns

if TYPE_CHECKING:
    from ccl_bench.testing.program import Call
    from ccl_bench.testing.simulation import Timeline

DTYPE_BYTES = {"BFloat16": 2, "Half": 2, "Float": 4, "Double": 8, "Int": 4, "Long": 8, "Byte": 1, "Char": 1}

_RECORDED = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
}


@dataclass(frozen=True, slots=True)
class Moved:
    """Data that one call of one rank moves."""

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


def moved(timeline: Timeline, rank: int, call: Call) -> Moved:
    """Return the data that a call of `rank` moves."""
    if call.message is None:
        return _tokens_moved(timeline, rank, returns=call.returns_tokens)
    message = call.message
    width = DTYPE_BYTES[message.dtype]
    if call.peer:
        elements = (message.elements, message.elements)
        return Moved(call.collective, message.dtype, *elements, message_bytes=message.elements * width)
    size = len(timeline.mesh.group(rank, call.dimension).ranks)
    share = -(-message.elements // size)
    total = message.elements if call.collective == "all_reduce" else share * size
    if call.collective == "all_reduce" and call.dimension == "dp_replicate":
        total = -(-message.elements // (timeline.plan.dp_shard * timeline.plan.cp))
    in_elements, out_elements = {"all_gather": (share, total), "reduce_scatter": (total, share)}.get(
        call.collective, (total, total)
    )
    return Moved(
        _RECORDED[call.collective], message.dtype, in_elements, out_elements, message_bytes=total * width
    )


def _tokens_moved(timeline: Timeline, rank: int, *, returns: bool) -> Moved:
    experts = timeline.plan.experts
    if experts is None:
        raise AssertionError("an all-to-all without experts")
    me = timeline.mesh.group(rank, "ep").ranks.index(rank)
    sent, received = tuple(experts.tokens[me]), tuple(row[me] for row in experts.tokens)
    if returns:
        sent, received = received, sent
    hidden, width = experts.hidden_size, DTYPE_BYTES[experts.dtype]
    in_elements, out_elements = sum(sent) * hidden, sum(received) * hidden
    if experts.is_even:
        return Moved(
            "all_to_all", experts.dtype, in_elements, out_elements, message_bytes=in_elements * width
        )
    other_elements = max(sum(sent) - sent[me], sum(received) - received[me]) * hidden
    return Moved(
        "all_to_allv", experts.dtype, in_elements, out_elements, sent, received, other_elements * width
    )


@dataclass(frozen=True, slots=True)
class Member:
    """One rank's part in a collective."""

    start_ns: int
    """Start of its kernel, true ns."""
    moved: Moved
    """What it moves."""
    name: str
    """Canonical collective on this rank: `send` and `recv` differ between the ends of one message."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective, or one send with its receive."""

    step: int
    """Number of the step that launched it."""
    collective: str
    """Canonical collective; `send_recv` for a message from stage to stage, `all_to_allv` where uneven."""
    dimension: str
    """Dimension of its group."""
    group: str
    """Name of its group."""
    group_size: int
    """Members of its group."""
    members: dict[int, Member]
    """By rank, ranks without a file included."""
    end_ns: int
    """End on every member, true ns."""
    transfer_ns: int
    """From the last start to the end, ns."""

    @property
    def is_symmetric(self) -> bool:
        """Whether duration minus the shortest member's duration is waiting, by definition."""
        return self.collective not in {"send_recv", "all_to_allv"}

    def duration_ns(self, rank: int) -> int:
        """Return the time that the kernel ran on a member, ns."""
        return self.end_ns - self.members[rank].start_ns

    def wait_ns(self, rank: int) -> int:
        """Return the time that a member waited for the last one, ns."""
        return self.duration_ns(rank) - self.transfer_ns

    def bytes(self, rank: int) -> int:
        """Return the message of a member as nccl-tests counts it, bytes."""
        return self.members[rank].moved.message_bytes

    def algorithm_bandwidth_gb_per_s(self, rank: int) -> float:
        """Return message / transfer of a member, GB/s (10^9 bytes)."""
        return self.bytes(rank) / self.transfer_ns

    def bus_bandwidth_gb_per_s(self, rank: int) -> float:
        """Return the bus bandwidth of a member by nccl-tests' factors, GB/s (10^9 bytes)."""
        return self.algorithm_bandwidth_gb_per_s(rank) * bus_factor(self.collective, self.group_size)


def bus_factor(collective: str, size: int) -> float:
    """Return bus bandwidth / algorithm bandwidth [nccl-tests, PERFORMANCE.md]."""
    if collective == "all_reduce":
        return 2 * (size - 1) / size
    return (size - 1) / size if collective in {"all_gather", "reduce_scatter", "all_to_all"} else 1.0


def operations(timeline: Timeline) -> list[Operation]:
    """Return all collectives of a run, in order of their end."""
    collectives = [operation for step in range(timeline.plan.steps) for operation in _in_step(timeline, step)]
    return sorted(collectives, key=lambda operation: (operation.end_ns, int(operation.group)))


def _in_step(timeline: Timeline, step: int) -> list[Operation]:
    parts: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    for rank in range(timeline.plan.world_size):
        for number, item in enumerate(timeline.program(rank).instructions):
            if item.call is not None:
                parts[_key(timeline, rank, item.call)].append((rank, number))
    return [_operation(timeline, step, members) for members in parts.values()]


def _key(timeline: Timeline, rank: int, call: Call) -> tuple[object, ...]:
    if call.peer:
        ends = sorted((rank, timeline.mesh.neighbour(rank, call.peer)))
        return (*ends, call.match)
    return timeline.mesh.group(rank, call.dimension).name, call.match


def _operation(timeline: Timeline, step: int, parts: list[tuple[int, int]]) -> Operation:
    rank, number = parts[0]
    item = timeline.program(rank).instructions[number]
    call = item.call
    if call is None:
        raise AssertionError("no call")
    records = timeline.steps[step]
    members = {r: _member(timeline, r, n, records[r].starts[n]) for r, n in parts}
    group = timeline.mesh.group(rank, call.dimension)
    recorded = members[rank].moved.recorded
    variant = recorded if recorded == "all_to_allv" else call.collective
    return Operation(
        step=timeline.plan.first_step + step,
        collective="send_recv" if call.peer else variant,
        dimension=call.dimension,
        group=group.name,
        group_size=len(group.ranks),
        members=members,
        end_ns=records[rank].ends[number],
        transfer_ns=transfer_ns(timeline.plan, item) + slow_link_ns(timeline.plan, step, members),
    )


def _member(timeline: Timeline, rank: int, number: int, start_ns: int) -> Member:
    call = timeline.program(rank).instructions[number].call
    if call is None:
        raise AssertionError("no call")
    return Member(start_ns, moved(timeline, rank, call), call.collective)
