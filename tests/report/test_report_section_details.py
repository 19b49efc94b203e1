"""Edges of the sections of a report: when something is shown, in which unit, and what counts as equal."""

from __future__ import annotations

from typing import Any

import pytest
from observations import looked, ok, rows

from ccl_bench.base.findings import Issue
from ccl_bench.report.charts.flames import flame
from ccl_bench.report.sections.communication import bandwidth, communication
from ccl_bench.report.sections.headline import findings, headline
from ccl_bench.report.sections.kernels import kernels
from ccl_bench.report.sections.memory import memory
from ccl_bench.report.sections.pipeline import pipeline
from ccl_bench.report.sections.serving import serving
from ccl_bench.report.sections.steps import steps, time_breakdown
from ccl_bench.report.sections.strip import strip
from ccl_bench.report.sections.training import experts, training
from ccl_bench.report.sections.waiting import waiting
from ccl_bench.result.drill_down import CallSite, CategoryCurves, DrillDown, MemoryAtPeak, Strip, StripRank
from ccl_bench.result.inspection import InspectedDevice
from ccl_bench.result.report_data import (
    Grid,
    MemoryCurve,
    MessageSize,
    ReferenceLine,
    Spread,
    StepTimes,
    TimeParts,
)


def _note(metric: str, value: float, **details: Any) -> str:
    """Return what the headline says beside a number."""
    [tile] = headline(looked(ok(metric, value, **details)))
    return tile.note


@pytest.mark.parametrize(
    ("spread", "note"),
    [
        ({}, ""),
        ({"count": 0}, ""),
        ({"count": 1, "min": 1.0, "max": 1.0, "p50": 1.0}, "of one step"),
        ({"count": 2, "min": 1.0, "max": 3.0, "p50": 2.0}, "mean; median 2 s, 1 s to 3 s in 2 steps"),
    ],
)
def test_the_step_time_has_its_spread_where_there_are_several_steps(
    spread: dict[str, float], note: str
) -> None:
    assert _note("iteration_wall_clock_time", 2.0, spread_s=spread) == note


def test_shares_of_several_ranks_have_their_range() -> None:
    ranks = {"0": 40.0, "1": 60.0, "2": 50.0}
    assert _note("gpu_busy", 50.0, per_rank_pct=ranks) == "rank 0: 40.00 % to rank 1: 60.00 %"
    assert _note("gpu_busy", 40.0, per_rank_pct={"0": 40.0, "1": 40.0}) == "on every rank"
    assert _note("gpu_busy", 40.0, per_rank_pct={"0": 40.0}) == ""


def test_a_throughput_is_shared_among_devices() -> None:
    note = _note("throughput_tokens_sec", 8e3, tokens_per_step=1234, tokens_per_s_per_gpu=2e3, gpus=4)
    assert note == "2,000 for each of 4 GPUs; 1,234 tokens a step"
    assert _note("throughput_tokens_sec", 8e3, tokens_per_step=1234) == "1,234 tokens a step"


def test_lost_time_and_bubbles_are_percent() -> None:
    details = {"fraction_ratio": 0.25}
    assert _note("bubble_size_pipeline", 0.5, **details) == "25.00 % of the traced step"
    [tile] = headline(looked(ok("straggler", 0.125, "ratio", late_ranks=[], slowest_rank="3")))
    assert (tile.quantity.text, tile.note) == ("12.50 %", "of the traced step; no rank is late")
    [tile] = headline(looked(ok("memory_fragmentation", 0.5, "ratio", highest_device="1.0")))
    assert (tile.quantity.text, tile.note) == ("50.00 %", "highest on rank 1.0")


@pytest.mark.parametrize(
    ("giga", "unit", "drawn"),
    [
        (1e-6, "kB", [1.0, 0.5]), (1e-3, "MB", [1.0, 0.5]), (1.0, "GB", [1.0, 0.5]), (1e3, "TB", [1.0, 0.5]),
        (999e-9, "B", [999.0, 499.5]), (999e-6, "kB", [999.0, 499.5]), (999e-3, "MB", [999.0, 499.5]),
    ],
)  # fmt: skip
def test_bytes_are_drawn_in_the_unit_of_the_most(giga: float, unit: str, drawn: list[float]) -> None:
    section = communication(
        looked(
            ok(
                "traffic_distribution_16",
                giga,
                "GB",
                per_collective_gb={"all_gather": giga / 2, "all_reduce": giga},
                per_collective_calls={},
                unattributed_calls_count=0,
            )
        )
    )
    [chart] = section.charts
    assert chart.spec["encoding"]["x"]["title"] == f"bytes in a mean step, {unit}"
    values = chart.spec["data"]["values"]
    assert [value["name"] for value in values] == ["all_reduce", "all_gather"]
    assert [value["value"] for value in values] == pytest.approx(drawn)
    assert [row[3] for row in rows(section.tables[0])] == ["33.33 %", "66.67 %"]
    assert section.tables[0].note == ""


