"""Facts about a run, each with its source."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ccl_bench.base.errors import NotMeasurable

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """A value and its source, such as `run_metadata.json`."""

    value: T
    source: str


@dataclass(frozen=True, slots=True)
class CommunicationLibrary:
    """The library that ran the collectives, as the card and the traces state it."""

    name: str | None = None
    """Name, such as `NCCL`."""
    version: str | None = None
    """Version, such as `2.27.5`."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that metrics use; None means that no source says."""

    world_size: Fact[int] | None = None
    """Number of ranks in the job."""
    global_batch_size: Fact[int] | None = None
    """Sequences in one step over all ranks."""
    batch_sizes: Fact[tuple[int, ...]] | None = None
    """Batch sizes of a sweep, which has no single one."""
    seq_len: Fact[int] | None = None
    """Tokens in one sequence."""
    tokens_per_step: Fact[int] | None = None
    """Tokens in one step over all ranks."""
    model_flops_per_token: Fact[float] | None = None
    """Floating-point operations that the model needs for one token."""
    gpu_peak_tflops: Fact[float] | None = None
    """Dense peak of one device in the precision of the run, 10^12 operations per second."""
    gpu_hbm_bytes: Fact[int] | None = None
    """Memory of one device, bytes."""
    device: Fact[str] | None = None
    """Model of the device."""
    precision: Fact[str] | None = None
    """Number format of the matrix multiplications."""
    phase: Fact[str] | None = None
    """`training` or `inference`."""
    framework: Fact[str] | None = None
    """Training framework or inference engine, which decides how ranks lie in the mesh."""
    price_per_device_hour: Fact[float] | None = None
    """Price of one device for one hour, US dollars."""
    devices_per_node: Fact[int] | None = None
    """Devices in one node."""
    scale_up_gbps: Fact[float] | None = None
    """Link of one device inside a node, one direction, 10^9 bit/s as sold."""
    scale_out_gbps: Fact[float] | None = None
    """Network between nodes for one device, one direction, 10^9 bit/s as sold."""
    dp: Fact[int] | None = None
    """Data-parallel degree in total, where replicated and sharded are not distinguished."""
    dp_replicate: Fact[int] | None = None
    """Data-parallel degree that replicates weights."""
    dp_shard: Fact[int] | None = None
    """Data-parallel degree that shards weights."""
    tp: Fact[int] | None = None
    """Tensor-parallel degree."""
    pp: Fact[int] | None = None
    """Pipeline-parallel degree."""
    cp: Fact[int] | None = None
    """Context-parallel degree."""
    ep: Fact[int] | None = None
    """Expert-parallel degree."""
    microbatches: Fact[int] | None = None
    """Microbatches of one pipeline in one step."""
    pp_schedule: Fact[str] | None = None
    """Pipeline schedule."""
    virtual_stages: Fact[int] | None = None
    """Model chunks on one pipeline rank."""
    num_params: Fact[int] | None = None
    """Parameters in total."""
    num_params_embedding: Fact[int] | None = None
    """Parameters of the embedding."""
    is_moe: Fact[bool] | None = None
    """Whether the model is a mixture of experts."""
    num_experts: Fact[int] | None = None
    """Routed experts in a layer."""
    num_params_active: Fact[int] | None = None
    """Parameters used for one token."""
    num_layers: Fact[int] | None = None
    """Transformer layers."""
    num_heads: Fact[int] | None = None
    """Attention heads."""
    head_dim: Fact[int] | None = None
    """Size of one attention head."""
    num_prompts: Fact[int] | None = None
    """Requests that were sent to a server."""
    request_rate: Fact[str] | None = None
    """Requests sent in one second; `inf` for all at once."""
    max_concurrency: Fact[int] | None = None
    """Most requests under way at once."""
    max_tokens: Fact[int] | None = None
    """Most tokens generated for one request."""
    slo_ttft_s: Fact[float] | None = None
    """Longest time to first token that users accept, s."""
    slo_tpot_s: Fact[float] | None = None
    """Longest time per output token that users accept, s."""
    slo_latency_s: Fact[float] | None = None
    """Longest end-to-end latency that users accept, s."""

    def __iter__(self) -> Iterator[tuple[str, Fact[object]]]:
        """Iterate over the facts that are known, as (name, fact)."""
        for entry in fields(self):
            fact = getattr(self, entry.name)
            if fact is not None:
                yield entry.name, fact

    def needed(self, name: str, fix: str = "") -> Fact[object]:
        """Return a fact that a metric cannot do without, or raise NotMeasurable."""
        fact: Fact[object] | None = getattr(self, name)
        if fact is None:
            raise NotMeasurable(
                f"{name} is unknown",
                fix=fix or f"write {name} into run_metadata.json or the workload card",
                is_repairable=True,
            )
        return fact


def first(*candidates: Fact[T] | None) -> Fact[T] | None:
    """Return the first fact that is known."""
    return next((fact for fact in candidates if fact is not None), None)


def fact(value: T | None, source: str) -> Fact[T] | None:
    """Return a fact, or None if there is no value."""
    return None if value is None else Fact(value, source)


def tokens_per_step(facts: Facts) -> Fact[int] | None:
    """Return tokens in one step: as stated, else global batch size times sequence length."""
    if facts.tokens_per_step is not None:
        return facts.tokens_per_step
    batch, length = facts.global_batch_size, facts.seq_len
    if batch is None or length is None:
        return None
    sources = " and ".join(dict.fromkeys((batch.source, length.source)))
    return Fact(batch.value * length.value, f"global_batch_size x seq_len from {sources}")


def needed_tokens_per_step(facts: Facts) -> Fact[int]:
    """Return tokens in one step, or raise NotMeasurable: they may be unknown, or differ in a sweep."""
    tokens = tokens_per_step(facts)
    if tokens is not None:
        return tokens
    reason = "the number of tokens in a step is unknown"
    if facts.batch_sizes and not facts.global_batch_size:
        sizes = ", ".join(map(str, facts.batch_sizes.value))
        reason += f": batch_size is a sweep over {sizes} in the {facts.batch_sizes.source}"
    raise NotMeasurable(
        reason,
        fix="write tokens_per_step, or global_batch_size and seq_len, into run_metadata.json",
        is_repairable=True,
    )


class TrackedFacts:
    """Facts that remember which of them were used, so that what is wrong with one can be reported."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.used_names: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        """Return a fact and note it."""
        self.used_names.add(name)
        return getattr(self.facts, name)

    def __iter__(self) -> Iterator[tuple[str, Fact[object]]]:
        """Iterate over the facts that are known, noting all."""
        self.used_names.update(entry.name for entry in fields(self.facts))
        return iter(self.facts)

    def needed(self, name: str, fix: str = "") -> Fact[object]:
        """Return a fact that a metric cannot do without, and note it."""
        self.used_names.add(name)
        return self.facts.needed(name, fix)
