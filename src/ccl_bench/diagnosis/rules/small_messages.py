"""The rule `small_messages`: many collectives of few bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.base.lazy_imports import pl
from ccl_bench.diagnosis import Silent, diagnosis
from ccl_bench.diagnosis.communication import of_rows, transfers, with_transfer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.result.diagnosis import Opportunity

_SMALL = 256 * 1024
"""Size in bytes up to which latency, not bandwidth, determines the time of a collective.

At tens of GB/s it moves in ten microseconds, the latency of a collective inside a node.
"""

_MANY = 16
"""Number of such calls per rank and step that counts as many: two of those that can be combined."""

_TOGETHER = 8
"""Number of calls that the replay combines into one: their bytes still are few for a link."""


@diagnosis(kind="communication")
def small_messages(gains: Gains, calls: pl.DataFrame) -> Iterator[Opportunity]:
    """Many collectives move so few bytes that each costs little more than its latency.

    How it is seen:
    Collectives of one dimension that move up to 256 KiB, at least sixteen of them on a rank
    in a step. The run is replayed with eight of them combined: each takes an eighth of its time.

    Why it costs:
    A collective takes at least ten microseconds, however small it is, and each needs a
    launch.

    What to do:
    Combine them: buckets (DDP bucket_cap_mb and first bucket, DeepSpeed reduce_bucket_size and
    allgather_bucket_size, Megatron --ddp-bucket-size), larger FSDP2 units (fully_shard on blocks, not on
    layers), torch.distributed._coalescing_manager, gradient norms and losses reduced in one tensor. vLLM:
    custom all-reduce is on unless --disable-custom-all-reduce is given.

    When it is no problem:
    If they are hidden behind computing, the replay gains nothing and the rule
    reports nothing.

    Reference:
    Hockney, "The communication challenge for MPP" (1994); nccl-tests, PERFORMANCE.md
    """
    timed_calls = transfers(gains, calls)
    if timed_calls.is_empty():
        raise Silent("no collective has a recorded size")
    per_step = pl.len().over("trace", "step", "collective", "dimension")
    small = timed_calls.filter(pl.col("size_bytes") <= _SMALL).filter(per_step >= _MANY)
    for (dimension, collective), some in small.group_by("dimension", "collective", maintain_order=True):
        mask = of_rows(gains, some["row"])
        count = len(some) / some.select("trace", "step").n_unique()
        typical = float(np.median(some["size_bytes"].to_numpy()))
        yield from gains.sure(
            with_transfer(gains, mask, some.sort("row")["took"].to_numpy() / _TOGETHER),
            title=f"{count:.0f} {collective}s of {dimension} a step move only {typical:,.0f} bytes each",
            remedy="combine several of them: buckets, larger units, one tensor",
            change="eight of them take the time of one",
        )
