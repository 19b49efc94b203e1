"""Statistics: percentiles, standard deviation, coefficient of variation, quantiles of Student's t."""

from __future__ import annotations

import math
import statistics
from statistics import NormalDist
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
    summary = {
        "count": len(values),
        "mean": mean,
        "min": min(values),
        "p50": percentile(values, 50),
        "p95": percentile(values, 95),
        "max": max(values),
    }
    if len(values) > 1:
        summary["std"] = statistics.stdev(values)
        if mean:
            summary["cv"] = summary["std"] / mean
    return summary


def student_quantile(probability: float, degrees: float) -> float:
    """Return t below which a share `probability` (above 0.5) of Student's t with `degrees` of freedom lies.

    G. W. Hill, Algorithm 396: Student's t-quantiles, Communications of the ACM 13(10), 1970. Exact for 1
    and 2 degrees, else good to 1 in 100,000; fewer than 1 degree counts as 1.
    """
    tails = 2 * (1 - probability)
    if degrees <= 1:
        return 1 / math.tan(tails * math.pi / 2)
    if degrees == 2:
        return math.sqrt(2 / (tails * (2 - tails)) - 2)
    a = 1 / (degrees - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * degrees
    y = (d * tails) ** (2 / degrees)
    if y <= 0.05 + a:
        far = 1 / (((degrees + 6) / (degrees * y) - 0.089 * d - 0.822) * (degrees + 2) * 3)
        y = ((far + 0.5 / (degrees + 4)) * y - 1) * (degrees + 1) / (degrees + 2) + 1 / y
    else:
        x = NormalDist().inv_cdf(tails / 2)
        c += 0.3 * (degrees - 4.5) * (x + 0.6) if degrees < 5 else 0
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = x**2
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y**2)
    return math.sqrt(degrees * y)
