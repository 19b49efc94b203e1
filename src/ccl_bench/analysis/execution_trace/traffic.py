"""What Execution Traces show by themselves: their steps, in order of nodes, and the traffic of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.groups import GROUP_COLUMNS, described_groups
from ccl_bench.analysis.communication.traffic import with_dimensions
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.base.lazy_polars import pl
from ccl_bench.result import WHOLE_TRACE

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts

_MARK = r"^ProfilerStep#(\d{1,15})$"


@derived(
    reads={"et_nodes": ("node", "name")},
    step=("Int64", "number of the step as recorded; 0 where the whole trace is one"),
    first_node=("Int64", "first node of the step"),
    source=("String", "how the steps were found"),
)
def et_steps(et_nodes: pl.DataFrame) -> pl.DataFrame:
    """One step of one Execution Trace: a step lasts until the next one begins, the last until the end."""
    number = pl.col("name").cast(pl.String).str.extract(_MARK).cast(pl.Int64)
    marks = et_nodes.drop_nulls("node").select("node", step=number, source=pl.lit("ProfilerStep"))
    steps = marks.drop_nulls("step").unique("step", keep="first", maintain_order=True).sort("node")
    if steps.is_empty():
        steps = marks.sort("node").head(1).with_columns(step=pl.lit(0, pl.Int64), source=pl.lit(WHOLE_TRACE))
    return steps.select("step", pl.col("node").alias("first_node"), "source")


@derived(across_ranks=True, rows_of="et_call_groups", **GROUP_COLUMNS)
def et_used_groups(et_call_groups: pl.DataFrame, facts: Facts) -> pl.DataFrame:
    """One process group that operators of Execution Traces communicated in."""
    return described_groups(et_call_groups, facts)


@derived(
    across_ranks=True,
    rows_of="et_described_calls",
    iteration=("Int64", "recording window"),
    rank=("Int64", "rank"),
    trace=("Int64", "the Execution Trace"),
    node=("Int64", "number of the node"),
    step=("Int64", "step in which the call started; null for none"),
    collective=("String", "canonical collective"),
    group=("String", "process group"),
    dimension=("String", "parallelism dimension: an axis, `dp`, `world` or `unknown`"),
    size=("Int64", "members of the group, 2 for a message between two ranks"),
    size_bytes=("Int64", "message as nccl-tests counts it, bytes; null where it is unattributed"),
)
def et_traffic(
    et_described_calls: pl.DataFrame, et_steps: pl.DataFrame, et_used_groups: pl.DataFrame, facts: Facts
) -> pl.DataFrame:
    """One communication call of one Execution Trace, which shows what was communicated and not when."""
    calls = with_dimensions(et_described_calls, et_used_groups, facts)
    begins = et_steps.select("trace", "step", node="first_node").sort("node")
    placed = calls.sort("node").join_asof(
        begins, on="node", by="trace", strategy="backward", check_sortedness=False
    )
    return placed.sort("trace", "node").select(*DERIVED.get("et_traffic").table.columns)
