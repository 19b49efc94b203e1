"""Quantiles of Student's t distribution, for intervals from few samples."""

from __future__ import annotations

import math
from statistics import NormalDist

_SMALL = 0.05
_FEW = 5


def student_quantile(probability: float, degrees: float) -> float:
    """Return t below which a share `probability` (above 0.5) of Student's t with `degrees` of freedom lies.

    G. W. Hill, Algorithm 396: Student's t-quantiles, Communications of the ACM 13(10), 1970. Exact for 1
    and 2 degrees, else good to six digits; fewer than 1 degree counts as 1.
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
    if y <= _SMALL + a:
        far = 1 / (((degrees + 6) / (degrees * y) - 0.089 * d - 0.822) * (degrees + 2) * 3)
        y = ((far + 0.5 / (degrees + 4)) * y - 1) * (degrees + 1) / (degrees + 2) + 1 / y
    else:
        x = NormalDist().inv_cdf(tails / 2)
        c += 0.3 * (degrees - 4.5) * (x + 0.6) if degrees < _FEW else 0
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = x**2
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y**2)
    return math.sqrt(degrees * y)
