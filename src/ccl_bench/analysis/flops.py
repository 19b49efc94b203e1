"""Floating-point operations: of a model for one token, and of the matrix products in a trace.

PaLM (arXiv 2204.02311, appendix B): a training step costs 6 operations for each parameter
outside the embedding and 12·L·H·Q·T for attention (L layers, H heads, Q head size, T tokens
in a sequence); a forward pass alone costs a third of both.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from ccl_bench.analysis.communication.arguments import widths
from ccl_bench.analysis.derived import derived, with_zeros
from ccl_bench.analysis.intervals import assign_window, sum_per_window
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog.dtypes import dtype
from ccl_bench.catalog.kernel_types import kernel_type

FORWARD_PASSES = {"inference": 1, "training": 3}
"""What a step costs in forward passes: the backward pass costs two [PaLM app. B]."""

RECOMPUTE_FORWARD_PASSES = 4
"""With full activation checkpointing the forward pass runs twice [arXiv 2205.05198]."""


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The sizes that the operations follow from."""

    parameters: int
    """Parameters that a token uses, without those of the embedding."""
    layers: int
    heads: int
    head_dim: int
    seq_len: int
    """Tokens in one sequence."""

    @property
    def matmul_flops(self) -> float:
        """Operations of one forward pass in matrix products with weights, for one token."""
        return 2.0 * self.parameters

    @property
    def attention_flops(self) -> float:
        """Operations of one forward pass in attention, for one token that sees the whole sequence."""
        return 4.0 * self.layers * self.heads * self.head_dim * self.seq_len


def palm(model: ModelSizes, phase: str) -> float:
    """Return operations for one token by the PaLM convention, attention over the whole sequence."""
    return FORWARD_PASSES[phase] * (model.matmul_flops + model.attention_flops)


def causal(model: ModelSizes, phase: str) -> float:
    """Return operations for one token with causal attention counted by half, as Megatron-LM does."""
    return FORWARD_PASSES[phase] * (model.matmul_flops + model.attention_flops / 2)


def hardware_with_recompute(model: ModelSizes) -> float:
    """Return operations executed for one training token with full activation checkpointing (HFU)."""
    return RECOMPUTE_FORWARD_PASSES * (model.matmul_flops + model.attention_flops)


MOST_PRODUCTS = 0.95
"""Share of the operations of recorded matrix products from which on their precision is that of the run.

In mixed precision a few products, such as those of a router or of the loss, have another type.
"""


def precision_of_products(product_types: pl.DataFrame) -> tuple[str, float]:
    """Return the precision of nearly all matrix products, and its share of their operations.

    Products of fp32 may have run in TF32. Raises NotMeasurable if there are no sized products, if they have
    several precisions, or if other kernels multiply elements of 8 bits or less.
    """
    if not product_types["flops"].sum():
        raise NotMeasurable("the traces have no matrix products of known size")
    sums = product_types.group_by("dtype").agg(pl.col("products", "flops").sum())
    shares = dict(
        sums.sort("flops", descending=True)
        .select("dtype", pl.col("flops") / pl.col("flops").sum())
        .iter_rows()
    )
    counts = dict(sums.select("dtype", "products").iter_rows())
    typed = 1 - counts.get(None, 0) / sum(counts.values())
    name, share = next(iter(shares.items()))
    listed = ", ".join(f"{100 * part:.3g} % {each or 'of unknown type'}" for each, part in shares.items())
    if name is None or share < MOST_PRODUCTS or typed < MOST_PRODUCTS:
        why = f"the recorded matrix products have no single precision: {listed} of their operations"
        if typed < MOST_PRODUCTS:
            why = f"only {100 * typed:.3g} % of the recorded matrix products have a known precision"
        raise NotMeasurable(why)
    if product_types["narrow_kernels"].sum():
        raise NotMeasurable(
            f"the recorded matrix products are {name}, but other kernels multiply elements of 8 bits or less"
        )
    return name, share


@derived(
    step=("Int64", "number of the step"),
    products=("Int64", "matrix products that the CPU started in the step and that call no other"),
    sized=("Int64", "those with a recorded shape and element type"),
    flops=("Float64", "operations of these, 2 for each multiplication and addition"),
    bytes=("Float64", "bytes of their factors and results, each once"),
)
def product_work(steps: pl.DataFrame, products: pl.DataFrame) -> pl.DataFrame:
    """One step of one trace: the operations and the data of its matrix products."""
    if products.is_empty():
        return with_zeros("product_work", steps["step"])
    sums = assign_window(costs(innermost(products)), steps).group_by("window").agg(_sums())
    return sum_per_window(steps, sums).select(steps["step"], pl.exclude("window").fill_null(0))