def test_time_in_communication_is_divided_where_any_of_it_is_known() -> None:
    def section(**parts: dict[str, float]) -> Any:
        times = {"all_reduce": 0.004, "all_gather": 0.002, "barrier": 0.001, "broadcast": 0.003}
        details = {"per_collective_s": times, "per_collective_parts_s": parts}
        return communication(looked(ok("total_communication_time", 0.01, **details)))

    def one(waiting_s: float, transfer: float, unknown: float = 0.0) -> dict[str, float]:
        return {"waiting": waiting_s, "transfer": transfer, "unknown": unknown}

    known = section(
        all_reduce=one(0.001, 0.003), all_gather=one(0, 0.002), barrier=one(0.001, 0), broadcast=one(0, 0.003)
    )
    [chart] = known.charts
    assert [(v["collective"], v["part"], v["value"]) for v in chart.spec["data"]["values"][:2]] == [
        ("all_reduce", "waiting", 1.0),
        ("all_reduce", "transfer", 3.0),
    ]
    assert chart.summary == (
        "all_reduce 4 ms, of which 1 ms waiting; broadcast 3 ms, of which 0 s waiting; "
        "all_gather 2 ms, of which 0 s waiting."
    )
    assert known.tables[0].columns[-2:] == ("waiting", "transfer")
    some = section(all_reduce=one(0, 0.003, 0.001), all_gather=one(0, 0, 0.002), barrier=one(0, 0, 0.001))
    assert [row[-3:] for row in rows(some.tables[0])] == [
        ["0 s", "0 s", "2 ms"], ["0 s", "3 ms", "1 ms"], ["0 s", "0 s", "1 ms"], ["-", "-", "-"],
    ]  # fmt: skip
    unknown = section(all_reduce=one(0, 0, 0.004), all_gather=one(0, 0, 0.002))
    assert unknown.tables[0].columns[-1] == "time"


def _size(collective: str, median: float, **more: Any) -> MessageSize:
    known = {"basis": "wait-free", "min_bytes": 8, "max_bytes": 8} | more
    return MessageSize(
        collective, "tp", "inside a node", calls=1200, p10_gb_per_s=1.0, p50_gb_per_s=median,
        p90_gb_per_s=9.0, **known,
    )  # fmt: skip


def test_the_highest_median_bandwidth_is_named_and_set_against_nccl_tests() -> None:
    sizes = [
        _size("all_reduce", 2.0, nccl_tests_gb_per_s=8.0),
        _size("all_gather", 4.0, basis="raw", min_bytes=1000, max_bytes=2000),
        _size("send", 3.0),
    ]
    [chart] = bandwidth(looked(bus_bandwidth=sizes)).charts
    assert (
        chart.summary == "The highest median is 4 GB/s, of all_gather, tp, raw with messages of 1 kB to 2 kB."
    )
    assert rows(chart.table)[0] == [
        "all_reduce, tp", "8 B", "1,200", "1", "2", "9", "wait-free", "8", "25.00 %",
    ]  # fmt: skip
    assert rows(chart.table)[1][-2:] == ["-", "-"]
    assert chart.table.numeric == {1, 2, 3, 4, 5, 7, 8}
    assert "one group" in chart.note
    assert "Raw times" in chart.note
    [plain] = bandwidth(looked(bus_bandwidth=sizes[2:])).charts
    assert "one group" not in plain.note
    assert "Raw times" not in plain.note
    assert len(plain.table.columns) == 7


def test_the_median_bandwidth_is_compared_with_the_reference_and_its_line_is_drawn() -> None:
    sizes = [_size("all_reduce", 2.0, reference_gb_per_s=8.0), _size("all_gather", 4.0)]
    line = ReferenceLine("all_reduce", "tp", "NCCL 2.27.3 reaches on 8 A100 SXM", [8, 16], [8.0, 9.0])
    section = bandwidth(looked(bus_bandwidth=sizes, references=[line]))
    [chart] = section.charts
    assert chart.table.columns[-2:] == ("reference", "efficiency")
    assert [row[-2:] for row in rows(chart.table)] == [["8", "25.00 %"], ["-", "-"]]
    assert "Dotted lines" in chart.note
    assert any("what NCCL 2.27.3 reaches on 8 A100 SXM" in note for note in section.notes)
    drawn = [layer["data"]["values"] for layer in chart.spec["layer"]]
    assert [(point["kind"], point["bytes"], point["rate"]) for point in drawn[-1]] == [
        ("all_reduce, tp", 8, 8.0), ("all_reduce, tp", 16, 9.0),
    ]  # fmt: skip


def test_the_efficiency_of_a_collective_weighs_its_sizes_by_their_time() -> None:
    compared = [
        {"collective": "all_reduce", "reference_s": 1.0, "recorded_s": 2.0, "calls_count": 3},
        {"collective": "all_reduce", "reference_s": 4.0, "recorded_s": 4.0, "calls_count": 1},
    ]
    known = {"algorithm_bandwidth_gb_per_s": 5.0, "calls_count": 7, "total_bytes": 3e6, "basis": "wait-free"}
    section = bandwidth(
        looked(
            ok("bandwidth_utilization_allreduce", 75.0, "GB/s", reach="unknown", **known),
            ok("bandwidth_utilization_allgather", 75.0, "GB/s", reach="unknown", **known),
            ok("collective_efficiency", 70.0, "%", calls=compared, without_reference_s=0.0),
            bus_bandwidth=[_size("all_reduce", 2.0)],
        )
    )
    # (3 · 1 + 4) s of reference in (3 · 2 + 4) s
    assert [row[-1] for row in rows(section.tables[0])] == ["70.00 %", "unknown"]


