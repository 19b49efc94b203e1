"""Recorded pipelines that are invented: every slot of a stage and replica takes the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ccl_bench.predict.recorded_run import EVERYONE, REPLICAS, RecordedPipeline, TailCall
from ccl_bench.whatif.pipeline_orders import BACKWARD, FORWARD, Schedule, stage_order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

TAIL = (TailCall("all_reduce", REPLICAS, 2), TailCall("barrier", EVERYONE, 4))


def made_pipeline(
    stages: int,
    replicas: int,
    microbatches: int,
    *,
    steps: int = 2,
    computing: Mapping[str, Any] | None = None,
    handing: Mapping[str, Any] | None = None,
    wires: Mapping[str, Any] | None = None,
    pickups: Mapping[str, Any] | None = None,
    before: Any = 0.0,
    tail_hosts: Any = (0.0, 0.0, 0.0),
    tail_moves: Any = (0.0, 0.0),
) -> RecordedPipeline:
    """Return a pipeline; times are numbers, or have one for each stage and replica."""
    shape = (stages, replicas, steps, microbatches)

    def spread(times: Any) -> NDArray[np.float64]:
        every = np.asarray(times, dtype=float)
        return np.broadcast_to(every[..., None, None] if every.ndim else every, shape).copy()

    def of_kinds(times: Mapping[str, Any] | None) -> dict[str, NDArray[np.float64]]:
        return {kind: spread((times or {}).get(kind, 0.0)) for kind in (FORWARD, BACKWARD)}

    ends = [np.broadcast_to(np.asarray(times, dtype=float), (replicas, steps, len(times))) for times in
            (tail_hosts, tail_moves)]  # fmt: skip
    orders = tuple(
        tuple(slot.kind for slot in stage_order(Schedule("1f1b"), stages, stage, microbatches))
        for stage in range(stages)
    )
    return RecordedPipeline(
        stages=stages,
        replicas=replicas,
        microbatches=microbatches,
        orders=orders,
        steps=tuple(range(steps)),
        computing=of_kinds(computing),
        handing=of_kinds(handing),
        before=spread(before)[..., 0],
        wires=of_kinds(wires),
        pickups=of_kinds(pickups),
        latency_s=0.0,
        sends_block=False,
        tails=(TAIL,) * stages,
        tail_hosts=[ends[0]] * stages,
        tail_moves=[ends[1]] * stages,
        recorded_s=np.ones(steps),
    )