_NARROW = r"(?i)fp8|float8|e4m3|e5m2|fp4|e2m1|int8|imma|nvjet_q|scaled_mm|blockscaled|deep_gemm"
"""Names of matrix products of elements of 8 bits or less, whose operators are none of the products."""


@derived(
    dtype=("String", "element type of the factors, as devices list their peaks; null if it is unknown"),
    products=("Int64", "matrix products that call no other"),
    flops=("Float64", "operations of those with a recorded shape"),
    narrow_kernels=("Int64", "names of kernels that multiply matrices with elements of 8 bits or less"),
)
def product_types(products: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """One element type of one trace: the matrix products of such factors."""
    names = kernels["name"].unique().cast(pl.String)
    narrow = sum(kernel_type(name) == "gemm" for name in names.filter(names.str.contains(_NARROW)))
    work = costs(innermost(products))
    peak_of: dict[str, str | None] = {}
    for name in work["dtype"].unique().drop_nulls():
        with suppress(NotMeasurable):
            peak_of[name] = dtype(name).peak or None
    peaks = work["dtype"].replace_strict(peak_of, default=None, return_dtype=pl.String)
    by_type = work.with_columns(dtype=peaks).group_by("dtype", maintain_order=True)
    sums = by_type.agg(pl.len().cast(pl.Int64).alias("products"), pl.col("flops").sum())
    return sums.with_columns(narrow_kernels=pl.lit(narrow, pl.Int64))


@derived(
    step=("Int64", "number of the step"),
    products=("Int64", "matrix products in the step that call no other"),
    sized=("Int64", "those with a recorded shape and element type"),
    flops=("Float64", "operations of these, 2 for each multiplication and addition"),
    bytes=("Float64", "bytes of their factors and results, each once"),
)
def et_product_work(
    et_steps: pl.DataFrame, et_products: pl.DataFrame, et_nodes: pl.DataFrame
) -> pl.DataFrame:
    """One step of one Execution Trace: the operations and the data of its matrix products."""
    parents = (
        et_nodes.select("node", "parent")
        .drop_nulls()
        .unique("node")
        .filter(pl.col("parent") != pl.col("node"))
    )
    level = et_products.select("node")
    callers = [level["node"].head(0)]
    for _ in range(_DEEPEST):
        level = level.join(parents, on="node").select(node="parent").unique()
        if level.is_empty():
            break
        callers.append(level["node"])
    innermost_products = et_products.filter(~pl.col("node").is_in(pl.concat(callers).unique().implode()))
    begins = et_steps.select("step", node="first_node").sort("node")
    placed = costs(innermost_products).sort("node").join_asof(begins, on="node", strategy="backward")
    sums = placed.group_by("step").agg(_sums())
    per_step = et_steps.select("step").join(sums, on="step", how="left", maintain_order="left")
    return per_step.with_columns(pl.exclude("step").fill_null(0))


_DEEPEST = 200
"""Levels of operators that call each other that are looked at: damaged parents may form a circle."""


def _sums() -> list[pl.Expr]:
    """Return the sums over products."""
    return [
        pl.len().cast(pl.Int64).alias("products"),
        pl.col("bytes").count().cast(pl.Int64).alias("sized"),
        pl.col("flops", "bytes").sum(),
    ]


def costs(products: pl.DataFrame) -> pl.DataFrame:
    """Return products with their `flops` and `bytes`; null if shape or element type are unknown."""
    batch, rows, inner, columns = (
        pl.col(side).cast(pl.Float64) for side in ("batch", "rows", "inner", "columns")
    )
    elements = rows * inner + inner * columns + rows * columns
    costs = products.with_columns(
        flops=2 * batch * rows * inner * columns,
        bytes=batch * elements * widths(products["dtype"]),
    )
    return costs.with_columns(pl.when(pl.col("bytes").is_not_null()).then("flops").alias("flops"))


def innermost(products: pl.DataFrame) -> pl.DataFrame:
    """Return the products that call no other: one of distributed tensors has the shapes of the whole job."""
    ordered = products.sort("thread", "start_ns", "end_ns", descending=[False, False, True])
    following = pl.col("start_ns").shift(-1).over("thread")
    calls_none = following.is_null() | (following >= pl.col("end_ns"))
    return ordered.filter(calls_none).sort("start_ns", maintain_order=True)
