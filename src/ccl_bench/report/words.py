"""Words as text: on one line, counted, whole numbers drawn together, and what a number is of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.result import WHOLE_TRACE

if TYPE_CHECKING:
    from ccl_bench.result import Result


def plain(text: object) -> str:
    """Return `text` on one line, without the characters that steer a terminal."""
    return "".join(char if char.isprintable() else "?" for char in str(text).replace("\n", " "))


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return `1 rank`, `8 ranks` and the like, with thousands apart."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def ranges(numbers: list[int], limit: int = 12) -> str:
    """Return sorted whole numbers with runs drawn together: `0-3, 6`; at most `limit` runs."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    shown = ["-".join(map(str, run)) for run in runs[:limit]]
    return ", ".join([*shown, f"... {numbers[-1]}"] if len(runs) > limit else shown)


def step_word(*results: Result | None) -> str:
    """Return what numbers are of: a `step`, or the `traced span` where all of a trace counts as one."""
    windows = {result.window for result in results if result is not None and result.value is not None}
    return "traced span" if windows == {WHOLE_TRACE} else "step"
