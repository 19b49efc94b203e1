"""Bus bandwidth of each kind of collective: a family of metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.communication.bandwidth import BASES, rates
from ccl_bench.errors import NotMeasurable
from ccl_bench.frames import pl
from ccl_bench.metrics import Measurement, conditions, metric
from ccl_bench.metrics.shared.per_step import by_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccl_bench.analysis.facts import Facts

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
    bus bandwidth = algorithm bandwidth * factor(n); over many calls total bytes over total time
    share of the link = bus bandwidth / (bandwidth_gbps / 8)

Caveats:
    t is free of waiting where all members were matched: the shortest duration among them. Of a message
    between two ranks it is the "shorter side", where some members lack a trace an "upper bound", and where
    none could be matched the "raw" duration, waiting included; `basis` says which, and they are never
    mixed. Nor are calls inside a node and between nodes: the value is that of the `reach` with most
    bytes, `by_reach` has each. Small messages are bound by latency: look at the sizes. A group of one
    moves nothing.

Reference:
    nccl-tests doc/PERFORMANCE.md.
"""


def _family(suffix: str, collectives: tuple[str, ...]) -> Callable[..., Measurement]:
    """Return the metric of one kind of collective."""

    def bandwidth(transfers: pl.DataFrame, facts: Facts) -> Measurement:
        return _bandwidth(transfers.filter(pl.col("collective").is_in(collectives)), suffix, facts)

    bandwidth.__name__ = f"bandwidth_utilization_{suffix}"
    bandwidth.__doc__ = _MANUAL.format(
        title="messages between two ranks" if suffix == "p2p" else collectives[0]
    )
    return bandwidth


for _suffix, _collectives in KINDS.items():
    metric(unit="GB/s", better="higher", applies=(conditions.several_ranks,))(_family(_suffix, _collectives))


def _bandwidth(transfers: pl.DataFrame, kind: str, facts: Facts) -> Measurement:
    usable = transfers.drop_nulls("bus_factor")
    if usable.is_empty():
        raise NotMeasurable(
            f"no {kind} with a known size and group size",
            fix="record NCCL with torch 2.2 or later, whose kernels carry sizes and groups",
        )
    basis = next(kind for kind in BASES if kind in usable["basis"])
    chosen = usable.filter(pl.col("basis") == basis)
    reaches = rates(chosen, "spans_nodes").sort("bytes", descending=True, maintain_order=True)
    overall = reaches.row(0, named=True)
    reach = chosen.filter(pl.col("spans_nodes").eq_missing(pl.lit(overall["spans_nodes"], dtype=pl.Boolean)))
    details: dict[str, Any] = {
        "basis": basis,
        "reach": _REACH[overall["spans_nodes"]],
        **_bandwidths(overall, facts),
        "calls_count": overall["calls"],
        "total_bytes": overall["bytes"],
        "by_reach": {_REACH[row["spans_nodes"]]: _bandwidths(row, facts) for row in reaches.to_dicts()},
        "by_dimension": _listed(chosen, facts),
        "by_size": _by_size(reach),
        "per_step_gb_per_s": _by_step(reach),
    }
    return Measurement(overall["bus_bandwidth"], details, window="whole trace")


_REACH = {True: "between nodes", False: "inside a node", None: "unknown"}


def _bandwidths(row: dict[str, Any], facts: Facts) -> dict[str, float]:
    """Return the bandwidths of calls of one reach, and their share of the link that the reach crosses."""
    found = {
        "algorithm_bandwidth_gb_per_s": row["algorithm_bandwidth"],
        "bus_bandwidth_gb_per_s": row["bus_bandwidth"],
    }
    links = {True: facts.scale_out_gbps, False: facts.scale_up_gbps, None: None}
    link = links[row["spans_nodes"]]
    return found | ({"share_of_link_pct": 100 * row["bus_bandwidth"] / (link.value / 8)} if link else {})


def _listed(transfers: pl.DataFrame, facts: Facts) -> list[dict[str, Any]]:
    """Return bandwidths by dimension, group size and reach, each with its share of the link it crosses."""
    rows = rates(transfers, "dimension", "size", "spans_nodes").to_dicts()
    return [_named(row, facts) for row in rows]


def _named(row: dict[str, Any], facts: Facts) -> dict[str, Any]:
    return {
        "dimension": row["dimension"],
        "group_size": row["size"],
        "reach": _REACH[row["spans_nodes"]],
        "calls_count": row["calls"],
        "mean_message_bytes": row["bytes"] / row["calls"],
        **_bandwidths(row, facts),
    }


def _by_step(transfers: pl.DataFrame) -> dict[str, float]:
    """Return {step: bus bandwidth of the calls that started in it}."""
    each = rates(transfers.drop_nulls("step"), "iteration", "step").drop_nulls("bus_bandwidth")
    return by_step(each, "bus_bandwidth")


def _by_size(transfers: pl.DataFrame) -> list[dict[str, Any]]:
    columns = {
        "size_bytes": "message_bytes",
        "calls": "calls_count",
        "algorithm_bandwidth": "algorithm_bandwidth_gb_per_s",
        "bus_bandwidth": "bus_bandwidth_gb_per_s",
    }
    return rates(transfers, "size_bytes").select(list(columns)).rename(columns).to_dicts()
