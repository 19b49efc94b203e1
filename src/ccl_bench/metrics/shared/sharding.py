"""What the metrics about fully sharded data parallelism have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotApplicable, NotMeasurable
from ccl_bench.base.lazy_polars import pl
from ccl_bench.metrics.rows import RECORD, label, need_rows

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts


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


def need_attribution(fsdp: pl.DataFrame) -> None:
    """Raise NotMeasurable where a rank was inside ranges of FSDP and nothing that ran was launched there."""
    totals = fsdp.group_by("rank").agg(pl.col("host_ns", "work_ns").sum()).sort("rank")
    without = totals.filter((pl.col("host_ns") > 0) & (pl.col("work_ns") == 0))["rank"]
    if without.is_empty():
        return
    ranks = ", ".join(label(rank) for rank in without)
    raise NotMeasurable(
        f"the traces hold ranges of FSDP, but no work can be traced back to them (rank {ranks})",
        fix="record CPU and CUDA activity with torch.profiler, launches included",
    )
