"""What torchtitan's log of a run shows: the loss of each step, and what recording costs."""

from __future__ import annotations

import math
import re
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

from ccl_bench.collect.profiling.rank_summary import METRICS, write_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccl_bench.side_files.torchtitan import Profiling

_RATE = re.compile(r"step: *(\d+) .*tps: *([\d,]+)")
_LOSS = re.compile(r"step: *(\d+) .*?loss: *(\S+) .*?grad_norm: *(\S+)")
"""A line of training; that of a validation has no norm of gradients."""

_LONGEST_LINE = 1 << 16
"""Characters of a line that are looked at together."""

Series = dict[int, float | None]
"""Step -> value; None where it is not a finite number."""


def save_losses(log: Path, output: Path) -> None:
    """Write the losses and norms of gradients in a log into `training_metrics.json`, unless there is one."""
    losses, norms = logged_losses(log)
    if losses and not (output / METRICS).exists():
        by_name = {"loss": [*losses.values()], "grad_norm": [*norms.values()]}
        write_lines(output / METRICS, {"step": [*losses], **by_name})


def logged_losses(log: Path) -> tuple[Series, Series]:
    """Return the loss and the norm of gradients of each step that has a line; mean over ranks.

    The ranks of a pipeline that compute no loss log a negative one.
    """
    losses: dict[int, list[float]] = {}
    norms: dict[int, list[float]] = {}
    for found in _lines(log, _LOSS):
        if not found[2].startswith("-"):
            losses.setdefault(int(found[1]), []).append(_number(found[2]))
            norms.setdefault(int(found[1]), []).append(_number(found[3]))
    return _means(losses), _means(norms)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _means(values: dict[int, list[float]]) -> Series:
    means = {step: fmean(values[step]) for step in sorted(values)}
    return {step: mean if math.isfinite(mean) else None for step, mean in means.items()}


def _lines(log: Path, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """Yield what a pattern finds in the lines of a log; nothing where it cannot be read, or is a device."""
    if not log.is_file():
        return
    try:
        with log.open(encoding="utf-8", errors="replace") as text:
            yield from filter(None, map(pattern.search, iter(partial(text.readline, _LONGEST_LINE), "")))
    except OSError:
        return


def logged_overhead(log: Path, profiling: Profiling) -> dict[str, float]:
    """Return {"active": share by which recorded steps were longer}; empty if the log does not show it.

    Every `log_freq` steps torchtitan logs the tokens per second since the line before. A line that covers
    only recorded steps is compared with those that cover steps before the profiler began, without the first
    half of them, in which training settles.
    """
    window, active, warmup = profiling.frequency, profiling.active, profiling.warmup
    if not (profiling.is_profiled and window and active and warmup is not None):
        return {}
    until = window - active - warmup
    plain: list[float] = []
    recorded: list[float] = []
    for before, last, seconds in _logged_intervals(log):
        first = before % window + 1
        end = first + last - before - 1
        if window - active < first and end <= window:
            recorded += seconds
        elif end <= until and 2 * (before % window) >= until:
            plain += seconds
    return {"active": fmean(recorded) / fmean(plain) - 1} if recorded and plain else {}


def _logged_intervals(log: Path) -> list[tuple[int, int, list[float]]]:
    """Return (last step of the line before, last step, seconds a token on each rank) of the lines of a log.

    The first line and the one after it are left out: they hold the warm-up of the training.
    """
    by_step: dict[int, list[float]] = {}
    for found in _lines(log, _RATE):
        if rate := int(found[2].replace(",", "")):
            by_step.setdefault(int(found[1]), []).append(1 / rate)
    steps = sorted(by_step)[1:]
    return [(before, last, by_step[last]) for before, last in pairwise(steps)]
