"""The single numbers that a result is the mean of: one for each step, request or pass."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccl_bench.result import Result

_PER_STEP = re.compile(r"per_step(_\w+)?")
_EACH = re.compile(r"values(_\w+)?")

_TO_UNIT = {("ratio", "pct"): 0.01, ("%", "ratio"): 100.0}
"""(unit of the metric, suffix of the detail) → factor; a variant of a metric shares its details."""


def samples_of(result: Result) -> list[float]:
    """Return the samples in a result's details, in its unit and in order; empty where it is one number.

    They are `per_step_*`, {step: number}, or `values_*`, a list with one number for each request.
    """
    for name, found in result.details.items():
        each: object = None
        if _PER_STEP.fullmatch(name) and isinstance(found, dict):
            each = list(found.values())
        elif _EACH.fullmatch(name) and isinstance(found, list):
            each = found
        if isinstance(each, list) and each and all(isinstance(value, int | float) for value in each):
            factor = _TO_UNIT.get((result.unit, name.rpartition("_")[2]), 1.0)
            return [factor * value for value in each]
    return []
