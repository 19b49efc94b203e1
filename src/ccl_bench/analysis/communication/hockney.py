"""The Hockney model of communication time: t = alpha + beta * S, fitted by least squares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


LEAST_R_SQUARED = 0.5
"""Share of the variance that a line must explain to be a model of anything."""


@dataclass(frozen=True, slots=True)
class HockneyFit:
    """A fitted line of time over message size."""

    alpha_s: float
    """Time of an empty message, s."""
    beta_s_per_byte: float
    """Time of one more byte, s."""
    r_squared: float
    """Share of the variance of time that the line explains, 0 to 1."""
    points: int
    """Calls that were fitted."""
    sizes: int
    """Different message sizes among them."""

    @property
    def doubt(self) -> str:
        """Why the line is no model of these times; empty where it is one."""
        told = f"(R squared {self.r_squared:.2f})"
        if self.beta_s_per_byte <= 0:
            return f"larger messages did not take longer {told}"
        if self.r_squared < LEAST_R_SQUARED:
            return f"message size explains less than half of the differences in time {told}"
        if self.alpha_s < 0:
            return f"the line gives an empty message {self.alpha_s:.3g} s {told}"
        return ""


def fitted(size_bytes: Sequence[int], time_s: Sequence[float]) -> HockneyFit | None:
    """Return the least-squares line through times over sizes, or None for fewer than two sizes.

    Sums are taken around the means, so that large sizes cost no digits.
    """
    count, sizes = len(size_bytes), len(set(size_bytes))
    if sizes < 2:
        return None
    mean_size, mean_time = sum(size_bytes) / count, sum(time_s) / count
    covariance = sum((s - mean_size) * (t - mean_time) for s, t in zip(size_bytes, time_s, strict=True))
    variance = sum((s - mean_size) ** 2 for s in size_bytes)
    beta = covariance / variance
    alpha = mean_time - beta * mean_size
    residual = sum((t - alpha - beta * s) ** 2 for s, t in zip(size_bytes, time_s, strict=True))
    total = sum((t - mean_time) ** 2 for t in time_s)
    return HockneyFit(alpha, beta, 1 - residual / total if total else 1.0, count, sizes)
