"""What is drawn of long runs and many ranks: means and extremes that can be followed by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccl_bench.analysis.memory.timeline import POINTS, memory_outline
from ccl_bench.evaluate.report_data import (
    CELLS,
    RANKS,
    bus_bandwidth,
    grid,
    group_neighbours,
    memory_curves,
    reference_lines,
    step_times,
    time_parts,
    waits,
)
from ccl_bench.metrics.shared.reference import ReferenceSystem
from ccl_bench.side_files.nccl_tests import Measured, NcclTests

MS = 1_000_000


def _steps(rows: list[tuple[int | None, int, int]], **more: Any) -> pl.DataFrame:
    """Return times of steps, given as (rank, step, ns)."""
    return pl.DataFrame(
        [
            {"iteration": None, "rank": r, "step": s, "duration_ns": ns, "source": "file"} | more
            for r, s, ns in rows
        ],
        schema={
            "iteration": pl.Int64,
            "rank": pl.Int64,
            "step": pl.Int64,
            "duration_ns": pl.Int64,
            "source": pl.String,
        },
    )


@given(st.integers(1, 2000), st.integers(1, 200))
def test_blocks_hold_every_name_once_and_are_few(count: int, most: int) -> None:
    names, each = group_neighbours([str(number) for number in range(count)], most)
    assert len(names) <= most
    assert each * (len(names) - 1) < count <= each * len(names)
    ends = [name.split("-") for name in names]
    assert sum(int(end[-1]) - int(end[0]) + 1 for end in ends) == count


def test_ranks_of_a_node_are_never_cut_apart_and_few_ranks_never_put_together() -> None:
    names = [str(rank) for rank in range(2 * RANKS + 8)]
    found, each = group_neighbours(names, RANKS, 8)
    assert (each, found[:2], found[-1]) == (8, ["0-7", "8-15"], f"{2 * RANKS}-{2 * RANKS + 7}")
    assert group_neighbours(names[:RANKS], RANKS, 8) == (names[:RANKS], 1)


def test_a_grid_is_the_mean_of_neighbours_where_there_are_too_many() -> None:
    table = _steps(
        [(rank, step, (rank + 10 * step) * MS) for rank in range(2 * RANKS) for step in range(100)]
    )
    found = grid(table, "duration_ns")
    assert (len(found.ranks), found.ranks_each, found.ranks[1]) == (RANKS, 2, "2-3")
    assert len(found.ranks) * len(found.steps) <= CELLS
    assert (found.steps_each, found.steps[0]) == (7, "0-6")
    # Ranks 0 and 1, steps 0 to 6: (0 + 1) / 2 + 10 * (0 + 1 + 2 + 3 + 4 + 5 + 6) / 7 ms.
    assert found.values_s[0][0] == pytest.approx(30.5e-3)


def test_a_rank_without_a_step_leaves_a_gap() -> None:
    found = grid(_steps([(0, 1, MS), (0, 2, 3 * MS), (None, 2, 5 * MS)]), "duration_ns")
    assert (found.ranks, found.steps) == (["0", "unknown"], ["1", "2"])
    assert found.values_s == [[0.001, 0.003], [None, 0.005]]


def test_step_times_keep_the_shortest_the_longest_and_the_median() -> None:
    table = _steps([(rank, step, (1 + rank + step) * MS) for rank in range(10) for step in range(3)])
    found = step_times(table)
    assert found is not None
    assert (found.source, found.grid) == ("file", None)
    # Step 0 takes 1 to 10 ms, and the median of ten is between the fifth and the sixth.
    first = found.by_step[0]
    assert (first.name, first.count, first.min_s, first.p50_s, first.max_s) == ("0", 10, 0.001, 0.0055, 0.010)
    last = found.by_rank[9]
    assert (last.name, last.count) == ("9", 3)
    assert (last.min_s, last.p50_s, last.max_s) == pytest.approx((0.010, 0.011, 0.012))
    assert step_times(table.clear()) is None


def test_steps_of_several_windows_are_distinguished() -> None:
    table = pl.concat([_steps([(0, 1, MS)], iteration=10), _steps([(0, 1, 2 * MS)], iteration=20)])
    found = step_times(table)
    assert found is not None
    assert [(spread.name, spread.max_s) for spread in found.by_step] == [("10:1", 0.001), ("20:1", 0.002)]


def test_the_parts_of_ranks_drawn_together_still_add_up() -> None:
    parts = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
    rows = []
    for rank in range(3 * RANKS):
        times = [rank * 7 % 5 * MS, rank * 3 % 11 * MS, rank % 2 * MS, (rank + 1) * MS]
        known = {"rank": rank, "window_ns": sum(times), "fused_ns": 0}
        rows += [known | dict(zip(parts, times, strict=True))] * 2
    found, each = time_parts(pl.DataFrame(rows))
    assert (len(found), each, found[0].rank) == (RANKS, 3, "0-2")
    # Ranks 0, 1 and 2 are idle for 1, 2 and 3 ms.
    assert found[0].idle_s == pytest.approx(0.002)
    for row in found:
        together = row.compute_s + row.exposed_communication_s + row.exposed_memory_s + row.idle_s
        assert together == pytest.approx(row.window_s, rel=1e-12)


def test_waits_of_all_groups_add_up_for_each_rank_and_step() -> None:
    key = {
        "iteration": None,
        "step": 1,
        "trace": 0,
        "rank": 0,
        "arrived_last": 0,
        "caused_ns": 0,
        "collectives": 1,
    }
    rows = [key | {"group": "tp", "wait_ns": 2 * MS}, key | {"group": "dp", "wait_ns": 3 * MS}]
    found = waits(pl.DataFrame(rows, schema_overrides={"iteration": pl.Int64}))
    assert found is not None
    assert found.values_s == [[0.005]]
    assert waits(pl.DataFrame(rows).clear()) is None


def _transfers(sizes: list[int], times_ns: list[int], **more: Any) -> pl.DataFrame:
    rows = [
        {
            "collective": "all_reduce",
            "dimension": "tp",
            "spans_nodes": False,
            "basis": "wait-free",
            "bus_factor": 1.5,
            "size": 4,
            "size_bytes": size,
            "time_ns": time,
        }
        | more
        for size, time in zip(sizes, times_ns, strict=True)
    ]
    return pl.DataFrame(rows)


def test_bus_bandwidth_of_a_size_is_reported_as_quantiles() -> None:
    # 1.5 * 1,000 bytes in 10, 20, ... 110 ns: the third of eleven, from the smallest, is 1500 / 90 ns.
    [found] = bus_bandwidth(_transfers([1000] * 11, [10 * place for place in range(1, 12)]))
    assert (found.collective, found.reach, found.calls) == ("all_reduce", "inside a node", 11)
    assert found.p50_gb_per_s == pytest.approx(1500 / 60)
    assert found.p10_gb_per_s == pytest.approx(1500 / 100)
    assert found.p90_gb_per_s == pytest.approx(1500 / 20)


def test_beside_the_bandwidth_of_a_size_is_what_nccl_tests_reached() -> None:
    tests = NcclTests((Measured("all_reduce", 4, 1, 1000, 3e-8), Measured("all_reduce", 4, 1, 2000, 5e-8)))
    first, second, beyond = bus_bandwidth(_transfers([1000, 2000, 3000], [60, 60, 60]), tests)
    assert first.nccl_tests_gb_per_s == pytest.approx(1500 / 30)
    assert second.nccl_tests_gb_per_s == pytest.approx(3000 / 50)
    assert beyond.nccl_tests_gb_per_s is None


def test_calls_free_of_waiting_have_the_reference_of_their_device() -> None:
    # 64 MiB over 4 A100 take 544.3 µs in the catalog, and 128 MiB 1000.5
    a100 = ReferenceSystem("NVIDIA A100-SXM4-80GB", "nccl", "", None)
    sizes, bus = [64 << 20, 1 << 30], 1.5 * (64 << 20)
    moved = _transfers(sizes, [600_000, 9_000_000])
    measured, beyond = bus_bandwidth(moved, system=a100)
    assert measured.reference_gb_per_s == pytest.approx(bus / 544_300)
    assert beyond.reference_gb_per_s is None
    [raw] = bus_bandwidth(_transfers(sizes[:1], [600_000], basis="raw"), system=a100)
    assert raw.reference_gb_per_s is None
    [line] = reference_lines(_transfers(sizes[:1], [600_000]), a100)
    assert (line.collective, line.dimension) == ("all_reduce", "tp")
    assert line.reaches == "NCCL 2.27.3 reaches on 4 A100 SXM"
    assert line.size_bytes == [32 << 20, 64 << 20, 128 << 20]
    assert line.gb_per_s[1:] == [pytest.approx(bus / 544_300), pytest.approx(2 * bus / 1_000_500)]
    assert reference_lines(moved, ReferenceSystem("NVIDIA A100 80GB PCIe", "nccl", "", None)) == []


def test_many_sizes_count_by_powers_of_two_and_unknown_factors_do_not() -> None:
    sizes = [*range(1024, 2048, 2)]
    [found] = bus_bandwidth(_transfers(sizes, [100] * len(sizes)))
    assert (found.min_bytes, found.max_bytes, found.calls) == (1024, 2046, 512)
    assert bus_bandwidth(_transfers([8], [1], bus_factor=None).cast({"bus_factor": pl.Float64})) == []


def _timeline(allocated: list[int], device: int = 0) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "device": [device] * len(allocated),
            "order": list(range(-1, len(allocated) - 1)),
            "time_ns": [None, *(place * MS for place in range(len(allocated) - 1))],
            "allocated_bytes": allocated,
            "reserved_bytes": [value + 5 for value in allocated],
        }
    )


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=3 * POINTS))
def test_an_outline_of_memory_is_short_and_keeps_the_extremes(allocated: list[int]) -> None:
    found = memory_outline(_timeline(allocated))
    assert found.height <= POINTS
    assert found["events"].sum() == len(allocated)
    assert found["highest_allocated_bytes"].max() == max(allocated)
    assert found["lowest_allocated_bytes"].min() == min(allocated)
    assert found["highest_reserved_bytes"].max() == max(allocated) + 5


def test_the_devices_with_the_highest_peaks_are_drawn() -> None:
    outlines = [
        memory_outline(_timeline([1, 100 * (rank + 1), 2])).with_columns(
            pl.lit(rank).alias("trace"),
            pl.lit(rank).alias("rank"),
            pl.lit(None, dtype=pl.Int64).alias("iteration"),
        )
        for rank in range(6)
    ]
    curves, devices = memory_curves(pl.concat(outlines))
    assert devices == 6
    assert [curve.device for curve in curves] == ["5", "4", "3", "2"]
    assert curves[0].highest_allocated_bytes == [1, 600, 2]
    # The state before the history takes the time of the first event after it.
    assert (curves[0].is_timed, curves[0].at) == (True, [0.0, 0.0, 0.001])
