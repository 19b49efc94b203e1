"""The rule `uneven_stages`: pipeline stages that take longer than others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.base.lazy_imports import pl
from ccl_bench.diagnosis import Silent, diagnosis
from ccl_bench.diagnosis.communication import stages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.result.diagnosis import Opportunity
    from ccl_bench.whatif.event_graph import Mask, Times

_MOST_RANKS = 8
"""Number of ranks of a stage to replay one by one: each replay takes time, and those of a stage are alike."""


@diagnosis(kind="pipeline")
def uneven_stages(gains: Gains) -> Iterator[Opportunity]:
    """One pipeline stage takes longer than the others, which wait for it.

    How it is seen:
    Each stage is replayed with the times of the other stages: the median of the same
    operation. The gain of an average stage, or of one of its ranks alone, is subtracted before the gain is
    compared with the noise. On a run without a device the host times are used.

    Why it costs:
    A pipeline runs at the pace of its slowest stage, in every microbatch.

    What to do:
    Move layers from that stage to others. The last stage also has the output layer and the loss, the first
    the embedding. Megatron: --decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers,
    --pipeline-model-parallel-layout, --account-for-loss-in-pipeline-split. torchtitan:
    parallelism.pipeline_parallel_first_stage_less_layers and ..._last_stage_less_layers. DeepSpeed:
    PipelineModule(partition_method="parameters").

    When it is no problem:
    If layers cannot be split, the full gain is out of reach: it assumes an even
    division.

    Reference:
    "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25), M_S
    """
    ranks_of = stages(gains)
    if len(ranks_of) < 2:
        raise Silent("there are no pipeline stages, or they are unknown")
    computes = gains.computes if gains.has_device else gains.on_host
    variants = [gains.replays.without(computes & gains.where(pl.col("stage") == each)) for each in ranks_of]
    by_stage = gains.of(*variants)
    for place, (stage, ranks) in enumerate(ranks_of.items()):
        others = [gain.by_step for number, gain in enumerate(by_stage) if number != place]
        beyond = by_stage[place].beyond(np.maximum(0.0, np.median(others, axis=0)))
        if not (beyond.is_sure and by_stage[place].beyond(_best_alone(gains, computes, ranks)).is_sure):
            continue
        which = " (the last)" if place == len(ranks_of) - 1 else " (the first)" if place == 0 else ""
        yield gains.opportunity(
            by_stage[place],
            variants[place],
            title=f"Stage {stage}{which} of {len(ranks_of)} takes longer than the other stages",
            remedy="move layers from it to other stages",
            change="the stage takes the same time as the other stages",
            ranks=ranks,
        )


def _best_alone(gains: Gains, computes: Mask, ranks: list[int]) -> Times:
    """Return the largest gain of a single rank of a stage, in each step; empty for one rank."""
    if len(ranks) == 1:
        return np.zeros(len(gains.steps))
    masks = [computes & gains.where(pl.col("rank") == rank) for rank in ranks[:_MOST_RANKS]]
    by_rank = gains.of_each(gains.replays.without(mask) for mask in masks)
    return max((gain.by_step for gain in by_rank), key=lambda by_step: float(by_step.sum()))
