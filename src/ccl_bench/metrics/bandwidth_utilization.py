"""The metrics `bandwidth_utilization_*`: bus bandwidth of each kind of collective."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.communication.bandwidth import BASES, OUTLYING, outlying, rates
from ccl_bench.analysis.communication.calls import PARTS
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.ceiling import REACHES, with_ceiling
from ccl_bench.metrics.shared.other_sources import RECORDS, inspector_finding
from ccl_bench.metrics.shared.per_step import CALLS_OF_STEPS, by_step, seconds_by
from ccl_bench.metrics.shared.waiting import of_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccl_bench.analysis.facts import Facts
    from ccl_bench.side_files import NcclTests

KINDS = {
    "allreduce": ("all_reduce",),
    "allgather": ("all_gather",),
    "reducescatter": ("reduce_scatter",),
    "alltoall": ("all_to_all",),
    "p2p": ("send_recv", "send", "recv"),
}
"""Suffix of the metric → canonical collectives."""

_MANUAL = """Bus bandwidth of {title}, and its share of the link.

Formula:
    algorithm bandwidth = S / t
    bus bandwidth = algorithm bandwidth * factor(n); over the calls in steps total bytes over total time
    share of the link = bus bandwidth / (bandwidth_gbps / 8)

    nccl_tests_efficiency = time of nccl-tests for the same calls / t, if it measured all of them

Caveats:
    t is free of waiting where all members were matched: the shortest duration among them. For a message
    between two ranks it is the "shorter side"; where some members have no trace it is an "upper bound";
    where no call could be matched it is the "raw" duration, which includes waiting. `basis` states
    which; they are never mixed. Calls inside a node and between nodes are not mixed either: the value
    is that of the `reach` with most bytes, and `by_reach` lists each. Small messages are bound by
    latency: look at the sizes. A group of one rank moves nothing. Calls outside steps are not counted;
    `time_parts_s` divides the time of those inside steps into waiting, transfer and unknown. A finding
    reports a few calls that take far longer than others of their size; the median in the details is
    that of single calls. If no trace shows when calls ran, records of the NCCL Inspector are used, a
    sample of the whole run. A value above the speed of the link is a finding: the stated link, a size
    or a time is wrong.

Reference:
    nccl-tests doc/PERFORMANCE.md.
