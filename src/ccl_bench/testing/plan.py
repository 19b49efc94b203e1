"""Plan of a synthetic run: mesh, durations, messages, and faults.

Every duration is a whole number of nanoseconds of *true* time, the one clock that the simulation
runs on. Every message is counted in elements. Nothing here is random: the same plan gives the
same run, byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from ccl_bench.base.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

PerStage = int | tuple[int, ...]
"""One number for all pipeline stages, or one for each."""

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Axes of the mesh, outermost first, as torchtitan lays ranks out."""


@dataclass(frozen=True, slots=True)
class Message:
    """Size of one collective's message, and its time once every member has come."""

    elements: int
    """Elements of the whole message: what all_gather gives, what reduce_scatter takes, else the buffer.

    Rounded up to a multiple of the group size where it is split."""
    transfer_ns: int
    """From the last member's arrival to the end on all members, ns."""
    dtype: str = "BFloat16"
    """Element type as PyTorch spells it."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of every layer, spread over the expert-parallel group."""

    tokens: tuple[tuple[int, ...], ...]
    """Tokens by member that holds them and member whose experts they go to, for one layer and microbatch."""
    ns_per_token: int = 10
    """Computing one token on its expert, forward, ns; backward takes twice as long."""
    transfer_ns: int = 40_000
    """One all-to-all, ns."""
    hidden_size: int = 1024
    """Elements of one token."""
    dtype: str = "BFloat16"
    """Element type as PyTorch spells it."""

    @property
    def is_even(self) -> bool:
        """Whether every member sends every member the same number of tokens."""
        return len({count for row in self.tokens for count in row}) == 1


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that needs longer than the others."""

    rank: int
    layer_ns: int = 0
    """More computing in the forward pass of each layer and microbatch, ns."""
    step_ns: int = 0
    """More computing at the start of each step, ns."""
    host_ns: int = 0
    """More idling of the host at the start of each step, ns."""
    steps: tuple[int, ...] = ()
    """Numbers of the steps it is slow in; empty for all."""


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A process group whose collectives take longer."""

    ranks: tuple[int, ...]
    """All members of the group."""
    more_ns: int
    """Added to the transfer of each collective, ns."""
    steps: tuple[int, ...] = ()
    """Numbers of the steps it is slow in; empty for all."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The copy of a step's input to the device, on its own stream."""

    bytes: int
    ns: int
    """0 for no copy."""


@dataclass(frozen=True, slots=True)
class Host:
    """What the CPU does between kernels."""

    launch_ns: int = 4_000
    """CPU time for one operator with its launch, ns."""
    latency_ns: int = 5_000
    """From the start of a launch to the earliest start of its work on the device, ns."""
    gap_ns: int = 20_000
    """Idle at the start of each step, before the first operator, ns."""
    between_steps_ns: int = 1_000
    """Between the end of one `ProfilerStep` and the start of the next, ns."""
    waits_for_device: bool = True
    """Whether a step ends only when its work on the device has; without, the device runs behind."""
    steps_start_together: bool = False
    """Whether a step ends on all ranks at once, as behind a barrier of hosts."""


