"""The metric `traffic_distribution`: share of bytes in the busiest parallelism dimension."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.calls import PARTS, part_lengths
from ccl_bench.analysis.communication.groups import UNKNOWN
from ccl_bench.analysis.intervals import merge_intervals
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import GIGA, SECOND_NS
from ccl_bench.catalog.collectives import collectives
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.other_sources import WINDOW, calls_in_steps, source_finding
from ccl_bench.metrics.shared.per_step import CALLS_OF_STEPS, ranks_in
from ccl_bench.result.details import DimensionTraffic, TrafficDetails

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts

ONE_RANK = "check the parallel degrees: every group has one member"


MOST_UNKNOWN = 0.5
"""Largest share of the calls, or of their time, that may have an unknown property.

A few calls may take most of the time, so both shares are looked at.
"""

RECORD_SIZES = "record with torch 2.1 or later, or with record_shapes=True, so that sizes are in the trace"
UNGROUPED = ("groups-ambiguous", "groups-assumed")
"""Findings that explain why the dimension of a group is unknown."""


def fix_of_dimensions(facts: Facts) -> str:
    """Return what to do about groups of unknown dimension, which degrees do not show where they are known."""
    record = "record NCCL with torch 2.2 or later, whose calls list the members of their group"
    is_stated = any((facts.tp, facts.pp, facts.dp_shard, facts.dp_replicate, facts.ep, facts.cp))
    return record if is_stated else f"state the parallel degrees in the workload card; and {record}"


def attributed(traffic: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the calls inside `steps`, or raise NotMeasurable if most sizes are unknown."""
    inside = traffic.join(steps, on=["trace", "step"], how="semi", maintain_order="left")
    checks.need_calls(inside, steps)
    if inside["size_bytes"].drop_nulls().is_empty():
        raise NotMeasurable(
            "no communication call inside a step has a recorded size",
            fix=RECORD_SIZES,
            causes=("calls-without-size", "calls-unpaired"),
        )
    need_sizes(inside, "communication")
    return inside


def need_sizes(calls: pl.DataFrame, kind: str) -> None:
    """Raise NotMeasurable if most sizes of a kind are unknown: the sum would be too low."""
    moving = calls.filter(
        ~pl.col("collective").is_in([n for n, c in collectives().items() if not c.transfers])
    )
    if unknown_share(moving, pl.col("size_bytes").is_null()) > MOST_UNKNOWN:
        count = moving["size_bytes"].null_count()
        raise NotMeasurable(
            f"{count} of {moving.height} calls of {kind} inside steps have no recorded size, "
            "and their sum would be too low",
            fix=RECORD_SIZES,
        )


def unknown_share(calls: pl.DataFrame, unknown: pl.Expr) -> float:
    """Return the share of the calls, or of their time if larger, with an unknown property."""
    length = pl.col("end_ns") - pl.col("start_ns")
    of_time = [length.filter(unknown).sum() / length.sum()] if "end_ns" in calls.columns else []
    shares = calls.select(unknown.mean().alias("calls"), *(share.alias("time") for share in of_time))
    return max((share for share in shares.row(0) if share is not None and share == share), default=0.0)


def unknown_dimensions(calls: pl.DataFrame, what: str) -> list[Finding]:
    """Return a finding if the dimension of some calls is unknown; `what` states the effect on the value."""
    vague = calls.filter(pl.col("dimension") == UNKNOWN)
    if vague.is_empty():
        return []
    message = f"{vague.height} of {calls.height} calls serve an unknown parallelism dimension; {what}"
    return [Finding("dimension-unknown", "warning", message, count=vague.height)]


