"""What a node of an Execution Trace must wait for: who made its tensors, and what its thread did before.

Nodes are numbered when they start, so going through them by number is going through time. A tensor is
known by its storage. Where an operator and one that it called both made a tensor, the inner one counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Start:
    """A node as it starts."""

    node: int
    parent: int
    thread: int
    reads: tuple[int, ...] = ()
    """Storages of its inputs."""
    writes: tuple[int, ...] = ()
    """Storages of its outputs."""


@dataclass(slots=True)
class Dependencies:
    """What has happened up to some node, thread by thread."""

    running: dict[int, list[Start]] = field(default_factory=dict)
    makers: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    def of(self, start: Start) -> list[int]:
        """Return the nodes that the next node depends on; nodes must come in order of their number."""
        stack = self.running.setdefault(start.thread, [])
        while stack and stack[-1].node != start.parent:
            self._ended(stack.pop())
        before = {self.makers[storage] for storage in start.reads if storage in self.makers}
        if start.thread in self.last:
            before.add(self.last[start.thread])
        self.last[start.thread] = start.node
        stack.append(start)
        return sorted(before)

    def _ended(self, start: Start) -> None:
        for storage in start.writes:
            self.makers[storage] = max(self.makers.get(storage, 0), start.node)
