"""The rule `few_microbatches`: a pipeline has too few microbatches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.pipeline import theoretical_bubble_fraction
from ccl_bench.diagnosis import Silent, diagnosis
from ccl_bench.result.diagnosis import Opportunity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.analysis.facts import Facts
    from ccl_bench.whatif.run_graph import RunGraph

_LARGE = 0.2
"""Share of a balanced step that the bubble must take: four microbatches a stage take less of it [GPipe]."""

_WANTED = 0.1
"""Share below which more microbatches gain little: halving it again needs twice as many."""


@diagnosis(kind="pipeline")
def few_microbatches(facts: Facts, graph: RunGraph) -> Iterator[Opportunity]:
    """The pipeline has so few microbatches that filling and draining it takes a large part of the step.

    How it is seen:
    p stages and m microbatches leave each stage idle for (p - 1) / (m + p - 1) of an even
    step, however fast it computes. The card states schedule and microbatches. The gain of more microbatches
    depends on how fast smaller ones compute, so it is unknown.

    Why it costs:
    At the beginning of a step later stages have no work yet, at its end earlier stages have
    no work left.

    What to do:
    Smaller and more microbatches at the same global batch (Megatron --micro-batch-size, torchtitan
    parallelism.pipeline_parallel_microbatch_size, DeepSpeed gradient_accumulation_steps), an interleaved
    schedule (Megatron --num-layers-per-virtual-pipeline-stage, torchtitan pipeline_parallel_schedule =
    "Interleaved1F1B"), one without a bubble ("ZBVZeroBubble", DualPipe), or fewer stages.

    When it is no problem:
    If microbatches are already so small that kernels would get slower, or memory is
    too small for more.

    Reference:
    "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (arXiv 2104.04473)
    """
    theory = theoretical_bubble_fraction(facts)
    if theory is None or facts.pp is None or facts.microbatches is None:
        raise Silent("the card does not state stages, microbatches and a schedule with a known bubble")
    bubble, formula = theory
    if bubble < _LARGE:
        return
    stages, microbatches = facts.pp.value, facts.microbatches.value
    chunks = facts.virtual_stages.value if facts.virtual_stages and "v" in formula else 1
    enough = -(-round((stages - 1) * (1 / _WANTED - 1)) // chunks)
    yield Opportunity(
        "",
        "",
        f"{microbatches} microbatches leave {stages} stages idle for {bubble:.0%} of an even step, {formula}",
        f"{enough} microbatches would leave {_WANTED:.0%}; or an interleaved or zero-bubble schedule",
        [],
        list(graph.steps),
        None,
        None,
        None,
        "not replayed: the times of smaller microbatches are unknown",
    )