def test_the_peak_of_a_link_is_in_bytes_per_second() -> None:
    section = bandwidth(looked(bus_bandwidth=[_size("send", 3.0)], facts={"scale_out_gbps": 400}))
    assert section.notes == ("Peak of the scale-out network: 50 GB/s in one direction, from workload card.",)
    catalogued = looked(bus_bandwidth=[_size("send", 3.0)])
    catalogued.inspection.devices.append(InspectedDevice("NVIDIA H100 80GB HBM3", 80 * 10**9, 132, 1))
    assert "450 GB/s in one direction" in bandwidth(catalogued).notes[0]


@pytest.mark.parametrize(
    ("percentiles", "charts"),
    [([1.0] * 101, 0), ([1.0] + [2.0] * 100, 1), ([1.0] * 100 + [2.0], 1), ([], 0)],
)
def test_times_that_are_all_equal_are_not_drawn(percentiles: list[float], charts: int) -> None:
    section = serving(looked(ok("TTFT", 1.5, percentiles_s=percentiles)))
    assert len(section.charts) == charts


def test_times_are_drawn_in_the_unit_of_the_longest_that_is_drawn() -> None:
    [chart] = serving(looked(ok("TTFT", 0.05, percentiles_s=[n / 1000 for n in range(100)] + [7.0]))).charts
    assert chart.spec["encoding"]["x"]["title"] == "time to first token, ms"
    values = chart.spec["data"]["values"]
    assert (values[-1]["x"], values[-1]["y"]) == (pytest.approx(99), 99)
    assert chart.summary == "Half of them take at most 50 ms, 99 % at most 99 ms."
    assert rows(chart.table)[-2:] == [["99 %", "99 ms"], ["100 %", "7 s"]]
    assert chart.note == "The longest 1 %, up to 7 s, is not drawn."


def test_counts_of_requests_have_the_others_behind() -> None:
    several = ok("TTFT", 1.5, requests={"ok": 1, "failed": 2000}, tool="vLLM")
    assert serving(looked(several)).notes == ("vLLM: 1 request succeeded; 2,000 failed.",)
    assert serving(looked(ok("TTFT", 1.5, requests={"ok": 3}))).notes == (
        "The benchmark: 3 requests succeeded.",
    )


def _curve(count: int) -> Any:
    series = {"loss": [{"step": number, "value": float(number)} for number in range(count)]}
    return training(looked(ok("training_quality", 1.0, "nats", series=series))).charts


@pytest.mark.parametrize(
    ("count", "drawn", "note"),
    [
        (2, 2, ""),
        (500, 500, ""),
        (501, 251, "One of every 2 of 501 values, and the last."),
        (502, 252, "One of every 2 of 502 values, and the last."),
        (1001, 335, "One of every 3 of 1,001 values, and the last."),
    ],
)
def test_of_more_than_500_losses_every_so_manieth_and_the_last_are_drawn(
    count: int, drawn: int, note: str
) -> None:
    [chart] = _curve(count)
    values = chart.spec["data"]["values"]
    assert len(values) == drawn
    assert (values[0]["x"], values[-1]["x"]) == (0, count - 1)
    assert chart.note == note


def test_a_single_loss_is_not_drawn_and_at_most_four_curves_are() -> None:
    assert _curve(1) == ()
    series = {f"loss_{n}": [{"step": 1, "value": 1.0}, {"step": 2, "value": 2.0}] for n in range(5)}
    charts = training(looked(ok("training_quality", 1.0, "nats", series=series, perplexity=20.5))).charts
    assert [chart.key for chart in charts] == [f"training-loss-{n}" for n in range(4)]


@pytest.mark.parametrize(("count", "note"), [(256, ""), (257, "The 256 of 257 with most tokens.")])
def test_at_most_256_experts_are_drawn(count: int, note: str) -> None:
    tokens = {str(number): number for number in range(count)}
    result = ok("token_to_expert_assignment", 2.0, "ratio", source="a file", tokens_per_expert=tokens)
    [chart] = experts(looked(result)).charts
    assert chart.note == note
    names = [value["name"] for value in chart.spec["data"]["values"]]
    assert len(names) == 256
    assert names[0] == ("0" if count == 256 else "256")
    assert "fewest, 0, to 0" in chart.summary


def test_at_most_four_groups_of_experts_are_drawn() -> None:
    groups = {str(n): {"tokens_per_device": {"0": 1, "1": 2}} for n in range(5)}
    result = ok("token_to_expert_assignment", 2.0, "ratio", source="a file", per_group=groups)
    assert [chart.key for chart in experts(looked(result)).charts] == [f"experts-group-{n}" for n in range(4)]


