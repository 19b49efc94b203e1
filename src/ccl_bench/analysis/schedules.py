"""What theory says of a pipeline schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts

_FLAT = {"1f1b", "gpipe", "schedule1f1b", "schedulegpipe"}
_INTERLEAVED = {"interleaved1f1b", "interleaved", "scheduleinterleaved1f1b"}


def theoretical_fraction(facts: Facts) -> tuple[float, str] | None:
    """Return the bubble's share of an even step without transfer cost, and its formula.

    None where the card states no schedule, no number of microbatches, or a schedule without a
    closed formula. p stages, m microbatches, v model chunks on one rank [arXiv 2104.04473].
    """
    if not (facts.pp and facts.microbatches and facts.pp_schedule):
        return None
    stages, microbatches = facts.pp.value, facts.microbatches.value
    schedule = facts.pp_schedule.value.replace("-", "").replace("_", "").lower()
    if schedule in _FLAT:
        return (stages - 1) / (microbatches + stages - 1), "(p-1)/(m+p-1)"
    if schedule in _INTERLEAVED and facts.virtual_stages:
        chunks = facts.virtual_stages.value
        return (stages - 1) / (chunks * microbatches + stages - 1), "(p-1)/(v*m+p-1)"
    return None
