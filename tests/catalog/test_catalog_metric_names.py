"""Names of other programs and everyday words lead to metrics that exist."""

from __future__ import annotations

import pytest

from ccl_bench.base.errors import UsageError
from ccl_bench.catalog import load_data
from ccl_bench.catalog.metric_names import suggestion
from ccl_bench.metrics import load

UPSTREAM = (
    *("aggregate_gpu_utilization", "average_memory_bandwidth", "avg_step_time"),
    *(f"bandwidth_utilization_{kind}_group_6" for kind in ("allgather", "allreduce", "alltoall")),
    *(f"bandwidth_utilization_{kind}_group_6" for kind in ("peertopeer", "reducescatter")),
    *(
        f"collective_vol_{kind}_gb"
        for kind in ("allgather", "allreduce", "alltoall", "reducescatter", "total")
    ),
    *("communication_fraction", "compute_bound_fraction", "compute_comm_overlap"),
    *("dominant_kernel_concentration", "kernel_compute_time_group_6", "mean_sm_coverage"),
    *("memory_bound_fraction", "memory_transfer_overhead", "mfu", "moe_fraction", "throughput_group_6"),
    *("total_communication_time", "total_kernel_time", "total_trace_time"),
    *("tpot", "tpot_group_6", "ttft", "ttft_group_6"),
)
"""Metrics that the leaderboard of cornell-sysphotonics/ccl-bench has shown."""

ROWS = load_data("metric_names")["name"]


@pytest.mark.parametrize("name", UPSTREAM)
def test_a_metric_of_the_original_leaderboard_is_found_or_leads_to_one(name: str) -> None:
    if name in load():
        assert load().get(name).unit
    else:
        with pytest.raises(UsageError) as caught:
            load().get(name)
        assert caught.value.fix.startswith("ask for ")


@pytest.mark.parametrize(
    ("words", "metric"),
    [
        ("step time", "iteration_wall_clock_time"),
        ("GPU utilization", "gpu_busy"),
        ("gpu-Utilisation", "gpu_busy"),
        ("bus_bandwidth", "bandwidth_utilization_allreduce"),
        ("Peak Memory", "peak_memory_allocated"),
    ],
)
def test_everyday_words_lead_to_a_metric(words: str, metric: str) -> None:
    assert suggestion(words).startswith(f"ask for {metric}")


def test_words_that_nothing_is_known_of_lead_nowhere() -> None:
    assert suggestion("colour of the case") == ""


def test_what_is_suggested_exists_and_no_name_of_a_metric_is_listed() -> None:
    asked = [word for row in ROWS for word in row["asked"]]
    assert [name for row in ROWS for name in row["ask_for"] if name not in load().names()] == []
    assert [word for word in asked if word in load()] == []
    assert len({suggestion(word) and word.casefold() for word in asked}) == len(asked)
