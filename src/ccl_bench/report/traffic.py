"""Bandwidth and traffic as tables: by collective and by parallelism dimension, or why they are not known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.report.console import Group, Text, aligned
from ccl_bench.report.numbers import duration, percent, size
from ccl_bench.report.results import STATUS_WORDS
from ccl_bench.report.words import counted, plain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ccl_bench.result import Result

GIGA = 1e9
BANDWIDTHS = {
    "all_reduce": "bandwidth_utilization_allreduce",
    "all_gather": "bandwidth_utilization_allgather",
    "reduce_scatter": "bandwidth_utilization_reducescatter",
    "all_to_all": "bandwidth_utilization_alltoall",
    "send, recv": "bandwidth_utilization_p2p",
}
Results = dict[str, "Result"]


def bandwidth(results: Results) -> RenderableType | None:
    """Return how fast data moved, one row a kind of collective; what does not occur is left out."""
    rows = []
    for name, metric in BANDWIDTHS.items():
        result = results.get(metric)
        if result and result.value is not None:
            rows.append((name, *_bandwidth_cells(result.details, result.value)))
    if not rows:
        found = [result for metric in BANDWIDTHS.values() if (result := results.get(metric))]
        return _reason(found[0]) if found else None
    header = ("COLLECTIVE", "BUS", "ALGORITHM", "OF THE LINK", "CALLS", "BYTES", "TIME IS", "REACH")
    return aligned(header, rows, right=(1, 2, 3, 4, 5))


def _bandwidth_cells(details: dict[str, Any], bus: float) -> tuple[str, ...]:
    share = details.get("share_of_link_pct")
    return (
        f"{bus:.3f} GB/s",
        f"{details['algorithm_bandwidth_gb_per_s']:.3f} GB/s",
        "unknown" if share is None else percent(share),
        f"{details['calls_count']:,}",
        size(details["total_bytes"]),
        details["basis"],
        details.get("reach", "unknown"),
    )


def traffic(results: Results) -> RenderableType | None:
    """Return what one GPU communicates in one step, one row a collective."""
    found, times = results.get("traffic_distribution_16"), results.get("total_communication_time")
    if found is None or found.value is None:
        return _reason(found) if found else None
    unions = times.details.get("per_collective_s", {}) if times else {}
    bytes_of, calls = found.details["per_collective_gb"], found.details["per_collective_calls"]
    rows = [
        (
            name,
            f"{calls.get(name, 0):,.4g}" if name in calls else "-",
            size(bytes_of[name] * GIGA) if name in bytes_of else "-",
            percent(100 * bytes_of[name] / found.value) if found.value and name in bytes_of else "-",
            duration(unions[name]) if name in unions else "-",
        )
        for name in dict.fromkeys((*bytes_of, *sorted(unions)))
    ]
    total = duration(times.value) if times and times.value is not None else "-"
    rows.append(("all", f"{sum(calls.values()):,.4g}", size(found.value * GIGA), "", total))
    silent = found.details.get("unattributed_calls_count", 0)
    table = aligned(("COLLECTIVE", "CALLS", "BYTES", "SHARE", "TIME"), rows, right=(1, 2, 3, 4))
    return Group(table, Text(f"{counted(silent, 'call')} of unknown size in all", "dim")) if silent else table


def dimensions(results: Results) -> RenderableType | None:
    """Return what one GPU communicates in one step, one row a parallelism dimension."""
    result = results.get("traffic_distribution")
    if result is None or result.value is None:
        return _reason(result) if result else None
    rows = [
        (
            name,
            f"{row['calls_per_gpu_and_step']:,.4g}",
            "unknown" if (moved := row["bytes_per_gpu_and_step"]) is None else size(moved),
            "unknown" if (share := row["share_pct"]) is None else percent(share),
            duration(row["time_s_per_gpu_and_step"]),
        )
        for name, row in result.details["per_dimension"].items()
    ]
    return aligned(("DIMENSION", "CALLS", "BYTES", "SHARE", "TIME"), rows, right=(1, 2, 3, 4))


def _reason(result: Result) -> Text:
    """Return why there is no value."""
    return Text(f"{STATUS_WORDS[result.status]}: {plain(result.reason)}")
