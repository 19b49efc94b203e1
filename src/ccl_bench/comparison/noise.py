"""Noise of the means of two runs: a bootstrap interval, widened for few and correlated steps.

The interval is the percentile interval of the difference of resampled means, seeded, so that the same
samples give the same interval. Two things make the plain one too narrow, and each widens it:

- few samples: by how far Student's t lies beyond the normal quantile, at the degrees of freedom
  that Welch and Satterthwaite give, and by the sample over the plug-in deviation [T. Hesterberg, What
  Teachers Should Know About the Bootstrap, The American Statistician 69(4), 2015];
- steps that resemble the step before: by sqrt((1 + r) / (1 - r)) with their correlation r, corrected
  for its bias in short series [F. Marriott and J. Pope, Biometrika 41, 1954].
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from dataclasses import dataclass
from statistics import NormalDist, fmean, variance
from typing import TYPE_CHECKING

from ccl_bench.analysis.statistics import student_quantile
from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE = 0.99
"""Share of intervals that contain the true difference; high, because many metrics are tested together."""

RESAMPLES = 4_000
"""Resampled means, so that twenty lie beyond each bound."""

SEED = 20_240_229

MOST_SAMPLES = 1_000
"""Largest number of samples of a side; of more, evenly spread ones are used, which are enough."""

FEWEST = 2
"""Smallest number of samples of each side; with fewer, the noise is unknown."""

FEW = 8
"""Number of samples of a side below which an interval may be unstable."""

WIDE = 0.05
"""Standard error of a mean, as a share of it, beyond which an interval may be unstable."""

_ALIKE = 0.9
"""Highest correlation of consecutive steps that is used: beyond it the factor grows without limit."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The interval of a difference of means."""

    low: float
    high: float

    @property
    def has_zero(self) -> bool:
        """Whether there may be no difference at all."""
        return self.low <= 0 <= self.high


def difference_interval(one: Sequence[float], other: Sequence[float]) -> Interval | None:
    """Return the interval of the mean of `other` minus that of `one`; None if a side has too few samples."""
    sides = [thinned(one), thinned(other)]
    if min(map(len, sides)) < FEWEST:
        return None
    difference = fmean(sides[1]) - fmean(sides[0])
    widening = small_sample_factor(*sides) * autocorrelation_factor(*sides)
    tail = (1 - CONFIDENCE) / 2
    means = [_resampled_means(tuple(side), SEED + place) for place, side in enumerate(sides)]
    resampled = means[1] - means[0]
    low, high = (float(resampled.quantile(share, "linear") or 0.0) for share in (tail, 1 - tail))
    return Interval(difference - (difference - low) * widening, difference + (high - difference) * widening)


def thinned(samples: Sequence[float]) -> Sequence[float]:
    """Return at most `MOST_SAMPLES` of the samples, evenly spread."""
    return samples[:: -(-len(samples) // MOST_SAMPLES) or 1]


def unstable(one: Sequence[float], other: Sequence[float]) -> str:
    """Return the reason why an interval from these samples may be unstable, or an empty text."""
    fewest = min(len(one), len(other))
    if fewest < FEW:
        return f"there are only {fewest} samples"
    widest = max((one, other), key=lambda side: _deviation(side) / math.sqrt(len(side)))
    if _deviation(widest) <= WIDE * math.sqrt(len(widest)):
        return ""
    spread = f"single samples spread by {100 * _deviation(widest):.0f} %"
    without_first = _deviation(widest[1:])
    is_first = without_first < _deviation(widest) / 2
    return f"{spread}, without the first by {100 * without_first:.0f} %" if is_first else spread


def _deviation(samples: Sequence[float]) -> float:
    """Return the deviation of single samples as a share of their mean."""
    mean = abs(fmean(samples))
    return math.sqrt(variance(samples)) / mean if mean else 0.0


@functools.lru_cache(maxsize=256)
def _resampled_means(samples: tuple[float, ...], seed: int) -> pl.Series:
    """Return the means of all resamples; runs that are compared with one baseline share its."""
    drawn = pl.Series(samples, dtype=pl.Float64).gather(_draws(len(samples), seed))
    return drawn.reshape((RESAMPLES, len(samples))).arr.mean()


@functools.lru_cache(maxsize=8)
def _draws(count: int, seed: int) -> pl.Series:
    """Return the positions of all resamples of `count` samples; every metric of a run shares them.

    Python's generator gives the same numbers everywhere and for good, which polars' does not promise.
    """
    total = count * RESAMPLES
    drawn = pl.Series([random.Random(seed).randbytes(4 * total)])  # noqa: S311
    return drawn.bin.reinterpret(dtype=pl.Array(pl.UInt32, total), endianness="little").explode() % count


def small_sample_factor(*sides: Sequence[float]) -> float:
    """Return the factor by which few samples widen the interval."""
    variances = [variance(side) / len(side) for side in sides]
    if not sum(variances):
        return 1.0
    plug_in = [part * (len(side) - 1) / len(side) for part, side in zip(variances, sides, strict=True)]
    freedom = sum(variances) ** 2 / sum(p**2 / (len(s) - 1) for p, s in zip(variances, sides, strict=True))
    share = (1 + CONFIDENCE) / 2
    beyond = student_quantile(share, freedom) / NormalDist().inv_cdf(share)
    return beyond * math.sqrt(sum(variances) / sum(plug_in))


def autocorrelation_factor(*sides: Sequence[float]) -> float:
    """Return the factor by which correlated steps widen the interval."""
    products = squares = 0.0
    for side in sides:
        from_mean = [value - fmean(side) for value in side]
        products += sum(x * y for x, y in itertools.pairwise(from_mean))
        squares += sum(x * x for x in from_mean)
    if not squares:
        return 1.0
    seen = products / squares
    count = sum(map(len, sides)) / len(sides)
    correlation = min(max(seen + (1 + 3 * seen) / count, 0.0), _ALIKE)
    return math.sqrt((1 + correlation) / (1 - correlation))
