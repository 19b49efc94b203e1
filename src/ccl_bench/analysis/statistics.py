"""How numbers spread: percentiles, standard deviation, coefficient of variation."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` percent of the values lie, interpolated linearly.

    The rank is `share/100 * (n - 1)`, as numpy's default and vLLM have it. `values` is not empty.
    """
    ordered = sorted(values)
    position = share / 100 * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def percentile_curve(values: Sequence[float]) -> list[float]:
    """Return every whole percentile of values, from the 0th to the 100th."""
    ordered = sorted(values)
    return [percentile(ordered, share) for share in range(101)]


def evenly(values: Sequence[float], most: int) -> list[float]:
    """Return at most `most` of the values, evenly spread over them, in order."""
    count = len(values)
    return list(values) if count <= most else [values[place * count // most] for place in range(most)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return count, mean, extremes and percentiles of values; deviation where there are two or more.

    `std` is the sample standard deviation (n - 1), `cv` the same over the mean.
    """
    mean = statistics.fmean(values)
    found = {
        "count": len(values),
        "mean": mean,
        "min": min(values),
        "p50": percentile(values, 50),
        "p95": percentile(values, 95),
        "max": max(values),
    }
    if len(values) > 1:
        found["std"] = statistics.stdev(values)
        if mean:
            found["cv"] = found["std"] / mean
    return found
