"""The metric `kernel_count`."""

from __future__ import annotations

from ccl_bench import Measurement, NotMeasurable, metric, pl


@metric(unit="kernels", better="neither", aliases=("number_of_kernels",))
def kernel_count(kernels_in_steps: pl.DataFrame) -> Measurement:
    """Kernels that one rank runs in one step.

    Formula:
        kernel_count = kernels that start inside steps / steps, mean over ranks

    Caveats:
        Kernels inside CUDA graphs count one by one where the profiler records them.

    Reference:
        None; it is an example.
    """
    if not kernels_in_steps["kernels"].sum():
        raise NotMeasurable("no kernel ran in any step", fix="record CUDA activity with torch.profiler")
    per_rank = kernels_in_steps.group_by("rank").agg(pl.col("kernels").mean()).sort("rank")
    return Measurement(
        sum(per_rank["kernels"]) / per_rank.height,
        details={"per_rank": {str(rank): count for rank, count in per_rank.iter_rows()}},
        ranks=per_rank["rank"].drop_nulls().to_list(),
    )
