"""More edges of the sections of a report: both sides of each condition, and exact values behind texts."""

from __future__ import annotations

from typing import Any

import pytest
from observations import looked, missing, ok, quantity, rows

from ccl_bench.report.context import merged_note
from ccl_bench.report.sections.communication import bandwidth, communication
from ccl_bench.report.sections.headline import headline
from ccl_bench.report.sections.memory import memory
from ccl_bench.report.sections.pipeline import pipeline
from ccl_bench.report.sections.serving import serving
from ccl_bench.report.sections.steps import steps, time_breakdown
from ccl_bench.report.sections.training import training
from ccl_bench.report.sections.waiting import waiting
from ccl_bench.result import WHOLE_TRACE, Result, ResultFinding
from ccl_bench.result.report_data import Grid, MemoryCurve, MessageSize, Spread, StepTimes, TimeParts


def _values(spec: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spec["data"]["values"]
    return found


def _traced(value: float = 2.0, window: str = WHOLE_TRACE, **spread: float) -> Result:
    """Return a step time, by default of a whole trace."""
    return Result(
        "iteration_wall_clock_time", "ok", "s", "lower", value, window=window, details={"spread_s": spread}
    )  # fmt: skip


def test_the_time_of_a_whole_trace_is_not_called_a_step() -> None:
    times = StepTimes("whole trace", [Spread("0", 1, 1.0, 1.0, 1.0)], [Spread("0", 1, 1.0, 1.0, 1.0)])
    whole = steps(looked(_traced(), step_times=times))
    assert (whole.title, whole.numbers[0].label) == ("Traced span", "Traced span")
    [tile] = headline(looked(_traced(count=1)))
    assert (tile.label, tile.note) == ("Traced span", "of one traced span, from whole trace")
    step = steps(looked(_traced(window="ProfilerStep"), step_times=times))
    assert (step.title, step.numbers[0].label) == ("Step times", "Step time")
    [tile] = headline(looked(_traced(window="ProfilerStep", count=1)))
    assert (tile.label, tile.note) == ("Step time", "of one step, from ProfilerStep")


@pytest.mark.parametrize(
    ("spread", "count"),
    [({"cv": 0.125, "p95": 0.25}, 1), ({"cv": 0.125}, 0), ({"p95": 0.25}, 0), ({}, 0)],
)
def test_the_noise_of_steps_needs_both_of_its_numbers(spread: dict[str, float], count: int) -> None:
    times = StepTimes("file", [Spread("0", 1, 1.0, 1.0, 1.0)], [])
    notes = steps(looked(_traced(**spread), step_times=times)).notes
    assert len(notes) == count
    assert all("at most 250 ms" in note and "12.50 %" in note for note in notes)
    assert steps(looked(step_times=times)).notes == ()


def test_the_busiest_rank_is_named_beside_its_load() -> None:
    times = StepTimes("file", [Spread("0", 1, 1.0, 1.0, 1.0)], [])
    [tile] = steps(
        looked(ok("load_imbalance_ratio", 1.25, "ratio", busiest_rank="7"), step_times=times)
    ).numbers
    assert (tile.quantity.text, tile.note) == ("1.25", "most on rank 7")


def test_steps_are_drawn_in_the_unit_of_the_longest_with_their_bars() -> None:
    by_step = [Spread("3", 2, 0.001, 0.003, 0.004), Spread("4", 2, 0.002, 0.0025, 0.008)]
    by_rank = [Spread("0", 1, 0.002, 0.002, 0.002), Spread("1", 2, 0.001, 0.003, 0.004)]
    over_steps, over_ranks = steps(looked(step_times=StepTimes("file", by_step, by_rank))).charts
    assert over_steps.summary.startswith(
        "The longest step is 4 with 8 ms; step 4 has the shortest median, 2.5 ms"
    )
    assert [list(row.values()) for row in _values(over_steps.spec)] == [
        ["3", 1.0, 3.0, 4.0], ["4", 2.0, 2.5, 8.0],
    ]  # fmt: skip
    assert [list(row.values()) for row in _values(over_ranks.spec)] == [
        ["0", 2.0, 2.0, 2.0], ["1", 1.0, 3.0, 4.0],
    ]  # fmt: skip
    # One rank with two steps has a bar.
    assert over_ranks.note.startswith("Dots are medians")
    assert [quantity(cell).value for cell in over_ranks.table.rows[1][2:]] == [0.001, 0.003, 0.004]


def _breakdown(*parts: TimeParts, **more: Any) -> Any:
    """Return the section of ranks that compute for 1 of 2 s."""
    busy = {"compute": 1.0, "fused": 0.0, "exposed_communication": 0.5, "exposed_memory": 0.0, "idle": 0.5}
    divided = {"waiting": 0.25, "transfer": 0.125, "unknown": 0.125}
    return time_breakdown(
        looked(
            ok("gpu_busy", 50.0, "%", per_rank_parts_s_per_step={"0": busy | {"window": 2.0}}),
            ok("exposed_communication_time", 0.5, pct_of_step=25.0, per_rank_parts_s={"0": divided}),
            time_parts=[*parts],
            **more,
        )
    )


def _columns(section: Any) -> tuple[str, ...]:
    columns: tuple[str, ...] = section.charts[0].table.columns
    return columns


@pytest.mark.parametrize(
    ("waits", "moves", "names"),
    [
        (0.5, 0.0, ("waiting", "transfer")),
        (0.0, 0.5, ("waiting", "transfer")),
        (0.25, 0.125, ("waiting", "transfer", "unknown communication")),
        (0.0, 0.0, ("exposed communication",)),
    ],
)
def test_communication_is_divided_if_any_waiting_or_any_transfer_is_known(
    waits: float, moves: float, names: tuple[str, ...]
) -> None:
    parts = [
        TimeParts("0", 2.0, 1.5, 0.0, 0.0, 0.5),
        TimeParts("1", 2.0, 1.0, 0.5, 0.0, 0.5, 0.0, waits, moves),
    ]
    section = _breakdown(*parts)
    assert _columns(section)[2:-3] == names
    about = section.about
    assert ("Communication that the traces do not divide is unknown" in about) is (len(names) == 3)
    assert about.startswith("Exposed communication runs") is (len(names) == 1)
    assert about.startswith("Communication is shown") is (len(names) > 1)
    assert section.charts[0].note == ""


def test_where_the_time_goes_needs_parts_and_busy_time() -> None:
    part = TimeParts("0", 2.0, 1.5, 0.0, 0.0, 0.5)
    reason = missing("gpu_busy", "no device")
    assert time_breakdown(looked(reason, time_parts=[part])).absent == "Not measurable: no device."
    assert time_breakdown(looked(ok("gpu_busy", 50.0, "%"))).absent == "No such data was recorded."


def test_what_no_rank_has_is_not_explained() -> None:
    silent = _breakdown(TimeParts("0", 2.0, 1.5, 0.0, 0.0, 0.5), ranks_each=2)
    assert silent.about.startswith("Exposed memory is")
    assert silent.charts[0].note == "Each rank is the mean of up to 2 neighbouring ranks."
    assert "Fused" not in silent.about
    some = [TimeParts("0", 2.0, 1.5, 0.0, 0.0, 0.5), TimeParts("1", 2.0, 1.0, 0.0, 0.0, 0.5, 0.5)]
    section = _breakdown(*some)
    assert "Fused kernels" in section.about
    assert _columns(section)[1:3] == ("compute", "fused")


def test_only_several_neighbours_are_a_mean() -> None:
    assert merged_note(1, "rank", "neighbouring ranks") == ""
    assert (
        merged_note(1200, "rank", "neighbouring ranks")
        == "Each rank is the mean of up to 1,200 neighbouring ranks."
    )


def test_two_phases_are_drawn_and_one_is_not() -> None:
    def charts(**phases: float) -> list[Any]:
        busy = {"compute": 1.0, "exposed_communication": 0.0, "exposed_memory": 0.0, "idle": 1.0}
        section = time_breakdown(
            looked(
                ok("gpu_busy", 50.0, "%", per_rank_parts_s_per_step={"0": busy | {"window": 2.0}}),
                ok("optimizer_time", 0.5, per_phase_s=phases),
                time_parts=[TimeParts("0", 2.0, 1.0, 0.0, 0.0, 1.0)],
            )
        )
        return [chart for chart in section.charts if chart.key == "phases"]

    assert charts(forward=0.5) == []
    [chart] = charts(forward=0.003, backward=0.002)
    assert rows(chart.table) == [["forward", "3 ms"], ["backward", "2 ms"]]
    assert [each["value"] for each in _values(chart.spec)] == [3.0, 2.0]


@pytest.mark.parametrize(
    ("others", "note"),
    [
        ([], "rank 0: 40.00 % to rank 1: 60.00 %"),
        (
            [ok("exposed_wait_time", 0.25, pct_of_step=12.5)],
            "12.50 % of the step waits in communication; rank 0: 40.00 % to rank 1: 60.00 %",
        ),
        ([missing("exposed_wait_time", "unknown")], "rank 0: 40.00 % to rank 1: 60.00 %"),
    ],
)
def test_busy_time_that_waits_is_named_if_waiting_is_known(others: list[Result], note: str) -> None:
    busy = ok("gpu_busy", 50.0, "%", per_rank_pct={"0": 40.0, "1": 60.0}, waiting_pct=12.5)
    tiles = {tile.metric: tile for tile in headline(looked(busy, *others))}
    assert tiles["gpu_busy"].note == note
    assert "gpu_busy" not in {tile.metric for tile in headline(looked(*others))}


def test_exposed_communication_has_its_parts_if_waiting_is_known() -> None:
    parts = {"waiting": 0.25, "transfer": 0.125, "unknown": 0.0}
    exposed = ok("exposed_communication_time", 0.5, pct_of_step=25.0, parts_s=parts)
    [tile] = headline(looked(exposed))
    assert tile.note == "25.00 % of the traced step"
    [tile] = headline(looked(exposed, ok("exposed_wait_time", 0.25, pct_of_step=12.5)))
    assert tile.note == "25.00 % of the traced step; 250 ms waiting, 125 ms transfer"


def test_a_tile_counts_the_findings_that_make_it_doubtful() -> None:
    result = ok("output_throughput", 7.0, "tokens/s")
    result.findings.extend(
        ResultFinding("c", each, "m") for each in ("note", "error", "note", "warning", "note")
    )
    [tile] = headline(looked(result))
    assert (tile.doubts, tile.quantity.value) == (2, 7.0)


def test_a_reason_is_that_of_the_first_metric_without_a_value() -> None:
    context = looked(
        ok("mfu", 1.0), missing("TTFT", "no client"), missing("TPOT", "no token", "not_applicable")
    )  # fmt: skip
    assert context.why("absent", "mfu", "TTFT", "TPOT") == "Not measurable: no client."
    assert context.why("TPOT") == "Not applicable: no token."
    assert context.why("absent", "mfu") == "No such data was recorded."


def test_three_times_are_drawn_from_the_largest_to_the_smallest() -> None:
    times = {"scatter": 0.002, "reduce": 0.001, "gather": 0.004, "barrier": 0.002}
    section = communication(looked(ok("total_communication_time", 0.01, per_collective_s=times)))
    [chart] = section.charts
    assert [(each["name"], each["value"]) for each in _values(chart.spec)] == [
        ("gather", 4.0), ("barrier", 2.0), ("scatter", 2.0), ("reduce", 1.0),
    ]  # fmt: skip
    assert chart.summary == "Largest is gather with 4 ms, smallest is reduce with 1 ms."
    assert section.tables[0].note == ""
    assert "includes waiting" in section.about


def test_unknown_time_of_one_collective_gives_all_of_them_a_column() -> None:
    def one(waits: float, unknown: float) -> dict[str, float]:
        return {"waiting": waits, "transfer": 0.002, "unknown": unknown}

    details = {
        "per_collective_s": {"gather": 0.003, "reduce": 0.006},
        "per_collective_parts_s": {"gather": one(0.001, 0.0), "reduce": one(0.0, 0.004)},
    }
    section = communication(looked(ok("total_communication_time", 0.01, **details)))
    assert section.tables[0].columns[-3:] == ("waiting", "transfer", "unknown")
    assert [row[-3:] for row in rows(section.tables[0])] == [["1 ms", "2 ms", "0 s"], ["0 s", "2 ms", "4 ms"]]
    assert "includes waiting" not in section.about


def test_numbers_of_bandwidth_are_exact_behind_their_texts() -> None:
    size = MessageSize("all_reduce", "tp", "inside a node", "raw", 8, 16, 3, 1.0, 2.0, 3.0, 8.0)
    known = {"algorithm_bandwidth_gb_per_s": 5.0, "calls_count": 7, "total_bytes": 3e6, "basis": "raw"}
    known |= {"reach": "unknown", "share_of_link_pct": 12.5, "nccl_tests_efficiency_ratio": 0.375}
    section = bandwidth(
        looked(ok("bandwidth_utilization_allgather", 75.0, "GB/s", **known), bus_bandwidth=[size])
    )  # fmt: skip
    [row] = section.tables[0].rows
    # 0.375 of nccl-tests is 37.5 %.
    assert [quantity(row[place]).value for place in (1, 2, 3, 5, 8)] == [75.0, 5.0, 12.5, 3e6, 37.5]
    [row] = section.charts[0].table.rows
    # A median of 2 of 8 GB/s is 25 %.
    assert [quantity(row[place]).value for place in (3, 4, 5, 7, 8)] == [1.0, 2.0, 3.0, 8.0, 25.0]
    assert section.tables[0].note == ""


def test_a_bubble_is_divided_if_every_stage_is_and_drawn_in_the_unit_of_the_longest() -> None:
    whole = {"compute_s": 0.005, "exposed_transfer_s": 0.001, "bubble_s": 0.003, "fraction": 0.375}
    parts = {"warm_up_s": 0.0005, "steady_s": 0.0015, "cool_down_s": 0.001}
    stages = {"0": whole | parts, "1": whole | {"bubble_s": 0.004, "fraction": 0.5}}

    def drawn(**per_stage: dict[str, float]) -> Any:
        details = {"fraction_ratio": 0.4375, "stage_imbalance_ratio": 1.25}
        return pipeline(looked(ok("bubble_size_pipeline", 0.0035, per_stage=per_stage, **details)))

    section = drawn(**stages)
    [chart] = section.charts
    assert list(dict.fromkeys(each["part"] for each in _values(chart.spec))) == [
        "compute", "exposed collectives", "exposed transfer of messages", "bubble",
    ]  # fmt: skip
    assert [each["value"] for each in _values(chart.spec)] == [5.0, 0.0, 1.0, 3.0, 5.0, 0.0, 1.0, 4.0]
    assert chart.summary == "Stage 1 has the largest bubble: 4 ms, 50.00 % of its traced step."
    assert rows(chart.table)[0] == ["0", "5 ms", "0 s", "1 ms", "3 ms", "3 ms", "37.50 %"]
    assert section.numbers[0].note == "43.75 % of the traced step"
    [chart] = drawn(**{"0": whole | parts, "1": whole | parts}).charts
    assert chart.table.columns[4:7] == ("bubble, warm-up", "bubble, steady", "bubble, cool-down")
    assert [each["value"] for each in _values(chart.spec)[3:6]] == [0.5, 1.5, 1.0]


def test_messages_without_another_side_and_missing_parts_are_noted() -> None:
    stages = {"0": {"compute_s": 0.5, "bubble_s": 0.5, "fraction": 0.5}}
    details = {"fraction_ratio": 0.5, "stage_imbalance_ratio": 1.0, "unmatched_messages_count": 2}
    result = ok("bubble_size_pipeline", 0.5, per_stage=stages, **details, parts_missing="no phases")
    _, unmatched, parts = pipeline(looked(result)).notes
    assert "of 2 messages is unknown" in unmatched
    assert parts.endswith("no phases.")


def test_statistics_of_any_latency_have_a_column_and_dashes() -> None:
    section = serving(
        looked(
            ok("TTFT", 0.2, distribution_s={"p50": 0.1, "max": 0.9}),
            ok("ITL", 0.0, as_stored_s={"p50": 0.002, "p99": 0.004}),
        )
    )
    [shown] = section.tables
    assert shown.columns == ("latency", "mean", "p50", "p99", "max")
    assert rows(shown) == [
        ["Time to first token", "200 ms", "100 ms", "-", "900 ms"],
        ["Inter-token latency", "0 s", "2 ms", "4 ms", "-"],
    ]
    assert section.charts == ()


def test_latencies_are_drawn_in_the_unit_of_the_longest_even_if_most_are_shorter() -> None:
    percentiles = [1e-6] * 50 + [2e-6] * 49 + [0.004, 0.5]
    [chart] = serving(looked(ok("request_latency", 0.1, percentiles_s=percentiles))).charts
    assert chart.spec["encoding"]["x"]["title"] == "request latency, ms"
    values = _values(chart.spec)
    assert [(values[place]["x"], values[place]["y"]) for place in (0, 50, -1)] == [
        (pytest.approx(0.001), 0), (pytest.approx(0.002), 50), (pytest.approx(4.0), 99),
    ]  # fmt: skip
    assert (chart.key, len(chart.table.rows)) == ("serving-request-latency", 101)
    assert rows(chart.table)[49:51] == [["49 %", "1 µs"], ["50 %", "2 µs"]]
    assert [quantity(row[1]).value for row in chart.table.rows[-3:]] == [2e-6, 0.004, 0.5]


def test_serving_has_times_or_rates_or_says_why_not() -> None:
    rates = serving(looked(ok("goodput", 7.0, "requests/s"), missing("TTFT", "no client")))
    assert [tile.metric for tile in rates.numbers] == ["goodput"]
    assert (rates.tables, rates.absent) == ((), "")
    times = serving(looked(ok("TTFT", 7.0)))
    assert ([tile.metric for tile in times.numbers], times.absent) == (["TTFT"], "")
    assert serving(looked(missing("TTFT", "no client"))).absent == "Not measurable: no client."
    failed = serving(looked(ok("TTFT", 7.0, requests={"failed": 7})))
    assert failed.notes == ("The benchmark: 0 requests succeeded; 7 failed.",)


def test_losses_are_drawn_without_their_zero() -> None:
    series = {"Val_loss": [{"step": 1000, "value": 7.5}, {"step": 3000, "value": 7.25}]}
    [chart] = training(looked(ok("training_quality", 7.25, "nats", series=series))).charts
    assert chart.spec["encoding"]["y"]["scale"]["zero"] is False
    assert (chart.key, chart.title) == ("training-val-loss", "Val loss")
    assert chart.summary == "From 7.5 at step 1,000 to 7.25 at step 3,000."
    assert rows(chart.table) == [["1,000", "7.5"], ["3,000", "7.25"]]


@pytest.mark.parametrize(("each", "begin"), [(1, ""), (2, "Each point shows the extremes of up to 2 states")])
def test_points_of_several_states_of_memory_are_noted(each: int, begin: str) -> None:
    curve = MemoryCurve("0", each, True, [0.5], [1], [2], [3])
    [chart] = memory(looked(ok("peak_memory_allocated", 5.0, "GB"), memory=[curve], memory_devices=1)).charts
    assert chart.note.startswith(begin)
    assert bool(chart.note) is bool(begin)


def test_parts_of_a_step_are_drawn_in_the_unit_of_the_longest_step() -> None:
    busy = {"compute": 0.001, "exposed_communication": 0.0, "exposed_memory": 0.0, "idle": 0.003}
    section = time_breakdown(
        looked(
            ok("gpu_busy", 25.0, "%", per_rank_parts_s_per_step={"0": busy | {"window": 0.004}}),
            time_parts=[TimeParts("0", 0.004, 0.001, 0.0, 0.0, 0.003)],
        )
    )
    chart = section.charts[0]
    assert chart.spec["encoding"]["x"]["title"] == "time in a mean step, ms"
    assert [each["value"] for each in _values(chart.spec)] == [1.0, 0.0, 0.0, 3.0]
    assert chart.table.columns[1:] == ("compute", "exposed communication", "exposed memory", "idle", "step")
    rank, mean = chart.table.rows
    assert [quantity(cell).value for cell in rank[1:]] == [0.001, 0.0, 0.0, 0.003, 0.004]
    assert [quantity(cell).value for cell in mean[1:]] == [25.0, 0.0, 0.0, 75.0, 100.0]


@pytest.mark.parametrize(
    ("ranks", "steps_each", "begins"),
    [(1, 1, []), (2, 1, ["row"]), (1, 2, ["column"]), (3, 2, ["row", "column"])],
)
def test_cells_of_waiting_that_are_means_are_noted(ranks: int, steps_each: int, begins: list[str]) -> None:
    grid = Grid(["0"], ["1", "2"], [[0.1, 0.2]], ranks_each=ranks, steps_each=steps_each)
    [chart] = waiting(looked(waits=grid)).charts
    assert [sentence.split()[1] for sentence in chart.note.split(". ") if sentence] == begins
