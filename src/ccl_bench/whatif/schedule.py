"""Dependencies between operations of a training step, by the rules of pipeline and data parallelism.

Rules: "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25), and its artifact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Dependency = tuple[int, int]
"""Numbers of an operation and of one that waits for it."""

COMPUTE = ("forward-compute", "backward-compute", "gc", "optimizer")
"""Types of operations that compute; all others move data."""

SYNCHRONISED = (
    "params-all-gather",
    "grads-reduce-scatter",
    "separate-grads-all-reduce",
    "optimizer-clip-main-grad",
)
"""Types in which all data-parallel ranks meet."""

SHOWN = {"forward-send": "forward-pp-comm", "forward-recv": "forward-pp-comm"} | {
    "backward-send": "backward-pp-comm",
    "backward-recv": "backward-pp-comm",
}
"""Types that answers show as one operation."""

_SLACK_S = 50e-6
"""Largest distance of a message from its compute operation; a more distant one did not happen.

A compute operation and its message are recorded some microseconds apart.
"""

_DIRECTIONS = {"forward": 1, "backward": -1}
"""Direction of the pipeline → offset of the neighbouring stage."""


class ScheduleError(ValueError):
    """Messages and compute operations of a step do not match."""


@dataclass(frozen=True)
class TableOperation:
    """One operation of one rank and step; times in s."""

    number: int
    """Place in the step."""
    dp_rank: int
    stage: int
    step: int
    seq_id: int
    mc: int
    mb_id: int
    gmc: int
    start_ts: float
    duration: float
    optype: str

    @property
    def end(self) -> float:
        """When it ended, s."""
        return self.start_ts + self.duration


def depend(operations: Sequence[TableOperation]) -> tuple[list[Dependency], NDArray[np.int64]]:
    """Return the dependencies of one rank's operations in one step, and the meeting of each operation.

    `operations` are in order of stage and start. The members of a meeting have the same number. Raises
    ScheduleError if messages are missing.
    """
    chunks = 1 + max((each.gmc for each in operations), default=0)
    stages = [_Stage(operations, number, chunks) for number in sorted({each.stage for each in operations})]
    meeting = np.arange(len(operations))
    for direction, ahead in _DIRECTIONS.items():
        for place, stage in enumerate(stages):
            peer = stages[(place + ahead) % len(stages)]
            sent, received = stage.sent[direction], peer.received[direction]
            _expect(
                len(received), f"{direction}-recv of stage {peer.number}", len(sent), "messages sent to it"
            )
            for one, other in zip(sent, received, strict=True):
                meeting[other.number] = meeting[one.number]
    ends = {stages[0].number, stages[-1].number} if stages else set()
    for name, where in (("embedding-grads-all-reduce", ends), ("optimizer-clip-main-grad", None)):
        members = [
            each.number for each in operations if each.optype == name and (not where or each.stage in where)
        ]
        meeting[members] = members[:1] * len(members)
    return [edge for stage in stages for edge in stage.dependencies()], meeting


def _expect(count: int, what: str, other: int, of: str) -> None:
    if count != other:
        raise ScheduleError(f"there are {count} {what}, and {other} {of}")


class _Stage:
    """The operations of one pipeline stage."""

    def __init__(self, operations: Sequence[TableOperation], number: int, chunks: int) -> None:
        self.number = number
        self._operations = [each for each in operations if each.stage == number]
        self._chunks = chunks
        self._computing = self._of("forward-compute", "backward-compute")
        self.received: dict[str, list[TableOperation]] = {}
        """Direction → receives: none after the last compute operation of the direction began."""
        self.sent: dict[str, list[TableOperation]] = {}
        """Direction → sends: none before the first compute operation of the direction ended."""
        for direction in _DIRECTIONS:
            computing = self._of(f"{direction}-compute")
            until = computing[-1].start_ts + _SLACK_S if computing else -math.inf
            since = computing[0].end - _SLACK_S if computing else math.inf
            self.received[direction] = [m for m in self._of(f"{direction}-recv") if m.start_ts <= until]
            self.sent[direction] = [m for m in self._of(f"{direction}-send") if m.end >= since]

    def _of(self, *types: str) -> list[TableOperation]:
        return [each for each in self._operations if each.optype in types]

    def dependencies(self) -> list[Dependency]:
        """Return the dependencies between operations of this stage."""
        # Operations of one stream run one after the other.
        messages = [self._of(f"{direction}-{end}") for direction in _DIRECTIONS for end in ("send", "recv")]
        chains = [self._computing, *messages, self._of("params-all-gather", "grads-reduce-scatter")]
        streams = [(earlier.number, later.number) for chain in chains for earlier, later in pairwise(chain)]
        # The first messages of the backward pass are posted before the last forward of the warm-up.
        forwards = [each.optype == "forward-compute" for each in self._computing]
        before = self._computing[: forwards.index(False)] if False in forwards else []
        first = [*self._of("backward-recv")[:1], *self._of("backward-send")[:1]]
        warm_up = [(before[-2].number, each.number) for each in first if len(before) > 1]
        # The first forward of a chunk waits for its weights.
        firsts = {each.mc: each.number for each in reversed(self._of("forward-compute"))}
        gathers = self._of("params-all-gather")
        weights = [(each.number, firsts[each.mc]) for each in gathers if each.mc in firsts]
        return [*streams, *self._messages(), *warm_up, *weights, *self._tail()]

    def _messages(self) -> list[Dependency]:
        """Compute waits for its receive, a receive for the compute before it, a send for its own compute."""
        dependencies = []
        for direction, ahead in _DIRECTIONS.items():
            computing = self._of(f"{direction}-compute")
            from_peer = [k for k, each in enumerate(computing) if 0 <= each.gmc - ahead < self._chunks]
            to_peer = [each for each in computing if 0 <= each.gmc + ahead < self._chunks]
            received, sent = self.received[direction], self.sent[direction]
            of = f"of stage {self.number}"
            _expect(len(received), f"{direction}-recv {of}", len(from_peer), "operations that need one")
            _expect(len(sent), f"{direction}-send {of}", len(to_peer), "operations that give one")
            for message, k in zip(received, from_peer, strict=True):
                dependencies.append((message.number, computing[k].number))
                if k:
                    dependencies.append((computing[k - 1].number, message.number))
            dependencies += [(c.number, m.number) for m, c in zip(sent, to_peer, strict=True)]
        return dependencies

    def _tail(self) -> list[Dependency]:
        """After the last compute operation gradients are reduced, clipped, and applied."""
        chain = self._computing[-1:]
        for name in ("gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce"):
            chain += self._of(name)
        scattered, separate = self._of("grads-reduce-scatter"), self._of("separate-grads-all-reduce")
        if separate:
            backwards = {each.mc: each.number for each in self._of("backward-compute")}
            dependencies = [(backwards[each.mc], each.number) for each in scattered if each.mc in backwards]
            chain += separate
        else:
            dependencies = [(chain[-1].number, each.number) for each in scattered if chain]
        reduced = chain[-1:] if separate or not scattered else []
        last = [*reduced, *scattered[-1:]]
        for name in ("optimizer-clip-main-grad", "optimizer"):
            following = self._of(name)
            dependencies += [(earlier.number, later.number) for earlier in last for later in following]
            last = following or last
        return [*dependencies, *((earlier.number, later.number) for earlier, later in pairwise(chain))]
