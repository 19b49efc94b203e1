"""How much longer steps were while torchtitan's profiler ran, from the speeds in its own log.

Every `log_freq` steps torchtitan logs the tokens per second since the line before. A line that covers only
recorded steps is held against those that cover steps before the profiler began.
"""

from __future__ import annotations

import re
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.card.torchtitan import Profiling

_LINE = re.compile(r"step: *(\d+) .*tps: *([\d,]+)")


def overhead(log: Path, profiling: Profiling) -> dict[str, float]:
    """Return {"active": share by which recorded steps were longer}; nothing where the log does not tell."""
    window, active, warmup = profiling.frequency, profiling.active, profiling.warmup
    if not (profiling.is_profiled and window and active and warmup is not None):
        return {}
    plain: list[float] = []
    recorded: list[float] = []
    for before, last, seconds in _stretches(log):
        first = before % window + 1
        end = first + last - before - 1
        if window - active < first and end <= window:
            recorded += seconds
        elif end <= window - active - warmup and before % window:
            plain += seconds
    return {"active": fmean(recorded) / fmean(plain) - 1} if recorded and plain else {}


def _stretches(log: Path) -> list[tuple[int, int, list[float]]]:
    """Return (last step of the line before, last step, seconds a token on each rank) of the lines of a log.

    The line of the first step and the one after it are left out: there training settles.
    """
    by_step: dict[int, list[float]] = {}
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            for found in filter(None, map(_LINE.search, lines)):
                if rate := int(found[2].replace(",", "")):
                    by_step.setdefault(int(found[1]), []).append(1 / rate)
    except OSError:
        return []
    steps = sorted(by_step)[1:]
    return [(before, last, by_step[last]) for before, last in pairwise(steps)]