def _times(counts: int, **each: int) -> StepTimes:
    spreads = [Spread(name, counts, 0.1, 0.2, 0.3) for name in ("0", "1")]
    return StepTimes("ProfilerStep", spreads, spreads, None, **each)


def test_only_merged_steps_and_ranks_have_a_note() -> None:
    over_steps, over_ranks = steps(looked(step_times=_times(1))).charts
    assert over_steps.note == "The band spans the fastest to the slowest rank, the line is the median rank. "
    assert over_ranks.note == ""
    over_steps, over_ranks = steps(looked(step_times=_times(2, steps_each=2, ranks_each=2))).charts
    assert over_steps.note.endswith("Each step shown is all of up to 2 neighbouring steps.")
    assert over_ranks.note == (
        "Dots are medians, bars span the shortest to the longest step. "
        "Each entry is all of up to 2 neighbouring ranks."
    )


def test_one_step_of_one_rank_is_a_table() -> None:
    one = [Spread("0", 1, 0.1, 0.1, 0.1)]
    section = steps(looked(step_times=StepTimes("ProfilerStep", one, one)))
    assert section.charts == ()
    assert rows(section.tables[0]) == [["0", "1", "100 ms", "100 ms", "100 ms"]]


def _busy(**ranks: dict[str, float]) -> Any:
    return ok("gpu_busy", 50.0, "%", per_rank_parts_s_per_step=ranks)


def test_parts_of_a_step_are_shares_of_each_rank_s_own_step() -> None:
    names = ("compute", "exposed_communication", "exposed_memory", "idle", "window")
    busy = _busy(
        first=dict(zip(names, (1.0, 0.5, 0.0, 0.5, 2.0), strict=True)),
        second=dict(zip(names, (3.0, 0.0, 1.0, 0.0, 4.0), strict=True)),
        empty=dict.fromkeys(names, 0.0),
    )
    parts = [TimeParts("first", 2.0, 1.0, 0.5, 0.0, 0.5), TimeParts("second", 4.0, 3.0, 0.0, 1.0, 0.0)]
    chart, *_ = time_breakdown(looked(busy, time_parts=parts)).charts
    assert chart.summary == (
        "Mean over ranks: compute 62.50 %, exposed communication 12.50 %, exposed memory 12.50 %, "
        "idle 12.50 %."
    )
    assert rows(chart.table) == [
        ["first", "1 s", "500 ms", "0 s", "500 ms", "2 s"],
        ["second", "3 s", "0 s", "1 s", "0 s", "4 s"],
        ["mean share", "62.50 %", "12.50 %", "12.50 %", "12.50 %", "100 %"],
    ]
    assert chart.spec["data"]["values"][0]["value"] == 1.0


@pytest.mark.parametrize(("count", "is_wide"), [(16, False), (17, True)])
def test_parts_of_more_than_16_ranks_take_the_whole_width(count: int, is_wide: bool) -> None:
    parts = [TimeParts(str(rank), 2.0, 1.0, 0.5, 0.0, 0.5) for rank in range(count)]
    busy = {"compute": 1.0, "exposed_communication": 0.5, "exposed_memory": 0.0, "idle": 0.5, "window": 2.0}
    chart, *_ = time_breakdown(looked(_busy(**{"0": busy}), time_parts=parts)).charts
    assert chart.is_wide is is_wide


def test_waiting_of_merged_ranks_and_steps_says_so() -> None:
    [chart] = waiting(looked(waits=Grid(["0"], ["1", "2"], [[0.1, 0.2]], ranks_each=2, steps_each=3))).charts
    assert chart.note == (
        "Each row is the mean of up to 2 neighbouring ranks. "
        "Each column is the mean of up to 3 neighbouring steps."
    )
    [chart] = waiting(looked(waits=Grid(["0"], ["1", "2"], [[0.1, 0.2]]))).charts
    assert chart.note == ""


@pytest.mark.parametrize(
    ("more", "label", "known"),
    [
        ({}, "Lag, share of a step", "The step times of each rank are known."),
        (
            {"recorded_s": 2.0},
            "Lag, share of the recorded time",
            "Flight Recorder dumps show when each rank made its calls",
        ),
    ],
)
def test_a_lag_is_of_a_step_or_of_the_time_that_was_recorded(
    more: dict[str, float], label: str, known: str
) -> None:
    section = waiting(looked(ok("straggler", 0.125, "ratio", late_ranks=[], slowest_rank="0", **more)))
    [number] = section.numbers
    assert (number.label, number.quantity.text) == (label, "12.50 %")
    assert known in section.about
    assert section.notes == ("No rank is late by more than the noise.",)


