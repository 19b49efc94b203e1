"""Times and shares per step: means over steps and ranks, with their details."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.device.phases import ACCUMULATION, BACKWARD, PHASES, REDUCTION, UNKNOWN
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics import Measurement
from ccl_bench.schema.table import keep_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MOST_STEPS = 1_000
"""Steps that details list one by one; of more, as many evenly spread ones are listed."""

_STEP = ("iteration", "step")
_TRACE_STEP = ("trace", *_STEP)


def seconds_by_rank(table: pl.DataFrame, steps: pl.DataFrame, column: str) -> dict[str, float]:
    """Return {rank: a column of nanoseconds summed over the rank's rows, a step, s}, in order.

    A step without rows counts as 0; every rank with steps has an entry.
    """
    return columns_by_rank(table, steps, [column])[column]


def columns_by_rank(
    table: pl.DataFrame, steps: pl.DataFrame, columns: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return `seconds_by_rank` of several columns at once."""
    sums = table.group_by("rank").agg(pl.col(columns).sum())
    counts = _rows_by_rank(steps)
    return {
        column: _per_step(dict(zip(sums["rank"], sums[column], strict=True)), counts) for column in columns
    }


def _rows_by_rank(table: pl.DataFrame) -> dict[int | None, int]:
    """Return {rank: number of its rows}, in order."""
    counts = dict(table["rank"].value_counts().iter_rows())
    return {rank: counts[rank] for rank in _in_order(counts)}


def _in_order(ranks: Iterable[int | None]) -> list[int | None]:
    """Return ranks in order, the unknown one last."""
    return sorted(ranks, key=lambda rank: (rank is None, rank))


def _per_step(sums: Mapping[int | None, int], counts: Mapping[int | None, int]) -> dict[str, float]:
    """Return {rank: its nanoseconds a step, s}."""
    times = pl.Series([float(sums.get(rank, 0)) / count for rank, count in counts.items()], dtype=pl.Float64)
    # Divided by a column of one value, which rounds as dividing a column by a constant does in other tables.
    return dict(zip(map(label, counts), times / pl.Series([float(SECOND_NS)]), strict=True))


def seconds(table: pl.DataFrame, steps: pl.DataFrame, column: str) -> float:
    """Return the mean over ranks of `seconds_by_rank`."""
    return mean_over_ranks(seconds_by_rank(table, steps, column))


def seconds_of(table: pl.DataFrame, steps: pl.DataFrame, columns: Sequence[str]) -> list[float]:
    """Return `seconds` of several columns at once."""
    return [mean_over_ranks(values) for values in columns_by_rank(table, steps, columns).values()]


def seconds_by(table: pl.DataFrame, steps: pl.DataFrame, key: str, column: str) -> dict[str, float]:
    """Return {value of `key`: `seconds` of its rows}, in order of the values."""
    return {name: value for (name,), value in seconds_by_keys(table, steps, [key], column).items()}


def seconds_by_keys(
    table: pl.DataFrame, steps: pl.DataFrame, keys: Sequence[str], column: str
) -> dict[tuple[str, ...], float]:
    """Return {values of `keys`: `seconds` of their rows}, in order of the values."""
    sums: dict[tuple[str, ...], dict[int | None, int]] = {}
    for *names, rank, total in table.group_by(*keys, "rank").agg(pl.col(column).sum()).iter_rows():
        sums.setdefault(tuple(names), {})[rank] = total
    counts = _rows_by_rank(steps)
    return {names: mean_over_ranks(_per_step(sums[names], counts)) for names in sorted(sums)}


def mean_over_ranks(values: Mapping[str, float]) -> float:
    """Return the mean of {rank: value}."""
    return float(pl.Series(list(values.values())).mean())  # type: ignore[arg-type]  # of floats it is one


def time_per_step(
    table: pl.DataFrame, steps: pl.DataFrame, column: str, details: Mapping[str, Any] | None = None
) -> Measurement:
    """Return a column of nanoseconds as seconds a step, mean over ranks."""
    need_rows(steps, "steps", RECORD)
    per_rank = seconds_by_rank(table, steps, column)
    return Measurement(
        mean_over_ranks(per_rank),
        details={
            "per_rank_s": per_rank,
            "per_step_s": seconds_by_step(table, steps, column),
            **(details or {}),
        },
        window=window_of(steps),
        ranks=ranks_in(steps),
    )


def shares_by_rank(table: pl.DataFrame, part: str, whole: str) -> pl.DataFrame:
    """Return `rank` and `pct`: one column's sum as percent of another's, for ranks where that is not 0."""
    shares = _shares(table, part, whole, each_rank())[["rank", "pct"]]
    if shares["rank"].is_sorted(nulls_last=True):
        return shares
    return shares.sort("rank", nulls_last=True, maintain_order=True)


def _shares(
    table: pl.DataFrame, part: str, whole: str, by: Sequence[str] | Sequence[pl.Expr]
) -> pl.DataFrame:
    """Return `pct`, one column's sum as percent of another's, for each value of `by` where that is not 0."""
    sums = table.group_by(by, maintain_order=True).agg(
        pl.col(part).sum().alias("_part"), pl.col(whole).sum().alias("_whole")
    )
    counted = keep_rows(sums, sums["_whole"] > 0)
    return counted.hstack([(100 * counted["_part"] / counted["_whole"]).alias("pct")])


def by_step(values: pl.DataFrame, column: str) -> dict[str, float]:
    """Return {step: mean of a column over its rows}, in order, for at most `MOST_STEPS` steps.

    Rows are added up in a fixed order, so that the same run gives the same bytes.
    """
    return _by_step(values, [column])[column]


def _by_step(values: pl.DataFrame, columns: Sequence[str]) -> dict[str, dict[str, float]]:
    rows = values.group_by(_STEP, maintain_order=True).agg(pl.col(columns))
    listed = few_steps(rows.with_columns(pl.col(columns).list.mean()).sort(_STEP, nulls_last=False))
    labels = step_labels(listed)
    return {column: dict(zip(labels, listed[column], strict=True)) for column in columns}


def few_steps(rows: pl.DataFrame) -> pl.DataFrame:
    """Return at most `MOST_STEPS` rows, evenly spread."""
    every = -(-rows.height // MOST_STEPS)
    return rows.gather_every(every) if every > 1 else rows


def seconds_by_step(table: pl.DataFrame, steps: pl.DataFrame, column: str) -> dict[str, float]:
    """Return {step: a column of nanoseconds summed over the step's rows, mean over ranks, s}."""
    return columns_by_step(table, steps, [column])[column]


def columns_by_step(
    table: pl.DataFrame, steps: pl.DataFrame, columns: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return `seconds_by_step` of several columns at once."""
    sums = table.group_by(_TRACE_STEP).agg(pl.col(columns).sum())
    rows = steps[[*_TRACE_STEP]].join(
        sums, on=_TRACE_STEP, how="left", nulls_equal=True, maintain_order="left"
    )
    return _by_step(rows.with_columns(pl.col(columns).fill_null(0) / SECOND_NS), columns)


def shares_by_step(table: pl.DataFrame, part: str, whole: str) -> dict[str, float]:
    """Return {step: one column's sum as percent of another's, mean over ranks where that is not 0}."""
    return by_step(_shares(table, part, whole, _TRACE_STEP), "pct")


def mean_of(table: pl.DataFrame, column: str) -> float:
    """Return the mean of a non-empty column."""
    return float(table[column].mean())  # type: ignore[arg-type]  # of numbers it is one


PARTS = ("compute", "fused", "exposed_communication", "exposed_memory", "idle", "window")
"""All but the last add up to the last."""


def listed_parts(breakdown: pl.DataFrame) -> list[str]:
    """Return the parts of the steps of a run, with `fused` if a kernel both computed and communicated."""
    has_fused = "fused_ns" in breakdown.columns and bool((breakdown["fused_ns"] > 0).any())
    return [part for part in PARTS if part != "fused" or has_fused]


def parts_by_rank(breakdown: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Return {rank: mean parts of its steps, s}."""
    means = _means(breakdown, "rank").sort("rank", nulls_last=True)
    names = [label(rank) for rank in means["rank"]]
    return dict(zip(names, means.select(listed_parts(breakdown)).to_dicts(), strict=True))


def parts_by_step(breakdown: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Return {step: mean parts over its ranks, s}."""
    means = few_steps(_means(breakdown, "iteration", "step").sort("iteration", "step", nulls_last=False))
    return dict(zip(step_labels(means), means.select(listed_parts(breakdown)).to_dicts(), strict=True))


def _means(breakdown: pl.DataFrame, *by: str) -> pl.DataFrame:
    parts = (
        (pl.col(f"{part}_ns").sum() / pl.len() / SECOND_NS).alias(part) for part in listed_parts(breakdown)
    )
    return breakdown.group_by(*by).agg(*parts)


def share_of_steps(breakdown: pl.DataFrame, steps: pl.DataFrame, column: str) -> Measurement:
    """Return a column of `breakdown` as percent of the length of steps, over all of them, mean over ranks."""
    need_rows(breakdown, "steps", RECORD)
    totals = (
        breakdown.group_by(each_rank(), maintain_order=True)
        .agg(pl.col(column, "window_ns").sum(), pl.len().alias("steps"))
        .filter(pl.col("window_ns") > 0)
        .sort("rank", maintain_order=True)
    )
    need_rows(totals, "steps of any length", RECORD)
    shares = totals.select(
        "rank",
        (100 * pl.col(column) / pl.col("window_ns")).alias("share_pct"),
        (pl.col(column) / pl.col("steps") / SECOND_NS).alias("per_step_s"),
    )
    return Measurement(
        mean_of(shares, "share_pct"),
        details={
            "per_rank_pct": by_rank(shares, "share_pct"),
            "per_rank_s_per_step": by_rank(shares, "per_step_s"),
            "per_step_pct": shares_by_step(breakdown, column, "window_ns"),
        },
        window=window_of(steps),
        ranks=ranks_in(totals),
    )


def share_by_device(table: pl.DataFrame, device_used: pl.DataFrame, part: str, whole: str) -> dict[str, Any]:
    """Return details with one column's sum as percent of another's on each of several devices."""
    without_rank = device_used.filter(pl.col("rank").is_null())
    if without_rank["device"].n_unique() < 2:
        return {}
    shares = (
        table.join(without_rank.select("trace", "device"), on="trace", maintain_order="left")
        .group_by("device")
        .agg((100 * pl.col(part).sum() / pl.col(whole).sum()).alias("pct"))
        .sort("device")
    )
    return {"per_device_pct": {label(device): share for device, share in shares.iter_rows()}}


RECORD_OPERATORS = "record CPU and CUDA activity with torch.profiler, from launches to operators"


def rows_of(phases: pl.DataFrame, phase: str) -> pl.DataFrame:
    """Return the rows of one phase, or raise NotMeasurable if it was not recognised."""
    need_rows(phases, "steps", RECORD)
    rows = phases.filter(pl.col("phase") == phase)
    if rows["count"].sum():
        return rows
    work = phases["count"].sum()
    if work and phases.filter(pl.col("phase") == UNKNOWN)["count"].sum() == work:
        raise NotMeasurable("no work can be traced back to where it was launched", fix=RECORD_OPERATORS)
    raise NotMeasurable(f"no {phase} work was recognised in any step", fix=RECORD_OPERATORS)


def phase_time(phases: pl.DataFrame, steps: pl.DataFrame, phase: str) -> Measurement:
    """Return the time of one phase in a step, with its other work and the rest of the step as details."""
    rows = rows_of(phases, phase)
    columns = ("duration_ns", "communication_ns", "busy_ns")
    summed, communication, with_communication = seconds_of(rows, steps, columns)
    details: dict[str, Any] = {
        "pct_of_step": mean_of(shares_by_rank(rows, "time_ns", "window_ns"), "pct"),
        "summed_s": summed,
        "communication_s": communication,
        "with_communication_s": with_communication,
    }
    each_phase = seconds_by(phases, steps, "phase", "time_ns")
    if phase == BACKWARD:
        reduction = phases.filter(pl.col("phase") == REDUCTION)
        details["recomputed_s"] = seconds(rows, steps, "recomputed_ns")
        details["gradient_accumulation_s"] = each_phase.get(ACCUMULATION, 0.0)
        details["gradient_communication_s"] = seconds(reduction, steps, "busy_ns")
    details["per_phase_s"] = {name: each_phase.get(name, 0.0) for name in PHASES}
    return time_per_step(rows, steps, "time_ns", details)


CALLS_OF_STEPS = "calls of steps"
"""The window of values that are computed from the communication calls of steps."""


def ranks_in(table: pl.DataFrame) -> list[int]:
    """Return the ranks that have rows in `table`, sorted; unknown ones left out."""
    return [rank for rank in _rows_by_rank(table) if rank is not None]


def window_of(steps: pl.DataFrame) -> str:
    """Return the sources of the steps in a table with a `source` column."""
    sources = steps["source"].value_counts()["source"]  # unlike `unique` no query
    return ", ".join(sorted({*sources} - {None}))


def label(rank: int | None) -> str:
    """Return the name of a rank in details."""
    return "unknown" if rank is None else str(rank)


def step_labels(table: pl.DataFrame) -> list[str]:
    """Return the name of each row's step in details: its number.

    Recording windows may repeat numbers; where there are several, `20:3` is step 3 of `iteration_20`.
    """
    several = table["iteration"].n_unique() > 1
    rows = zip(table["iteration"], table["step"], strict=True)
    return [f"{window}:{step}" if several else str(step) for window, step in rows]


def each_rank() -> tuple[pl.Expr, pl.Expr]:
    """Return the columns to group by so that each rank, and each trace of unknown rank, counts once.

    Such traces may be different devices of one process: they are averaged, not added.
    """
    rank = pl.col("rank")
    return rank, pl.when(rank.is_null()).then("trace").alias("_trace_without_rank")


def by_rank(table: pl.DataFrame, column: str) -> dict[str, float]:
    """Return {rank: value} of a table with one row per rank; rows of unknown rank are averaged."""
    if table["rank"].n_unique() < table.height:
        table = table.group_by("rank", maintain_order=True).agg(pl.col(column).mean())
    values = dict(zip(table["rank"], table[column].cast(pl.Float64), strict=True))
    return {label(rank): values[rank] for rank in _in_order(values)}


def need_rows(table: pl.DataFrame, what: str, fix: str) -> None:
    """Raise NotMeasurable if `table` is empty; `what` is missing then."""
    if table.is_empty():
        raise NotMeasurable(f"the run holds no {what}", fix=fix)


RECORD = "record the run with torch.profiler over a few steps and call prof.step() in each"
"""The fix where a trace holds no data."""
