"""The metric `training_quality`: final training loss."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks

if TYPE_CHECKING:
    from ccl_bench.result.details import TrainingDetails
    from ccl_bench.side_files import TrainingMetrics

_FILE = "training_metrics.json"
_LARGEST_EXPONENT = 700
"""exp() of a larger value overflows a double."""
_CHANCE = 20.0
"""nats: a uniform guess among 485 million tokens, more than any vocabulary has."""


@metric(unit="nats", better="lower", applies=(checks.training,), aliases=("training_quality_16",))
def training_quality(training_metrics: TrainingMetrics | None) -> Measurement:
    """Final training loss, from `training_metrics.json`.

    Formula:
        training_quality = loss at the last step, or ln(perplexity) where the file holds no loss
        perplexity = exp(loss)

    Caveats:
        Compare losses only between runs with the same data, tokeniser and number of steps. Perplexity
        holds where the loss is a mean cross-entropy in nats.

    Reference:
        Perplexity: Jelinek et al. 1977, as the exponential of cross-entropy.
    """
    if training_metrics is None:
        raise _nothing()
    details: TrainingDetails = {
        "series": {
            name: [{"step": point.step, "value": point.value} for point in points]
            for name, points in training_metrics.series.items()
        }
    }
    loss, perplexity = training_metrics.final_loss, training_metrics.final_perplexity
    findings = []
    if loss is not None:
        if loss < _LARGEST_EXPONENT:
            details["perplexity"] = math.exp(loss)
    elif perplexity is not None and training_metrics.loss_name is None:
        loss, details["perplexity"] = math.log(perplexity), perplexity
        message = f"the file holds no loss: this is ln(perplexity), of {perplexity:g} at the last step"
        findings.append(Finding("loss-from-perplexity", "note", message, _FILE))
    else:
        raise _nothing()
    if loss > _CHANCE:
        message = f"a loss of {loss:g} nats is worse than chance: a sum over tokens, or training diverged"
        findings.append(Finding("loss-above-chance", "warning", message, _FILE))
    return Measurement(loss, details, window=_FILE, findings=findings)


def _nothing() -> NotMeasurable:
    return NotMeasurable(
        f"the run has no {_FILE} with a loss or perplexity at its last step",
        fix=f'write {_FILE}, such as {{"step": [1, 2], "loss": [6.4, 5.9]}}',
    )
