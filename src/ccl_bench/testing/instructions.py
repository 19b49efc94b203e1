"""Instructions: what the host launches on the device, one kernel, copy or collective each.

An instruction waits for the one before it on its stream, as on a device, and for those in
`after`, as a stream that waits for an event of another. A collective is launched after the
computing that stands before it in the program, as torch makes NCCL's stream wait for the
current one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ccl_bench.testing.kernels import Kernel
    from ccl_bench.testing.plan import Message, Plan

COMPUTE_STREAM, COPY_STREAM = 7, 13
STREAMS = {"world": 17, "dp_replicate": 21, "dp_shard": 25, "cp": 29, "tp": 33, "ep": 37}
PIPELINE_STREAMS = {("recv", -1): 41, ("send", 1): 45, ("recv", 1): 49, ("send", -1): 53}
"""A stream for each direction to each neighbour."""


class Call(NamedTuple):
    """The collective behind an instruction."""

    collective: str
    """`all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `send` or `recv`."""
    dimension: str
    """Dimension whose group communicates."""
    match: str
    """What tells this call from the group's others in the step; equal on all members."""
    message: Message | None
    """None for the all-to-alls, whose sizes follow from the experts' tokens."""
    peer: int = 0
    """Stages to the other end of a send or receive."""
    returns_tokens: bool = False
    """Whether an all-to-all brings tokens back from the experts."""


class Instruction(NamedTuple):
    """One kernel or copy, and how the host launches it."""

    kernel: Kernel | None
    """None for collectives and copies."""
    stream: int
    ns: int
    """Duration, ns; without meaning for collectives."""
    after: tuple[int, ...]
    """Instructions of the step that must have ended."""
    phase: str
    """`copy`, `forward`, `backward` or `optimizer`."""
    call: Call | None = None
    slows: str = ""
    """Whether a straggler's extra time falls here: `layer`, `step` or both, joined by a blank."""
    sequence: int = -1
    """Forward operator that this one is or is the backward of, counted in the step; -1 for none."""
    ranges: tuple[str, ...] = ()
    """Annotations around it on the host, outermost first."""
    ns_per_token: int = 0
    """Duration for each token that the rank's experts got, ns."""


@dataclass(slots=True)
class Program:
    """The instructions of a stage, and what follows from them."""

    instructions: list[Instruction] = field(default_factory=list)
    sequences: int = 0
    """Forward operators with a backward in one step."""

    def followers(self) -> list[list[int]]:
        """Return the instructions that wait for each instruction, its successor on the stream included."""
        found: list[list[int]] = [[] for _ in self.instructions]
        last: dict[int, int] = {}
        for index, instruction in enumerate(self.instructions):
            before = {*instruction.after, last.get(instruction.stream, -1)} - {-1}
            for other in before:
                found[other].append(index)
            last[instruction.stream] = index
        return found


class Builder:
    """Lays down instructions, keeping track of what the next computing kernel must wait for."""

    def __init__(self, plan: Plan, stage: int) -> None:
        self.plan, self.stage = plan, stage
        self.program = Program()
        self.waits: list[int] = []
        self.last_compute = -1
        self.phase = "forward"

    def add(self, instruction: Instruction) -> int:
        """Add an instruction and return its number."""
        self.program.instructions.append(instruction)
        return len(self.program.instructions) - 1

    def compute(
        self,
        kernel: Kernel,
        ns: int,
        *,
        slows: str = "",
        sequence: int = -1,
        ranges: tuple[str, ...] = (),
        ns_per_token: int = 0,
    ) -> None:
        """Add a computing kernel behind everything that computing waits for."""
        after, self.waits = tuple(dict.fromkeys(self.waits)), []
        if self.last_compute < 0:
            slows = f"{slows} step".strip()
        self.last_compute = self.add(
            Instruction(
                kernel, COMPUTE_STREAM, ns, after, self.phase, None, slows, sequence, ranges, ns_per_token
            )
        )

    def communicate(self, call: Call, *, ranges: tuple[str, ...] = (), blocks: bool = True) -> int:
        """Add a collective; `blocks` makes the next computing kernel wait for it."""
        after = (self.last_compute,) if self.last_compute >= 0 else ()
        stream = PIPELINE_STREAMS[call.collective, call.peer] if call.peer else STREAMS[call.dimension]
        number = self.add(Instruction(None, stream, 0, after, self.phase, call, ranges=ranges))
        if blocks:
            self.waits.append(number)
        return number