@pytest.mark.parametrize(
    ("ratio", "note"),
    [
        (1.004, "All stages compute for about the same time."),
        (1.005, "The busiest stage computes 1.00 times as long as the mean one."),
    ],
)
def test_stages_within_half_a_percent_are_alike(ratio: float, note: str) -> None:
    stages = {"0": {"compute_s": 0.5, "bubble_s": 0.5, "fraction": 0.5}}
    found = ok("bubble_size_pipeline", 0.5, per_stage=stages, fraction_ratio=0.5, stage_imbalance_ratio=ratio)
    section = pipeline(looked(found))
    assert section.notes == (note,)
    assert rows(section.charts[0].table) == [
        ["0", "500 ms", "0 s", "0 s", "500 ms", "500 ms", "50.00 %"],
    ]


def test_memory_names_the_peak_of_each_device_and_what_holds_it() -> None:
    gb = 1_000_000_000
    sites = [
        CallSite(["inner (x)", "model.py:1", "layer.py:2"], 3 * gb, 4, "", is_before_history=False),
        CallSite([], gb, 1, "", is_before_history=True),
    ]
    lists = DrillDown(
        memory=MemoryAtPeak("rank 0", 5 * gb, sites),
        categories=CategoryCurves("rank 0", True, [0.0, 1.0], {"weights": [gb, gb], "other": [0, 2 * gb]}),
    )
    holders = [
        {"bytes": 2 * gb, "blocks_count": 1, "frames": ["a", "b"], "is_before_history": False},
        {"bytes": gb, "blocks_count": 2, "frames": [], "is_before_history": True},
    ]
    peak = ok(
        "peak_memory_allocated",
        5.0,
        "GB",
        highest_device="1",
        per_device_peak_allocated_bytes={"0": 4 * gb, "1": 5 * gb},
        holders=holders,
    )
    curve = MemoryCurve("0", 1, False, [3.0, 7.0], [1, 2], [gb, 2 * gb], [4 * gb, 3 * gb])
    section = memory(looked(peak, memory=[curve], memory_devices=1, drill_down=lists))
    charts = {chart.key: chart for chart in section.charts}
    assert charts["memory-0"].summary == (
        "Allocated memory peaks at 2 GB at event 7; at most 4 GB are reserved."
    )
    assert charts["memory-0"].note == ""
    assert charts["memory-categories"].summary == "The largest part is other, up to 2 GB on rank 0."
    assert charts["memory-peaks"].summary == "Peaks range from 4 GB on 0 to 5 GB on 1."
    assert charts["memory-peaks"].spec["data"]["values"] == [
        {"name": "0", "value": 4.0},
        {"name": "1", "value": 5.0},
    ]
    assert rows(charts["memory-sites"].table) == [
        ["3 GB", "4", "model.py:1 › layer.py:2"],
        ["1 GB", "1", "allocated before the history"],
    ]
    boxes = [
        (box["name"], box["short"], box["value"]) for box in charts["memory-sites"].spec["data"]["values"]
    ]
    assert boxes == [
        ("model.py:1", "model.py:1", 3.0), ("layer.py:2", "layer.py:2", 3.0),
        ("allocated before the history", "allocated before the history", 1.0),
    ]  # fmt: skip
    areas = charts["memory-categories"].spec["data"]["values"]
    assert [(each["x"], each["category"], each["y"]) for each in areas] == [
        (0.0, "weights", 1.0), (1.0, "weights", 1.0), (0.0, "other", 0.0), (1.0, "other", 2.0),
    ]  # fmt: skip
    assert rows(charts["memory-categories"].table) == [["weights", "1 GB"], ["other", "2 GB"]]
    assert charts["memory-sites"].summary.endswith("The largest call site, layer.py:2, allocated 3 GB.")
    assert (charts["memory-sites"].table.numeric, charts["memory-sites"].table.wide) == ({0, 1}, {2})
    [held] = section.tables
    assert rows(held) == [["2 GB", "1", "a < b"], ["1 GB", "2", "before the history began"]]
    assert (held.numeric, held.wide) == ({0, 1}, {2})


def test_one_device_has_no_chart_of_peaks() -> None:
    peak = ok(
        "peak_memory_allocated", 5.0, "GB", per_device_peak_allocated_bytes={"0": 5}, highest_device="0"
    )
    assert memory(looked(peak)).charts == ()


def test_a_flame_lays_boxes_side_by_side_and_below_each_other() -> None:
    spec = flame(
        [(["a", "b"], 6.0), (["a"], 1.0), (["c"], 2.991), (["d"], 0.009)],
        of="frame",
        unit="s",
        shorter={"a": "A"},
    )
    boxes = [
        (box["name"], box["level"], box["x"], box["x2"], box["pct"], box["colour"], box["short"])
        for box in spec["data"]["values"]
    ]
    near = pytest.approx
    assert boxes == [
        ("a", 0, 0.0, near(0.7), near(70), 0, "A"),
        ("b", 1, 0.0, near(0.6), near(60), 1, "b"),
        ("c", 0, near(0.7), near(0.9991), near(29.91), 1, "c"),  # d has less than a thousandth
    ]
    assert spec["height"] == 2 * 18


def test_a_flame_has_24_levels_and_four_colours() -> None:
    spec = flame([([str(level) for level in range(30)], 1.0)], of="frame", unit="s", shorter={})
    boxes = spec["data"]["values"]
    assert [box["level"] for box in boxes] == [*range(24)]
    assert [box["colour"] for box in boxes] == [0, 1, 2, 3] * 6
    assert flame([], of="frame", unit="s", shorter={})["height"] == 18


