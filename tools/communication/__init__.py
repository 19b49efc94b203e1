"""What is communicated, how often, for how long and how fast, by collective."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ccl_bench.base.units import GIGA
from tools.answers import Answers, answer, answers_of, known_or_reason, origin, plain, renamed

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result import Result

METRICS = (
    "total_communication_time",
    "exposed_communication_time",
    "communication_fraction",
    "traffic_distribution_16",
    "coll_call_num",
)
TABLES = ("transfers",)


_NO_RATE = "no call in a step has both a recorded size and a time"

_TIMES = {
    "summed_s": "communication_sum_s",
    "per_collective_s": "per_collective_union_s",
    "per_collective_summed_s": "per_collective_sum_s",
    "per_rank_s": "per_rank_communication_s",
}
_TRAFFIC = {
    "per_collective_calls": "per_collective_calls_count",
    "unattributed_calls_count": "unattributed_calls_count",
}


def metric_cal(
    trace_dir: str | Path, workload_card_path: str | Path | None = None, profile_mode: str = "auto"
) -> dict[str, Any]:
    """Return bytes, calls, times and bandwidths of one GPU in one step, by collective.

    Collectives have the names of torch.distributed. Counts, bytes and times are means over ranks and steps:
    `calls_count` is the sum of `per_collective_calls_count`, and calls of a collective times its mean message
    are its bytes, if every call has a size and moves it. `lowest_rank_calls_count` is the metric
    `coll_call_num`, which counts one rank; stages of a pipeline differ.

    Bytes are messages as nccl-tests counts them. Bandwidths are of the whole trace, on the best basis
    that a collective has, and of the reach (inside a node, between nodes) that carries most.
    """
    return described(answers_of(METRICS, trace_dir, workload_card_path, profile_mode, tables=TABLES))


def described(answers: Answers) -> dict[str, Any]:
    """Return the dict of `metric_cal` from what was measured of the run."""
    time, exposed, share, traffic, calls = answers.of(*METRICS)
    return {
        **answer("communication_s", time),
        **renamed(time.details, _TIMES),
        **answer("exposed_communication_s", exposed),
        **answer("communication_pct", share),
        **answer("lowest_rank_calls_count", calls),
        **({"calls_count": plain(count)} if (count := _calls(traffic, calls)) is not None else {}),
        **_traffic(answers),
        **renamed(traffic.details, _TRAFFIC),
        **known_or_reason("efficiency", _NO_RATE, _efficiency(answers)),
        **known_or_reason("bandwidth", _NO_RATE, _bandwidths(answers)),
        **origin(answers.of(*METRICS)),
    }


def _calls(traffic: Result, calls: Result) -> float | None:
    """Return the calls in a step, mean over ranks; None if they are unknown."""
    if traffic.value is not None:
        return math.fsum(traffic.details["per_collective_calls"].values())
    return fmean(calls.details["per_rank"].values()) if calls.value is not None else None


def _traffic(answers: Answers) -> dict[str, Any]:
    """Return the bytes of a step, in all and by collective, and the mean size of a message."""
    (traffic,) = answers.of("traffic_distribution_16")
    if traffic.value is None:
        return answer("", traffic)
    means = traffic.details["per_collective_mean_message_bytes"]
    totals = traffic.details["per_collective_gb"]
    return {
        "communicated_bytes": _bytes(traffic.value),
        "per_collective_bytes": {name: _bytes(size) for name, size in totals.items()},
        "per_collective_mean_message_bytes": {name: plain(mean) for name, mean in means.items()},
    }


def _bytes(gigabytes: float) -> int | float:
    """Return bytes; a mean over steps need not be whole."""
    return plain(round(gigabytes * GIGA, 3))


def _efficiency(answers: Answers) -> dict[str, float]:
    """Return bytes over the time in which anything was communicated."""
    time, traffic = answers.of("total_communication_time", "traffic_distribution_16")
    return {"efficiency_gb_per_s": traffic.value / time.value} if time.value and traffic.value else {}


def _bandwidths(answers: Answers) -> dict[str, Any]:
    """Return algorithm and bus bandwidth by collective, and what their times rest on."""
    from ccl_bench.analysis.communication.bandwidth import BASES, rates

    transfers = answers.tables.get("transfers")
    if transfers is None:
        return {}
    algorithm: dict[str, float] = {}
    bus: dict[str, float | None] = {}
    basis: dict[str, str] = {}
    for row in rates(transfers, "collective", "basis", "spans_nodes").sort("bytes").iter_rows(named=True):
        name = row["collective"]
        if name not in basis or BASES.index(row["basis"]) <= BASES.index(basis[name]):
            algorithm[name], bus[name] = row["algorithm_bandwidth"], row["bus_bandwidth"]
            basis[name] = row["basis"]
    return {
        "per_collective_algorithm_gb_per_s": algorithm,
        "per_collective_bus_gb_per_s": {name: rate for name, rate in bus.items() if rate is not None},
        "per_collective_basis_kind": basis,
    }