def bytes_by_rank(calls: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return `rank` and `gb`: the bytes of `calls` of each rank in a step, 10^9; all ranks with `steps`.

    Ranks without any call of known size are left out.
    """
    counts = steps.group_by("rank").agg(pl.len().alias("steps"))
    sums = calls.group_by("rank").agg(
        pl.col("size_bytes").sum().alias("bytes"), pl.col("size_bytes").is_null().all().alias("silent")
    )
    joined = counts.join(sums, on="rank", how="left", nulls_equal=True)
    loud = joined.filter(pl.col("silent").ne_missing(other=True))
    return loud.select("rank", (pl.col("bytes").fill_null(0) / pl.col("steps") / GIGA).alias("gb"))


def distribution_of_execution_traces(
    et_traffic: pl.DataFrame, et_steps: pl.DataFrame, facts: Facts
) -> Measurement:
    """Return the share of bytes that the busiest dimension carries, from Execution Traces."""
    inside = attributed(calls_in_steps(et_traffic), et_steps)
    distribution = _distribution(inside, et_steps.height, facts)
    return replace(
        distribution, window=WINDOW, findings=[*distribution.findings, source_finding(et_steps, inside)]
    )


@metric(
    unit="%",
    better="neither",
    applies=(checks.several_ranks,),
    otherwise=(distribution_of_execution_traces,),
    revision=4,
)
def traffic_distribution(
    traffic: pl.DataFrame,
    exposed_calls: pl.DataFrame,
    steps: pl.DataFrame,
    facts: Facts,
    call_parts: pl.DataFrame | None = None,
) -> Measurement:
    """Share of communicated bytes that the busiest parallelism dimension carries.

    Formula:
        traffic_distribution = 100 * bytes of the busiest dimension / bytes of all dimensions

        over all ranks and steps; bytes are messages as nccl-tests counts them, of Execution Traces where
        there are no others.

    Caveats:
        The dimension of a process group comes from its description, else from its ranks in the mesh that
        the card states, else it is "unknown"; a group of all ranks is "world" if it could serve several
        dimensions. There is no value if most calls, or most of their time, have no recorded size, or if
        unknown dimensions have more bytes than the busiest known one. A smaller unknown part is a finding;
        it counts in the total, but not as a dimension. Message bytes are not bytes on the wire: an
        all-reduce moves up to twice its message.

    Reference:
        Axis names: torchtitan; message sizes: nccl-tests doc/PERFORMANCE.md.
    """
    inside = attributed(traffic, steps)
    distribution = _distribution(inside, steps.height, facts)
    length = pl.col("end_ns") - pl.col("start_ns")
    exposed = dict(
        exposed_calls.with_columns(length.alias("exposed_ns"))
        .join(traffic.select("trace", "call", "dimension"), on=["trace", "call"])
        .group_by("dimension")
        .agg(pl.col("exposed_ns").sum())
        .iter_rows()
    )
    parts: dict[str, dict[str, int]] = {}
    if call_parts is not None:
        parts_inside = call_parts.join(inside.select("trace", "call"), on=["trace", "call"], how="semi")
        lengths = part_lengths(parts_inside, "trace", "dimension").group_by("dimension", "part")
        for dimension, part, part_ns in lengths.agg(pl.col("time_ns").sum()).iter_rows():
            parts.setdefault(dimension, {})[part] = part_ns
    for name, row in distribution.details["per_dimension"].items():
        # Calls that run at the same time count once in the time, and each in full in the bytes.
        together = merge_intervals(inside.filter(pl.col("dimension") == name), "trace")
        time_ns = int(together.select(length.sum()).item())
        row["time_s_per_gpu_and_step"] = time_ns / steps.height / SECOND_NS
        row["exposed_s_per_gpu_and_step"] = exposed.get(name, 0) / steps.height / SECOND_NS
        if name in parts:
            times = parts[name]
            row["parts_s_per_gpu_and_step"] = {p: times.get(p, 0) / steps.height / SECOND_NS for p in PARTS}
    return distribution


def _distribution(inside: pl.DataFrame, steps: int, facts: Facts) -> Measurement:
    """Return the share of the busiest dimension; `steps` is the number of steps per rank."""
    if set(inside["dimension"]) == {UNKNOWN}:
        raise NotMeasurable(
            "no process group shows which parallelism dimension it serves",
            fix=fix_of_dimensions(facts),
            is_repairable=True,
            causes=UNGROUPED,
        )
    sums = inside.group_by("dimension").agg(
        pl.col("size_bytes").sum().alias("bytes"),
        pl.len().alias("calls"),
        pl.col("size_bytes").null_count().alias("unattributed"),
    )
    total = int(sums["bytes"].sum())
    if not total:
        raise NotMeasurable("all communication is in groups of one rank, which moves nothing", fix=ONE_RANK)
    is_unknown = pl.col("dimension") == UNKNOWN
    ordered = sums.sort(is_unknown, "bytes", "dimension", descending=[False, True, False])
    unknown = int(sums.filter(is_unknown)["bytes"].sum())
    if unknown >= int(ordered["bytes"][0]):  # The busiest dimension may be hidden in it.
        raise NotMeasurable(
            f"{100 * unknown / total:.3g} % of the bytes are in groups whose "
            "parallelism dimension is unknown",
            fix=fix_of_dimensions(facts),
            is_repairable=True,
            causes=UNGROUPED,
        )
    per_dimension: dict[str, DimensionTraffic] = {}
    for row in ordered.iter_rows(named=True):
        moved = row["bytes"] if row["unattributed"] < row["calls"] else None
        per_dimension[row["dimension"]] = {
            "share_pct": None if moved is None else 100 * moved / total,
            "bytes_per_gpu_and_step": None if moved is None else moved / steps,
            "calls_per_gpu_and_step": row["calls"] / steps,
            "unattributed_calls_count": row["unattributed"],
        }
    return Measurement(
        100 * ordered["bytes"][0] / total,
        details=TrafficDetails(busiest=ordered["dimension"][0], per_dimension=per_dimension),
        window=CALLS_OF_STEPS,
        ranks=ranks_in(inside),
        findings=unknown_dimensions(inside, "their bytes count in the total and in no dimension"),
    )
