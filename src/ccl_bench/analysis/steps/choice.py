"""Steps as the user chooses them: ranges with certain names, certain numbers, all but the first ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl

if TYPE_CHECKING:
    from ccl_bench.result.step_choice import StepChoice

CHOSEN_RANGE = "chosen range"
"""Source of steps that are ranges of a chosen name."""

_NUMBER = r"^\s*(\d{1,18})\s*$"


def chosen_ranges(annotations: pl.DataFrame, marker: pl.DataFrame) -> pl.DataFrame | None:
    """Return the outermost ranges whose names match the marker as steps; None without any.

    What the first group of the marker captures is the number of a step where that gives each step a number
    of its own; else steps are counted from 0.
    """
    if marker.is_empty():
        return None
    pattern = marker["pattern"][0]
    found = _outermost(_matching(annotations, pattern))
    if found.is_empty():
        return None
    captured = found["name"].str.extract(pattern, 1).str.extract(_NUMBER, 1).cast(pl.Int64)
    is_numbered = captured.null_count() == 0 and captured.n_unique() == found.height
    numbers = captured if is_numbered else pl.int_range(found.height, dtype=pl.Int64, eager=True)
    return found.select(numbers.alias("step"), "start_ns", "end_ns", pl.lit(CHOSEN_RANGE).alias("source"))


def overlapping_ranges(annotations: pl.DataFrame, pattern: str) -> int:
    """Return how many ranges that match begin in a step and end after it: they are in no step as a whole."""
    ordered = _matching(annotations, pattern)
    before = pl.col("end_ns").cum_max().shift(1)
    return ordered.filter((pl.col("start_ns") < before) & (pl.col("end_ns") > before)).height


def range_names(annotations: pl.DataFrame) -> list[str]:
    """Return the names of ranges on the CPU, the most frequent first."""
    named = annotations.filter(~pl.col("on_device")).select(pl.col("name").cast(pl.String))
    counted = named.drop_nulls().group_by("name").len().sort("len", "name", descending=[True, False])
    return counted["name"].to_list()


def select_steps(steps: pl.DataFrame, choice: StepChoice) -> pl.DataFrame:
    """Return the chosen ones of the steps of one trace, which are in order."""
    return steps.slice(choice.skip).filter(_is_named(choice))


def select_step_times(step_times: pl.DataFrame, choice: StepChoice) -> pl.DataFrame:
    """Return the chosen ones of the step times of one file, which numbers its steps in order."""
    first = step_times["step"].unique().sort().head(choice.skip)
    return step_times.filter(~pl.col("step").is_in(first.implode()), _is_named(choice))


def _is_named(choice: StepChoice) -> pl.Expr:
    named = [pl.col("step").is_between(first, last) for first, last in choice.ranges]
    return pl.any_horizontal(named) if named else pl.lit(value=True)


def _matching(annotations: pl.DataFrame, pattern: str) -> pl.DataFrame:
    """Return the ranges on the CPU whose names match, by start; of equal starts the longest first."""
    on_cpu = annotations.filter(~pl.col("on_device") & (pl.col("start_ns") < pl.col("end_ns")))
    named = on_cpu.select(pl.col("name").cast(pl.String), "start_ns", "end_ns")
    return named.filter(pl.col("name").str.contains(pattern)).sort("start_ns", -pl.col("end_ns"))


def _outermost(ordered: pl.DataFrame) -> pl.DataFrame:
    before = pl.col("end_ns").cum_max().shift(1)
    return ordered.filter((pl.col("start_ns") >= before).fill_null(value=True))
