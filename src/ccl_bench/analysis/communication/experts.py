"""Tokens on the devices that share a layer's experts, and how unevenly they lie."""

from __future__ import annotations

from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotMeasurable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def by_device(tokens: Sequence[int], devices: int) -> list[int]:
    """Return tokens of experts as tokens of devices: each holds as many experts, in order."""
    if len(tokens) % devices:
        raise NotMeasurable(
            f"{len(tokens)} experts do not spread evenly over {devices} devices",
            fix="correct the expert-parallel degree ep in the workload card",
        )
    share = len(tokens) // devices
    return [sum(tokens[first : first + share]) for first in range(0, len(tokens), share)]


def added(rows: Iterable[Sequence[int]]) -> list[int]:
    """Return the sums of rows place by place; rows must be equally long."""
    return [sum(column) for column in zip(*rows, strict=True)]


def imbalance(tokens: Sequence[int]) -> float:
    """Return the largest over the mean number of tokens of a device; 1 is even."""
    mean = fmean(tokens)
    if not mean:
        raise NotMeasurable("no token went to any expert", fix="record a step in which the model is trained")
    return max(tokens) / mean


def variation(tokens: Sequence[int]) -> float:
    """Return the coefficient of variation over devices: standard deviation over mean."""
    return pstdev(tokens) / fmean(tokens)
