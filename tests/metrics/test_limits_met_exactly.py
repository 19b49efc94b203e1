"""Limits and orders of metrics, on tables that meet them exactly and from both sides."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from ccl_bench.analysis.facts import Facts
from ccl_bench.analysis.serving.benchmark import Benchmark
from ccl_bench.analysis.serving.forward_passes import BY_HOST, BY_TWIN
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics.coll_call_num import coll_call_num
from ccl_bench.metrics.comm_comp_overlap import comm_comp_overlap
from ccl_bench.metrics.compute_intensity import compute_intensity
from ccl_bench.metrics.dominant_kernel_concentration import dominant_kernel_concentration
from ccl_bench.metrics.exposed_communication_time import exposed_transfer_time
from ccl_bench.metrics.gpu_busy import gpu_busy
from ccl_bench.metrics.hockney import hockney_alpha, hockney_beta
from ccl_bench.metrics.memory_bandwidth_utilization import memory_bandwidth_utilization
from ccl_bench.metrics.memory_transfer_overhead import memory_transfer_overhead
from ccl_bench.metrics.moe_fraction import moe_fraction
from ccl_bench.metrics.nccl_tests_efficiency import nccl_tests_efficiency
from ccl_bench.metrics.sampled_utilization import dram_utilization, nvlink_utilization
from ccl_bench.metrics.shared.other_sources import source_finding
from ccl_bench.metrics.shared.serving import pass_times, rate, sampled_times
from ccl_bench.metrics.shared.waiting import divided, parts_by
from ccl_bench.metrics.sm import sm
from ccl_bench.metrics.straggler import straggler, straggler_of_step_times
from ccl_bench.metrics.straggler_lag_16 import straggler_lag_16
from ccl_bench.metrics.total_kernel_time import total_kernel_time
from ccl_bench.metrics.traffic_distribution import bytes_by_rank, need_sizes, unknown_share
from ccl_bench.result import WHOLE_TRACE
from ccl_bench.side_files.nccl_tests import Measured, NcclTests

KEYS = {"trace": pl.Int64, "rank": pl.Int64, "iteration": pl.Int64, "step": pl.Int64}


def table(*records: dict[str, Any], **types: Any) -> pl.DataFrame:
    """Return records of steps; the trace is the rank, and rank 0 and step 1 if a record names none."""
    keyed = [
        {"rank": 0, "iteration": None, "step": 1, "source": "mark", "trace": record.get("rank", 0)} | record
        for record in records
    ]
    return pl.DataFrame(keyed, schema_overrides=KEYS | types)


ONE = table({})
THREE = table({}, {"rank": 1}, {"rank": 2})


def kernel(name: str, ns: int, kind: str = "gemm", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "duration_ns": ns, "count": 1, "collective": None} | more


@pytest.mark.parametrize(("known", "is_told"), [(800, False), (799, True)])
def test_kernels_of_unknown_type_are_told_of_above_a_fifth_of_the_time(known: int, is_told: bool) -> None:
    others = [kernel(name, ns, "other") for name, ns in (("odd_a", 60), ("odd_b", 70), ("odd_c", 70))]
    found = total_kernel_time(table(kernel("gemm", known), *others, collective=pl.String), ONE)
    assert ("types_unknown" in found.details) is is_told
    if is_told:  # of equal ones the first by name
        assert "20 %" in found.details["types_unknown"]
        assert found.details["types_unknown"].endswith("odd_b")
        assert found.details["per_type_pct"]["other"] == pytest.approx(100 * 200 / 999)


def test_kernels_that_take_no_time_have_no_unknown_share() -> None:
    found = total_kernel_time(table(kernel("gemm", 7), kernel("odd", 0, "other"), collective=pl.String), ONE)
    assert "types_unknown" not in found.details
    assert "types_unknown" not in total_kernel_time(table(kernel("gemm", 7)), ONE).details


def test_a_rank_counts_as_soon_as_a_kernel_takes_a_nanosecond() -> None:
    kernels = table(
        kernel("a", 1), kernel("b", 3, rank=1), kernel("c", 1, rank=1), kernel("d", 0, rank=2),
        collective=pl.String,
    )  # fmt: skip
    found = dominant_kernel_concentration(kernels, THREE)
    assert found.details["per_rank_pct"] == pytest.approx({"0": 100, "1": 75})
    assert (found.value, found.ranks) == (pytest.approx(87.5), [0, 1])


def test_of_kernels_that_take_equally_long_the_first_by_name_is_the_longest() -> None:
    kernels = table(
        *(kernel(name, 5, kind) for name, kind in (("c", "gemm"), ("a", "communication"), ("b", "gemm"))),
        *(kernel(f"short_{number:02}", 2) for number in range(9)),
        collective=pl.String,
    )
    found = dominant_kernel_concentration(kernels, ONE)
    assert found.details["per_rank_name"] == {"0": "a"}
    names = [row["name"] for row in found.details["first"]]
    assert names == ["a", "b", "c", *(f"short_{number:02}" for number in range(7))]
    assert found.details["compute_only_pct"] == pytest.approx(100 * 5 / 28)
    only = dominant_kernel_concentration(
        table(kernel("ar", 3, "communication"), collective=pl.String), ONE
    ).details
    assert only["compute_only_pct"] is None


def test_the_names_of_the_longest_kernels_are_in_order_of_ranks() -> None:
    kernels = table(
        kernel("c", 5, rank=2), kernel("a", 5), kernel("b", 5, rank=1), kernel("d", 4, rank=1),
        kernel("last", 9, rank=None, trace=7), kernel("first", 9, rank=None, trace=6),
        collective=pl.String,
    )  # fmt: skip
    names = dominant_kernel_concentration(kernels, THREE).details["per_rank_name"]
    assert [*names] == ["unknown", "0", "1", "2"]
    assert names == {"0": "a", "1": "b", "2": "c", "unknown": "last"}  # of the last such trace


def test_a_run_of_kernels_alone_has_no_exposed_copies() -> None:
    def time(kernels: int, copies: int) -> pl.DataFrame:
        return table({"window_ns": 100, "kernel_ns": kernels, "copy_ns": copies, "exposed_ns": copies})

    row = {"kind": "HtoD", "time_ns": 4, "union_ns": 4, "duration_ns": 4, "bytes": 1}
    copies = table(row)
    assert memory_transfer_overhead(time(50, 0), copies.clear(), ONE).value == 0
    assert memory_transfer_overhead(time(0, 4), copies, ONE).value == pytest.approx(4)
    with pytest.raises(NotMeasurable, match="no work of a device"):
        memory_transfer_overhead(time(0, 0), copies.clear(), ONE)


def breakdown(rank: int, window: int, communication: int, overlap: int) -> dict[str, Any]:
    exposed = communication - overlap
    known = {"rank": rank, "window_ns": window, "communication_ns": communication, "overlap_ns": overlap}
    known |= {"exposed_communication_ns": exposed, "exposed_memory_ns": 0, "compute_ns": window - exposed}
    return known | {"idle_ns": 0, "busy_ns": window}


def test_a_step_of_a_nanosecond_of_communication_counts_and_a_step_of_no_length_does_not() -> None:
    spans = table(breakdown(0, 1, 1, 1), breakdown(1, 100, 40, 10), breakdown(2, 0, 0, 0))
    found = comm_comp_overlap(spans, THREE)
    assert found.details["per_rank_pct"] == pytest.approx({"0": 100, "1": 25})
    assert (found.value, found.ranks) == (pytest.approx(62.5), [0, 1])
    assert found.details["exposed_communication_pct_of_step"] == pytest.approx((0 + 30) / 2)
    assert found.details["exposed_communication_s_per_step"] == pytest.approx(15e-9)


@pytest.mark.parametrize(("communication", "has_parts"), [(30, True), (30, False), (0, True)])
def test_waiting_is_a_part_of_busy_time_where_communication_and_its_parts_are_known(
    communication: int, has_parts: bool
) -> None:
    parts = table(part("waiting", 12), reason=pl.String) if has_parts else None
    devices = pl.DataFrame({"trace": [0], "rank": [0], "device": [0]})
    steps = ONE.with_columns(start_ns=0, end_ns=100, length_ns=100)
    found = gpu_busy(table(breakdown(0, 100, communication, 0)), steps, devices, parts)
    assert found.value == pytest.approx(100)
    if has_parts and communication:
        assert found.details["waiting_pct"] == pytest.approx(12)
        assert found.details["busy_without_waiting_pct"] == pytest.approx(88)
    else:
        assert "waiting_pct" not in found.details


def part(name: str, ns: int, **more: Any) -> dict[str, Any]:
    known = {"part": name, "exposed_ns": ns, "time_ns": 2 * ns, "collective": "all_reduce"}
    return known | {"dimension": "tp", "reason": None} | more


def test_parts_of_a_nanosecond_are_listed_and_empty_ones_not() -> None:
    parts = table(
        part("transfer", 1, collective="send", dimension="pp"), part("transfer", 9), part("waiting", 4),
        part("transfer", 0, collective="broadcast", dimension="dp"), part("waiting", 5, dimension="ep"),
        reason=pl.String,
    )  # fmt: skip
    found = exposed_transfer_time(table(breakdown(0, 100, 20, 1)), parts, ONE)
    assert found.value == pytest.approx(10e-9)
    assert found.details["per_collective_s"] == pytest.approx({"all_reduce": 9e-9, "send": 1e-9})
    assert found.details["per_dimension_s"] == pytest.approx({"pp": 1e-9, "tp": 9e-9})
    by_dimension = parts_by(parts, ONE, "dimension", "exposed_ns")
    assert [*by_dimension] == ["ep", "pp", "tp"]
    assert by_dimension["tp"] == pytest.approx({"waiting": 4e-9, "transfer": 9e-9, "unknown": 0})
    assert by_dimension["pp"] == pytest.approx({"waiting": 0, "transfer": 1e-9, "unknown": 0})


def test_what_compute_hides_of_waiting_and_transfer_is_a_share_of_each() -> None:
    # of 40 ns of waiting 30 are exposed, of 20 of transfer 5; the rest of 100 and of 50 is unknown
    parts = table(
        part("waiting", 30, time_ns=40), part("transfer", 5, time_ns=20),
        part("waiting", 9, rank=1, time_ns=9), reason=pl.String,
    )  # fmt: skip
    spans = table(breakdown(0, 200, 100, 50), breakdown(1, 200, 9, 0))
    found = comm_comp_overlap(spans, THREE, parts)
    assert found.details["hidden_pct_of_part"] == pytest.approx(
        {"waiting": (25 + 0) / 2, "transfer": 75, "unknown": 100 * (40 - 15) / 40}
    )
    assert "hidden_pct_of_part" not in comm_comp_overlap(spans, THREE).details


def test_a_step_without_parts_is_unknown_whole() -> None:
    spans = table(breakdown(0, 100, 20, 5), breakdown(1, 100, 30, 7))
    rows = divided(spans, table(part("waiting", 4), part("transfer", 3)), "exposed_communication_ns")
    columns = rows.select("waiting_ns", "transfer_ns", "unknown_ns", "exposed_communication_ns")
    assert columns.rows() == [(4, 3, 8, 15), (0, 0, 23, 23)]
    whole = divided(spans, table(part("waiting", 4), part("transfer", 3)), "communication_ns")
    assert whole.select("waiting_ns", "transfer_ns", "unknown_ns").rows() == [(8, 6, 6), (0, 0, 30)]


@pytest.mark.parametrize(("messages", "codes"), [(9, []), (10, ["messages-by-shorter-side"])])
def test_messages_are_told_of_from_exactly_a_hundredth(messages: int, codes: list[str]) -> None:
    parts = table(
        part("transfer", messages, collective="send"), part("transfer", 1000 - messages), reason=pl.String
    )
    found = exposed_transfer_time(table(breakdown(0, 4000, 1000, 0)), parts, ONE)
    assert [finding.code for finding in found.findings] == codes


def test_the_lowest_known_rank_comes_before_traces_of_no_known_rank() -> None:
    calls = table(
        *[{"rank": None, "trace": 1, "collective": "all_reduce"}] * 5,
        *[{"rank": 3, "collective": name} for name in ("all_gather", "all_gather", "all_reduce")],
    )
    steps = table({"rank": None, "trace": 1}, {"rank": 3}, {"rank": 3, "step": 2})
    found = coll_call_num(calls, steps)
    assert (found.value, found.details["rank"], found.ranks) == (1.5, "3", [3])
    assert found.details["per_rank"] == {"3": 1.5, "unknown": 5}
    assert found.details["per_step"] == {"1": 3, "2": 0}
    assert found.details["per_collective"] == {"all_gather": 1, "all_reduce": 0.5}


def test_products_of_a_byte_give_a_ratio() -> None:
    work = [
        {"rank": rank, "products": 2, "sized": 1, "flops": flops, "bytes": moved}
        for rank, (flops, moved) in enumerate(((7.0, 1.0), (6.0, 2.0), (5.0, 0.0)))
    ]
    found = compute_intensity(table(*work), THREE)
    assert found.details["per_rank_flop_per_byte"] == pytest.approx({"0": 7, "1": 3})
    assert found.value == pytest.approx(5)


def test_a_call_of_an_unknown_collective_is_no_all_to_all() -> None:
    kernels = table(
        kernel("topk", 10, "moe"), kernel("nccl_odd", 30, "communication"),
        kernel("ncclSendRecv", 20, "communication", collective="all_to_all"), kernel("gemm", 40),
        collective=pl.String,
    )  # fmt: skip
    found = moe_fraction(kernels, ONE, Facts())
    assert (found.value, found.details["other_all_to_all_pct"]) == (pytest.approx(10), pytest.approx(20))


def test_of_counters_that_add_up_the_most_samples_count() -> None:
    rows = [
        {"counter": f"NVLink {way} {kind}", "mean_pct": pct, "window_ns": 100, "samples": samples}
        for way, kind, pct, samples in (
            ("RX", "Requests User", 10.0, 5), ("RX", "Responses User", 4.0, 8),
            ("RX", "Requests Protocol", 2.0, 7),
            ("TX", "Requests User", 30.0, 6), ("TX", "Responses Protocol", 3.0, 2),
        )
    ]  # fmt: skip
    found = nvlink_utilization(table(*rows), ONE)
    assert found.value == pytest.approx((16 + 33) / 2)
    assert found.details["per_direction_pct"] == pytest.approx({"RX": 16, "TX": 33})
    assert found.details["samples_count"] == (8 + 6) // 2


def test_the_combined_counter_of_memory_stands_where_one_direction_is_missing() -> None:
    rows = [
        {"counter": name, "mean_pct": pct, "window_ns": 100, "samples": 3}
        for name, pct in (("DRAM Read", 10.0), ("DRAM", 35.0), ("DRAM Write", 15.0))
    ]
    assert dram_utilization(table(*rows[:2]), ONE).value == pytest.approx(35)
    assert dram_utilization(table(*rows), ONE).value == pytest.approx(25)


def transfer(size_bytes: int, ns: int, collective: str = "all_reduce", **more: Any) -> dict[str, Any]:
    known = {"collective": collective, "dimension": "tp", "size": 4, "size_bytes": size_bytes, "time_ns": ns}
    return known | {"basis": "wait-free", "spans_nodes": False, "bus_factor": 1.5} | more


def test_only_the_lines_that_are_a_model_are_listed() -> None:
    # all-reduces take 100 ns and 2 a byte; broadcasts less the larger they are; a scatter has one size
    moved = table(
        *(transfer(size, 100 + 2 * size) for size in (10, 20, 40, 80)),
        transfer(10, 130, "broadcast"), transfer(20, 110, "broadcast"), transfer(15, 130, "scatter"),
        transfer(10, 160, "all_gather", size=2), transfer(30, 180, "all_gather", size=2),
        transfer(10, 150, "all_gather", size=None), transfer(30, 250, "all_gather", size=None),
        transfer(10**6, 1, "all_gather", basis="raw"),
    )  # fmt: skip
    found = hockney_alpha(moved)
    rows = [
        (row["collective"], row["group_size"], row["calls_count"], row["alpha_s"], row["beta_s_per_byte"])
        for row in found.details["by_collective"]
    ]
    assert rows == [
        ("all_gather", None, 2, pytest.approx(100e-9), pytest.approx(5e-9)),
        ("all_gather", 2, 2, pytest.approx(150e-9), pytest.approx(1e-9)),
        ("all_reduce", 4, 4, pytest.approx(100e-9), pytest.approx(2e-9)),
    ]
    assert (found.details["calls_count"], found.details["message_sizes_count"]) == (11, 6)
    assert hockney_beta(moved).details == found.details
    assert hockney_beta(moved).value == found.details["beta_s_per_byte"]
    assert found.value == found.details["alpha_s"]


@pytest.mark.parametrize(("time_ns", "codes"), [(9, ["ceiling-exceeded"]), (10, []), (11, [])])
def test_a_run_up_to_a_tenth_faster_than_the_test_is_no_doubt(time_ns: int, codes: list[str]) -> None:
    test = NcclTests((Measured("all_reduce", 4, 1, 7, 11e-9),))
    found = nccl_tests_efficiency(table(transfer(7, time_ns)), test)
    assert found.value == pytest.approx(11 / time_ns)
    assert [finding.code for finding in found.findings] == codes


def step_times(*by_rank: float) -> pl.DataFrame:
    """Return the seconds of one step of each rank."""
    source = "step_times_per_rank.json"
    rows = [{"rank": rank, "duration_ns": int(s * 10**9), "source": source} for rank, s in enumerate(by_rank)]
    return table(*rows)


@pytest.mark.parametrize(("shortest", "late"), [(98, ["1"]), (99, ["1"]), (99.5, []), (100, [])])
def test_a_rank_of_step_times_is_late_from_exactly_a_hundredth(shortest: float, late: list[str]) -> None:
    found = straggler_of_step_times(step_times(shortest, 100, 100))
    assert found.details["late_ranks"] == late
    assert found.value == pytest.approx((100 - shortest) / 100)
    assert found.details["straggler_lag_s"] == pytest.approx(100 - shortest)
    assert (found.details["step_s"], found.details["slowest_rank"]) == (100, late[0] if late else "none")


@pytest.mark.parametrize(
    ("excess", "cause"),
    [((50, 10, 0), "compute"), ((49, 10, 0), "unknown"), ((0, 60, 20), "host"), ((-5, 40, 80), "copies")],
)
def test_what_explains_half_of_the_lag_is_its_cause(excess: tuple[int, int, int], cause: str) -> None:
    known = {"group": "g", "dimension": "tp", "collectives": 1, "caused_ns": 0, "complete": True}
    waits = table(
        *(
            known | {"rank": rank, "wait_ns": ns, "arrived_last": int(not ns), "complete": rank != 2}
            for rank, ns in ((0, 0), (1, 80), (2, 100))
        )
    )
    steps = THREE.with_columns(start_ns=0, end_ns=1000, length_ns=1000)
    usual = (500, 30, 5)
    # the mean of ranks 1 and 2 is as usual
    spent = [[ns + more for ns, more in zip(usual, excess, strict=True)]]
    spent += [[ns + more for ns in usual] for more in (-5, 5)]
    names = ("compute_ns", "idle_ns", "exposed_memory_ns")
    parts = table(*({"rank": rank} | dict(zip(names, each, strict=True)) for rank, each in enumerate(spent)))
    details = straggler(waits, steps, parts, Facts()).details
    assert (details["slowest_rank"], details["members_complete"]) == ("0", False)
    found = details["cause"]
    assert found["kind"] == cause
    assert found["explained_ratio"] == pytest.approx(max(excess) / 100)
    assert found["excess_s"] == pytest.approx(
        dict(zip(("compute", "host", "copies"), (ns * 1e-9 for ns in excess), strict=True))
    )


@pytest.mark.parametrize(("count", "left_out"), [(7, None), (5000, None), (5003, 3)])
def test_requests_are_left_out_of_the_list_from_one_more_than_it_holds(
    count: int, left_out: int | None
) -> None:
    found = sampled_times([float(number) for number in range(count)])
    assert found.get("values_left_out") == left_out
    assert len(found["values_s"]) == min(count, 5000)


@pytest.mark.parametrize(("latency_s", "is_measured"), [(2.0, True), (2.002, True), (2.0022, False)])
def test_a_request_may_be_a_thousandth_longer_than_its_benchmark(latency_s: float, is_measured: bool) -> None:
    ok = pl.DataFrame({"latency_s": [0.2, latency_s, None]})
    benchmark = Benchmark("vllm", ok, {"ok": 3}, {}, frozenset(), False, 2.0, "stated")
    if is_measured:
        assert rate(benchmark, 30, "output tokens").value == 15
        return
    with pytest.raises(NotMeasurable, match="length of the benchmark"):
        rate(benchmark, 30, "output tokens")


@pytest.mark.parametrize(("phases", "at_once"), [(["decode"], False), (["decode", "mixed", "decode"], True)])
def test_passes_that_do_both_at_once_are_told_of(phases: list[str], at_once: bool) -> None:
    passes = table(*({"phase": phase} for phase in phases))
    with pytest.raises(NotMeasurable, match="no pass of prefill alone") as refused:
        pass_times(passes, "prefill")
    assert ("both at once" in str(refused.value)) is at_once


def _pass(rank: int, start_s: int, end_s: int, *, window: int = 0, **more: Any) -> dict[str, Any]:
    about = {"phase": "decode", "mode": None, "requests": 8, "timed_by": BY_TWIN}
    times = {"start_ns": start_s * SECOND_NS, "end_ns": end_s * SECOND_NS}
    return {"rank": rank, "iteration": window, "trace": rank + 2 * window, **times} | about | more


def test_a_pass_takes_the_mean_over_the_ranks_that_took_part_and_the_value_is_the_mean_over_ranks() -> None:
    first, second = (
        (_pass(0, 10, 12), _pass(0, 20, 26)),
        (_pass(1, 30, 34), _pass(1, 50, 60), _pass(1, 70, 71)),
    )
    found = pass_times(table(*reversed(first), *second, _pass(0, 1, 6, window=1)), "decode")
    assert found.details["values_s"] == [3.0, 8.0, 1.0, 5.0]
    assert found.details["per_rank_s"] == {"0": pytest.approx(13 / 3), "1": 5.0}
    assert found.value == pytest.approx((13 / 3 + 5) / 2)
    assert found.details["distribution_s"]["mean"] == 17 / 4
    assert found.details["passes_without_a_time"] == 0


def test_one_pass_that_ran_on_the_cpu_shows_that_the_cpu_is_the_device() -> None:
    on_host = pass_times(table(_pass(0, 1, 3), _pass(0, 4, 6, timed_by=BY_HOST)), "decode")
    assert on_host.details["timed"] == "on the CPU, which is the device"
    assert pass_times(table(_pass(0, 1, 3)), "decode").details["timed"] == "on the device"


def test_passes_of_the_draft_model_have_their_own_mean() -> None:
    drafts = tuple(_pass(0, *times, phase="draft") for times in ((0, 1), (5, 8)))
    drafts += (_pass(0, 9, 9, phase="draft", timed_by=None),)
    decode = pass_times(table(_pass(0, 10, 14), *drafts), "decode")
    assert (decode.value, decode.details["draft_pass_s"]) == (4.0, 2.0)
    assert decode.details["passes"] == {"decode": 1, "draft": 3}
    prefill = pass_times(table(_pass(0, 10, 14, phase="prefill"), *drafts), "prefill")
    assert "draft_pass_s" not in prefill.details


@pytest.mark.parametrize("sources", [["mark"], ["mark", WHOLE_TRACE]])
def test_an_execution_trace_without_steps_says_so(sources: list[str]) -> None:
    steps = table(*({"source": source} for source in sources))
    assert ("mark no steps" in source_finding(steps).message) is (WHOLE_TRACE in sources)


def test_the_unknown_share_is_of_calls_or_of_their_time_if_larger() -> None:
    calls = pl.DataFrame(
        {"start_ns": [0, 10, 20, 30], "end_ns": [6, 12, 21, 31], "size_bytes": [None, 3, 4, 5]}
    )
    no_size = pl.col("size_bytes").is_null()
    assert unknown_share(calls, no_size) == pytest.approx(6 / 10)
    assert unknown_share(calls.select("size_bytes"), no_size) == pytest.approx(1 / 4)
    assert unknown_share(calls, ~no_size) == pytest.approx(3 / 4)
    of_no_length = calls.with_columns(end_ns="start_ns")
    assert unknown_share(of_no_length, no_size) == pytest.approx(1 / 4)
    assert unknown_share(calls.clear(), no_size) == 0


@pytest.mark.parametrize(("sized", "is_measured"), [(2, True), (1, False)])
def test_the_sizes_of_half_of_the_calls_are_enough(sized: int, is_measured: bool) -> None:
    sizes = [8] * sized + [None] * 2
    calls = table(
        *({"collective": "all_reduce", "size_bytes": size} for size in sizes),
        *({"collective": "barrier", "size_bytes": None} for _ in range(9)),
        size_bytes=pl.Int64,
    )
    if is_measured:
        need_sizes(calls, "all_reduce")
        return
    with pytest.raises(NotMeasurable, match="2 of 3 calls"):
        need_sizes(calls, "all_reduce")


def test_every_rank_with_steps_has_its_bytes_unless_none_of_its_sizes_is_known() -> None:
    steps = table(*({"rank": rank, "trace": 0} for rank in (None, None, 0, 1, 1, 2, 3)))
    calls = table(
        *(
            {"rank": rank, "trace": 0, "size_bytes": size}
            for rank, size in (
                (None, 8 * 10**9), (1, 3 * 10**9), (1, None), (1, 3 * 10**9), (2, None), (3, 0),
            )
        ),
        size_bytes=pl.Int64,
    )  # fmt: skip
    found = bytes_by_rank(calls, steps).sort("rank", nulls_last=True)
    assert found.rows() == [(0, 0.0), (1, 3.0), (3, 0.0), (None, 4.0)]
    silent = bytes_by_rank(calls.with_columns(size_bytes=pl.lit(None, dtype=pl.Int64)), steps)
    assert silent.rows() == [(0, 0.0)]


@pytest.mark.parametrize(("most", "is_listed"), [(6, True), (5, False)])
def test_waits_are_listed_one_by_one_up_to_a_limit(
    most: int, is_listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccl_bench.metrics.straggler_lag_16._MOST_WAITS", most)
    known = {"group": "g", "dimension": "tp", "collectives": 1, "caused_ns": 0, "complete": True}
    waits = table(
        *(
            known | {"rank": rank, "step": step, "wait_ns": ns, "arrived_last": 0}
            for step, each in ((2, (7, 0, 4)), (1, (5, 1, 0)))
            for rank, ns in zip((None, 1, 0), each, strict=True)
        )
    )
    steps = pl.concat([THREE, THREE.with_columns(step=pl.lit(2, dtype=pl.Int64))])
    listed = straggler_lag_16(waits, steps).details["per_rank_per_step_wait_s"]
    if not is_listed:
        assert listed == {}
        return
    assert [(rank, [*each]) for rank, each in listed.items()] == [
        (rank, ["1", "2"]) for rank in ("0", "1", "unknown")
    ]
    assert listed["unknown"] == pytest.approx({"1": 5e-9, "2": 7e-9})
    assert listed["0"] == pytest.approx({"1": 0, "2": 4e-9})


def test_one_kernel_with_a_recorded_shape_is_enough_for_its_rank() -> None:
    use = {"window_ns": 100, "compute_occupied_ns": 9.0, "communication_occupied_ns": 3.0, "kernel_ns": 50}
    use |= {"occupancy_pct": 40.0, "occupancy_weight_ns": 10}
    rows = [
        use | {"rank": rank, "occupied_ns": occupied, "rated_kernels": rated, "kernels": 4}
        for rank, occupied, rated in ((0, 20.0, 1), (1, 30.0, 0), (2, 50.0, 4))
    ]
    samples = pl.DataFrame(schema={"rank": pl.Int64, "samples": pl.Int64, "sm_active_pct": pl.Float64})
    devices = pl.DataFrame({"trace": [0, 1, 2], "rank": [0, 1, 2], "device": [0, 1, 2]})
    found = sm(table(*rows), samples, THREE, devices)
    assert found.details["per_rank_pct"] == pytest.approx({"0": 20, "2": 50})
    assert (found.value, found.ranks) == (pytest.approx(35), [0, 2])
    assert found.details["kernels_with_launch_shape_pct"] == pytest.approx((25 + 100) / 2)


def test_devices_that_differ_are_named_in_order() -> None:
    seen = [("NVIDIA H100 80GB HBM3", 85_017_755_648), ("NVIDIA A100-SXM4-80GB", 85_174_583_296)]
    devices = pl.DataFrame(seen, schema={"name": pl.String, "memory_bytes": pl.Int64}, orient="row")
    copies = table({"kind": "DtoD", "bytes": 9, "duration_ns": 1})
    for order in (devices, devices.reverse()):
        with pytest.raises(NotMeasurable, match=r"A100.*H100"):
            memory_bandwidth_utilization(copies, order, ONE, Facts())


def test_copies_within_the_memory_that_take_a_nanosecond_have_a_rate() -> None:
    devices = pl.DataFrame({"name": ["NVIDIA A100-SXM4-80GB"], "memory_bytes": [85_174_583_296]})
    copies = table(
        {"kind": "DtoD", "bytes": 9, "duration_ns": 1},
        {"kind": "DtoD", "bytes": 5, "duration_ns": 0, "rank": 1},
    )
    found = memory_bandwidth_utilization(copies, devices, THREE, Facts())
    # 18 GB/s of 2,039
    assert found.details["per_rank_pct"] == pytest.approx({"0": 100 * 18 / 2039})
