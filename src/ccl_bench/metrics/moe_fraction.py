"""The metric `moe_fraction`: share of kernel time that serves a mixture of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotApplicable, NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared.checks import need_kernels
from ccl_bench.metrics.shared.per_step import (
    by_rank,
    mean_of,
    ranks_in,
    shares_by_rank,
    shares_by_step,
    window_of,
)

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts

EXPERT_PRODUCT = (
    r"(?i)fused_moe|moe_?gemm|moe_wna16|(?:^|[^a-z])[mk]_grouped|group(?:ed)?_?(?:gemm|mm)\w*(?:[^\w:]|$)"
    r"|GroupProblemShape|Grouped(?:Contiguous|Masked)|^bmm_\w+_dynBatch"
)
"""Matrix products of many experts at once; a namespace with such a name does not qualify its kernels.

TensorRT-LLM's generated `bmm_*_dynBatch` take the number of tokens of each expert from the device.
"""

FUSED_EXPERTS = r"(?i)moe"
"""Kernels that dispatch, multiply and combine at once, such as DeepGEMM's `mega_moe`."""

EXCHANGE = (
    r"(?i)(?:\w*ep|uccl|mooncake)::(?:\w+::)*(?:internode|intranode|internode_ll|low_latency)::"
    r"|deep_ep|hybrid_ep::|mori::|moeA2A|moeAllToAll|(?:^|::|\s)a2a_(?:dispatch|combine)_"
)
"""Libraries that only send tokens to experts and back."""


@metric(unit="%", better="neither", revision=3)
def moe_fraction(kernel_time: pl.DataFrame, steps: pl.DataFrame, facts: Facts) -> Measurement:
    """Share of kernel time in kernels that serve a mixture of experts.

    It counts routing and permutation of tokens, the grouped matrix products of experts, and the dispatch
    and combine kernels of expert-parallel libraries: work that a dense model of the same shape would not
    have, or would do in other kernels.

    Formula:
        moe_fraction = 100 * (routing + grouped matrix products + dispatch and combine
                              + kernels that do all three) / total kernel time

        over the steps of each rank, mean over ranks; times are sums of durations.

    Caveats:
        It is a lower bound, based on names alone. It cannot recognise experts computed one by one in
        ordinary matrix products, the router's own product, activations between them, and all-to-alls of
        NCCL. All-to-alls whose names do not mention experts are listed separately. A kernel that waits for
        a peer counts in full.

    Reference:
        Kernel names of DeepEP, DeepGEMM, CUTLASS, vLLM, TensorRT-LLM, Megatron-Core and torchtitan.
    """
    need_kernels(kernel_time, steps)
    calls = pl.col("type") == "communication"
    parts = {
        "routing": pl.col("type") == "moe",
        "grouped_matrix_products": (pl.col("type") == "gemm") & pl.col("name").str.contains(EXPERT_PRODUCT),
        "dispatch_and_combine": calls & pl.col("name").str.contains(EXCHANGE),
        "fused_experts": (pl.col("type") == "fused") & pl.col("name").str.contains(FUSED_EXPERTS),
    }
    serving = pl.any_horizontal(*parts.values())
    if kernel_time.filter(serving).is_empty():
        if facts.is_moe and facts.is_moe.value:
            raise NotMeasurable(
                "the model is a mixture of experts, but no kernel's name shows them",
                fix="use fused or grouped kernels for experts; ordinary matrix products do not show experts",
            )
        raise NotApplicable(
            "no kernel's name shows experts: the model is dense, or its experts run in ordinary kernels"
        )
    shares = _share(kernel_time, serving)
    unclear = calls & (pl.col("collective") == "all_to_all") & ~serving
    return Measurement(
        mean_of(shares, "pct"),
        details={
            "per_rank_pct": by_rank(shares, "pct"),
            "per_step_pct": shares_by_step(_counted(kernel_time, serving), "part_ns", "duration_ns"),
            **{f"{name}_pct": mean_of(_share(kernel_time, part), "pct") for name, part in parts.items()},
            "other_all_to_all_pct": mean_of(_share(kernel_time, unclear), "pct"),
        },
        window=window_of(steps),
        ranks=ranks_in(shares),
    )


def _share(kernel_time: pl.DataFrame, part: pl.Expr) -> pl.DataFrame:
    """Return the share of each rank's kernel time in the kernels of `part`."""
    return shares_by_rank(_counted(kernel_time, part), "part_ns", "duration_ns")


def _counted(kernel_time: pl.DataFrame, part: pl.Expr) -> pl.DataFrame:
    """Add the time of the kernels of `part` as `part_ns`, 0 for others."""
    counted = pl.when(part.fill_null(value=False)).then("duration_ns").otherwise(0)
    return kernel_time.with_columns(counted.alias("part_ns"))
