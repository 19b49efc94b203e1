"""How well the trained model fits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.result.details import TrainingDetails, TrainingPoint
    from ccl_bench.side_files import Point, TrainingMetrics

_LARGEST_EXPONENT = 700
"""exp() of more overflows a double."""


@metric(unit="nats", better="lower", applies=(checks.training,), aliases=("training_quality_16",))
def training_quality(training_metrics: TrainingMetrics | None) -> Measurement:
    """Final training loss, from `training_metrics.json`.

    Formula:
        training_quality = loss at the last step
        perplexity = exp(loss)

    Caveats:
        Compare losses only between runs with the same data, tokeniser and number of steps. Perplexity
        holds where the loss is a mean cross-entropy in nats.

    Reference:
        Perplexity: Jelinek et al. 1977, as the exponential of cross-entropy.
    """
    if training_metrics is None or training_metrics.final_loss is None:
        raise NotMeasurable(
            "the run has no training_metrics.json with a loss at its last step",
            fix='write training_metrics.json, such as {"step": [1, 2], "loss": [6.4, 5.9]}',
        )
    loss = training_metrics.final_loss
    details: TrainingDetails = {"series": {name: _plain(s) for name, s in training_metrics.series.items()}}
    if loss < _LARGEST_EXPONENT:
        details["perplexity"] = math.exp(loss)
    return Measurement(loss, details, window="training_metrics.json")


def _plain(series: Iterable[Point]) -> list[TrainingPoint]:
    """Return the points of a series as JSON has them."""
    return [{"step": point.step, "value": point.value} for point in series]
