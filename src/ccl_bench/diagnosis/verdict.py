"""The step breakdown: compute, waiting for other ranks, transfer, copies, idle."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.execution.idle import WAITING_LONG
from ccl_bench.analysis.intervals import union_lengths
from ccl_bench.analysis.steps.steps import mean_step_ns, step_times
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import devices_named
from ccl_bench.base.units import SECOND_NS
from ccl_bench.result import WHOLE_TRACE
from ccl_bench.result.diagnosis import PARTS, IdlePart, Verdict
from ccl_bench.whatif.meetings import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccl_bench.whatif.run_graph import RunGraph

TABLES = ("steps", "step_times", "matched", "devices", "clock_offsets")

_ROUNDING = 1e-6
"""Share of a step below which the parts of the idle time add up: shares are sums of rounded numbers."""

_ALIKE = 0.01
"""Relative difference up to which two step lengths are equal: a profiler costs more where it matters."""

_KIND = {"compute": "compute", "fused": "compute", "operator": "compute", "memory": "copies"}


def find_verdict(graph: RunGraph, tables: Mapping[str, Any]) -> Verdict:
    """Return the breakdown of the mean step; raise NotMeasurable if no step shows it."""
    steps: pl.DataFrame = tables["steps"]
    times: pl.DataFrame = tables["step_times"]
    intervals = _intervals(graph, tables["matched"])
    on_device = steps.select(
        "iteration", "rank", "trace", "length_ns", start_ns="device_start_ns", end_ns="device_end_ns"
    )
    windows = on_common_clock(on_device, tables["clock_offsets"])
    of_trace = {key[0]: part for key, part in intervals.partition_by("trace", as_dict=True).items()}
    shares = [
        _shares(of_trace.get(trace, intervals.clear()), trace_windows)
        for (trace,), trace_windows in windows.filter(pl.col("start_ns") < pl.col("end_ns"))
        .partition_by("trace", as_dict=True)
        .items()
    ]
    if not shares or times.is_empty():
        raise NotMeasurable("no step contains recorded work", fix="record at least one whole step")
    means = {part: fmean(each[part] for each in shares) for part in shares[0]}
    parts = {part: means[part] for part in PARTS[:-1]}
    idle = 1 - sum(parts.values())
    step_s = mean_step_ns(times) / SECOND_NS
    traced_s = mean_step_ns(step_times(steps)) / SECOND_NS
    return Verdict(
        step_s,
        {**parts, "idle": idle},
        steps["rank"].n_unique(),
        steps.select("iteration", "step").n_unique(),
        bool((graph.operations["place"] == "device").any()),
        _devices(tables["devices"], steps),
        means["unattributed"],
        traced_s if abs(traced_s - step_s) > _ALIKE * step_s else None,
        bool((steps["source"] == WHOLE_TRACE).all()),
        _idle_parts(idle, tables["idle_causes"], steps) if "idle_causes" in tables else [],
    )


def _idle_parts(idle: float, causes: pl.DataFrame, steps: pl.DataFrame) -> list[IdlePart]:
    """Return the idle time by cause; what no stretch explains is unknown.

    That is the time by which steps are longer than their windows on the device, where the host sets the pace.
    """
    if causes.is_empty():
        return []
    lengths = steps.group_by("trace").agg(whole=pl.col("length_ns").sum())
    took = pl.col("end_ns") - pl.col("start_ns")
    in_trace = causes.group_by("trace", "cause", "name", maintain_order=True).agg(took.sum().alias("ns"))
    by_trace = in_trace.join(lengths, on="trace", maintain_order="left")
    shares = by_trace.group_by("cause", "name", maintain_order=True).agg(
        share=(pl.col("ns") / pl.col("whole")).sum() / lengths.height
    )
    by_cause = (
        shares.sort("share", "name", descending=[True, False])
        .group_by("cause", maintain_order=True)
        .agg(pl.col("share").sum(), pl.col("name").drop_nulls().first())
    )
    parts = [IdlePart(*row) for row in by_cause.filter(pl.col("cause") != WAITING_LONG).iter_rows()]
    unknown = idle - sum(part.share for part in parts)
    if unknown > _ROUNDING:
        parts.append(IdlePart(WAITING_LONG, unknown))
    return sorted(parts, key=lambda part: -part.share)


def on_common_clock(table: pl.DataFrame, offsets: pl.DataFrame) -> pl.DataFrame:
    """Return a table of `iteration`, `rank`, `start_ns` and `end_ns` with times as the graph has them."""
    shift = offsets.select("iteration", "rank", "offset_ns").unique(["iteration", "rank"])
    moved = table.join(shift, on=["iteration", "rank"], how="left", nulls_equal=True, maintain_order="left")
    return moved.with_columns(pl.col("start_ns", "end_ns") - pl.col("offset_ns").fill_null(0)).drop(
        "offset_ns"
    )


def _intervals(graph: RunGraph, matched: pl.DataFrame) -> pl.DataFrame:
    """Return the intervals of computing, waiting, transfer and copies; `unattributed` is waiting or transfer.

    The wait of a call comes from the analysis, else it lasts until its last rank arrives. A message has
    arrived when it is received, however late its sender checks.
    """
    waits = matched.drop_nulls("wait_ns").select("trace", "call", "wait_ns").unique(["trace", "call"])
    arrived = pl.DataFrame({"row": graph.operations["row"], "meeting": graph.meets}).filter(
        pl.col("meeting") >= 0
    )
    communicates = graph.operations.filter(
        (pl.col("kind") == "communication") & (pl.col("place") != "host")
    ).join(waits, on=["trace", "call"], how="left", maintain_order="left")
    meeting_calls = communicates.join(arrived, on="row", how="left", maintain_order="left").with_columns(
        last_ns=_of_meeting(pl.col("start_ns").max()),
        end_ns=pl.when(pl.col("collective").is_in(MESSAGES))
        .then(pl.min_horizontal("end_ns", _of_meeting(pl.col("end_ns").min())))
        .otherwise("end_ns"),
    )
    wait = pl.coalesce("wait_ns", pl.col("last_ns") - pl.col("start_ns"))
    until = pl.when(wait.is_not_null()).then(pl.min_horizontal("end_ns", pl.col("start_ns") + wait))
    waiting = meeting_calls.filter(wait.is_not_null()).select(
        "trace", "start_ns", until.alias("end_ns"), part=pl.lit("waiting")
    )
    moving = meeting_calls.select(
        "trace",
        pl.coalesce(until, "start_ns").alias("start_ns"),
        "end_ns",
        part=pl.when(wait.is_null()).then(pl.lit("unattributed")).otherwise(pl.lit("transfer")),
    )
    rest = graph.operations.filter(pl.col("kind").is_in([*_KIND])).select(
        "trace", "start_ns", "end_ns", part=pl.col("kind").replace_strict(_KIND)
    )
    return pl.concat([rest, waiting, moving])


def _of_meeting(value: pl.Expr) -> pl.Expr:
    return pl.when(pl.col("meeting").is_not_null()).then(value.over("meeting"))


def _shares(intervals: pl.DataFrame, windows: pl.DataFrame) -> dict[str, float]:
    """Return the share of each part in the windows of one trace, each instant in one part."""
    ordered = windows.sort("start_ns")
    whole = int(ordered["length_ns"].sum())
    shares: dict[str, float] = {}
    before = 0
    parts = ("compute", "transfer", "unattributed", "waiting", "copies")
    for number, part in enumerate(parts, start=1):
        some = intervals.filter(pl.col("part").is_in(parts[:number]))
        upto = int(union_lengths(some, ordered).sum())
        shares[part], before = (upto - before) / whole, upto
    shares["transfer"] += shares["unattributed"]
    return shares


def _devices(devices: pl.DataFrame, steps: pl.DataFrame) -> str:
    """Return the devices of the ranks that worked in steps, such as `8 x NVIDIA A100`."""
    worked = steps.filter(pl.col("work") > 0)["trace"].unique()
    trace_without_rank = pl.when(pl.col("rank").is_null()).then("trace").alias("trace_without_rank")
    name = pl.col("name").filter(pl.col("name") != "").first().fill_null("")
    device_of_rank = devices.filter(pl.col("trace").is_in(worked.implode())).group_by(
        "rank", trace_without_rank
    )
    counts = device_of_rank.agg(name)["name"].value_counts().sort("count", "name", descending=[True, False])
    return ", ".join(devices_named(count, name) for name, count in counts.iter_rows())
