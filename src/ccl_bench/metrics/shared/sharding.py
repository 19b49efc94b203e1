"""What the metrics about fully sharded data parallelism have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.errors import NotApplicable, NotMeasurable
from ccl_bench.metrics.rows import RECORD, need_rows

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts
    from ccl_bench.frames import pl


def need_sharding(fsdp: pl.DataFrame, steps: pl.DataFrame, facts: Facts) -> None:
    """Raise where no trace holds ranges of FSDP: NotApplicable unless the run is known to shard weights."""
    need_rows(steps, "steps", RECORD)
    if not fsdp.is_empty():
        return
    degree = facts.dp_shard
    if degree and degree.value > 1:
        raise NotMeasurable(
            f"dp_shard is {degree.value} in {degree.source}, but the traces hold no ranges of FSDP",
            fix="record CPU activity with torch.profiler; FSDP2 marks FSDP::all_gather and the like",
        )
    raise NotApplicable("the traces hold no ranges of FSDP, and nothing says that weights are sharded")
