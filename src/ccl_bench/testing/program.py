"""What one rank launches in one step, in order: kernels, copies and collectives as instructions.

A pipeline stage works on microbatches one forward, one backward (1F1B).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ccl_bench.testing import kernels
from ccl_bench.testing.plan import at_stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.testing.kernels import Kernel
    from ccl_bench.testing.plan import Message, Plan

    Parts = tuple[tuple[Kernel, int], ...]

FORWARD, BACKWARD = "forward", "backward"


def one_forward_one_backward(stages: int, stage: int, microbatches: int) -> Iterator[tuple[str, int]]:
    """Yield (phase, microbatch) in the order of PipeDream-Flush, as Megatron-LM and torchtitan run it.

    A stage warms up with as many forward passes as stages follow it, then alternates, then cools
    down. Without a pipeline each forward pass is followed by its backward pass.
    """
    warm_up = min(microbatches, stages - stage - 1)
    yield from ((FORWARD, microbatch) for microbatch in range(warm_up))
    for microbatch in range(warm_up, microbatches):
        yield FORWARD, microbatch
        yield BACKWARD, microbatch - warm_up
    yield from ((BACKWARD, microbatch) for microbatch in range(microbatches - warm_up, microbatches))


def even_bubble_fraction(stages: int, microbatches: int) -> float:
    """Return the share of a step that every stage idles when stages are even and messages free.

    1F1B and GPipe alike: (p - 1) / (m + p - 1).
    """
    return (stages - 1) / (microbatches + stages - 1)


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
    """What distinguishes this call from the group's others in the step; equal on all members."""
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
    checkpoint: int = -1
    """Node of autograd that runs the forward pass again, counted in the step; -1 for none."""


@dataclass(slots=True)
class Program:
    """The instructions of a stage, and their dependencies."""

    instructions: list[Instruction] = field(default_factory=list)
    sequences: int = 0
    """Forward operators with a backward in one step."""

    def followers(self) -> list[list[int]]:
        """Return the instructions that wait for each instruction, its successor on the stream included."""
        followers: list[list[int]] = [[] for _ in self.instructions]
        last: dict[int, int] = {}
        for index, instruction in enumerate(self.instructions):
            before = {*instruction.after, last.get(instruction.stream, -1)} - {-1}
            for predecessor in before:
                followers[predecessor].append(index)
            last[instruction.stream] = index
        return followers


class Builder:
    """Lays down instructions, keeping track of the instructions that the next computing kernel waits for."""

    def __init__(self, plan: Plan, stage: int) -> None:
        self.plan, self.stage = plan, stage
        self.program = Program()
        self.waits: list[int] = []
        self.last_compute = -1
        self.phase = "forward"
        self.checkpoint = -1

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
                kernel,
                COMPUTE_STREAM,
                ns,
                after,
                self.phase,
                None,
                slows,
                sequence,
                ranges,
                ns_per_token,
                self.checkpoint,
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


def program(plan: Plan, stage: int) -> Program:
    """Return the program of a rank of pipeline stage `stage` in a step."""
    step = _Step(Builder(plan, stage))
    step.build()
    return step.builder.program


