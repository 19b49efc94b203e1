"""What the sections of a report say of numbers that can be followed by hand."""

from __future__ import annotations

from typing import Any

from observations import looked, missing, ok, quantity, rows

from ccl_bench.base.findings import Issue
from ccl_bench.report.sections.communication import bandwidth, communication
from ccl_bench.report.sections.headline import findings, headline
from ccl_bench.report.sections.kernels import kernels
from ccl_bench.report.sections.memory import memory
from ccl_bench.report.sections.pipeline import pipeline
from ccl_bench.report.sections.serving import PARTS, serving
from ccl_bench.report.sections.steps import steps, time_breakdown
from ccl_bench.report.sections.training import experts, training
from ccl_bench.report.sections.waiting import waiting
from ccl_bench.report.theme import DARK, LIGHT
from ccl_bench.result import ResultFinding
from ccl_bench.result.inspection import InspectedDevice
from ccl_bench.result.report_data import Grid, MemoryCurve, MessageSize, Spread, StepTimes, TimeParts

SIZE = MessageSize("all_reduce", "tp", "inside a node", "wait-free", 2**20, 2**20, 50, 90.0, 100.0, 110.0)


def _values(spec: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spec["data"]["values"]
    return found


def test_step_times_of_few_ranks_are_lines_of_each() -> None:
    grid = Grid(["0", "1"], ["7", "8"], [[0.1, 0.2], [0.3, None]])
    times = StepTimes(
        "step_times.json",
        [Spread("7", 2, 0.1, 0.2, 0.3), Spread("8", 1, 0.2, 0.2, 0.2)],
        [Spread("0", 2, 0.1, 0.15, 0.2), Spread("1", 1, 0.3, 0.3, 0.3)],
        grid,
    )
    over_steps, over_ranks = steps(looked(step_times=times)).charts
    assert [(point["x"], point["rank"], point["y"]) for point in _values(over_steps.spec)] == [
        ("7", "0", 100.0),
        ("8", "0", 200.0),
        ("7", "1", 300.0),
    ]
    assert rows(over_steps.table) == [["7", "100 ms", "300 ms"], ["8", "200 ms", ""]]
    assert over_ranks.summary == "Median steps take from 150 ms on rank 0 to 300 ms on rank 1."


def test_step_times_that_hardly_differ_look_alike() -> None:
    times = StepTimes(
        "whole trace",
        [Spread("0", 2, 0.299868, 0.299871, 0.299874)],
        [Spread("0", 1, 0.299874, 0.299874, 0.299874), Spread("1", 1, 0.299868, 0.299868, 0.299868)],
    )
    (over_ranks,) = steps(looked(step_times=times)).charts
    assert over_ranks.summary == "The median step takes 300 ms on every rank."
    (dots,) = [layer for layer in over_ranks.spec["layer"] if layer["mark"]["type"] == "point"]
    low, high = dots["encoding"]["y"]["scale"]["domain"]
    assert (round(low, 1), round(high, 1)) == (292.4, 307.4)  # 5 % of 299.871 ms


def test_step_times_of_many_ranks_are_a_band_and_say_so() -> None:
    spreads = [Spread("0-9", 640, 0.1, 0.2, 0.9), Spread("10-19", 640, 0.1, 0.15, 0.3)]
    times = StepTimes("ProfilerStep", spreads, spreads, None, 10, 4)
    over_steps, over_ranks = steps(looked(step_times=times)).charts
    assert over_steps.summary.startswith(
        "The longest step is 0-9 with 900 ms; step 10-19 has the shortest median"
    )
    assert over_steps.note.endswith("Each step shown is all of up to 10 neighbouring steps.")
    assert over_ranks.note.endswith("Each entry is all of up to 4 neighbouring ranks.")


def test_communication_is_recognised_by_collective_and_by_dimension() -> None:
    section = communication(
        looked(
            ok(
                "traffic_distribution_16",
                0.004,
                "GB",
                per_collective_gb={"all_reduce": 0.003, "all_gather": 0.001},
                per_collective_calls={"all_reduce": 6.0, "all_gather": 2.0, "barrier": 1.0},
                unattributed_calls_count=3,
            ),
            ok("total_communication_time", 0.02, per_collective_s={"all_reduce": 0.012, "barrier": 0.001}),
        )
    )
    [table] = section.tables
    assert rows(table) == [
        ["all_reduce", "6", "3 MB", "75.00 %", "12 ms"],
        ["all_gather", "2", "1 MB", "25.00 %", "-"],
        ["barrier", "1", "-", "-", "1 ms"],
    ]
    assert table.note == "3 calls of unknown size in all."
    times, volumes = section.charts
    assert [point["value"] for point in _values(times.spec)] == [12.0, 1.0]
    assert volumes.summary == "Largest is all_reduce with 3 MB, smallest is all_gather with 1 MB."


def test_times_of_communication_are_divided_where_that_is_known() -> None:
    parts = {"waiting": 0.009, "transfer": 0.003, "unknown": 0.0}
    section = communication(
        looked(
            ok(
                "total_communication_time",
                0.012,
                per_collective_s={"all_reduce": 0.012},
                parts_s=parts,
                per_collective_parts_s={"all_reduce": parts},
            )
        )
    )
    [tile] = section.numbers
    assert tile.note == "9 ms waiting, 3 ms transfer"
    assert [row[-3:] for row in rows(section.tables[0])] == [["12 ms", "9 ms", "3 ms"]]
    [chart] = section.charts
    assert {point["part"]: point["value"] for point in _values(chart.spec)} == {"waiting": 9, "transfer": 3}
    assert chart.summary == "all_reduce 12 ms, of which 9 ms waiting."


def test_times_of_which_nothing_is_known_to_wait_are_not_divided() -> None:
    parts = {"waiting": 0.0, "transfer": 0.0, "unknown": 0.012}
    section = communication(
        looked(
            ok(
                "total_communication_time",
                0.012,
                per_collective_s={"all_reduce": 0.012},
                parts_s=parts,
                per_collective_parts_s={"all_reduce": parts},
            )
        )
    )
    assert section.numbers[0].note == ""
    assert section.charts == ()
    assert section.tables[0].columns[-1] == "time"


def _mean_step(waits: float, moves: float) -> tuple[list[str], dict[str, str], str]:
    """Return what the section shows of a step of 100 ms with 40 ms of exposed communication."""
    whole = {
        "compute": 0.05,
        "exposed_communication": 0.04,
        "exposed_memory": 0.0,
        "idle": 0.01,
        "window": 0.1,
    }
    divided = {"waiting": waits, "transfer": moves, "unknown": 0.04 - waits - moves}
    section = time_breakdown(
        looked(
            ok("gpu_busy", 90.0, "%", per_rank_parts_s_per_step={"0": whole}),
            ok("exposed_communication_time", 0.04, pct_of_step=40.0, per_rank_parts_s={"0": divided}),
            time_parts=[TimeParts("0", 0.1, 0.05, 0.04, 0.0, 0.01, 0.0, waits, moves)],
        )
    )
    chart = section.charts[0]
    scale = chart.spec["encoding"]["color"]["scale"]
    shown = [name for name in chart.table.columns if name not in ("rank", "step")]
    return shown, dict(zip(scale["domain"], scale["range"], strict=True)), chart.summary


def test_waiting_and_transfer_take_the_place_of_exposed_communication_in_colours_of_their_own() -> None:
    shown, colours, summary = _mean_step(0.03, 0.01)
    assert shown == ["compute", "waiting", "transfer", "exposed memory", "idle"]
    assert "compute 50.00 %, waiting 30.00 %, transfer 10.00 %" in summary
    assert (colours["waiting"], colours["transfer"]) == ("var(--waiting)", "var(--transfer)")

    shown, colours, summary = _mean_step(0.03, 0.004)
    assert "unknown communication" in shown
    assert "waiting 30.00 %, transfer 4.00 %, unknown communication 6.00 %" in summary

    shown, undivided, _ = _mean_step(0.0, 0.0)
    assert shown == ["compute", "exposed communication", "exposed memory", "idle"]
    assert undivided["exposed communication"] == colours["unknown communication"]


def _contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG defines it."""
    levels = []
    for colour in (one, other):
        channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        levels.append(sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True)) + 0.05)
    return max(levels) / min(levels)


def test_parts_of_communication_stand_out_from_the_page_and_waiting_from_transfer() -> None:
    for theme in (LIGHT, DARK):
        names = ("waiting", "transfer", "communication")
        assert all(_contrast(theme[name], theme["surface"]) >= 3 for name in names)
        assert len({theme[name] for name in names}) == 3


def test_bandwidth_stands_beside_the_peak_of_the_card() -> None:
    section = bandwidth(looked(bus_bandwidth=[SIZE], facts={"scale_up_gbps": 2400}))
    assert section.notes == ("Peak of the scale-up link: 300 GB/s in one direction, from workload card.",)
    [chart] = section.charts
    marks, peak = chart.spec["layer"]
    assert [(p["low"], p["middle"], p["high"]) for p in _values(marks)] == [(90.0, 100.0, 110.0)]
    assert _values(peak) == [{"peak": 300.0, "name": "scale-up link 300 GB/s"}]


def test_bandwidth_stands_beside_the_peak_of_the_catalog_where_no_card_has_one() -> None:
    seen = looked(bus_bandwidth=[SIZE])
    seen.inspection.devices.append(InspectedDevice("NVIDIA A100-SXM4-80GB", 85_174_583_296, 108, 8))
    assert bandwidth(seen).notes == (
        "Peak of the scale-up link: 300 GB/s in one direction, of A100 SXM 80GB in the catalog.",
    )
    assert bandwidth(looked(bus_bandwidth=[SIZE])).notes == ("No source states the peak of a link.",)


def test_waiting_names_the_victim_the_late_rank_and_the_cause() -> None:
    straggler = ok(
        "straggler",
        0.2,
        "ratio",
        late_ranks=["1"],
        slowest_rank="1",
        cause={"kind": "compute", "excess_s": {"compute": 0.03}},
    )
    grid = Grid(["0", "1"], ["1", "2"], [[0.03, 0.05], [0.0, 0.01]])
    section = waiting(looked(straggler, waits=grid))
    assert section.notes == ("Rank 1 is late.", "Rank 1 computes 30 ms longer than its peers in a mean step.")
    [chart] = section.charts
    assert chart.summary == "Rank 0 waits most, 40 ms in a mean step, rank 1 least, 5 ms."
    assert rows(chart.table) == [["0", "30 ms", "50 ms"], ["1", "0 s", "10 ms"]]
    bounds = chart.spec["encoding"]["color"]["scale"]["domain"]
    assert bounds == sorted(bounds)
    assert bounds[-1] <= 50.0 <= 2 * bounds[-1]


def test_one_step_of_waiting_is_bars_and_no_waiting_is_no_error() -> None:
    section = waiting(looked(waits=Grid(["0", "1"], ["5"], [[0.0], [0.0]])))
    assert section.charts[0].spec["mark"]["type"] == "bar"
    many = waiting(looked(waits=Grid(["0"], ["5", "6"], [[0.0, 0.0]])))
    assert many.charts[0].spec["mark"]["type"] == "rect"


def test_the_parts_of_a_pipeline_stage_add_up_and_the_bubble_is_divided_where_that_is_reported() -> None:
    stage = {
        "compute_s": 0.5,
        "exposed_collectives_s": 0.1,
        "exposed_transfer_s": 0.1,
        "bubble_s": 0.3,
        "fraction": 0.3,
    }
    whole = ok(
        "bubble_size_pipeline", 0.3, per_stage={"0": stage}, fraction_ratio=0.3, stage_imbalance_ratio=1.2
    )
    [chart] = pipeline(looked(whole)).charts
    assert sum(point["value"] for point in _values(chart.spec)) == 1.0
    parts = {"warm_up_s": 0.1, "steady_s": 0.15, "cool_down_s": 0.05}
    divided = ok(
        "bubble_size_pipeline",
        0.3,
        per_stage={"0": stage | parts},
        fraction_ratio=0.3,
        stage_imbalance_ratio=1.0,
        theory={"formula": "(p-1)/(m+p-1)", "fraction_ratio": 3 / 11},
    )
    section = pipeline(looked(divided))
    [chart] = section.charts
    assert [point["value"] for point in _values(chart.spec)] == [0.5, 0.1, 0.1, 0.1, 0.15, 0.05]
    assert section.notes == (
        "For balanced stages and messages without cost, (p-1)/(m+p-1) gives 27.27 % of the step.",
        "All stages compute for about the same time.",
    )


def test_the_stage_with_the_largest_bubble_is_named() -> None:
    stages = {
        name: {"compute_s": 1.0 - share, "bubble_s": share, "fraction": share}
        for name, share in (("0", 0.25), ("1", 0.5), ("2", 0.125))
    }
    found = ok(
        "bubble_size_pipeline", 0.3, per_stage=stages, fraction_ratio=0.29, stage_imbalance_ratio=1.005
    )
    section = pipeline(looked(found))
    [chart] = section.charts
    assert chart.summary == "Stage 1 has the largest bubble: 500 ms, 50.00 % of its traced step."
    assert section.notes == ("The busiest stage computes 1.00 times as long as the mean one.",)


def test_kernels_are_recognised_by_type_and_by_name() -> None:
    by_type = {
        "per_type_s": {"gemm": 0.1, "attention": 0.3},
        "per_type_pct": {"gemm": 25.0, "attention": 75.0},
    }
    total = ok("total_kernel_time", 0.4, **by_type, kernels_per_step=1234.0)
    top = ok(
        "dominant_kernel_concentration",
        60.0,
        "%",
        first=[{"name": "flash_fwd<__half>", "type": "attention", "pct": 60.0, "count": 12}],
    )
    section = kernels(looked(total, top))
    assert [point["name"] for point in _values(section.charts[0].spec)] == ["attention", "gemm"]
    assert section.numbers[0].note == "1,234 kernels in a step"
    assert section.charts[0].summary.endswith("300 ms in a mean step, 75.00 % of all.")
    assert rows(section.tables[0]) == [["flash_fwd<__half>", "attention", "60.00 %", "12"]]


def test_memory_has_a_curve_and_every_measure_of_fragmentation() -> None:
    curve = MemoryCurve("0", 3, True, [0.0, 0.5], [1, 2], [5_000_000_000, 4_000_000_000], [6_000_000_000] * 2)
    layout = {"rank": 0, "device": 0, "moment": "peak", "unused_ratio": 0.25, "scattered_ratio": 0.5}
    section = memory(
        looked(
            ok("peak_memory_allocated", 5.0, "GB", highest_device="0", holders=[]),
            ok("memory_fragmentation", 0.25, "ratio", basis="peaks", snapshots=[layout]),
            memory=[curve],
            memory_devices=9,
        )
    )
    [chart] = section.charts
    assert chart.summary == "Allocated memory peaks at 5 GB after 0 s; at most 6 GB are reserved."
    assert chart.note == (
        "Each point shows the extremes of up to 3 states of the allocator. "
        "The charts show the 1 of 9 devices with the highest peaks."
    )
    assert [quantity(cell).value for cell in chart.table.rows[0][1:]] == [1, 5_000_000_000, 6_000_000_000]
    assert rows(section.tables[0]) == [["rank 0, when most was allocated", "25.00 %", "-", "50.00 %"]]


def test_experts_have_a_bar_for_each_device() -> None:
    result = ok(
        "token_to_expert_assignment",
        2.25,
        "ratio",
        source="moe_assignments*.json",
        tokens_per_device={"0": 400, "1": 200, "2": 1800, "3": 800},
        per_layer={"0": 2.25},
    )
    section = experts(looked(result))
    assert [point["value"] for point in _values(section.charts[0].spec)] == [400, 200, 1800, 800]
    assert section.charts[0].summary == "Most tokens, 1,800, went to device 2, fewest, 200, to 1."
    assert rows(section.tables[0]) == [["0", "2.25"]]


def test_serving_has_percentiles_and_a_curve_through_all_of_them() -> None:
    values = [float(number) for number in range(101)]
    spread = {"mean": 50.0, "p50": 50.0, "p99": 99.0, "max": 100.0}
    section = serving(
        looked(
            ok(
                "TTFT",
                50.0,
                percentiles_s=values,
                distribution_s=spread,
                requests={"ok": 101, "failed": 2},
                tool="vLLM",
            ),
            ok("request_throughput", 3.0, "requests/s"),
        )
    )
    assert section.notes == ("vLLM: 101 requests succeeded; 2 failed.",)
    [chart] = section.charts
    assert [round(point["x"], 9) for point in _values(chart.spec)] == values[:100]
    assert [point["y"] for point in _values(chart.spec)] == [float(share) for share in range(100)]
    assert chart.summary == "Half of them take at most 50 s, 99 % at most 99 s."
    assert rows(section.tables[0]) == [["Time to first token", "50 s", "50 s", "99 s", "100 s"]]


def test_serving_shows_what_the_time_per_token_is_made_of() -> None:
    pieces = dict.fromkeys(PARTS, 0.0) | {"kernels": 9.1e-3, "waiting": 2.2e-3, "host_between_passes": 3.6e-3}
    section = serving(
        looked(
            ok(
                "decode_period",
                14.9e-3,
                sentence="A token every 14.9 ms: 9.1 ms kernels",
                pieces_s=pieces,
                pieces_pct={name: 100 * time / 14.9e-3 for name, time in pieces.items()},
                passes={"decode": 12, "prefill": 1},
                passes_left_out={"ramp": 3, "between answers": 0},
                client={"not_compared": "pp is 2", "trace_from_s": 30.0, "trace_until_s": 31.5},
            ),
            ok("decode_step_time", 11.3e-3, distribution_s={"mean": 11.3e-3}),
        )
    )
    assert section.notes == (
        "A token every 14.9 ms: 9.1 ms kernels.",
        "TPOT is not divided: pp is 2.",
        "The trace covers 30 s to 31.5 s of the benchmark, from the first request sent.",
    )
    assert rows(section.tables[1]) == [
        ["Kernels", "9.1 ms", "61.1"],
        ["Communication, waiting for other ranks", "2.2 ms", "14.8"],
        ["Host, between passes", "3.6 ms", "24.2"],
    ]
    assert section.tables[1].note == "Passes of all ranks: 12 decode, 1 prefill. Left out: 3 (ramp)."


def test_a_long_loss_curve_is_thinned_and_keeps_its_last_value() -> None:
    series = [{"step": number, "value": 1000.0 - number} for number in range(1000)]
    [chart] = training(looked(ok("training_quality", 1.0, "nats", series={"loss": series}))).charts
    points = _values(chart.spec)
    assert len(points) <= 501
    assert (points[0]["x"], points[-1]["x"]) == (0, 999)
    assert chart.note == "One of every 2 of 1,000 values, and the last."


def test_losses_without_steps_are_drawn_in_the_order_of_their_records() -> None:
    series = [{"step": None, "value": 3.0}, {"step": 7, "value": 2.5}, {"step": None, "value": 2.0}]
    [chart] = training(looked(ok("training_quality", 2.0, "nats", series={"loss": series}))).charts
    assert [(point["x"], point["y"]) for point in _values(chart.spec)] == [(1, 3.0), (2, 2.5), (3, 2.0)]
    assert chart.summary == "From 3 at record 1 to 2 at record 3."


def test_the_headline_has_what_there_is_with_direction_and_doubt() -> None:
    doubt = ResultFinding("torn", "warning", "an event is torn")
    note = ResultFinding("small", "note", "it is small")
    result = ok("gpu_busy", 58.0, "%", "higher")
    result.findings.extend([doubt, note])
    [tile] = headline(looked(result, missing("mfu", "no peak")))
    assert (tile.label, tile.quantity.text, tile.better, tile.doubts) == (
        "Device busy",
        "58.00 %",
        "higher",
        1,
    )


def test_findings_of_one_kind_are_counted_beyond_the_second() -> None:
    issues = [
        Issue("warning", f"event {number} is torn", "torn", "rank0.json", fix="record again")
        for number in range(5)
    ]
    reported = findings([Issue("error", "rank 3 is missing", "ranks-missing"), *issues])
    assert [(finding.message, finding.others) for finding in reported] == [
        ("rank 3 is missing", 0),
        ("event 0 is torn", 0),
        ("event 1 is torn", 3),
    ]
    assert reported[1].fix == "record again"
