"""The choice of steps for the values of a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ccl_bench.base.errors import UsageError
from ccl_bench.base.lazy_imports import pl

_DIGITS = 18
"""Largest number of digits of a step number: more would not fit into 64 bits."""

_LONGEST = 1_000
"""Longest text of numbers or of a regular expression."""

Range = tuple[int, int]
"""First and last step."""


@dataclass(frozen=True, slots=True)
class StepChoice:
    """A choice of steps; by default all."""

    numbers: str = ""
    """Numbers of the chosen steps, such as `3-7,9`; empty for all."""
    skip: int = 0
    """Steps left out at the beginning of each recording window."""
    marker: str = ""
    """Regular expression for the names of ranges that are the steps; empty for the usual detection."""
    program: str = ""
    """Program of XLA whose runs are the steps; empty for the usual detection."""

    def __bool__(self) -> bool:
        """Whether anything is chosen."""
        return self != StepChoice()

    @property
    def is_by_name(self) -> bool:
        """Whether ranges or a program are chosen, which are only in the traces and in no side file."""
        return bool(self.marker or self.program)

    @property
    def ranges(self) -> tuple[Range, ...]:
        """Set of chosen numbers; empty for all."""
        return _ranges(self.numbers)

    def has(self, step: int) -> bool:
        """Whether the step of this number is chosen, without `skip`."""
        return not self.ranges or any(first <= step <= last for first, last in self.ranges)

    @property
    def description(self) -> str:
        """The choice in words, such as `steps 3-7 without the first 2`; empty if nothing is chosen."""
        noun = "step" if self.numbers.isdecimal() else "steps"
        named = f"{noun} {self.numbers}" if self.numbers else ""
        skipped = f"without the first {self.skip}" if self.skip else ""
        marked = f"marked by {self.marker!r}" if self.marker else ""
        run = f"of the program {self.program}" if self.program else ""
        return " ".join(filter(None, (named, skipped, marked, run)))


EVERY_STEP = StepChoice()


def step_choice(
    numbers: str | None = None,
    skip: int | None = None,
    marker: str | None = None,
    program: str | None = None,
) -> StepChoice:
    """Return the choice of steps by number, position and name; raise UsageError for invalid values."""
    if skip is not None and not 0 <= skip < 10**_DIGITS:
        raise UsageError(f"{skip} steps cannot be skipped", fix="give 0 or more")
    if marker is not None:
        fix = "write a regular expression such as 'train_step_(\\d+)', without look-ahead"
        if not 0 < len(marker) <= _LONGEST:
            raise UsageError(f"a marker has 1 to {_LONGEST:,} characters, not {len(marker):,}", fix=fix)
        try:
            pl.Series([""]).str.contains(marker)
        except pl.exceptions.ComputeError as error:
            problem = str(error).partition("\n\nThis error")[0].removeprefix("regex error: ")
            why = problem.rpartition("error: ")[2].strip()
            message = f"the marker {marker!r} is not a regular expression: {why}"
            raise UsageError(message, fix=fix) from error
    if program is not None and not 0 < len(program) <= _LONGEST:
        message = f"the name of a program has 1 to {_LONGEST:,} characters, not {len(program):,}"
        raise UsageError(message, fix="give the name of a program, such as jit_train_step")
    if marker is not None and program is not None:
        raise UsageError("steps are either ranges or runs of a program", fix="give --marker or --program")
    if numbers and len(numbers) > _LONGEST:
        message = f"{len(numbers):,} characters of steps are too many"
        raise UsageError(message, fix="write ranges, such as 3-500")
    # In order, with adjacent ranges merged: `5,3-4` is `3-5`.
    ranges: list[Range] = []
    for first, last in sorted(map(parse_range, numbers.split(",") if numbers is not None else ())):
        if ranges and first <= ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], max(ranges[-1][1], last)
        else:
            ranges.append((first, last))
    chosen = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
    return StepChoice(chosen, skip or 0, marker or "", program or "")


@cache
def _ranges(numbers: str) -> tuple[Range, ...]:
    return tuple(parse_range(part) for part in numbers.split(",") if part)


def parse_range(part: str, what: str = "steps") -> Range:
    """Return the numbers in `3-5` or `8`; raise UsageError, which names `what` they are, for other text."""
    first, dash, last = (piece.strip() for piece in part.partition("-"))
    bounds = [first, last] if dash else [first, first]
    are_numbers = all(each.isascii() and each.isdecimal() and len(each) <= _DIGITS for each in bounds)
    if not are_numbers or int(bounds[0]) > int(bounds[1]):
        raise UsageError(f"{part.strip()!r} is not a list of {what}", fix="write them as 3-5 or 2,4")
    return int(bounds[0]), int(bounds[1])
