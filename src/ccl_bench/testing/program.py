"""What one rank launches in one step, in order: the same for all ranks of a pipeline stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.testing import kernels
from ccl_bench.testing.instructions import COPY_STREAM, Builder, Call, Instruction, Program
from ccl_bench.testing.plan import at_stage
from ccl_bench.testing.schedule import FORWARD, one_forward_one_backward

if TYPE_CHECKING:
    from ccl_bench.testing.kernels import Kernel
    from ccl_bench.testing.plan import Message, Plan

    Parts = tuple[tuple[Kernel, int], ...]


def program(plan: Plan, stage: int) -> Program:
    """Return what a rank of pipeline stage `stage` launches in a step."""
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
        self._experts(layer, microbatch)
        self._half(kernels.BACKWARD, ns, 0, kernels.BACKWARD_HALF, layer, microbatch)
        self._half(kernels.BACKWARD, ns, kernels.BACKWARD_HALF, len(kernels.BACKWARD), layer, microbatch)
        if self.plan.cp > 1:
            self._exchange("reduce_scatter", "cp", f"backward {microbatch} {layer}", self.plan.cp_exchange)
        if microbatch == self.plan.microbatches - 1:
            self._reduced(layer)

    def _half(self, parts: Parts, ns: int, first: int, until: int, layer: int, microbatch: int) -> None:
        """Add some kernels of a layer, and the exchange of activations that follows them."""
        is_forward = self.builder.phase == FORWARD
        before = (microbatch * self.layers + layer) * self.per_layer
        for index in range(first, until):
            kernel, share = parts[index]
            rest = ns - sum(ns * other // 100 for _, other in parts[:-1])
            self.builder.compute(
                kernel,
                rest if index == len(parts) - 1 else ns * share // 100,
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
        made = self.builder.program.instructions[number]
        self.builder.program.instructions[number] = made._replace(after=(*made.after, *behind))
        self.reductions.append(number)

    def _optimizer(self) -> None:
        plan, builder = self.plan, self.builder
        builder.phase = "optimizer"
        if plan.gradient_norm is not None and plan.world_size > 1:
            before = tuple(self.reductions)
            number = builder.communicate(Call("all_reduce", "world", "gradient norm", plan.gradient_norm))
            made = builder.program.instructions[number]
            builder.program.instructions[number] = made._replace(after=(*made.after, *before))
        builder.waits += self.reductions
        if plan.optimizer_ns:
            builder.compute(kernels.ADAM, plan.optimizer_ns)
