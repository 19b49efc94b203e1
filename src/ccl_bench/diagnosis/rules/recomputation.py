"""The rule `recomputation`: the backward pass runs part of the forward pass again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.device.phases import BACKWARD
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import GIGA
from ccl_bench.diagnosis import Silent, diagnosis
from ccl_bench.diagnosis.stalls import without_intervals
from ccl_bench.diagnosis.verdict import on_common_clock
from ccl_bench.whatif.run_graph import OWN, VALUES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.result.diagnosis import Opportunity

_WORTH = 0.05
"""Share of the step that it must gain: twice what selective recomputation costs.

Recomputing everything adds a forward pass to a step of 1:2 forward and backward, a quarter of it. Recomputing
selectively costs less than a tenth of this [Korthikanti et al., MLSys'23], and is what the rule advises.
"""


@diagnosis(kind="device")
def recomputation(
    gains: Gains,
    recomputations: pl.DataFrame,
    phases: pl.DataFrame,
    memory_recomputed: pl.DataFrame,
    clock_offsets: pl.DataFrame,
) -> Iterator[Opportunity]:
    """The backward pass runs part of the forward pass again: activation checkpointing.

    How it is seen:
    Inside a node of autograd's backward pass, operators run that record for autograd, as in the forward pass,
    and the gradient follows. With create_graph=True the gradient records too, and does not count. An operator
    named after checkpointing is around them, as with use_reentrant=True, or a memory snapshot shows what they
    allocate: hooks on saved tensors run operators for other reasons too. The run is replayed without the
    kernels that these operators launch, except for communication, and without the time of the host from the
    first of them to the last. A memory snapshot with call stacks in the run (ccl-bench
    collect writes one) shows the memory that recomputation saves: what it leaves allocated, summed over a
    backward pass.

    Why it costs:
    The same products are computed twice: with everything recomputed, a step takes up to a third longer.

    What to do:
    Recompute only what is cheap and large, such as attention without FlashAttention: Megatron
    --recompute-granularity selective, torchtitan activation_checkpoint.mode = "selective",
    torch.utils.checkpoint(context_fn=create_selective_checkpoint_contexts). Checkpoint fewer layers
    (Megatron --recompute-num-layers), or none where memory allows. Sharding more (FSDP, sequence
    parallelism) makes room.

    When it is no problem:
    If the activations do not fit into memory, and a smaller batch would cost more.

    Reference:
    Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, MLSys'23
    """
    if not phases.filter(pl.col("phase") == BACKWARD)["busy_ns"].sum():
        raise Silent("the traces show no backward pass")
    if recomputations.is_empty():
        raise Silent("no operator of the forward pass runs again in the backward pass")
    if memory_recomputed.is_empty() and not recomputations["is_named"].any():
        raise Silent(
            "nodes of autograd run operators of the forward pass again, as checkpointing by hooks does, but "
            "neither a name nor a memory snapshot with call stacks shows what that is for"
        )
    stretches = on_common_clock(recomputations, clock_offsets)
    variant = without_intervals(gains, stretches)
    opened = stretches.select("trace", "start_ns", lane="thread", until_ns="end_ns").sort("start_ns")
    launches = (
        gains.operations.filter(pl.col("place") == "host")
        .sort("start_ns")
        .join_asof(opened, on="start_ns", by=["trace", "lane"], check_sortedness=False)
        .filter(pl.col("start_ns") < pl.col("until_ns"))
        .select("trace", launcher="operation")
    )
    kernels = gains.operations.filter(pl.col("place") == "device", pl.col("kind") != "communication")
    again = kernels.join(launches, on=["trace", "launcher"], how="semi", maintain_order="left")
    variant[again["row"].to_numpy() * VALUES + OWN] = 0
    saved = "the memory that it saves is unknown: record a memory snapshot with call stacks"
    if memory_recomputed.height:
        most = memory_recomputed["bytes"].max()
        saved = f"it saves {float(most) / GIGA:.3g} GB of memory on a device"  # type: ignore[arg-type]
    yield from gains.sure(
        variant,
        title="The backward pass runs the forward pass again: activation checkpointing",
        remedy=f"recompute selectively, or checkpoint fewer layers; {saved}",
        change="nothing is recomputed",
        worth=_WORTH,
    )
