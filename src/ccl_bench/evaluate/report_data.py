"""Data of the report of a run; every trace is read once."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.bandwidth import WAIT_FREE
from ccl_bench.analysis.communication.stragglers import waits_by_rank_and_step
from ccl_bench.analysis.serving.sweep import TABLES as SWEEP_TABLES
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.evaluate.drill_down import LISTED_WITH, drill_down
from ccl_bench.evaluate.inspect import inspect_with_tables
from ccl_bench.evaluate.strip import STRIP_TABLES, strip
from ccl_bench.evaluate.sweep import reason_if_none
from ccl_bench.metrics.bandwidth_utilization import KINDS
from ccl_bench.metrics.shared.ceiling import REACHES, with_ceiling
from ccl_bench.metrics.shared.other_sources import OTHER_SOURCE
from ccl_bench.metrics.shared.per_step import label, step_labels
from ccl_bench.metrics.shared.reference import ReferenceSystem, reference_system, with_reference
from ccl_bench.metrics.shared.waiting import divided
from ccl_bench.result.report_data import (
    Grid,
    MemoryCurve,
    MessageSize,
    ReferenceLine,
    ReportData,
    Series,
    Spread,
    StepTimes,
    TimeParts,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.analysis.facts import Facts
    from ccl_bench.engine import Progress
    from ccl_bench.evaluate.load import LoadedRun
    from ccl_bench.result import Result
    from ccl_bench.result.inspection import Inspection
    from ccl_bench.run import Run
    from ccl_bench.side_files import NcclTests

RANKS = 256
"""Largest number of rows of a chart."""
CELLS = 4000
"""Largest number of values of a chart."""
STEPS = 400
"""Largest number of points of a line."""

STEP = ("iteration", "step")


def group_neighbours(names: Sequence[str], most: int, whole: int = 1) -> tuple[list[str], int]:
    """Return the names of at most `most` equal groups of neighbours, and the size of each.

    Groups never split `whole` neighbours, such as the ranks of a node.
    """
    each = max(1, ceil(len(names) / most))
    each = ceil(each / whole) * whole if each > 1 else 1
    runs = [names[start : start + each] for start in range(0, len(names), each)]
    return [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs], each


def ranks_of(table: pl.DataFrame, on_node: int = 1) -> tuple[pl.DataFrame, list[str], int]:
    """Return `table` with the number of its `row`, the names of rows, and the ranks behind each."""
    ranks = table.select("rank").unique().sort("rank", nulls_last=True).with_row_index("row")
    names, each = group_neighbours([label(rank) for rank in ranks["rank"]], RANKS, on_node)
    joined = table.join(ranks, on="rank", nulls_equal=True, maintain_order="left")
    return joined.with_columns(pl.col("row").cast(pl.Int64) // each), names, each


def steps_of(table: pl.DataFrame, most: int = STEPS) -> tuple[pl.DataFrame, list[str], int]:
    """Return `table` with the number of its `column`, the names of columns, and the steps behind each."""
    steps = table.select(STEP).unique().sort(STEP).with_row_index("column")
    names, each = group_neighbours(step_labels(steps), most)
    joined = table.join(steps, on=STEP, nulls_equal=True, maintain_order="left")
    return joined.with_columns(pl.col("column").cast(pl.Int64) // each), names, each


def grid(table: pl.DataFrame, value_ns: str, on_node: int = 1) -> Grid:
    """Return the mean of a column for each rank and step, or over neighbours if there are too many."""
    rows, ranks, ranks_each = ranks_of(table, on_node)
    placed, steps, steps_each = steps_of(rows, max(1, min(STEPS, CELLS // max(1, len(ranks)))))
    means = placed.group_by("row", "column").agg(pl.col(value_ns).mean() / SECOND_NS)
    values: list[list[float | None]] = [[None] * len(steps) for _ in ranks]
    for row, column, value in means.iter_rows():
        values[row][column] = value
    return Grid(ranks, steps, values, ranks_each, steps_each)


_FEW_RANKS = 8
"""Number of ranks whose lines colours can distinguish."""

_PARTS = ("window", "compute", "exposed_communication", "exposed_memory", "idle", "fused")


def step_times(table: pl.DataFrame, on_node: int = 1) -> StepTimes | None:
    """Return step times by step and by rank; None without steps."""
    if table.is_empty():
        return None
    by_step, steps, steps_each = steps_of(table)
    by_rank, ranks, ranks_each = ranks_of(table, on_node)
    few = len(ranks) <= _FEW_RANKS and ranks_each == 1
    return StepTimes(
        ", ".join(sorted(table["source"].drop_nulls().unique())),
        _spreads(by_step, "column", steps),
        _spreads(by_rank, "row", ranks),
        grid(table, "duration_ns", on_node) if few else None,
        steps_each,
        ranks_each,
    )


def _spreads(table: pl.DataFrame, key: str, names: list[str]) -> list[Spread]:
    seconds = pl.col("duration_ns") / SECOND_NS
    spreads = (
        table.group_by(key)
        .agg(
            pl.len().alias("count"),
            seconds.min().alias("min"),
            seconds.median().alias("p50"),
            seconds.max().alias("max"),
        )
        .sort(key)
    )
    return [Spread(names[place], *numbers) for place, *numbers in spreads.iter_rows()]


def time_parts(
    breakdown: pl.DataFrame, communication_parts: pl.DataFrame | None = None, on_node: int = 1
) -> tuple[list[TimeParts], int]:
    """Return the breakdown of each rank's mean step, and the ranks behind each entry.

    Means of ranks are means of their means, so that the parts still add up to the window.
    """
    parts, table = list(_PARTS), breakdown
    if communication_parts is not None:
        each_step = divided(breakdown, communication_parts, "exposed_communication_ns")
        waited, moved = each_step["waiting_ns"], each_step["transfer_ns"]
        table = breakdown.with_columns(exposed_wait_ns=waited, exposed_transfer_ns=moved)
        parts += ["exposed_wait", "exposed_transfer"]
    means = table.group_by("rank").agg(
        (pl.col(f"{part}_ns").mean() / SECOND_NS).alias(part) for part in parts
    )
    rows, names, each = ranks_of(means, on_node)
    by_row = rows.group_by("row").agg(pl.col(parts).mean()).sort("row")
    return [TimeParts(names[place], *parts) for place, *parts in by_row.iter_rows()], each


def waits(table: pl.DataFrame, on_node: int = 1) -> Grid | None:
    """Return the waiting of each rank in each step; None if no wait is known."""
    return None if table.is_empty() else grid(waits_by_rank_and_step(table), "wait_ns", on_node)


_DEVICES = 4
"""Largest number of devices to chart."""


def memory_curves(outline: pl.DataFrame) -> tuple[list[MemoryCurve], int]:
    """Return the curves of the devices with the highest peaks, and the number of devices."""
    keys = ["trace", "device"]
    peaks = outline.group_by(*keys, "rank", "iteration").agg(pl.col("highest_allocated_bytes").max())
    highest = peaks.sort("highest_allocated_bytes", "rank", "device", descending=[True, False, False])
    several = outline.select("rank", "device").unique().group_by("rank").len()["len"].max() or 1
    curves = []
    for key in highest.head(_DEVICES).iter_rows(named=True):
        is_here = (pl.col("trace") == key["trace"]) & (pl.col("device") == key["device"])
        points = outline.filter(is_here).sort("point")
        is_timed = not points["time_ns"].tail(-1).null_count() and points["time_ns"].n_unique() > 1
        times = (points["time_ns"].backward_fill() - points["time_ns"].min()) / SECOND_NS
        name = label(key["rank"]) if several == 1 else f"{label(key['rank'])}, device {key['device']}"
        window = "" if key["iteration"] is None else f", window {key['iteration']}"
        curves.append(
            MemoryCurve(
                name + window,
                int(points["events"].max() or 0),  # type: ignore[arg-type]
                is_timed,
                (times if is_timed else points["order"].cast(pl.Float64)).to_list(),
                points["lowest_allocated_bytes"].to_list(),
                points["highest_allocated_bytes"].to_list(),
                points["highest_reserved_bytes"].to_list(),
            )
        )
    return curves, peaks.height


_MOST = 300
"""Number of distinct sizes above which neighbours are merged."""

_KEYS = ("collective", "dimension", "spans_nodes", "basis")


def bus_bandwidth(
    transfers: pl.DataFrame, tests: NcclTests | None = None, system: ReferenceSystem | None = None
) -> list[MessageSize]:
    """Return the bandwidth of each kind of call at each size, with that of nccl-tests and of the catalog.

    If there are too many sizes, those between two powers of two are merged.
    """
    looked_up = with_reference(with_ceiling(transfers.drop_nulls("bus_factor"), tests), None, system)
    bandwidths = looked_up.with_columns(
        (pl.col("bus_factor") * pl.col("size_bytes") / pl.col("time_ns")).alias("bus"),
        reference_ns=pl.when(pl.col("basis") == WAIT_FREE).then("reference_ns"),
    )
    exact = bandwidths.with_columns(pl.col("size_bytes").alias("about"))
    if exact.select(*_KEYS, "about").n_unique() > _MOST:
        power = pl.col("size_bytes").log(2).floor().cast(pl.Int64)
        exact = bandwidths.with_columns(power.alias("about"))
    moved = (pl.col("bus_factor") * pl.col("size_bytes")).sum()
    reached = [
        pl.when(pl.col(column).is_not_null().all()).then(moved / pl.col(column).sum()).alias(column)
        for column in ("ceiling_ns", "reference_ns")
    ]
    sizes = (
        exact.group_by(*_KEYS, "about")
        .agg(
            pl.col("size_bytes").min().alias("min_bytes"),
            pl.col("size_bytes").max().alias("max_bytes"),
            pl.len().alias("calls"),
            *(pl.col("bus").quantile(share, "linear").alias(f"q{share}") for share in (0.1, 0.5, 0.9)),
            *reached,
        )
        .sort(*_KEYS, "about", nulls_last=True)
        .drop("about")
    )
    return [
        MessageSize(collective, dimension or "unknown", REACHES[spans], *rest)
        for collective, dimension, spans, *rest in sizes.iter_rows()
    ]


_ASIDE = 2
"""Factor by which a reference is drawn beyond the sizes of the calls: as far as the chart goes."""


def reference_lines(transfers: pl.DataFrame, system: ReferenceSystem) -> list[ReferenceLine]:
    """Return what the catalog has for each kind of call with a reference, at powers of two."""
    free = transfers.filter(pl.col("basis") == WAIT_FREE).drop_nulls("bus_factor")
    compared = with_reference(free, None, system).drop_nulls("reference_ns")
    if compared.is_empty():
        return []
    sizes = compared["size_bytes"].to_list()
    least, most = min(sizes), max(sizes)
    powers = [1 << power for power in range(63) if least <= _ASIDE << power and 1 << power <= _ASIDE * most]
    keys = ["collective", "dimension", "size", "spans_nodes", "bus_factor"]
    kinds = compared.select(keys).unique(maintain_order=True).sort(keys, nulls_last=True)
    points = kinds.join(pl.DataFrame({"size_bytes": powers}), how="cross")
    drawn = with_reference(points, None, system).drop_nulls("reference_ns")
    rates = pl.col("bus_factor") * pl.col("size_bytes") / pl.col("reference_ns")
    lines = drawn.group_by("collective", "dimension", "reaches", maintain_order=True).agg(
        "size_bytes", rates.alias("gb_per_s")
    )
    return [
        ReferenceLine(collective, dimension or "unknown", *rest)
        for collective, dimension, *rest in lines.iter_rows()
    ]


DRAWN_WITH = {
    "step_times": "iteration_wall_clock_time",
    "breakdown": "gpu_busy",
    "communication_parts": "exposed_wait_time",
    "waits": "straggler_lag_16",
    "transfers": "total_communication_time",
    "memory_outline": "peak_memory_allocated",
    **LISTED_WITH,
}
"""Table of a chart → the metric of the same values: if that has none, there is no chart."""

DRAWN_TABLES = tuple(DRAWN_WITH)

REPORT_TABLES = (*DRAWN_TABLES, *STRIP_TABLES, *SWEEP_TABLES)
"""Tables that a report needs in addition to those of its metrics."""

_NOT_DRAWN = {"nsys-used", OTHER_SOURCE}
"""Codes of findings that a value does not come from the charted traces."""


def collect_report_data(
    run: Run, *, jobs: int | None = None, use_cache: bool = True, progress: Progress | None = None
) -> ReportData:
    """Return the inspection of `run`, every result, and series to draw; every trace is read once."""
    inspection, results, evidence = inspect_with_tables(
        run, REPORT_TABLES, jobs=jobs, use_cache=use_cache, progress=progress
    )
    return report_data_of(inspection, results, evidence)


def report_data_of(inspection: Inspection, results: list[Result], evidence: LoadedRun) -> ReportData:
    """Return the same for an inspected run, with the tables to draw.

    Series are of tables that could be computed and whose metric has a value that comes from them.
    """
    measured = {
        result.metric
        for result in results
        if result.value is not None and all(finding.code not in _NOT_DRAWN for finding in result.findings)
    }
    inputs = evidence.inputs
    tables = {
        name: inputs[name] for name, metric in DRAWN_WITH.items() if metric in measured and name in inputs
    }
    facts: Facts = inputs["facts"]
    on_node = facts.devices_per_node.value if facts.devices_per_node else 1
    parts: list[TimeParts] = []
    ranks_each = 1
    if "breakdown" in tables:
        parts, ranks_each = time_parts(tables["breakdown"], tables.get("communication_parts"), on_node)
    bandwidths, references = [], []
    if "transfers" in tables:
        refused = [
            name
            for kind, names in KINDS.items()
            if f"bandwidth_utilization_{kind}" not in measured
            for name in names
        ]
        drawn = tables["transfers"].filter(~pl.col("collective").is_in(refused))
        library, traffic = inputs.get("communication_library"), inputs.get("traffic")
        system = reference_system(facts, inputs.get("devices"), library, traffic)
        bandwidths = bus_bandwidth(drawn, inputs.get("nccl_tests"), system)
        references = reference_lines(drawn, system)
    curves, devices = memory_curves(tables["memory_outline"]) if "memory_outline" in tables else ([], 0)
    has_strip = "breakdown" in tables and all(name in inputs for name in STRIP_TABLES)
    series = Series(
        step_times(tables["step_times"], on_node) if "step_times" in tables else None,
        parts,
        ranks_each,
        waits(tables["waits"], on_node) if "waits" in tables else None,
        bandwidths,
        references,
        curves,
        devices,
        strip(inputs, facts) if has_strip else None,
        drill_down(tables, inputs["breakdown"].height),
        *reason_if_none(inputs),
    )
    return ReportData(inspection, results, series)
