"""The metric `bubble_size_pipeline`: time in which pipeline stages are idle or wait for messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.pipeline import theoretical_bubble_fraction
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.per_step import RECORD, need_rows, ranks_in, step_labels

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts
    from ccl_bench.result.details import BubbleDetails


@metric(unit="s", better="lower", applies=(checks.pipeline,), aliases=("pipeline_bubble_16",), revision=4)
def bubble_size_pipeline(bubbles: pl.DataFrame, facts: Facts) -> Measurement:
    """Pipeline bubble: time in a step in which a stage neither computes nor moves data.

    Formula:
        bubble = step - U(compute) - exposed collectives - exposed transfer of messages

        This is idle time plus waiting for messages of neighbouring stages: the mean over the ranks of a
        stage, over stages and over steps. The transfer of a message is the shorter of its matched send and
        receive, at the end of the call; the time before it is waiting.

    Caveats:
        Gradient reduction and optimizer at the end of a step are not bubble. Copies between host and device
        are part of the bubble when nothing else runs. Warm-up lasts until a stage's first backward work
        starts, cool-down begins when its last forward work has ended. A message whose partner is not
        recorded (a batched send and receive is one kernel) counts as waiting throughout, so the bubble is
        an upper bound; `unmatched_messages_count` says how many. Schedule and microbatches come from the
        card.

    Reference:
        Theory: 1F1B and GPipe (p-1)/(m+p-1), interleaved (p-1)/(v m+p-1) [arXiv 2104.04473].
    """
    need_rows(bubbles, "steps", RECORD)
    if not facts.pp:
        raise NotMeasurable(
            "whether the run has a pipeline is not known",
            fix="write the pipeline-parallel degree pp into the workload card",
            is_repairable=True,
        )
    if bubbles["stage"].null_count():
        raise NotMeasurable(
            "the pipeline stage of each rank is not known",
            fix="write all parallel degrees into the card, so that they multiply to world_size",
            is_repairable=True,
        )
    stages = _per_stage(bubbles)
    return Measurement(
        float(stages.select(pl.col("bubble_s").mean()).item()),
        _details(stages, bubbles, facts),
        "device windows of steps",
        ranks_in(bubbles),
    )


def _details(stages: pl.DataFrame, bubbles: pl.DataFrame, facts: Facts) -> BubbleDetails:
    imbalance = stages.select(pl.col("compute_s").max() / pl.col("compute_s").mean()).item()
    details: BubbleDetails = {
        "fraction_ratio": float(stages.select(pl.col("fraction").mean()).item()),
        "per_stage": {str(row.pop("stage")): _without_gaps(row) for row in stages.to_dicts()},
        "per_step_s": _per_step(bubbles),
        "stage_imbalance_ratio": float(imbalance),
        "unmatched_messages_count": int(bubbles["unmatched"].sum()),
        "stages_count": facts.pp.value if facts.pp else None,
    }
    if stages["warm_up_s"].null_count():
        details["parts_missing"] = "the trace does not separate forward from backward work in every step"
    theory = theoretical_bubble_fraction(facts)
    if theory is not None:
        details["theory"] = {"fraction_ratio": theory[0], "formula": theory[1]}
    return details


def _per_stage(bubbles: pl.DataFrame) -> pl.DataFrame:
    return (
        bubbles.group_by("stage")
        .agg(
            (pl.col("bubble_ns").mean() / SECOND_NS).alias("bubble_s"),
            (pl.col("bubble_ns") / pl.col("window_ns")).mean().alias("fraction"),
            *(_mean_s(name) for name in ("warm_up", "steady", "cool_down")),
            (pl.col("compute_ns").mean() / SECOND_NS).alias("compute_s"),
            (pl.col("message_wait_ns").mean() / SECOND_NS).alias("message_wait_s"),
            (pl.col("exposed_transfer_ns").mean() / SECOND_NS).alias("exposed_transfer_s"),
            (pl.col("exposed_collectives_ns").mean() / SECOND_NS).alias("exposed_collectives_s"),
        )
        .sort("stage")
    )


def _mean_s(part: str) -> pl.Expr:
    """Return the mean bubble in a part of the step, s; null where some step is not divided."""
    bubble = pl.col(f"{part}_ns")
    return pl.when(bubble.is_not_null().all()).then(bubble.mean() / SECOND_NS).alias(f"{part}_s")


def _without_gaps(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def _per_step(bubbles: pl.DataFrame) -> dict[str, float]:
    """Return {step: mean over stages of the mean over their ranks, s}."""
    keys = ["iteration", "step"]
    stages = bubbles.group_by(*keys, "stage").agg((pl.col("bubble_ns").mean() / SECOND_NS).alias("bubble_s"))
    steps = stages.group_by(keys).agg(pl.col("bubble_s").mean()).sort(keys)
    return dict(zip(step_labels(steps), steps["bubble_s"], strict=True))