@dataclass(frozen=True, slots=True)
class Device:
    """The accelerator as the profiler describes it."""

    name: str = "NVIDIA A100-SXM4-80GB"
    card_name: str = "nvidia_a100"
    """Name in the workload card."""
    memory_bytes: int = 84_987_740_160
    sms: int = 108
    peak_tflops: float = 312.0
    """Dense bf16 peak, 10^12 operations per second."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A training run with everything that decides its timeline. See `ccl_bench.testing` for an example."""

    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    """Expert-parallel degree; it takes its ranks from dp_shard x cp, which it must divide."""
    steps: int = 3
    first_step: int = 1
    """Number of the first recorded `ProfilerStep`."""
    unrecorded_steps: int = 0
    """Steps before the recording, which holds only their work that starts in it."""
    layers: PerStage = 2
    """Layers of each pipeline stage."""
    microbatches: int = 1
    """Microbatches of a step; scheduled as 1F1B over a pipeline, else accumulated."""
    forward_ns: PerStage = 300_000
    """Computing the forward pass of one layer and microbatch, ns."""
    backward_ns: PerStage = 600_000
    """Computing the backward pass of one layer and microbatch, ns."""
    recomputed_layers: int = 0
    """First layers of each stage whose kernels of the forward pass run again in the backward pass."""
    optimizer_ns: int = 100_000
    """The optimizer's kernel, ns; 0 for none."""
    shard_copy_ns: int = 0
    """Copying parameters out of an all-gather or gradients into a reduce-scatter, ns; 0 for none."""
    prefetch: bool = True
    """Whether parameters are gathered and gradients reduced while other layers compute."""
    jitter_ns: int = 0
    """Computing kernels take up to this much longer, by a fixed rule from `seed`, ns."""
    seed: int = 0
    all_gather: Message = Message(8_388_608, 150_000)
    """Parameters of one layer over dp_shard (x cp)."""
    reduce_scatter: Message = Message(8_388_608, 170_000, "Float")
    """Gradients of one layer over dp_shard (x cp)."""
    gradient_all_reduce: Message = Message(8_388_608, 250_000)
    """Gradients of one layer over dp_replicate; divided by the shards where there are any."""
    tp_all_reduce: Message = Message(4_194_304, 60_000)
    """Activations over tp: twice in the forward and twice in the backward pass of a layer and microbatch."""
    cp_exchange: Message = Message(2_097_152, 50_000)
    """Keys and values over cp: gathered in the forward, reduced and scattered in the backward pass."""
    pipeline: Message = Message(4_194_304, 30_000)
    """Activations or their gradients from one stage to the next."""
    gradient_norm: Message | None = None
    """One all_reduce over all ranks before the optimizer."""
    experts: Experts | None = None
    """Needed where ep > 1."""
    input_copy: Copy = Copy(262_144, 12_000)
    """On ranks of the first stage."""
    host: Host = Host()
    stragglers: tuple[Straggler, ...] = ()
    slow_links: tuple[SlowLink, ...] = ()
    clock_offsets_ns: Mapping[int, int] = field(default_factory=dict)
    """Rank -> what its clock is ahead of true time, ns."""
    node_clock_offsets_ns: Mapping[int, int] = field(default_factory=dict)
    """Node -> what the clocks of its ranks are ahead, ns; adds to that of the rank."""
    missing_ranks: frozenset[int] = frozenset()
    """Ranks that take part and leave no file."""
    devices_per_node: int = 8
    device: Device = Device()
    microbatch_size: int = 1
    """Sequences in one microbatch."""
    seq_len: int = 2048
    """Tokens in one sequence."""
    model_flops_per_token: float = 1e8
    """Operations the model needs for one token."""

    def __post_init__(self) -> None:
        self._check_degrees()
        for name in ("layers", "forward_ns", "backward_ns"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != self.pp:
                message = f"{name} has {len(value)} entries for {self.pp} stages"
                raise UsageError(message, fix="give one a stage")
        beyond = sorted(r for r in (*self.missing_ranks, *self.clock_offsets_ns) if r >= self.world_size)
        if beyond:
            message = f"rank {beyond[0]} is beyond a world of {self.world_size}"
            raise UsageError(message, fix="ranks start at 0")

    def _check_degrees(self) -> None:
        shards = self.dp_shard * self.cp
        if shards % self.ep:
            message = f"ep {self.ep} does not divide dp_shard x cp = {shards}"
            raise UsageError(message, fix="choose another ep")
        rows = () if self.experts is None else self.experts.tokens
        if self.ep > 1 and {len(rows), *map(len, rows)} != {self.ep}:
            message = f"ep {self.ep} needs a table of tokens {self.ep} x {self.ep}"
            raise UsageError(message, fix="give experts with one row and one column a member")

    @property
    def world_size(self) -> int:
        """Number of ranks, missing ones included."""
        return prod(getattr(self, axis) for axis in AXES)

    @property
    def present_ranks(self) -> list[int]:
        """Ranks that leave a file."""
        return [rank for rank in range(self.world_size) if rank not in self.missing_ranks]

    @property
    def step_numbers(self) -> range:
        """Numbers of the recorded steps."""
        return range(self.first_step, self.first_step + self.steps)

    @property
    def global_batch_size(self) -> int:
        """Sequences in one step over all ranks."""
        return self.microbatch_size * self.microbatches * self.dp_replicate * self.dp_shard

    @property
    def tokens_per_step(self) -> int:
        """Tokens in one step over all ranks."""
        return self.global_batch_size * self.seq_len

    def clock_offset_ns(self, rank: int) -> int:
        """Return the time that the clock of `rank` is ahead of true time, ns."""
        node = rank // self.devices_per_node
        return self.clock_offsets_ns.get(rank, 0) + self.node_clock_offsets_ns.get(node, 0)


def at_stage(value: PerStage, stage: int) -> int:
    """Return the number for one pipeline stage."""
    return value[stage] if isinstance(value, tuple) else value
