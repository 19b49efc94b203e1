"""Kernel time that serves a mixture of experts, of kernels that are written by hand."""

from __future__ import annotations

import polars as pl
import pytest

from ccl_bench.analysis.facts import Facts
from ccl_bench.base.errors import NotApplicable
from ccl_bench.metrics.moe_fraction import moe_fraction

STEPS = pl.DataFrame(
    {"trace": [0, 1], "rank": [0, 1], "iteration": [None, None], "step": [1, 1], "source": "mark"}
)
KINDS = [
    ("moe", "topk_gating", None),  # routing
    ("gemm", "fused_moe_kernel", None),  # grouped product
    ("gemm", "ampere_sgemm", None),
    ("elementwise", "fused_moe_activation", None),
    ("communication", "deep_ep::intranode::dispatch", None),  # dispatch
    ("communication", "ncclSendRecv", "all_to_all"),  # of experts or not
    ("communication", "ncclAllReduce", "all_reduce"),
    ("fused", "mega_moe", None),  # all at once
    ("fused", "gemm_allreduce", None),
    ("other", "deep_ep::intranode::copy", None),
]


def kernels(*times: tuple[int, ...]) -> pl.DataFrame:
    """Return the kernels of each rank, which take so long, ns."""
    rows = [
        {"trace": rank, "rank": rank, "iteration": None, "step": 1, "type": kind, "name": name}
        | {"collective": collective, "duration_ns": ns}
        for rank, each in enumerate(times)
        for (kind, name, collective), ns in zip(KINDS, each, strict=True)
    ]
    return pl.DataFrame(rows, schema_overrides={"collective": pl.String, "iteration": pl.Int64})


def test_kernels_of_experts_are_counted_by_what_they_do() -> None:
    first = (10, 20, 100, 100, 30, 50, 150, 5, 15, 20)  # 500 in all
    second = (0, 100, 0, 0, 0, 0, 0, 0, 100, 0)
    found = moe_fraction(kernels(first, second), STEPS, Facts())
    assert found.value == pytest.approx((100 * (10 + 20 + 30 + 5) / 500 + 100 * 100 / 200) / 2)
    assert found.details["per_rank_pct"] == pytest.approx({"0": 13, "1": 50})
    parts = {"routing": 10, "grouped_matrix_products": 20, "dispatch_and_combine": 30, "fused_experts": 5}
    of_second = {"grouped_matrix_products": 100}
    for name, ns in parts.items():
        share = (100 * ns / 500 + 100 * of_second.get(name, 0) / 200) / 2
        assert found.details[f"{name}_pct"] == pytest.approx(share), name
    assert found.details["other_all_to_all_pct"] == pytest.approx(100 * 50 / 500 / 2)


def test_a_dense_model_has_no_share_of_experts() -> None:
    table = kernels((0,) * 2 + (100,) * 8).filter(pl.col("name").is_in(["ampere_sgemm", "gemm_allreduce"]))
    with pytest.raises(NotApplicable, match="no kernel's name shows experts"):
        moe_fraction(table, STEPS, Facts())
