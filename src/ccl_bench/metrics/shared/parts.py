"""The parts of a step as details list them: compute, fused, exposed communication, exposed memory, idle."""

from __future__ import annotations

from ccl_bench.base.lazy_polars import pl
from ccl_bench.metrics.rows import SECOND_NS, label, step_labels
from ccl_bench.metrics.shared.per_step import few_steps

PARTS = ("compute", "fused", "exposed_communication", "exposed_memory", "idle", "window")
"""All but the last add up to the last."""


def listed_parts(breakdown: pl.DataFrame) -> list[str]:
    """Return the parts that steps of a run have; `fused` where a kernel computed and communicated in one."""
    has_fused = "fused_ns" in breakdown.columns and bool((breakdown["fused_ns"] > 0).any())
    return [part for part in PARTS if part != "fused" or has_fused]


def parts_by_rank(breakdown: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Return {rank: mean parts of its steps, s}."""
    means = _means(breakdown, "rank").sort("rank", nulls_last=True)
    names = [label(rank) for rank in means["rank"]]
    return dict(zip(names, means.select(listed_parts(breakdown)).to_dicts(), strict=True))


def parts_by_step(breakdown: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Return {step: mean parts over its ranks, s}."""
    means = few_steps(_means(breakdown, "iteration", "step").sort("iteration", "step", nulls_last=False))
    return dict(zip(step_labels(means), means.select(listed_parts(breakdown)).to_dicts(), strict=True))


def _means(breakdown: pl.DataFrame, *by: str) -> pl.DataFrame:
    parts = (
        (pl.col(f"{part}_ns").sum() / pl.len() / SECOND_NS).alias(part) for part in listed_parts(breakdown)
    )
    return breakdown.group_by(*by).agg(*parts)