def _strip(*ranks: StripRank, **more: Any) -> Strip:
    return Strip("3", 100, 2_500_000, "one clock", [], list(ranks), **more)


def _rank(name: str, fused: float = 0.0, late: float | None = None, node: int | None = None) -> StripRank:
    parts = dict.fromkeys(("compute", "fused", "exposed_communication", "exposed_memory", "idle"), 0.001)
    return StripRank(name, 0, 10, [], parts | {"fused": fused}, node, waited_s=0.002, late_s=late)


def test_the_table_of_a_strip_has_fused_time_where_a_rank_has() -> None:
    drawn = strip(looked(strip=_strip(_rank("0", node=1), _rank("1", late=0.003)))).strip
    assert drawn is not None
    assert drawn.table.columns[2:6] == ("compute", "exposed communication", "exposed memory", "idle")
    assert rows(drawn.table) == [
        ["0", "1", "1 ms", "1 ms", "1 ms", "1 ms", "4 ms", "2 ms", "-"],
        ["1", "-", "1 ms", "1 ms", "1 ms", "1 ms", "4 ms", "2 ms", "3 ms"],
    ]
    assert drawn.table.numeric == {2, 3, 4, 5, 6, 7, 8}
    assert drawn.title == "Step 3 of all ranks"
    assert drawn.summary.startswith("Step 3 takes 250 ms from")
    assert "Rank 1 waits least for others, 3 ms less" in drawn.summary
    assert drawn.data["by_lateness"] is False
    fused = strip(looked(strip=_strip(_rank("7", fused=0.001)))).strip
    assert fused is not None
    assert fused.table.columns[3] == "fused"
    assert fused.title == "Step 3 of rank 7"
    some = strip(looked(strip=_strip(_rank("0"), _rank("1", fused=0.001)))).strip
    assert some is not None
    assert [row[3] for row in rows(some.table)] == ["0 s", "1 ms"]


def test_a_strip_says_what_was_merged_and_whether_late_ranks_come_first() -> None:
    some = _strip(_rank("1"), _rank("0"), pieces=1000, drawn=999, others=2)
    drawn = strip(looked(strip=some)).strip
    assert drawn is not None
    assert drawn.note == (
        "Short neighbours are drawn as one: 999 pieces for 1,000. 2 traces without this step. One clock."
    )
    assert drawn.data["by_lateness"] is True
    whole = strip(looked(strip=_strip(_rank("0"), pieces=9, drawn=9))).strip
    assert whole is not None
    assert whole.note == "One clock."


def test_all_calls_together_have_their_share_of_link_and_of_nccl_tests() -> None:
    known = {"algorithm_bandwidth_gb_per_s": 50.0, "calls_count": 1200, "total_bytes": 2e9}
    known |= {"basis": "wait-free", "reach": "inside a node"}
    parts = {"waiting": 0.001, "transfer": 0.002, "unknown": 0.0}
    shared = {"share_of_link_pct": 25.0, "nccl_tests_efficiency_ratio": 0.5, "time_parts_s": parts}
    section = bandwidth(
        looked(
            ok("bandwidth_utilization_allreduce", 75.0, "GB/s", **known, **shared),
            ok("bandwidth_utilization_p2p", 20.0, "GB/s", **known),
            bus_bandwidth=[_size("send", 3.0)],
        )
    )
    [shown] = section.tables
    common = ["1,200", "2 GB", "wait-free", "inside a node"]
    assert rows(shown) == [
        ["all_reduce", "75 GB/s", "50 GB/s", "25.00 %", *common, "50.00 %", "1 ms", "2 ms"],
        ["send, recv", "20 GB/s", "50 GB/s", "unknown", *common, "unknown", "-", "-"],
    ]
    assert shown.columns[-3:] == ("of nccl-tests", "waiting", "transfer")
    assert shown.numeric == {1, 2, 3, 4, 5, 8, 9, 10}
    plain = bandwidth(
        looked(
            ok("bandwidth_utilization_p2p", 20.0, "GB/s", **known),
            ok("bandwidth_utilization_alltoall", None, "GB/s"),  # type: ignore[arg-type]
            bus_bandwidth=[_size("send", 3.0)],
        )
    )
    assert plain.tables[0].columns[-1] == "reach"
    assert plain.tables[0].note == ""


