"""Details beside the values of metrics, on tables of two ranks and two steps that can be followed by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from ccl_bench import metrics
from ccl_bench.analysis.facts import Fact, Facts
from ccl_bench.base.errors import NotApplicable, NotMeasurable
from ccl_bench.metrics.shared.other_sources import source_finding

KEYS = {"trace": pl.Int64, "rank": pl.Int64, "iteration": pl.Int64, "step": pl.Int64}
MOE = Facts(is_moe=Fact(value=True, source="card"), pp=Fact(2, "card"))


def table(*records: dict[str, Any], **types: Any) -> pl.DataFrame:
    """Return records of steps; the trace is the rank."""
    keyed = [{"iteration": None, "trace": record.get("rank", 0)} | record for record in records]
    return pl.DataFrame(keyed, schema_overrides=KEYS | types)


def each(*records: dict[str, Any], **types: Any) -> pl.DataFrame:
    """Return one record for each step of rank 0, and then for each of rank 1."""
    place = [(rank, step) for rank in (0, 1) for step in (1, 2)]
    return table(
        *({"rank": rank, "step": step} | row for (rank, step), row in zip(place, records, strict=True)),
        **types,
    )


STEPS = each(*[{"source": "ProfilerStep", "start_ns": 0, "end_ns": 1000, "length_ns": 1000}] * 4)


def details(metric: str, *given: Any) -> dict[str, Any]:
    """Return the details of a metric, whose value is among them as `value`."""
    found = metrics.load().get(metric).compute(*given)
    return {"value": found.value, **found.details}


def check(found: dict[str, Any], **expected: Any) -> None:
    """Compare details with what is worked out by hand."""
    for name, value in expected.items():
        shown = found[name]
        if isinstance(value, dict):
            assert shown.keys() == value.keys(), name
            assert [*shown] == [*value], name
        assert shown == (value if isinstance(value, list | str | None) else pytest.approx(value)), name


def calls(count: int, rank: int = 0, step: int | None = 1, **changed: Any) -> list[dict[str, Any]]:
    known = {"collective": "all_reduce", "dimension": "tp", "size": 4, "size_bytes": 1_000_000}
    known |= {"rank": rank, "step": step, "start_ns": 0, "end_ns": 10}
    return [known | {"call": place} | changed for place in range(count)]


# 12 MB on rank 0, 4 MB on rank 1, in four steps; one call has no size
TRAFFIC = table(
    *calls(6), *calls(2, step=2, collective="all_gather", dimension="dp", size_bytes=3_000_000),
    *calls(2, rank=1), *calls(1, rank=1, step=2, size=1, size_bytes=2_000_000),
    *calls(1, rank=1, collective="all_gather", dimension="dp", size_bytes=None),
    *calls(1, step=None, size_bytes=10**9),
)  # fmt: skip


def test_bytes_by_dimension_are_those_of_one_gpu_in_one_step() -> None:
    exposed = table({"step": 1, "call": 5, "start_ns": 5, "end_ns": 9, "collective": "all_reduce"})
    found = details("traffic_distribution", TRAFFIC, exposed, STEPS, Facts())
    check(found, value=100 * 10 / 16, busiest="tp")
    tp, dp = (found["per_dimension"][name] for name in ("tp", "dp"))
    assert [*found["per_dimension"]] == ["tp", "dp"]
    check(tp, share_pct=62.5, bytes_per_gpu_and_step=2_500_000, calls_per_gpu_and_step=9 / 4)
    check(dp, share_pct=37.5, bytes_per_gpu_and_step=1_500_000, calls_per_gpu_and_step=3 / 4)
    check(dp, unattributed_calls_count=1, time_s_per_gpu_and_step=20e-9 / 4, exposed_s_per_gpu_and_step=0)
    check(tp, unattributed_calls_count=0, time_s_per_gpu_and_step=20e-9 / 4, exposed_s_per_gpu_and_step=1e-9)


def test_bytes_by_collective_are_listed_the_most_first() -> None:
    same = table(
        *calls(2), *calls(2, collective="all_gather"), *calls(1, collective="broadcast", size_bytes=4)
    )
    found = details("traffic_distribution_16", same, STEPS)
    assert [*found["per_collective_gb"]] == ["all_gather", "all_reduce", "broadcast"]
    found = details("traffic_distribution_16", TRAFFIC, STEPS)
    check(
        found, value=16e-3 / 4,
        per_collective_gb={"all_reduce": 10e-3 / 4, "all_gather": 6e-3 / 4},
        per_collective_calls={"all_reduce": 9 / 4, "all_gather": 3 / 4},
        per_collective_mean_message_bytes={"all_gather": 3_000_000, "all_reduce": 1_000_000},
        per_rank_gb={"0": 12e-3 / 2, "1": 4e-3 / 2}, unattributed_calls_count=1,
    )  # fmt: skip


def test_the_volume_of_a_collective_has_its_ranks_and_dimensions() -> None:
    found = details("collective_volume_allreduce", TRAFFIC, STEPS)
    check(
        found, value=10e-3 / 4, calls_per_gpu_and_step=9 / 4, mean_message_bytes=1_000_000,
        per_rank_gb={"0": 6e-3 / 2, "1": 4e-3 / 2}, per_dimension_gb={"tp": 10e-3 / 4},
        unattributed_calls_count=0,
    )  # fmt: skip


def wait(rank: int, step: int, ns: int, group: str = "g", **changed: Any) -> dict[str, Any]:
    known = {"rank": rank, "step": step, "group": group, "dimension": "tp", "collectives": 1, "wait_ns": ns}
    return known | {"arrived_last": int(not ns), "caused_ns": 0, "complete": True} | changed


WAITS = table(
    wait(0, 1, 0, caused_ns=40), wait(1, 1, 40), wait(0, 2, 10), wait(1, 2, 0, caused_ns=10),
    wait(0, 1, 20, "h"), wait(1, 1, 0, "h", complete=False),
)  # fmt: skip


def test_waits_are_listed_by_rank_and_step() -> None:
    found = details("straggler_lag_16", WAITS, STEPS)
    # rank 0 waits 20 and 10 ns, rank 1 40 and 0
    check(
        found, value=(20 + 10) / 2 * 1e-9, wait_s_per_step={"0": 15e-9, "1": 20e-9},
        per_step_s={"1": 20e-9, "2": 10e-9},
    )  # fmt: skip
    waits = found["per_rank_per_step_wait_s"]
    assert [(rank, [*by_step]) for rank, by_step in waits.items()] == [("0", ["1", "2"]), ("1", ["1", "2"])]
    check(waits["0"], **{"1": 20e-9, "2": 10e-9})
    check(waits["1"], **{"1": 40e-9, "2": 0})
    assert found["members_complete"] is False


def test_stragglers_have_their_share_of_each_step_and_what_they_cause() -> None:
    parts = each(*[{"compute_ns": 500, "idle_ns": 0, "exposed_memory_ns": 0}] * 4)
    found = details("straggler", WAITS, STEPS, parts, Facts())
    check(
        found, value=15 / 1000, straggler_lag_s=15e-9, step_s=1e-6, per_step_ratio={"1": 0.02, "2": 0.01},
        wait_s_per_step={"0": 15e-9, "1": 20e-9}, arrived_last_count={"0": 1, "1": 2},
        caused_wait_s_per_step={"0": 20e-9, "1": 5e-9}, noise_floor_ratio=0.01,
    )  # fmt: skip
    assert found["per_group"].keys() == {"g", "h"}
    check(found["per_group"]["g"], dimension="tp", waits_least="0", lag_s=(40 - 10) / 2 * 1e-9)
    check(found["per_group"]["h"], waits_least="1", lag_s=20e-9)


def kernel(
    rank: int, step: int, name: str, kind: str, ns: int, count: int = 1, **more: Any
) -> dict[str, Any]:
    known = {"rank": rank, "step": step, "name": name, "type": kind, "duration_ns": ns, "count": count}
    return known | {"collective": None} | more


KERNELS = table(
    kernel(0, 1, "gemm_a", "gemm", 300, 2), kernel(0, 2, "gemm_a", "gemm", 100),
    kernel(0, 1, "ar", "communication", 400), kernel(0, 2, "odd", "other", 200),
    kernel(1, 1, "gemm_b", "gemm", 600, 3), kernel(1, 2, "ar", "communication", 200),
    collective=pl.String,
)  # fmt: skip


def test_the_longest_kernel_is_that_of_each_rank() -> None:
    found = details("dominant_kernel_concentration", KERNELS, STEPS)
    # rank 0: 400 of 1,000 each, by name; rank 1: 600 of 800; without communication 400 of 600, and all
    check(found, value=(40 + 75) / 2, per_rank_pct={"0": 40, "1": 75})
    assert found["per_rank_name"] == {"0": "ar", "1": "gemm_b"}
    assert found["compute_only_pct"] == pytest.approx((100 * 400 / 600 + 100) / 2)
    first = [(row["name"], row["count"]) for row in found["first"]]
    assert first == [("ar", 2), ("gemm_b", 3), ("gemm_a", 3), ("odd", 1)]
    check(found["first"][0], pct=100 * 600 / 1800, s_per_step=600e-9 / 4)


def test_kernel_time_is_divided_by_type() -> None:
    found = details("total_kernel_time", KERNELS, STEPS)
    # rank 0: gemm 400, communication 400, other 200; rank 1: gemm 600, communication 200; two steps each
    check(
        found, value=(500 + 400) / 2 * 1e-9, kernels_per_step=9 / 4,
        per_type_s={"gemm": 250e-9, "communication": 150e-9, "other": 50e-9},
        per_type_pct={"gemm": 100 * 250 / 450, "communication": 100 * 150 / 450, "other": 100 * 50 / 450},
        per_rank_s={"0": 500e-9, "1": 400e-9},
    )  # fmt: skip


def test_communication_time_has_unions_and_sums_by_collective() -> None:
    spans = each(
        *[
            {"window_ns": 1000, "communication_ns": ns, "exposed_communication_ns": ns}
            for ns in (400, 0, 200, 200)
        ]
    )
    by_kind = table(
        {"rank": 0, "step": 1, "collective": "all_reduce", "union_ns": 300, "duration_ns": 350},
        {"rank": 0, "step": 1, "collective": "all_gather", "union_ns": 100, "duration_ns": 150},
        {"rank": 1, "step": 2, "collective": "all_reduce", "union_ns": 100, "duration_ns": 250},
    )
    found = details("total_communication_time", spans, by_kind, STEPS)
    check(
        found, value=200e-9, per_collective_s={"all_gather": 25e-9, "all_reduce": 100e-9},
        per_collective_summed_s={"all_gather": 37.5e-9, "all_reduce": 150e-9}, summed_s=187.5e-9,
    )  # fmt: skip


def copied(rank: int, kind: str, size: int, ns: int, **more: Any) -> dict[str, Any]:
    known = {"rank": rank, "step": 1, "kind": kind, "bytes": size, "duration_ns": ns, "count": 3, "sized": 2}
    return known | {"time_ns": ns, "union_ns": ns} | more


COPIES = table(
    copied(0, "HtoD", 1000, 100), copied(0, "DtoD", 4000, 100), copied(1, "DtoD", 2000, 50),
    copied(1, "memset", 9999, 1), copied(1, "HtoH", 0, 0, sized=0),
)  # fmt: skip


def test_rates_of_copies_are_bytes_over_time() -> None:
    found = details("average_memory_bandwidth", COPIES, STEPS)
    check(
        found, value=(25 + 40) / 2, per_rank_gb_per_s={"0": 25, "1": 40},
        per_kind_gb_per_s={"DtoD": 40, "HtoD": 10}, per_kind_bytes_per_step={"DtoD": 1500, "HtoD": 250},
        copies_of_unknown_size=1 + 1 + 1 + 3,
    )  # fmt: skip
    with pytest.raises(NotMeasurable):
        details("average_memory_bandwidth", COPIES.filter(pl.col("kind") == "memset"), STEPS)


def test_copies_within_the_memory_count_twice_against_its_peak() -> None:
    devices = pl.DataFrame({"name": ["NVIDIA A100-SXM4-80GB"], "memory_bytes": [85_174_583_296]})
    found = details("memory_bandwidth_utilization", COPIES, devices, STEPS, Facts())
    # 4,000 bytes in 100 ns and 2,000 in 50, read and written: 80 GB/s of 2,039
    check(found, achieved_gb_per_s=80, peak_gb_per_s=2039, value=100 * 80 / 2039)
    check(
        found,
        per_rank_pct={"0": 100 * 80 / 2039, "1": 100 * 80 / 2039},
        device_source="deviceProperties of the traces",
    )


A100, H100 = ("NVIDIA A100-SXM4-80GB", 85_174_583_296), ("NVIDIA H100 80GB HBM3", 85_017_755_648)


@pytest.mark.parametrize(
    ("seen", "card", "peak"),
    [
        ([A100, A100], "H100 SXM", 2039),
        ([A100, H100], "A100 SXM 80GB", 2039),
        ([A100, H100], None, None),
        ([], "A100 SXM 80GB", 2039),
        ([], None, None),
    ],
)
def test_the_peak_is_of_the_one_device_seen_else_of_the_card(
    seen: list[tuple[str, int]], card: str | None, peak: float | None
) -> None:
    schema = {"name": pl.String, "memory_bytes": pl.Int64}
    devices = pl.DataFrame([("", None), *seen], schema=schema, orient="row")
    facts = Facts(device=Fact(card, "workload card") if card else None)
    if peak is None:
        with pytest.raises(NotMeasurable if seen else NotApplicable):
            details("memory_bandwidth_utilization", COPIES, devices, STEPS, facts)
        return
    found = details("memory_bandwidth_utilization", COPIES, devices, STEPS, facts)
    check(found, peak_gb_per_s=peak)
    is_seen = len({*seen}) == 1
    assert found["device_source"] == ("deviceProperties of the traces" if is_seen else "workload card")


def test_copies_that_no_kernel_hides_are_a_share_of_steps() -> None:
    time = each(
        *[
            {"window_ns": 1000, "copy_ns": copy, "exposed_ns": alone, "kernel_ns": 1}
            for copy, alone in ((100, 50), (0, 0), (300, 150), (100, 50))
        ]
    )
    found = details("memory_transfer_overhead", time, COPIES, STEPS)
    check(
        found, value=(2.5 + 10) / 2, per_rank_pct={"0": 2.5, "1": 10}, per_step_pct={"1": 10, "2": 2.5},
        exposed_s=(25 + 100) / 2 * 1e-9, copy_s=(50 + 200) / 2 * 1e-9, copy_pct_of_step=(5 + 20) / 2,
        per_kind_s={"DtoD": (50 + 25) / 2 * 1e-9, "HtoD": 25e-9, "HtoH": 0, "memset": 0.25e-9},
    )  # fmt: skip


def test_own_work_of_fsdp_has_its_parts() -> None:
    parts = ("all_gather", "reduce_scatter", "copy_in", "copy_out", "reshard", "other")
    own = {f"{part}_ns": 10 * (place + 1) for place, part in enumerate(parts)}
    own |= {"window_ns": 1000, "exposed_ns": 50, "work_ns": 200, "host_ns": 30, "all_gathers": 4}
    own |= {
        "communication_ns": 25,
        "reduce_scatters": 2,
        "all_gather_hidden_ns": 4,
        "reduce_scatter_hidden_ns": 15,
    }
    table_of = each(own, own | {"exposed_ns": 150}, own | {"all_gathers": 8}, own)
    found = details("fsdp_overhead", table_of, STEPS, Facts())
    check(
        found, value=(10 + 5) / 2, per_rank_pct={"0": 10, "1": 5}, per_step_pct={"1": 5, "2": 10},
        communication_s=25e-9, exposed_s=75e-9, work_s=200e-9, work_pct_of_step=20, host_s=30e-9,
        all_gathers_per_step=5,
        reductions_per_step=2, **{f"{part}_s": 10e-9 * (place + 1) for place, part in enumerate(parts)},
    )  # fmt: skip
    found = details("fsdp_prefetch_efficiency", table_of, STEPS, Facts())
    check(
        found, value=40, per_rank_pct={"0": 40, "1": 40}, per_step_pct={"1": 40, "2": 40}, all_gather_s=10e-9,
        hidden_s=4e-9, reduction_hidden_pct=75,
    )  # fmt: skip


def used(window: int, occupied: float, **more: Any) -> dict[str, Any]:
    known = {"window_ns": window, "occupied_ns": occupied, "compute_occupied_ns": occupied / 2}
    known |= {"communication_occupied_ns": occupied / 4, "kernel_ns": window // 2, "occupancy_pct": 50.0}
    return known | {"occupancy_weight_ns": 10, "rated_kernels": 1, "kernels": 2} | more


NO_SAMPLES = pl.DataFrame(schema={"rank": pl.Int64, "samples": pl.Int64, "sm_active_pct": pl.Float64})
ONE_DEVICE = pl.DataFrame({"trace": [0], "rank": [0], "device": [0]})


def test_use_of_multiprocessors_has_its_shares() -> None:
    table_of = each(
        used(100, 40.0),
        used(300, 40.0),
        used(100, 60.0),
        used(100, 20.0, occupancy_pct=30.0, rated_kernels=2),
    )
    found = details("sm", table_of, NO_SAMPLES, STEPS, ONE_DEVICE)
    check(
        found, value=(20 + 40) / 2, kind="estimated", per_rank_pct={"0": 20, "1": 40},
        per_step_pct={"1": 50, "2": (40 / 3 + 20) / 2}, compute_pct=15, communication_pct=7.5,
        gpu_busy_with_kernels_pct=50, estimated_achieved_occupancy_pct=45, kernels_with_launch_shape_pct=62.5,
    )  # fmt: skip
    samples = each(
        *[
            {"window_ns": window, "samples": count, "sm_active_pct": share}
            for window, count, share in ((100, 5, 10.0), (300, 7, 30.0), (100, 1, 50.0), (100, 0, None))
        ]
    )
    found = details("sm", table_of, samples, STEPS, ONE_DEVICE)
    check(
        found, value=(25 + 50) / 2, kind="measured", per_rank_pct={"0": 25, "1": 50},
        per_step_pct={"1": 30, "2": 30}, samples_count=13,
    )  # fmt: skip


def test_kernels_of_experts_are_a_share_of_all() -> None:
    kernels = table(
        kernel(0, 1, "moe_align_block_size", "moe", 100), kernel(0, 1, "gemm", "gemm", 300),
        kernel(1, 2, "deep_ep::intranode::dispatch", "communication", 50, collective="all_to_all"),
        kernel(1, 2, "ncclDevKernel_SendRecv", "communication", 150, collective="all_to_all"),
        collective=pl.String,
    )  # fmt: skip
    found = details("moe_fraction", kernels, STEPS, MOE)
    check(
        found, value=25, per_rank_pct={"0": 25, "1": 25}, per_step_pct={"1": 25, "2": 25}, routing_pct=12.5,
        grouped_matrix_products_pct=0, dispatch_and_combine_pct=12.5, fused_experts_pct=0,
        other_all_to_all_pct=37.5,
    )  # fmt: skip


def test_products_have_their_sums_for_one_step() -> None:
    work = each(
        *[
            {"products": 3, "sized": sized, "flops": float(flops), "bytes": float(moved)}
            for sized, flops, moved in ((3, 400, 100), (2, 200, 100), (3, 800, 100), (0, 0, 0))
        ]
    )
    found = details("compute_intensity", work, STEPS)
    check(
        found, value=(3 + 8) / 2, per_rank_flop_per_byte={"0": 3, "1": 8}, flops_per_step=350,
        bytes_per_step=75,
        products_per_step=3, products_without_shape_count=4,
    )  # fmt: skip


def test_idle_time_is_divided_by_cause() -> None:
    gaps = each(
        *[
            {"window_ns": 1000, "idle_ns": 10 * host, "host_wait_ns": host, "kernel_wait_ns": 3 * host}
            | {"other_ns": 6 * host}
            for host in (10, 20, 40, 0)
        ]
    )
    streams = table(
        {"rank": 0, "step": 1, "stream": 7, "host_wait_ns": 20, "kernel_wait_ns": 40, "other_ns": 0},
        {"rank": 1, "step": 1, "stream": 7, "host_wait_ns": 60, "kernel_wait_ns": 0, "other_ns": 8},
        {"rank": 1, "step": 2, "stream": 9, "host_wait_ns": 4, "kernel_wait_ns": 0, "other_ns": 0},
    )
    launching = each(*[{"launches": 2, "graph_launches": 1}] * 4)
    found = details("idle_breakdown", gaps, streams, launching, STEPS)
    check(
        found, value=10, per_cause_pct={"host": 10, "kernel": 30, "other": 60},
        per_step_pct={"1": 10, "2": 10},
        idle_s=(150 + 200) / 2 * 1e-9, host_wait_s=17.5e-9, kernel_wait_s=52.5e-9, other_wait_s=105e-9,
        idle_pct_of_step=17.5, cuda_graph_launches=4,
    )  # fmt: skip
    assert [*found["streams_s"]] == ["7", "9"]
    check(found["streams_s"]["7"], host=(10 + 30) / 2 * 1e-9, kernel=10e-9, other=2e-9)
    check(found["streams_s"]["9"], host=1e-9)


def test_bubbles_are_means_over_ranks_then_steps_then_stages() -> None:
    def row(rank: int, step: int, stage: int, bubble: int, **more: Any) -> dict[str, Any]:
        known = {
            "rank": rank,
            "step": step,
            "stage": stage,
            "window_ns": 1000,
            "compute_ns": 600 + 200 * stage,
        }
        known |= {"exposed_collectives_ns": 10, "exposed_transfer_ns": 20, "message_wait_ns": 30}
        known |= {
            "bubble_ns": bubble,
            "warm_up_ns": bubble,
            "steady_ns": 0,
            "cool_down_ns": 0,
            "unmatched": 1,
        }
        return known | more

    spans = table(row(0, 1, 0, 100), row(0, 2, 0, 300), row(1, 1, 1, 400), row(1, 2, 1, 600, steady_ns=None))
    found = details("bubble_size_pipeline", spans, MOE)
    check(
        found, value=(200 + 500) / 2 * 1e-9, fraction_ratio=0.35, per_step_s={"1": 250e-9, "2": 450e-9},
        stage_imbalance_ratio=800 / 700, unmatched_messages_count=4, stages_count=2,
    )  # fmt: skip
    check(
        found["per_stage"]["0"], bubble_s=200e-9, fraction=0.2, warm_up_s=200e-9, steady_s=0, cool_down_s=0,
        compute_s=600e-9, message_wait_s=30e-9, exposed_transfer_s=20e-9, exposed_collectives_s=10e-9,
    )  # fmt: skip
    assert "steady_s" not in found["per_stage"]["1"]
    assert "parts_missing" not in found
    assert "theory" not in found


def counted(
    rank: int, step: int, counter: str, pct: float, window: int = 100, samples: int = 4
) -> dict[str, Any]:
    known = {"rank": rank, "step": step, "counter": counter, "mean_pct": pct, "window_ns": window}
    return known | {"samples": samples}


def test_counters_of_both_directions_are_sums_of_theirs() -> None:
    sampled = table(
        counted(0, 1, "PCIe RX", 10.0), counted(0, 1, "PCIe TX", 30.0),
        counted(0, 2, "PCIe RX", 20.0, 300, 6), counted(0, 2, "PCIe TX", 40.0, 300, 6),
        counted(1, 1, "PCIe RX", 50.0), counted(1, 1, "PCIe TX", 70.0),
    )  # fmt: skip
    found = details("pcie_utilization", sampled, STEPS)
    # rank 0: (20 x 100 + 30 x 300) / 400; rank 1: 60
    check(
        found, value=(27.5 + 60) / 2, per_rank_pct={"0": 27.5, "1": 60}, per_step_pct={"1": 40, "2": 30},
        per_counter_pct={"PCIe RX": (17.5 + 50) / 2, "PCIe TX": (37.5 + 70) / 2},
        per_direction_pct={"RX": (17.5 + 50) / 2, "TX": (37.5 + 70) / 2}, samples_count=14,
    )  # fmt: skip
    memory = table(counted(0, 1, "DRAM Read", 10.0), counted(0, 1, "DRAM Write", 5.0))
    found = details("dram_utilization", memory, STEPS)
    check(found, value=15, per_counter_pct={"DRAM Read": 10, "DRAM Write": 5}, samples_count=4)
    assert "per_direction_pct" not in found
    assert details("dram_utilization", table(counted(0, 1, "DRAM", 7.0)), STEPS)["value"] == 7
    with pytest.raises(NotMeasurable, match="only DRAM Read was sampled"):
        details("dram_utilization", memory.head(1), STEPS)


def test_network_cards_have_their_rates_in_both_directions() -> None:
    def card(rank: int, name: str, size: float, *, is_sent: bool) -> dict[str, Any]:
        known = {"rank": rank, "step": 1, "card": name, "is_sent": is_sent, "covered_ns": 100}
        return known | {"window_ns": 200, "bytes": size}

    rates = table(
        card(0, "a", 500.0, is_sent=True), card(0, "a", 100.0, is_sent=False),
        card(0, "b", 400.0, is_sent=True),
        card(0, "a", 300.0, is_sent=True), card(1, "a", 600.0, is_sent=True),
    )  # fmt: skip
    found = details("network_throughput", rates, STEPS)
    check(
        found, value=(4 + 1 + 4 + 6) / 2, per_rank_gb_per_s={"0": 9, "1": 6},
        per_card_sent_gb_per_s={"a": 5, "b": 4}, per_card_received_gb_per_s={"a": 1},
    )  # fmt: skip


TIMES = each(
    *[{"source": "ProfilerStep", "duration_ns": ns, "host_ns": ns // 2} for ns in (100, 400, 300, 200)]
)


def test_step_times_are_those_of_the_slowest_rank() -> None:
    found = details("iteration_wall_clock_time", TIMES)
    check(
        found, value=350e-9, per_step_s={"1": 300e-9, "2": 400e-9}, per_rank_s={"0": 250e-9, "1": 250e-9},
        slowest_rank=[1, 0], host_range_s=175e-9,
    )  # fmt: skip
    check(found["spread_s"], count=2, min=300e-9, max=400e-9)
    stated = Facts(tokens_per_step=Fact(700, "card"), world_size=Fact(4, "card"))
    found = details("throughput_tokens_sec", TIMES, stated)
    check(
        found, value=2e9, tokens_per_step=700, iteration_wall_clock_time_s=350e-9, tokens_per_s_per_gpu=0.5e9,
        gpus=4, per_step_tokens_per_s={"1": 700 / 300e-9, "2": 700 / 400e-9},
    )  # fmt: skip


def test_busy_time_is_divided_into_parts_of_ranks_and_steps() -> None:
    spans = each(
        *[
            {"window_ns": 1000, "busy_ns": busy, "compute_ns": busy - 100, "communication_ns": 100}
            | {"exposed_communication_ns": 100, "exposed_memory_ns": 0, "idle_ns": 1000 - busy}
            for busy in (500, 700, 300, 900)
        ]
    )
    parts = each(*[{"part": "waiting", "time_ns": ns, "exposed_ns": ns} for ns in (50, 100, 0, 100)])
    steps = STEPS.with_columns(length_ns=pl.Series([1000, 1000, 1000, 1400]))
    found = details("gpu_busy", spans, steps, ONE_DEVICE, parts)
    check(
        found, value=60, per_rank_pct={"0": 60, "1": 60}, per_step_pct={"1": 40, "2": 80},
        per_rank_s_per_step={"0": 600e-9, "1": 600e-9}, waiting_pct=(7.5 + 5) / 2,
        busy_without_waiting_pct=60 - 6.25, per_rank_waiting_pct={"0": 7.5, "1": 5},
        step_s=1200e-9, longest_s_by_step={"1": 1000e-9, "2": 1400e-9},
    )  # fmt: skip
    check(found["per_rank_parts_s_per_step"]["0"], compute=500e-9, exposed_communication=100e-9, window=1e-6)
    check(found["per_step_parts_s"]["1"], compute=300e-9, idle=600e-9, window=1e-6)


def test_gaps_between_dimensions_have_their_spread_and_duty() -> None:
    def call(start: int, end: int, dimension: str, size: int | None = 8) -> dict[str, Any]:
        known = {"rank": 0, "step": 1, "start_ns": start, "end_ns": end}
        return known | {"dimension": dimension, "size_bytes": size}

    # windows: tp 0 to 40 of which 30 are communication, dp 50 to 60, tp 55 to 65, dp 85 to 95
    traffic = table(
        call(0, 10, "tp"),
        call(20, 40, "tp", None),
        call(50, 60, "dp"),
        call(55, 65, "tp"),
        call(85, 95, "dp"),
    )
    found = details("traffic_window", traffic, STEPS, Facts())
    check(found, value=(10 + 0 + 20) / 3 * 1e-9, overlapping_windows_count=1)
    check(found["gap_s"], count=3, max=20e-9, min=0)
    check(
        found["per_dimension"]["tp"], windows_count=2, mean_length_s=25e-9, duty_ratio=40 / 50,
        total_bytes=16,
        calls_count=3,
    )  # fmt: skip
    check(found["per_dimension"]["dp"], windows_count=2, mean_length_s=10e-9, duty_ratio=1, total_bytes=16)


@pytest.mark.parametrize(("vague", "is_measured"), [(1, True), (2, True), (3, False)])
def test_more_than_half_of_the_calls_need_a_dimension(vague: int, is_measured: bool) -> None:
    def call(place: int, dimension: str) -> dict[str, Any]:
        known = {"rank": 0, "step": 1, "start_ns": 20 * place, "end_ns": 20 * place + 10}
        return known | {"dimension": dimension, "size_bytes": 8}

    known = [call(0, "tp"), call(1, "dp")]
    traffic = table(*known, *[call(2 + place, "unknown") for place in range(vague)])
    if is_measured:
        assert details("traffic_window", traffic, STEPS, Facts())["value"] == pytest.approx(10e-9)
        return
    with pytest.raises(NotMeasurable, match="3 of 5 calls"):
        details("traffic_window", traffic, STEPS, Facts())


@pytest.mark.parametrize(
    ("sizes", "alone"), [([4, 4], None), ([1, 4, None], "1 of 3"), ([1, 1], "2 of 2"), (None, None)]
)
def test_calls_of_groups_of_one_rank_are_counted(sizes: list[int | None] | None, alone: str | None) -> None:
    given = None if sizes is None else pl.DataFrame({"size": sizes}, schema={"size": pl.Int64})
    message = source_finding(STEPS, given).message
    assert ("groups of one rank" in message) == (alone is not None)
    assert (alone or "") in message