"""


def title_of(kind: str) -> str:
    """Return what the manual calls the calls of a kind."""
    return "messages between two ranks" if kind == "p2p" else KINDS[kind][0]


def need_kind(calls: pl.DataFrame, kind: str, steps: pl.DataFrame) -> None:
    """Raise NotMeasurable if no step holds a call of this kind."""
    checks.need_calls(calls, steps)
    if not calls["collective"].is_in(KINDS[kind]).any():
        raise NotMeasurable(
            f"the run has no such collective: no step holds a call of {kind}",
            fix="coll_call_num lists which collectives the run has",
        )


def _family(
    suffix: str, collectives: tuple[str, ...]
) -> tuple[Callable[..., Measurement], Callable[..., Measurement]]:
    """Return the metric of one kind of collective, and the same from records of the NCCL Inspector."""

    def bandwidth(
        transfers: pl.DataFrame,
        facts: Facts,
        collective_parts: pl.DataFrame | None = None,
        steps: pl.DataFrame | None = None,
        traffic: pl.DataFrame | None = None,
        nccl_tests: NcclTests | None = None,
    ) -> Measurement:
        if traffic is not None and steps is not None:
            need_kind(traffic.drop_nulls("step"), suffix, steps)
        own_calls = transfers.filter(pl.col("collective").is_in(collectives))
        measurement = _bandwidth(own_calls, suffix, facts, nccl_tests)
        if collective_parts is None or steps is None:
            return measurement
        step_parts = of_steps(collective_parts.filter(pl.col("collective").is_in(collectives)), steps)
        each_part = seconds_by(step_parts, steps, "part", "time_ns")
        times = {part: each_part.get(part, 0.0) for part in PARTS}
        return replace(measurement, details={**measurement.details, "time_parts_s": times})

    def of_records(
        recorded_transfers: pl.DataFrame, facts: Facts, nccl_tests: NcclTests | None = None
    ) -> Measurement:
        own_calls = recorded_transfers.filter(pl.col("collective").is_in(collectives))
        measurement = _bandwidth(own_calls, suffix, facts, nccl_tests)
        findings = [inspector_finding(), *measurement.findings]
        return replace(measurement, window=RECORDS, findings=findings)

    bandwidth.__name__ = f"bandwidth_utilization_{suffix}"
    bandwidth.__doc__ = _MANUAL.format(title=title_of(suffix))
    return bandwidth, of_records


for _suffix, _collectives in KINDS.items():
    _of_traces, _of_records = _family(_suffix, _collectives)
    metric(
        unit="GB/s",
        better="higher",
        applies=(checks.several_ranks,),
        revision=3,
        otherwise=(_of_records,),
    )(_of_traces)


_RECORD_NCCL = "record NCCL with torch 2.2 or later, whose kernels carry sizes and groups"
_UNSIZED = ("calls-without-size", "calls-unpaired", "groups-ambiguous")
"""Findings that explain why calls have no size or group."""


def _bandwidth(transfers: pl.DataFrame, kind: str, facts: Facts, tests: NcclTests | None) -> Measurement:
    usable = transfers.drop_nulls("bus_factor")
    if usable.is_empty():
        raise NotMeasurable(
            f"no {kind} with a known size and group size in a step", fix=_RECORD_NCCL, causes=_UNSIZED
        )
    # One value has one basis and one reach: times with waiting and without, and different links, do not mix.
    basis = next(each for each in BASES if each in usable["basis"])
    chosen = usable.filter(pl.col("basis") == basis)
    reaches = rates(chosen, "spans_nodes").sort("bytes", descending=True, maintain_order=True)
    overall = reaches.row(0, named=True)
    reach = chosen.filter(pl.col("spans_nodes").eq_missing(pl.lit(overall["spans_nodes"], dtype=pl.Boolean)))
    by_dimension = [
        {
            "dimension": row["dimension"],
            "group_size": row["size"],
            "reach": REACHES[row["spans_nodes"]],
            "calls_count": row["calls"],
            "mean_message_bytes": row["bytes"] / row["calls"],
            **_bandwidths(row, facts),
        }
        for row in rates(chosen, "dimension", "size", "spans_nodes").to_dicts()
    ]
    tested = with_ceiling(reach, tests) if tests else None
    of_size = {} if tested is None else tested.partition_by("size_bytes", as_dict=True)
    by_size = [
        {
            "message_bytes": row["size_bytes"],
            "calls_count": row["calls"],
            "algorithm_bandwidth_gb_per_s": row["algorithm_bandwidth"],
            "bus_bandwidth_gb_per_s": row["bus_bandwidth"],
            **_of_ceiling(of_size.get((row["size_bytes"],))),
        }
        for row in rates(reach, "size_bytes").to_dicts()
    ]
    each_step = rates(reach, "iteration", "step").drop_nulls("bus_bandwidth")
    details: dict[str, Any] = {
        "basis": basis,
        "reach": REACHES[overall["spans_nodes"]],
        **_bandwidths(overall, facts),
        **_of_ceiling(tested),
        "median_bus_bandwidth_gb_per_s": overall["median_bandwidth"],
        "calls_count": overall["calls"],
        "total_bytes": overall["bytes"],
        "by_reach": {REACHES[row["spans_nodes"]]: _bandwidths(row, facts) for row in reaches.to_dicts()},
        "by_dimension": by_dimension,
        "by_size": by_size,
        "per_step_gb_per_s": by_step(each_step, "bus_bandwidth"),
    }
    listed = [*details["by_reach"].values(), *by_dimension]
    doubts = [*_beyond_link(listed, kind), *_outliers(reach, kind)]
    return Measurement(overall["bus_bandwidth"], details, window=CALLS_OF_STEPS, findings=doubts)


def _beyond_link(listed: Iterable[dict[str, Any]], kind: str) -> Iterable[Finding]:
    """Report calls faster than their link; switches that reduce save an all-reduce some traffic."""
    linked = [row for row in listed if "share_of_link_pct" in row]
    most = max(linked, key=lambda row: row["share_of_link_pct"], default=None)
    if most is None or (share := most["share_of_link_pct"]) <= WHOLE_PCT:
        return
    bus, algorithm = (most[f"{name}_bandwidth_gb_per_s"] for name in ("bus", "algorithm"))
    message = f"the bus bandwidth of {kind} is {share:.4g} % of the link bandwidth that the card states"
    if share * min(bus, algorithm) / bus <= WHOLE_PCT:
        message += ", which needs switches that reduce (NVLink SHARP)"
        yield Finding("share-above-limit", "warning", message)
    else:
        yield Finding("share-above-limit", "error", message + ": the link, a size or a time is wrong")


def _outliers(transfers: pl.DataFrame, kind: str) -> Iterable[Finding]:
    """Report a few calls that take far longer than similar ones and change the value."""
    far = outlying(transfers)
    time = float(transfers.select(pl.col("time_ns").sum()).item())
    over = float(far.select((pl.col("time_ns") - pl.col("usual_ns")).sum()).item())
    if far.is_empty() or over < OUTLIERS_SHARE * time:
        return
    longest = int(far.select(pl.col("time_ns").max()).item()) / SECOND_NS
    message = (
        f"{far.height} of {transfers.height} calls of {kind} take more than {OUTLYING} times as long as "
        f"others of their size, up to {longest:.4g} s; without them the bandwidth would be "
        f"{time / (time - over):.4g} times as high"
    )
    yield Finding("calls-outlying", "warning", message, count=far.height)


WHOLE_PCT = 100.0
"""The full bandwidth of a link."""

OUTLIERS_SHARE = 0.1
"""Share of the time above which the excess of outlying calls is a finding.

Without them the bandwidth would be at least 11 % higher.
"""


def _bandwidths(row: dict[str, Any], facts: Facts) -> dict[str, float]:
    """Return the bandwidths of calls of one reach, and their share of the link that the reach crosses."""
    bandwidths = {
        "algorithm_bandwidth_gb_per_s": row["algorithm_bandwidth"],
        "bus_bandwidth_gb_per_s": row["bus_bandwidth"],
    }
    links = {True: facts.scale_out_gbps, False: facts.scale_up_gbps, None: None}
    link = links[row["spans_nodes"]]
    return bandwidths | ({"share_of_link_pct": 100 * row["bus_bandwidth"] / (link.value / 8)} if link else {})


def _of_ceiling(calls: pl.DataFrame | None) -> dict[str, float]:
    """Return the efficiency relative to nccl-tests, if it measured all of these calls."""
    if calls is None or calls["ceiling_ns"].null_count():
        return {}
    return {"nccl_tests_efficiency_ratio": float(calls["ceiling_ns"].sum()) / float(calls["time_ns"].sum())}