def test_communication_of_dimensions_has_its_bytes_and_times() -> None:
    def row(moved: int | None, share: float | None, time_s: float, **parts: float) -> dict[str, Any]:
        known = {"bytes_per_gpu_and_step": moved, "share_pct": share, "calls_per_gpu_and_step": 2.5}
        return known | {"time_s_per_gpu_and_step": time_s, "parts_s_per_gpu_and_step": parts}

    halves = {"waiting": 0.001, "transfer": 0.001, "unknown": 0.0}
    dimensions = {
        "tp": row(3_000_000, 75.0, 0.002, **halves),
        "dp": row(1_000_000, 25.0, 0.004, **halves),
        "?": row(None, None, 0.006, **halves),
    }
    section = communication(
        looked(
            ok("traffic_distribution", 1.0, per_dimension=dimensions),
            ok("total_communication_time", 0.01, per_collective_s={}),
            ok("coll_call_num", 7.0, "calls", per_collective={"barrier": 7.0}, rank="0"),
        )
    )
    charts = {chart.key: chart for chart in section.charts}
    assert [*charts] == ["time-by-dimension", "bytes-by-dimension"]
    assert [value["value"] for value in charts["bytes-by-dimension"].spec["data"]["values"]] == [3.0, 1.0]
    assert [value["value"] for value in charts["time-by-dimension"].spec["data"]["values"]][::2] == [1.0] * 3
    collectives, by_dimension = section.tables
    assert rows(by_dimension) == [
        ["tp", "2.5", "3 MB", "75.00 %", "2 ms", "1 ms", "1 ms"],
        ["dp", "2.5", "1 MB", "25.00 %", "4 ms", "1 ms", "1 ms"],
        ["?", "2.5", "unknown", "unknown", "6 ms", "1 ms", "1 ms"],
    ]
    assert rows(collectives) == [["barrier", "7", "-", "-", "-"]]
    assert [number.label for number in section.numbers][-1] == "Calls of rank 0"


def test_memory_states_how_many_events_and_devices_are_drawn() -> None:
    gb = 1_000_000_000
    curves = [
        MemoryCurve("0", 2000, True, [0.5, 1.5], [1, 2], [gb, 3 * gb], [4 * gb, 5 * gb]),
        MemoryCurve("1", 1, True, [0.5], [1], [gb], [gb]),
    ]
    layouts = [
        {"rank": "0", "moment": "peak", "unused_ratio": 0.25, "inactive_split_ratio": 0.125},
        {"moment": "snapshot", "unused_ratio": 0.5, "inactive_split_ratio": 0.0, "scattered_ratio": 1.0},
    ]
    unused = ok("memory_fragmentation", 0.25, "ratio", basis="peak", highest_device="0", snapshots=layouts)
    section = memory(looked(unused, memory=curves, memory_devices=1200))
    first, second = section.charts
    assert first.note == (
        "Each point shows the extremes of up to 2,000 states of the allocator. "
        "The charts show the 2 of 1,200 devices with the highest peaks."
    )
    assert second.note == ""
    assert first.summary == "Allocated memory peaks at 3 GB after 1.5 s; at most 5 GB are reserved."
    assert rows(first.table) == [["500 ms", "1 B", "1 GB", "4 GB"], ["1.5 s", "2 B", "3 GB", "5 GB"]]
    assert first.table.numeric == {0, 1, 2, 3}
    assert rows(section.tables[0]) == [
        ["rank 0, when most was allocated", "25.00 %", "12.50 %", "-"],
        ["rank unknown, at the snapshot", "50.00 %", "0.00 %", "100.00 %"],
    ]
    [tile] = section.numbers
    assert (tile.quantity.text, tile.note) == ("25.00 %", "at the peak")
    whole = memory(looked(unused, memory=curves[:1], memory_devices=1))
    assert whole.charts[0].note == "Each point shows the extremes of up to 2,000 states of the allocator."


def test_phases_are_drawn_if_several_have_time() -> None:
    def charts(**phases: float) -> Any:
        busy = {"compute": 1.0, "exposed_communication": 0.0, "exposed_memory": 0.0, "idle": 1.0}
        parts = [TimeParts("0", 2.0, 1.0, 0.0, 0.0, 1.0)]
        timed = ok("backward_time", 0.5, per_phase_s=phases)
        found = time_breakdown(looked(_busy(**{"0": busy | {"window": 2.0}}), timed, time_parts=parts)).charts
        return [chart for chart in found if chart.key == "phases"]

    assert charts(forward=0.5, backward=0.0) == []
    [chart] = charts(forward=0.25, backward=0.5, optimizer_step=0.125, other=0.0)
    assert [(value["name"], value["value"]) for value in chart.spec["data"]["values"]] == [
        ("forward", 250.0), ("backward", 500.0), ("optimizer step", 125.0),
    ]  # fmt: skip
    assert chart.summary.endswith("is backward, 500 ms of a mean step.")


def test_idle_time_has_its_causes() -> None:
    idle = ok(
        "idle_breakdown", 0.5, host_wait_s=0.25, kernel_wait_s=0.125, other_wait_s=0.0,
        per_cause_pct={"host": 62.5, "kernel": 37.5, "other": 0.0},
    )  # fmt: skip
    names = ("compute", "exposed_communication", "exposed_memory", "idle", "window")
    busy = _busy(**{"0": dict(zip(names, (1.0, 0.0, 0.0, 1.0, 2.0), strict=True))})
    section = time_breakdown(looked(busy, idle, time_parts=[TimeParts("0", 2.0, 1.0, 0.0, 0.0, 1.0)]))
    [shown] = section.tables
    assert [row[1:] for row in rows(shown)] == [
        ["250 ms", "62.50 %"], ["125 ms", "37.50 %"], ["0 s", "0.00 %"],
    ]  # fmt: skip


