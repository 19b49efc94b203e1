"""When a metric makes sense: each condition returns why not, or None.

A fact that no source states is no reason to refuse: the metric then looks at the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts


def several_ranks(facts: Facts) -> str | None:
    """Communication needs a partner."""
    if facts.world_size and facts.world_size.value == 1:
        return f"the run has one rank (world_size 1 in {facts.world_size.source}), so nothing is communicated"
    return None


def training(facts: Facts) -> str | None:
    """The metric is defined for training."""
    if facts.phase and facts.phase.value != "training":
        return f"it is defined for training, and this run is {facts.phase.value} ({facts.phase.source})"
    return None


def inference(facts: Facts) -> str | None:
    """The metric is defined for inference."""
    if facts.phase and facts.phase.value != "inference":
        return f"it is defined for inference, and this run is {facts.phase.value} ({facts.phase.source})"
    return None


def pipeline(facts: Facts) -> str | None:
    """The metric is about pipeline stages."""
    if facts.pp and facts.pp.value == 1:
        return f"the run has no pipeline (pp is 1 in {facts.pp.source})"
    return None


def experts_on_devices(facts: Facts) -> str | None:
    """The metric is about experts that several devices share."""
    if facts.is_moe and not facts.is_moe.value:
        return f"the model has no experts ({facts.is_moe.source})"
    if facts.ep and facts.ep.value == 1:
        return f"no devices share the experts (ep is 1 in {facts.ep.source})"
    return None
