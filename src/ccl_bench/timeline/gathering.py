"""What all ranks of a timeline have in common: one clock, the steps, and who waited for whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.base.errors import InputError
from ccl_bench.base.lazy_polars import pl
from ccl_bench.evaluate import gathered
from ccl_bench.evaluate.choosing import check_numbers, recorded_steps
from ccl_bench.timeline.clocks import Clocks, clocks_of
from ccl_bench.timeline.waiting import members, ranks_waiting
from ccl_bench.timeline.whole import whole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.engine import Progress
    from ccl_bench.run import Run

_TABLES = ("contents", "steps", "matched", "clock_offsets", "waits", "messages")


@dataclass(frozen=True, slots=True)
class Common:
    """What is known of a run before its ranks are looked at one by one."""

    clocks: Clocks
    zero_ns: int
    """Where the timeline begins on the common clock, ns."""
    traces: tuple[int, ...]
    """Traces that hold anything, in order of rank and recording window."""
    has_windows: bool
    """Whether ranks were recorded in several windows."""
    counted: frozenset[int]
    """Traces that numbers rest on; others are cut short or were recorded differently."""
    chosen: frozenset[int] | None
    """Numbers of the steps to show; None for everything."""
    whole: pl.DataFrame
    """Slices of all ranks together, on the common clock."""
    waiting: pl.DataFrame
    """How many ranks wait from each moment of the common clock on."""
    members: pl.DataFrame
    """Members of collectives whose waiting can be told."""
    messages: pl.DataFrame
    """Messages between two ranks with both sides recorded."""


def common(
    run: Run,
    *,
    jobs: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> Common:
    """Return what the ranks of a run have in common; every trace is read, and only small tables are kept.

    Raises InputError where no trace holds anything to show, UsageError for chosen steps that no trace has.
    """
    evidence = gathered(run, _TABLES, jobs=jobs, use_cache=use_cache, progress=progress)
    inputs = evidence.inputs
    contents = inputs["contents"].drop_nulls("start_ns")
    if contents.is_empty():
        fix = "give a run that was recorded with torch.profiler or Nsight Systems"
        raise InputError("holds no trace with times", where=str(run.path), fix=fix)
    check_numbers(run.choice, recorded_steps(evidence.traces))
    chosen = frozenset(inputs["steps"]["step"]) if run.choice else None
    clocks = clocks_of(contents, inputs["clock_offsets"])
    known = members(inputs["matched"], clocks.offsets_ns)
    kept = known if chosen is None else _of_steps(known, chosen)
    timed = clocks.applied(inputs["steps"])
    together = whole(timed, inputs["waits"])
    return Common(
        clocks,
        _zero([timed, clocks.applied(contents)] if chosen is None else [_of_steps(timed, chosen)], kept),
        tuple(contents.sort("rank", "iteration", "trace", nulls_last=True)["trace"]),
        contents["iteration"].n_unique() > 1,
        frozenset(inputs["steps"]["trace"]),
        chosen,
        together if chosen is None else _of_steps(together, chosen),
        ranks_waiting(kept),
        kept,
        inputs["messages"],
    )


def _of_steps(table: pl.DataFrame, steps: frozenset[int]) -> pl.DataFrame:
    return table.filter(pl.col("step").is_in([*steps]))


def _zero(spans: Iterable[pl.DataFrame], members: pl.DataFrame) -> int:
    """Return the earliest start; a rank may be late from before the first thing that is shown."""
    held = members.filter("last").select(pl.col("start_ns") - pl.col("longest_ns") - pl.col("offset_ns"))
    starts = pl.concat([*(table["start_ns"] for table in spans), held["start_ns"]])
    return int(starts.min() or 0)  # type: ignore[arg-type]