@pytest.mark.parametrize(("count", "listed", "others"), [(1, 1, 0), (3, 3, 0), (4, 2, 2), (9, 2, 7)])
def test_of_many_findings_of_one_kind_two_are_shown(count: int, listed: int, others: int) -> None:
    issues = [Issue("warning", f"it is {n}", "lost", f"rank{n}.json") for n in range(count)]
    found = findings([*issues, Issue("note", "one", "lost"), Issue("note", "two", "other")])
    assert [each.message for each in found[:listed]] == [f"it is {n}" for n in range(listed)]
    assert [each.others for each in found[:listed]] == [0] * (listed - 1) + [others]
    assert [each.message for each in found[listed:]] == ["one", "two"]


def test_the_place_of_a_finding_is_its_file_line_and_path() -> None:
    known = {"line": 7, "path": "data.seq_len"}
    places = [
        Issue("error", "m", "c", "card.yaml", **known),  # type: ignore[arg-type]
        Issue("error", "n", "d", "card.yaml"),
        Issue("error", "o", "e", "", line=7),
        Issue("error", "p", "f", "", path="data.seq_len"),
    ]
    assert [each.place for each in findings(places)] == [
        "card.yaml:7: data.seq_len", "card.yaml", "", "data.seq_len",
    ]  # fmt: skip


def test_boxes_of_call_sites_have_the_function_without_its_place() -> None:
    sites = [CallSite(["forward (model.py:7)"], 5, 1, "", is_before_history=False)]
    lists = DrillDown(memory=MemoryAtPeak("rank 0", 5, sites))
    section = memory(looked(ok("peak_memory_allocated", 5.0, "GB"), drill_down=lists))
    [chart] = section.charts
    [box] = chart.spec["data"]["values"]
    assert (box["name"], box["short"]) == ("forward (model.py:7)", "forward")
    bare = [CallSite([], 5, 1, "", is_before_history=False)]
    lists = DrillDown(memory=MemoryAtPeak("rank 0", 5, bare))
    assert memory(looked(ok("peak_memory_allocated", 5.0, "GB"), drill_down=lists)).charts == ()


def test_waits_and_kernels_are_drawn_in_the_unit_of_the_largest() -> None:
    [chart] = waiting(looked(waits=Grid(["0", "1"], ["1", "2"], [[0.002, None], [0.0, 0.003]]))).charts
    assert [(each["row"], each["column"], each["value"]) for each in chart.spec["data"]["values"]] == [
        ("0", "1", 2.0), ("1", "1", 0.0), ("1", "2", 3.0),
    ]  # fmt: skip
    assert chart.summary == "Rank 0 waits most, 2 ms in a mean step, rank 1 least, 1.5 ms."
    [chart] = waiting(looked(waits=Grid(["0", "1"], ["1"], [[0.002], [0.001]]))).charts
    assert [(each["name"], each["value"]) for each in chart.spec["data"]["values"]] == [
        ("0", 2.0),
        ("1", 1.0),
    ]
    shares = {"per_type_s": {"gemm": 0.003, "copy": 0.001}, "per_type_pct": {"gemm": 75.0, "copy": 25.0}}
    [chart] = kernels(looked(ok("total_kernel_time", 0.004, kernels_per_step=0, **shares))).charts
    assert [(each["name"], each["value"]) for each in chart.spec["data"]["values"]] == [
        ("gemm", 3.0), ("copy", 1.0),
    ]  # fmt: skip
    assert chart.spec["encoding"]["x"]["title"] == "time in a mean step, ms"


@pytest.mark.parametrize(
    ("late", "slowest", "cause", "said"),
    [
        (["2"], "2", {}, ["Rank 2 is late."]),
        (["1", "2"], "2", {}, ["Ranks 1, 2 are late; the slowest is rank 2."]),
        (["2"], "2", {"kind": "unknown"}, ["Rank 2 is late.", "The cause is unknown"]),
        (
            ["2"],
            "2",
            {"kind": "host", "excess_s": {"host": 0.004}},
            ["Rank 2 is late.", "Rank 2 leaves its device idle 4 ms longer"],
        ),
    ],
)
def test_late_ranks_are_named_with_the_cause(
    late: list[str], slowest: str, cause: dict[str, Any], said: list[str]
) -> None:
    found = ok("straggler", 0.1, "ratio", late_ranks=late, slowest_rank=slowest, cause=cause)
    notes = waiting(looked(found)).notes
    assert len(notes) == len(said)
    assert all(note.startswith(begin) for note, begin in zip(notes, said, strict=True))


def test_exposed_waiting_is_said_with_its_share() -> None:
    exposed = ok("exposed_wait_time", 0.002, pct_of_step=12.5)
    notes = waiting(looked(exposed, waits=Grid(["0"], ["1"], [[0.1]]))).notes
    assert notes == ("On average over ranks, 2 ms of waiting is exposed: 12.50 % of the traced step.",)
