"""Curves of a serving sweep: the Pareto front, its knee, and values between measured points."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_FEWEST_POINTS = 3
"""A knee lies between the two ends of a front."""
_STRAIGHT = 1e-9
"""Height above the chord that rounding alone gives the points of a straight line."""


def pareto_front(interactivity: Sequence[float], throughput: Sequence[float]) -> list[int]:
    """Return the indices of the points that no other point dominates, by rising interactivity.

    A point dominates another one if it is at least as high in both and higher in one. Of equal points the
    first one stays. All values are finite. O(n log n).
    """
    places = range(0, -len(interactivity), -1)
    front: list[int] = []
    highest = -math.inf
    for _, height, place in sorted(zip(interactivity, throughput, places, strict=True), reverse=True):
        if height > highest:
            front.append(-place)
            highest = height
    return front[::-1]


def interpolated(xs: Sequence[float], ys: Sequence[float], x: float) -> float | None:
    """Return y at x on the line through the two neighbours of x, both axes logarithmic.

    None outside of the measured range: nothing is extrapolated. The points may have any order.

    Raises:
        ValueError: A value is not positive, or one x has two values of y.

    """
    points = sorted(set(zip(xs, ys, strict=True)))
    if any(value <= 0 for point in points for value in point):
        raise ValueError("a value that is not positive has no logarithm")
    if any(left[0] == right[0] for left, right in pairwise(points)):
        raise ValueError("one x has two values of y")
    for measured_x, measured_y in points:
        if measured_x == x:
            return measured_y
    for (left, low), (right, high) in pairwise(points):
        if left < x < right:
            share = math.log(x / left) / math.log(right / left)
            return float(low * (high / low) ** share)
    return None


def knee(interactivity: Sequence[float], throughput: Sequence[float]) -> int | None:
    """Return the index of the knee of the Pareto front: from there on, more of one costs most of the other.

    It is the point of the front farthest above the chord between the two ends, with both axes logarithmic
    and scaled to 0..1: Kneedle without its smoothing (V. Satopää, J. Albrecht, D. Irwin, B. Raghavan:
    Finding a "Kneedle" in a Haystack, ICDCS Workshops 2011, section III). None if the front has fewer than
    3 points, or none above the chord. All values are positive.
    """
    front = pareto_front(interactivity, throughput)
    if len(front) < _FEWEST_POINTS:
        return None
    first, last = front[0], front[-1]
    width = math.log(interactivity[last] / interactivity[first])
    height = math.log(throughput[first] / throughput[last])

    def above_chord(i: int) -> float:
        along = math.log(interactivity[i] / interactivity[first]) / width
        return along + math.log(throughput[i] / throughput[last]) / height - 1

    farthest = max(front, key=above_chord)
    return farthest if above_chord(farthest) > _STRAIGHT else None
