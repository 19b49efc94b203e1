"""The rule `exposed_collectives`: collectives without concurrent compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl
from ccl_bench.diagnosis import Silent, diagnosis
from ccl_bench.diagnosis.communication import moves, without_transfer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.result.diagnosis import Opportunity

_WORTH = 0.05
"""Share of the step that hiding all of it must gain: the first and the last of a step cannot be hidden."""

_HIDE = {
    "tp": "sequence parallelism and asynchronous tensor parallelism (torchtitan "
    "parallelism.enable_async_tensor_parallel, Megatron --tp-comm-overlap), or fewer ranks in tp",
    "dp_shard": "prefetch weights (FSDP2 set_modules_to_forward_prefetch, DeepSpeed overlap_comm), keep "
    "them after the forward pass (reshard_after_forward=False), or larger microbatches",
    "dp_replicate": "reduce gradients while the backward pass runs (DDP bucket_cap_mb, Megatron "
    "--overlap-grad-reduce), or less often: gradient accumulation",
    "cp": "overlap the exchange of keys and values with attention (Megatron --cp-comm-type p2p)",
    "ep": "overlap the exchange of tokens with shared experts or another microbatch (DeepEP, Megatron "
    "--overlap-moe-expert-parallel-comm), or place experts nearer",
}
_ANY = "overlap them with the compute of another layer or microbatch, or move fewer bytes"
_ALSO = {"dp": "dp_replicate", "world": "dp_replicate"}


@diagnosis(kind="communication")
def exposed_collectives(gains: Gains) -> Iterator[Opportunity]:
    """Collectives of a parallelism dimension move data while nothing computes.

    How it is seen:
    The run is replayed with collectives of one dimension that take no time after their last
    rank arrives. The gain is the most that hiding them can bring; waiting for late ranks remains. Without the
    traces of the other ranks waiting is part of it, and the answer says so.

    Why it costs:
    The device does nothing else while it waits for data.

    What to do:
    It depends on the dimension, which the answer names. tp: asynchronous tensor parallelism
    (torchtitan parallelism.enable_async_tensor_parallel, Megatron --tp-comm-overlap). FSDP2: prefetching
    (set_modules_to_forward_prefetch), reshard_after_forward=False. DDP: buckets (bucket_cap_mb), Megatron
    --overlap-grad-reduce --overlap-param-gather, DeepSpeed overlap_comm. Experts: DeepEP, Megatron
    --overlap-moe-expert-parallel-comm. vLLM: --enable-dbo overlaps two batches.

    When it is no problem:
    The first gather and the last reduction of a step have nothing to overlap with.
    Below 5 % of the step nothing is reported.

    Reference:
    Megatron-LM (arXiv 1909.08053); PyTorch FSDP (VLDB'23), section on overlapping
    """
    dimensions = gains.operations.filter(pl.Series(moves(gains)))["dimension"].drop_nulls().unique().sort()
    if dimensions.is_empty():
        raise Silent("the traces show no collectives, or not their groups")
    masks = [moves(gains) & gains.where(pl.col("dimension") == name) for name in dimensions]
    variants = [without_transfer(gains, mask) for mask in masks]
    for name, mask, variant, gain in zip(dimensions, masks, variants, gains.of(*variants), strict=True):
        if not gain.is_sure or gain.share < _WORTH:
            continue
        calls = gains.operations.filter(pl.Series(mask))["collective"]
        of = "" if name == "unknown" else f" of {name}"
        most = calls.mode().sort()[0]
        title = f"Collectives{of} move data while nothing computes (mostly {most})"
        change = "they take no time after all ranks arrive, as if they were hidden"
        if 2 * int((gains.graph.meets[mask] >= 0).sum()) < int(mask.sum()):
            title = f"Collectives{of} wait or move data while nothing computes (mostly {most})"
            change = "they take no time at all; no trace shows when the other ranks arrived"
        yield gains.opportunity(
            gain,
            variant,
            title=title,
            remedy=_HIDE.get(_ALSO.get(name, name), _ANY),
            change=change,
        )
