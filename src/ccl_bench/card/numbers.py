"""Numbers that a machine wrote: used when finite, reported when not, never repaired."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ccl_bench.card.issues import shown

if TYPE_CHECKING:
    from ccl_bench.card.issues import IssueLog


def finite_number(value: object, path: str, log: IssueLog) -> float | None:
    """Return a finite number, or None and an error at `path`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        log.error(path, f"{shown(repr(value))} is not a number and is left out", "write a plain number")
        return None
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        log.error(path, f"{number} is not a finite number and is left out", "find out why the run wrote it")
        return None
    return number
