"""The metric `compute_intensity`: operations per byte of matrix products."""

from __future__ import annotations

from dataclasses import replace

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared.other_sources import source_finding
from ccl_bench.metrics.shared.per_step import (
    RECORD,
    by_rank,
    each_rank,
    mean_of,
    need_rows,
    ranks_in,
    window_of,
)

_RECORD_SHAPES = "record shapes: torch.profiler.profile(record_shapes=True)"


def intensity_of_execution_traces(et_product_work: pl.DataFrame, et_steps: pl.DataFrame) -> Measurement:
    """Return operations for each byte of the products in Execution Traces, which record shapes always."""
    intensity = _intensity(et_product_work, et_steps)
    window = f"{intensity.window} of Execution Traces"
    return replace(intensity, window=window, findings=[source_finding(et_steps)])


@metric(unit="FLOP/byte", better="higher", otherwise=(intensity_of_execution_traces,), revision=2)
def compute_intensity(product_work: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    """Operations of matrix products for each byte of their factors and results: an upper bound.

    Formula:
        compute_intensity = sum of 2 * batch * m * k * n / sum of bytes of [m, k], [k, n] and [m, n]

        over the products of the steps (`aten::mm`, `addmm`, `bmm`, `baddbmm`) with recorded shapes, of
        Execution Traces where there are no others; mean over ranks.

    Caveats:
        It is a bound from the shapes of operators, not a measurement: it assumes that each factor is read
        once and each result written once. Kernels move more where caches are too small. Attention kernels,
        convolutions and elementwise operators are not counted; the latter move far more for each operation.
        A product of distributed tensors counts as the local one that it calls. No supported trace records
        what kernels read from and write to device memory; Nsight Compute counts it (`dram__bytes.sum`).

    Reference:
        Arithmetic intensity of the roofline model, Williams et al. 2009; FLOPs of
        `torch.utils.flop_counter`, which counts the same operations for these operators.
    """
    return _intensity(product_work, steps)


def _intensity(product_work: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    need_rows(steps, "steps", RECORD)
    totals = product_work.select(pl.col("products", "sized", "flops", "bytes").sum()).row(0, named=True)
    if not totals["products"]:
        raise NotMeasurable(
            "the traces hold no torch operator that multiplies matrices in any step", fix=_RECORD_SHAPES
        )
    if not totals["bytes"]:
        raise NotMeasurable("the traces hold no shapes of operators", fix=_RECORD_SHAPES)
    sums = product_work.group_by(each_rank()).agg(pl.col("flops", "bytes").sum())
    ratios = sums.filter(pl.col("bytes") > 0).select("rank", ratio=pl.col("flops") / pl.col("bytes"))
    ratios = ratios.sort("rank")
    return Measurement(
        mean_of(ratios, "ratio"),
        details={
            "per_rank_flop_per_byte": by_rank(ratios, "ratio"),
            "flops_per_step": totals["flops"] / steps.height,
            "bytes_per_step": totals["bytes"] / steps.height,
            "products_per_step": totals["products"] / steps.height,
            "products_without_shape_count": totals["products"] - totals["sized"],
            "basis": "shapes of operators: every factor is read once and every result written once",
        },
        window=window_of(steps),
        ranks=ranks_in(steps),
    )
