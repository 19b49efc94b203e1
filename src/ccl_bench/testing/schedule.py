"""The order in which a pipeline stage works on microbatches: one forward, one backward (1F1B)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

FORWARD, BACKWARD = "forward", "backward"


def one_forward_one_backward(stages: int, stage: int, microbatches: int) -> Iterator[tuple[str, int]]:
    """Yield (phase, microbatch) in the order of PipeDream-Flush, as Megatron-LM and torchtitan run it.

    A stage warms up with as many forward passes as stages follow it, then alternates, then cools
    down. Without a pipeline each forward pass is followed by its backward pass.
    """
    warm_up = min(microbatches, stages - stage - 1)
    yield from ((FORWARD, microbatch) for microbatch in range(warm_up))
    for microbatch in range(warm_up, microbatches):
        yield FORWARD, microbatch
        yield BACKWARD, microbatch - warm_up
    yield from ((BACKWARD, microbatch) for microbatch in range(microbatches - warm_up, microbatches))


def even_bubble_fraction(stages: int, microbatches: int) -> float:
    """Return the share of a step that every stage idles when stages are even and messages free.

    1F1B and GPipe alike: (p - 1) / (m + p - 1).
    """
    return (stages - 1) / (microbatches + stages - 1)
