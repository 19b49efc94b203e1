"""The metric `bubble_size_pipeline`: time in which pipeline stages are idle or wait for messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
        receive, at the end of the call; the time before it is waiting. Pipeline efficiency, the detail
        `efficiency_ratio`, is 1 - bubble / step.

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
    mean = {
        name: (pl.col(f"{name}_ns").mean() / SECOND_NS).alias(f"{name}_s")
        for name in (
            *("bubble", "warm_up", "steady", "cool_down", "compute"),
            *("message_wait", "exposed_transfer", "exposed_collectives"),
        )
    }
    # A mean over the steps that are divided would not add up with the others.
    for part in ("warm_up", "steady", "cool_down"):
        mean[part] = pl.when(pl.col(f"{part}_ns").is_not_null().all()).then(mean[part]).alias(f"{part}_s")
    fraction = (pl.col("bubble_ns") / pl.col("window_ns")).mean().alias("fraction")
    bubble, *others = mean.values()
    stages = bubbles.group_by("stage").agg(bubble, fraction, *others).sort("stage")
    keys = ["iteration", "step"]
    steps = (
        bubbles.group_by(*keys, "stage").agg(bubble).group_by(keys).agg(pl.col("bubble_s").mean()).sort(keys)
    )
    share = float(stages.select(pl.col("fraction").mean()).item())
    details: BubbleDetails = {
        "fraction_ratio": share,
        "efficiency_ratio": 1 - share,
        "per_stage": {
            str(row.pop("stage")): {name: value for name, value in row.items() if value is not None}
            for row in stages.to_dicts()
        },
        "per_step_s": dict(zip(step_labels(steps), steps["bubble_s"], strict=True)),
        "stage_imbalance_ratio": float(
            stages.select(pl.col("compute_s").max() / pl.col("compute_s").mean()).item()
        ),
        "unmatched_messages_count": int(bubbles["unmatched"].sum()),
        "stages_count": facts.pp.value,
    }
    if stages["warm_up_s"].null_count():
        details["parts_missing"] = "the trace does not separate forward from backward work in every step"
    theory = theoretical_bubble_fraction(facts)
    if theory is not None:
        details["theory"] = {"fraction_ratio": theory[0], "formula": theory[1]}
    return Measurement(
        float(stages.select(pl.col("bubble_s").mean()).item()),
        details,
        "device windows of steps",
        ranks_in(bubbles),
    )
