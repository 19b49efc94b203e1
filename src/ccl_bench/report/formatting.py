"""Numbers as text: exact for programs, short for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ccl_bench.base.text import counted
from ccl_bench.base.units import GIGA
from ccl_bench.result import WHOLE_TRACE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.result import Result

_EXACT_INTEGERS = 2.0**53
_DIGITS = 6
_TWO_DECIMALS = 0.1
_THOUSAND = 1000

_SIZE_PREFIXES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_TIME_PREFIXES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def exact(value: float) -> str:
    """Return the shortest text that reads back as `value`; a whole number has no point."""
    if math.isfinite(value) and value == int(value) and abs(value) < _EXACT_INTEGERS:
        return str(int(value))
    return repr(float(value))


def short(value: float) -> str:
    """Return `value` in six significant digits, whole numbers in full."""
    text = exact(value)
    return text if "." not in text and "e" not in text else f"{value:.{_DIGITS}g}"


def size(size_bytes: float) -> str:
    """Return a number of bytes with a decimal prefix."""
    for scale, unit in _SIZE_PREFIXES:
        if size_bytes >= scale:
            return f"{_three_digits(size_bytes / scale)} {unit}"
    return f"{size_bytes:.0f} B"


def duration(seconds: float) -> str:
    """Return a length of time with a fitting unit."""
    for scale, unit in _TIME_PREFIXES:
        if abs(seconds) >= scale:
            return f"{_three_digits(seconds / scale)} {unit}"
    return f"{seconds * 1e9:.0f} ns" if seconds else "0 s"


def percent(value: float) -> str:
    """Return a share in percent with two decimals, a tiny one with two digits."""
    return f"{value:.2f} %" if value >= _TWO_DECIMALS or not value else f"{value:.2g} %"


def amount(value: float) -> str:
    """Return a number with thousands separators, a small one in four digits."""
    return f"{value:,.0f}" if abs(value) >= _THOUSAND else f"{value:.4g}"


def with_unit(value: float, unit: str) -> str:
    """Return a metric's value in short form, with its unit."""
    readable = {"s": duration, "%": percent, "ratio": amount}.get(unit)
    if readable:
        return readable(value)
    if unit == "GB":
        return size(value * GIGA)
    return f"{amount(value)} {unit}"


def time_unit(seconds: Iterable[float]) -> tuple[float, str]:
    """Return the best unit for the largest of several times, as (units in a second, name)."""
    largest = max((abs(value) for value in seconds), default=0.0)
    for scale, unit in _TIME_PREFIXES:
        if largest >= scale:
            return 1 / scale, unit
    return 1e9, "ns"


def size_unit(sizes: Iterable[float]) -> tuple[float, str]:
    """Return the best unit for the largest of several sizes in bytes, as (units in a byte, name)."""
    largest = max(sizes, default=0.0)
    return next(((1 / scale, unit) for scale, unit in _SIZE_PREFIXES if largest >= scale), (1.0, "B"))


def _three_digits(value: float) -> str:
    text = f"{value:.3g}"
    return f"{value:,.0f}" if "e" in text else text


def ranges(numbers: list[int], limit: int = 12) -> str:
    """Return sorted whole numbers as ranges: `0-3, 6`; at most `limit` ranges."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    texts = ["-".join(map(str, run)) for run in runs[:limit]]
    return ", ".join([*texts, f"... {numbers[-1]}"] if len(runs) > limit else texts)


def step_numbers(numbers: list[int], limit: int = 12) -> str:
    """Return how many steps there are and their sorted numbers: `1 step (number 3)`; empty for none."""
    if not numbers:
        return ""
    word = "number" if len(numbers) == 1 else "numbers"
    return f"{counted(len(numbers), 'step')} ({word} {ranges(numbers, limit)})"


def step_word(*results: Result | None) -> str:
    """Return the unit of analysis: a `step`, or the `traced span` if a whole trace counts as one."""
    windows = {result.window for result in results if result is not None and result.value is not None}
    return "traced span" if windows == {WHOLE_TRACE} else "step"