class _Step:
    """The parts of a step, in the order in which they are launched."""

    def __init__(self, builder: Builder) -> None:
        self.builder, self.plan = builder, builder.plan
        self.layers = at_stage(self.plan.layers, builder.stage)
        self.is_sharded = self.plan.dp_shard * self.plan.cp > 1
        self.gathers_once = self.plan.pp > 1
        self.gathered: dict[tuple[str, int, int], int] = {}
        self.reductions: list[int] = []
        self.per_layer = len(kernels.FORWARD) + (self.plan.experts is not None)

    def build(self) -> None:
        """Lay down the whole step."""
        plan, builder = self.plan, self.builder
        if plan.input_copy.ns and builder.stage == 0:
            builder.waits.append(builder.add(Instruction(None, COPY_STREAM, plan.input_copy.ns, (), "copy")))
        for phase, microbatch in one_forward_one_backward(plan.pp, builder.stage, plan.microbatches):
            builder.phase = phase
            self._pipeline("recv", phase, microbatch)
            for place in range(self.layers):
                (self._forward if phase == FORWARD else self._backward)(place, microbatch)
            self._pipeline("send", phase, microbatch)
        builder.program.sequences = plan.microbatches * self.layers * self.per_layer
        self._optimizer()

    def _pipeline(self, collective: str, phase: str, microbatch: int) -> None:
        downwards = phase == FORWARD
        peer = (1 if downwards else -1) * (1 if collective == "send" else -1)
        if not 0 <= self.builder.stage + peer < self.plan.pp:
            return
        call = Call(collective, "pp", f"{phase} {microbatch}", self.plan.pipeline, peer)
        self.builder.communicate(call, blocks=collective == "recv")

    def _forward(self, layer: int, microbatch: int) -> None:
        self._gathered(FORWARD, layer, microbatch)
        ns = at_stage(self.plan.forward_ns, self.builder.stage)
        if self.plan.cp > 1:
            self._exchange("all_gather", "cp", f"forward {microbatch} {layer}", self.plan.cp_exchange)
        self._half(kernels.FORWARD, ns, 0, kernels.FORWARD_HALF, layer, microbatch)
        self._half(kernels.FORWARD, ns, kernels.FORWARD_HALF, len(kernels.FORWARD), layer, microbatch)
        self._experts(layer, microbatch)

    def _backward(self, place: int, microbatch: int) -> None:
        layer = self.layers - 1 - place
        self._gathered("backward", layer, microbatch)
        ns = at_stage(self.plan.backward_ns, self.builder.stage)
        if layer < self.plan.recomputed_layers:
            self._recompute(layer, microbatch)
        self._experts(layer, microbatch)
        self._half(kernels.BACKWARD, ns, 0, kernels.BACKWARD_HALF, layer, microbatch)
        self._half(kernels.BACKWARD, ns, kernels.BACKWARD_HALF, len(kernels.BACKWARD), layer, microbatch)
        self.builder.checkpoint = -1
        if self.plan.cp > 1:
            self._exchange("reduce_scatter", "cp", f"backward {microbatch} {layer}", self.plan.cp_exchange)
        if microbatch == self.plan.microbatches - 1:
            self._reduced(layer)

    def _recompute(self, layer: int, microbatch: int) -> None:
        """Add the kernels of a layer's forward pass again; those that follow are of the same node."""
        self.builder.checkpoint = microbatch * self.layers + layer
        ns = at_stage(self.plan.forward_ns, self.builder.stage)
        for kernel, share in kernels.FORWARD:
            self.builder.compute(kernel, ns * share // 100)

    def _half(self, parts: Parts, ns: int, first: int, until: int, layer: int, microbatch: int) -> None:
        """Add some kernels of a layer, and the exchange of activations that follows them."""
        is_forward = self.builder.phase == FORWARD
        before = (microbatch * self.layers + layer) * self.per_layer
        for index in range(first, until):
            kernel, share = parts[index]
            remaining_ns = ns - sum(ns * part_share // 100 for _, part_share in parts[:-1])
            self.builder.compute(
                kernel,
                remaining_ns if index == len(parts) - 1 else ns * share // 100,
                slows="layer" if is_forward and index == 0 else "",
                sequence=before + (index if is_forward else len(parts) - 1 - index),
            )
        if self.plan.tp > 1:
            match = f"{self.builder.phase} {microbatch} {layer} {first}"
            self._exchange("all_reduce", "tp", match, self.plan.tp_all_reduce)

    def _experts(self, layer: int, microbatch: int) -> None:
        """Add the way of the tokens to their experts and back."""
        experts, phase = self.plan.experts, self.builder.phase
        if experts is None:
            return
        is_forward = phase == FORWARD
        where = f"{phase} {microbatch} {layer}"
        sequence = (microbatch * self.layers + layer + 1) * self.per_layer - 1
        self._tokens(f"{where} out", returns=False)
        self.builder.compute(
            kernels.EXPERT if is_forward else kernels.EXPERT_BACKWARD,
            0,
            sequence=sequence,
            ns_per_token=experts.ns_per_token * (1 if is_forward else 2),
        )
        self._tokens(f"{where} back", returns=True)

    def _exchange(self, collective: str, dimension: str, match: str, message: Message) -> None:
        """Add a collective that computing waits for."""
        self.builder.communicate(Call(collective, dimension, match, message))

    def _tokens(self, match: str, *, returns: bool) -> None:
        """Add the all-to-all that takes tokens to their experts, or `returns` them."""
        if self.plan.ep > 1:
            self.builder.communicate(Call("all_to_all", "ep", match, None, returns_tokens=returns))

    def _gathered(self, phase: str, layer: int, microbatch: int) -> None:
        """Gather the parameters of a layer unless they are there, and with prefetch those of the next."""
        if not self.is_sharded or (self.gathers_once and (phase != FORWARD or microbatch)):
            return
        self._gather(phase, layer, microbatch, layer)
        following = layer + (1 if phase == FORWARD else -1)
        if self.plan.prefetch and 0 <= following < self.layers:
            self._gather(phase, following, microbatch, layer)
        self.builder.waits.append(self.gathered[phase, microbatch, layer])
        self._shard_copy(kernels.COPY_OUT, f"FSDP::all_gather_copy_out (layers.{layer})")

    def _gather(self, phase: str, layer: int, microbatch: int, caller: int) -> None:
        if (phase, microbatch, layer) in self.gathered:
            return
        call = Call("all_gather", "dp_shard", f"{phase} {microbatch} {layer}", self.plan.all_gather)
        ranges = (f"FSDP::pre_{phase} (layers.{caller})", f"FSDP::all_gather (layers.{layer})")
        self.gathered[phase, microbatch, layer] = self.builder.communicate(call, ranges=ranges, blocks=False)

    def _shard_copy(self, kernel: Kernel, name: str) -> None:
        if self.plan.shard_copy_ns:
            self.builder.compute(kernel, self.plan.shard_copy_ns, ranges=(name,))

    def _reduced(self, layer: int) -> None:
        """Reduce the gradients of a layer over shards, then over replicas."""
        plan, name = self.plan, f"FSDP::post_backward_reduce (layers.{layer})"
        if self.is_sharded:
            self._shard_copy(kernels.COPY_IN, name)
            call = Call("reduce_scatter", "dp_shard", f"gradients {layer}", plan.reduce_scatter)
            self._reduce(call, (name,))
        if plan.dp_replicate > 1:
            call = Call("all_reduce", "dp_replicate", f"gradients {layer}", plan.gradient_all_reduce)
            self._reduce(call, (name,) if self.is_sharded else ())

    def _reduce(self, call: Call, ranges: tuple[str, ...]) -> None:
        behind = self.reductions[-1:] if self.is_sharded and call.dimension == "dp_replicate" else []
        number = self.builder.communicate(call, ranges=ranges, blocks=not self.plan.prefetch)
        instruction = self.builder.program.instructions[number]
        self.builder.program.instructions[number] = instruction._replace(after=(*instruction.after, *behind))
        self.reductions.append(number)

    def _optimizer(self) -> None:
        plan, builder = self.plan, self.builder
        builder.phase = "optimizer"
        if plan.gradient_norm is not None and plan.world_size > 1:
            before = tuple(self.reductions)
            number = builder.communicate(Call("all_reduce", "world", "gradient norm", plan.gradient_norm))
            instruction = builder.program.instructions[number]
            builder.program.instructions[number] = instruction._replace(after=(*instruction.after, *before))
        builder.waits += self.reductions
        if plan.optimizer_ns:
            builder.compute(kernels.ADAM, plan.optimizer_ns)
