"""Orders, single samples and missing ranks, on tables that seldom occur."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import polars as pl
import pytest

from ccl_bench import metrics
from ccl_bench.analysis.facts import Fact, Facts
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics.average_memory_bandwidth import average_memory_bandwidth
from ccl_bench.metrics.forward_time import forward_time
from ccl_bench.metrics.idle_breakdown import idle_breakdown
from ccl_bench.metrics.shared.allocator import snapshot_devices
from ccl_bench.metrics.shared.checks import need_attribution
from ccl_bench.metrics.shared.monitored import integral
from ccl_bench.metrics.shared.per_step import (
    by_rank,
    by_step,
    parts_by_rank,
    parts_by_step,
    phase_time,
    rows_of,
    share_by_device,
    shares_by_rank,
    window_of,
)
from ccl_bench.metrics.shared.recorded_calls import recorded_lag
from ccl_bench.metrics.traffic_distribution import traffic_distribution
from ccl_bench.metrics.traffic_window import traffic_window
from ccl_bench.side_files.device_samples import SampledDevice, SampleSeries

if TYPE_CHECKING:
    from ccl_bench.metrics import Measurement


def test_metrics_are_imported_in_order_of_name(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr(metrics, "importlib", SimpleNamespace(import_module=imported.append))
    metrics.load(["mfu", "straggler", "coll_call_num"])
    names = [name.rpartition(".")[2] for name in imported]
    assert names[:3] == ["coll_call_num", "mfu", "straggler"]


def test_streams_of_a_trace_of_no_known_rank_have_their_gaps() -> None:
    unknown = {"trace": 0, "rank": None, "iteration": None, "step": 1}
    types = {"rank": pl.Int64, "iteration": pl.Int64}
    waits = {"host_wait_ns": 30, "kernel_wait_ns": 20, "other_ns": 10}
    steps = pl.DataFrame([unknown | {"source": "mark"}], schema_overrides=types)
    idle = pl.DataFrame([unknown | waits | {"idle_ns": 60, "window_ns": 100}], schema_overrides=types)
    streams = pl.DataFrame([unknown | waits | {"stream": 7}], schema_overrides=types)
    launching = pl.DataFrame([unknown | {"launches": 2, "graph_launches": 3}], schema_overrides=types)
    found = idle_breakdown(idle, streams, launching, steps)
    expected = {"host": 30e-9, "kernel": 20e-9, "other": 10e-9}
    assert found.details["streams_s"] == {"7": pytest.approx(expected)}
    assert found.value == pytest.approx(50)


def test_a_device_without_reserved_memory_or_a_peak_was_not_used() -> None:
    names = ("active_bytes", "inactive_split_bytes", "free_bytes", "largest_free_bytes", "allocated_bytes")
    held = ((0, 0, None), (1, 1, None), (2, 0, 0), (3, 0, 7))
    keys = [{"rank": 0, "device": device} for device, _, _ in held]
    more = {"iteration": None, "moment": "snapshot"} | dict.fromkeys(names, 0)
    layouts = [key | more | {"reserved_bytes": size} for key, (_, size, _) in zip(keys, held, strict=True)]
    peaks = [
        key | {"peak_allocated_bytes": peak, "peak_active_bytes": 0, "peak_reserved_bytes": 0, "ooms": 0}
        for key, (_, _, peak) in zip(keys, held, strict=True)
    ]
    counts = [key | {"allocations": 0, "frees": 0} for key in keys]
    types = {"iteration": pl.Int64, "peak_allocated_bytes": pl.Int64}
    tables = (pl.DataFrame(rows, schema_overrides=types) for rows in (peaks, layouts))
    found = snapshot_devices(*tables, pl.DataFrame(counts))
    assert [device.device for device in found] == [1, 2, 3]


@pytest.mark.parametrize(
    ("iterations", "allocated"), [((None, 0), 20), ((0, None), 10), ((4, 9, 7), 20), ((None,), 10)]
)
def test_the_state_of_a_device_is_that_of_the_last_numbered_window(
    iterations: tuple[int | None, ...], allocated: int
) -> None:
    key = {"rank": 0, "device": 0}
    names = ("active_bytes", "reserved_bytes", "inactive_split_bytes", "free_bytes", "largest_free_bytes")
    rows = [
        key | {"iteration": iteration, "moment": "snapshot", "allocated_bytes": 10 * place}
        | dict.fromkeys(names, 10 * place)
        for place, iteration in enumerate(iterations, 1)
    ]  # fmt: skip
    layouts = pl.DataFrame(rows, schema_overrides={"iteration": pl.Int64})
    none = {"peak_active_bytes": 0, "peak_reserved_bytes": 0, "ooms": 0}
    peaks = [key | none | {"peak_allocated_bytes": 100 + place} for place in range(len(iterations))]
    counts = pl.DataFrame([key | {"allocations": 3, "frees": 2}] * len(iterations))
    (device,) = snapshot_devices(pl.DataFrame(peaks), layouts, counts)
    assert device.allocated_bytes == allocated
    assert device.peak_allocated_bytes == 100 + len(iterations) - 1
    assert (device.allocations, device.frees) == (3 * len(iterations), 2 * len(iterations))
    assert (device.rank, device.device) == (0, None)


def test_a_snapshot_of_no_known_rank_has_its_state_and_comes_last() -> None:
    names = ("active_bytes", "inactive_split_bytes", "free_bytes", "largest_free_bytes", "allocated_bytes")
    keys = [{"rank": rank, "device": device} for rank, device in ((None, 4), (None, 3), (1, 7), (0, 9))]
    more = {"iteration": None, "moment": "snapshot"} | dict.fromkeys(names, 0)
    layouts = [key | more | {"reserved_bytes": 10 + place} for place, key in enumerate(keys)]
    none = {"peak_allocated_bytes": 5, "peak_active_bytes": 0, "peak_reserved_bytes": 0, "ooms": 0}
    counts = [key | {"allocations": 20 + place, "frees": 0} for place, key in enumerate(keys)]
    types = {"iteration": pl.Int64, "rank": pl.Int64}
    tables = ([key | none for key in keys], layouts, counts)
    found = snapshot_devices(*(pl.DataFrame(rows, schema_overrides=types) for rows in tables))
    assert [(each.rank, each.device, each.reserved_bytes, each.allocations) for each in found] == [
        (0, None, 13, 23),
        (1, None, 12, 22),
        (None, 3, 11, 21),
        (None, 4, 10, 20),
    ]


def test_a_single_sample_covers_nothing() -> None:
    one = SampleSeries(SampledDevice("log.csv", index=0), "power_w", False, [10], [5.0])
    assert integral(one, 0, 20) == (0, 0)


def test_the_largest_clock_error_of_the_calls_counts() -> None:
    arrivals = pl.DataFrame(
        {
            "rank": [0, 0, 1], "number": [1] * 3, "sequence": [0, 1, 0], "start_ns": [0, 50, 20],
            "end_ns": [20, 60, 20], "lateness_ns": [0] * 3, "clock_shift_ns": [0] * 3,
            "clock_error_ns": [3, 9, 5],
        }
    )  # fmt: skip
    assert recorded_lag(arrivals, Facts()).clock_error_s == pytest.approx(9e-9)


def test_windows_that_touch_do_not_overlap() -> None:
    spans = [(0, 10, "tp"), (10, 20, "dp"), (19, 30, "tp"), (31, 40, "dp")]
    traffic = pl.DataFrame(
        [
            {"trace": 0, "rank": 0, "iteration": None, "step": 1, "start_ns": start, "end_ns": end}
            | {"dimension": dimension, "size_bytes": 4}
            for start, end, dimension in spans
        ],
        schema_overrides={"iteration": pl.Int64},
    )
    found = traffic_window(traffic, pl.DataFrame({"trace": [0], "step": [1]}), Facts())
    assert found.details["overlapping_windows_count"] == 1
    assert found.value == pytest.approx((0 + 0 + 1) / 3 * 1e-9)


def test_steps_of_the_window_without_a_number_come_first() -> None:
    parts = ("compute", "exposed_communication", "exposed_memory", "idle", "window")
    rows = [
        {"iteration": iteration, "step": step, "rank": 0}
        | {f"{part}_ns": ns * place for place, part in enumerate(parts, 1)}
        for iteration, step, ns in ((9, 1, 30), (None, 2, 10), (None, 2, 20), (4, 3, 70))
    ]
    table = pl.DataFrame(rows, schema_overrides={"iteration": pl.Int64})
    ranks = pl.Series("rank", [None, 2, 2, 0], dtype=pl.Int64)
    assert [*parts_by_rank(table.with_columns(ranks))] == ["0", "2", "unknown"]
    found = parts_by_step(table)
    assert [*found] == ["None:2", "4:3", "9:1"]
    assert found["None:2"] == pytest.approx({part: 15e-9 * place for place, part in enumerate(parts, 1)})


def phases(**counts: int) -> pl.DataFrame:
    """Return the work of phases in one step, each of so many kernels that take 100 ns each."""
    zeros = ("communication_ns", "recomputed_ns")
    return pl.DataFrame(
        [
            {"trace": 0, "rank": 0, "iteration": None, "step": 1, "phase": phase, "count": count}
            | dict.fromkeys(("time_ns", "duration_ns", "busy_ns"), 100 * count)
            | dict.fromkeys(zeros, 0)
            | {"window_ns": 1000}
            for phase, count in counts.items()
        ],
        schema_overrides={"iteration": pl.Int64},
    )


@pytest.mark.parametrize(
    ("phase", "backward", "is_measured"),
    [
        ("training", 3, True),
        ("training", 0, False),
        ("inference", 0, True),
        ("inference", 3, True),
        (None, 0, False),
        (None, 3, True),
    ],
)
def test_forward_work_is_apart_from_backward_work_unless_the_run_infers(
    phase: str | None, backward: int, is_measured: bool
) -> None:
    steps = pl.DataFrame(
        {"trace": [0], "rank": [0], "iteration": [None], "step": [1], "source": ["mark"]},
        schema_overrides={"iteration": pl.Int64},
    )
    facts = Facts(phase=Fact(phase, "card") if phase else None)
    table = phases(forward=2, backward=backward)
    if is_measured:
        assert forward_time(table, steps, facts).value == pytest.approx(200e-9)
        return
    with pytest.raises(NotMeasurable, match="no backward pass"):
        forward_time(table, steps, facts)


def moved(*places: tuple[str, int | None]) -> Measurement:
    """Return the distribution over dimensions of calls of so many bytes, in one step of one rank."""
    rows = [
        {"trace": 0, "rank": 0, "iteration": None, "step": 1, "call": place, "collective": "all_reduce"}
        | {"dimension": dimension, "size": 4, "size_bytes": size, "start_ns": 9 * place}
        | {"end_ns": 9 * place + 9}
        for place, (dimension, size) in enumerate(places)
    ]
    calls = pl.DataFrame(rows, schema_overrides={"iteration": pl.Int64})
    steps = pl.DataFrame({"trace": [0], "rank": [0], "step": [1], "source": ["mark"]})
    return traffic_distribution(calls, calls.clear(), steps, Facts())


def test_of_dimensions_that_move_as_much_the_first_by_name_is_the_busiest() -> None:
    found = moved(("tp", 30), ("ep", 40), ("dp", 40), ("unknown", 20), ("pp", None))
    assert (found.value, found.details["busiest"]) == (pytest.approx(100 * 40 / 130), "dp")
    assert [*found.details["per_dimension"]] == ["dp", "ep", "tp", "pp", "unknown"]
    assert found.details["per_dimension"]["pp"]["share_pct"] is None
    assert [(each.code, each.count) for each in found.findings] == [("dimension-unknown", 1)]


@pytest.mark.parametrize(("unknown", "is_measured"), [(39, True), (40, False), (41, False)])
def test_a_dimension_must_move_more_than_what_is_in_none(unknown: int, is_measured: bool) -> None:
    places = (("tp", 30), ("dp", 40), ("unknown", unknown))
    if is_measured:
        assert moved(*places).value == pytest.approx(100 * 40 / 109)
        return
    with pytest.raises(NotMeasurable, match="dimension is unknown"):
        moved(*places)


@pytest.mark.parametrize(
    ("times", "ranks"),
    [
        ({2: (1, 0), 0: (7, 0), 1: (9, 3)}, "rank 0, 2"),
        ({0: (0, 0), 1: (5, 1)}, ""),
        ({0: (0, 4)}, ""),
    ],
)
def test_ranges_of_sharding_must_lead_to_work_on_every_rank(
    times: dict[int, tuple[int, int]], ranks: str
) -> None:
    rows = [{"rank": rank, "host_ns": host, "work_ns": work} for rank, (host, work) in times.items()]
    if ranks:
        with pytest.raises(NotMeasurable, match=rf"\({ranks}\)"):
            need_attribution(pl.DataFrame(rows))
    else:
        need_attribution(pl.DataFrame(rows))


def test_copies_of_a_nanosecond_have_a_rate_and_those_of_none_not() -> None:
    rows = [
        {"trace": rank, "rank": rank, "iteration": None, "step": 1, "kind": "DtoD", "bytes": size}
        | {"duration_ns": ns, "count": 1, "sized": 1}
        for rank, size, ns in ((0, 9, 1), (1, 12, 4), (2, 5, 0))
    ]
    steps = pl.DataFrame({"trace": [0, 1, 2], "rank": [0, 1, 2], "step": [1] * 3, "source": ["mark"] * 3})
    found = average_memory_bandwidth(pl.DataFrame(rows, schema_overrides={"iteration": pl.Int64}), steps)
    assert found.details["per_rank_gb_per_s"] == pytest.approx({"0": 9, "1": 3})
    assert (found.value, found.ranks) == (pytest.approx(6), [0, 1])


def test_shares_are_of_ranks_whose_whole_has_any_length_in_order() -> None:
    rows = [(None, 6, 8), (2, 1, 1), (1, 0, 0), (0, 3, 4), (0, 0, 2)]
    types = {"rank": pl.Int64, "part": pl.Int64, "whole": pl.Int64}
    table = pl.DataFrame(rows, schema=types, orient="row").with_columns(trace=pl.lit(0))
    found = shares_by_rank(table, "part", "whole")
    assert found.rows() == [(0, 50.0), (2, 100.0), (None, 75.0)]
    assert [*by_rank(found.reverse(), "pct").items()] == [("0", 50.0), ("2", 100.0), ("unknown", 75.0)]


def test_values_of_the_window_without_a_number_come_first() -> None:
    rows = [(9, 1, 5.0), (None, 2, 3.0), (4, 3, 7.0), (None, 2, 8.0)]
    types = {"iteration": pl.Int64, "step": pl.Int64, "value": pl.Float64}
    found = by_step(pl.DataFrame(rows, schema=types, orient="row"), "value")
    assert [*found.items()] == [("None:2", 5.5), ("4:3", 7.0), ("9:1", 5.0)]


def test_the_sources_of_steps_are_listed_in_order() -> None:
    assert window_of(pl.DataFrame({"source": ["c", None, "a", "b", "a"]})) == "a, b, c"


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([(0, None, 5), (1, None, 3), (2, 7, 9)], {"3": 20, "5": 60}),
        ([(0, None, 5), (1, None, 5)], {}),
        ([(0, 1, 5), (1, None, 3)], {}),
        ([(0, 1, 5), (1, 2, 3)], {}),
    ],
)
def test_several_devices_of_no_known_rank_have_a_share_each(
    devices: list[tuple[int, int | None, int]], expected: dict[str, float]
) -> None:
    types = {"trace": pl.Int64, "rank": pl.Int64, "device": pl.Int64}
    used = pl.DataFrame(devices, schema=types, orient="row")
    # trace 0: 6 + 9 of 10 + 15; trace 1: 4 of 20; trace 2 has a rank
    table = pl.DataFrame({"trace": [0, 1, 0, 2], "part": [6, 4, 9, 1], "whole": [10, 20, 15, 2]})
    found = share_by_device(table, used, "part", "whole")
    assert found == ({"per_device_pct": pytest.approx(expected)} if expected else {})


def test_the_time_of_a_phase_has_its_parts_and_the_rest_of_the_step() -> None:
    names = ("time_ns", "duration_ns", "communication_ns", "busy_ns", "recomputed_ns")
    numbers = {
        "forward": (200, 210, 30, 220, 0), "backward": (500, 550, 40, 520, 70),
        "gradient_accumulation": (11, 12, 0, 13, 0), "gradient_communication": (5, 90, 88, 85, 0),
    }  # fmt: skip
    table = pl.DataFrame(
        [
            {"trace": 0, "rank": 0, "iteration": None, "step": 1, "phase": phase, "count": 3}
            | {"window_ns": 2000}
            | dict(zip(names, each, strict=True))
            for phase, each in numbers.items()
        ],
        schema_overrides={"iteration": pl.Int64},
    )
    steps = pl.DataFrame(
        {"trace": [0], "rank": [0], "iteration": [None], "step": [1], "source": ["mark"]},
        schema_overrides={"iteration": pl.Int64},
    )
    found = phase_time(table, steps, "backward")
    assert found.value == pytest.approx(500e-9)
    expected = {
        "pct_of_step": 25, "summed_s": 550e-9, "communication_s": 40e-9, "with_communication_s": 520e-9,
        "recomputed_s": 70e-9, "gradient_accumulation_s": 11e-9, "gradient_communication_s": 85e-9,
    }  # fmt: skip
    assert {name: found.details[name] for name in expected} == pytest.approx(expected)
    listed = {name: share for name, share in found.details["per_phase_s"].items() if share}
    assert listed == pytest.approx({phase: each[0] * 1e-9 for phase, each in numbers.items()})
    assert "recomputed_s" not in phase_time(table, steps, "forward").details


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ({"forward": 0, "unattributed": 4}, "launched"),
        ({"forward": 0, "unattributed": 4, "other": 1}, "no forward work"),
        ({"forward": 0, "unattributed": 0}, "no forward work"),
        ({"other": 4}, "no forward work"),
    ],
)
def test_work_of_no_phase_at_all_differs_from_work_of_others(counts: dict[str, int], reason: str) -> None:
    with pytest.raises(NotMeasurable, match=reason):
        rows_of(phases(**counts), "forward")
    with pytest.raises(NotMeasurable, match="no steps"):
        rows_of(phases(forward=1).clear(), "forward")
