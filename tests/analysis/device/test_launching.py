"""What launching costs."""

import statistics
from pathlib import Path

import polars as pl
import pytest
from local_plain import Trace, interval, ns, trace_of
from local_traces import kernel, launch, op, result, step, table, value, write
from recorded_runs import tables_of

ON_DEVICE = ["nccl-args", "deepseek-dualpipe", "dlrm-8rank", "megatron-tp8"]


def test_calls_delays_and_queues_of_a_step(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100),
        launch(1, 10, 12), kernel("a", 1, 20, 60),       # delay 8, stream idle: latency 10
        launch(2, 13, 14), kernel("b", 2, 60, 70),       # delay 46, waits behind a
        launch(3, 15, 18), kernel("c", 3, 70, 71),       # delay 52: three wait between 15 and 20
        launch(4, 30, 31, name="cudaMemsetAsync"),       # nothing came of it
        launch(5, 40, 41, name="cudaEventQuery"),        # starts nothing
        launch(6, 80, 84, name="cudaGraphLaunch"),
        kernel("d", 6, 90, 91), kernel("e", 6, 92, 93),  # delay 6, stream idle: latency 10
        kernel("f", 99, 95, 96),                         # launched by nobody knows whom
    ]  # fmt: skip
    (row,) = table(write(tmp_path, events), "launching").iter_rows(named=True)
    assert row["launches"] == 5
    assert row["call_ns"] == (2 + 1 + 3 + 1 + 4) * 1000
    assert row["fruitless"] == 1
    assert row["graph_launches"] == 1
    assert row["delay_ns"] == (8 + 46 + 52 + 6) * 1000
    assert row["idle_launches"] == 2
    assert row["idle_delay_ns"] == 10_000
    assert row["queue_peak"] == 3
    assert (row["work"], row["unlaunched"]) == (6, 1)


def test_launch_overhead_is_the_time_in_launch_calls_of_a_step(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100), step(2, 100, 200),
        launch(1, 10, 13), kernel("a", 1, 20, 60),
        launch(2, 110, 111), kernel("b", 2, 160, 170),
    ]  # fmt: skip
    run = write(tmp_path, events)
    assert value(run, "launch_overhead") == pytest.approx(2e-6)
    details = result(run, "launch_overhead").details
    assert details["mean_call_s"] == pytest.approx(2e-6)
    assert details["delay_s"] == pytest.approx((7 + 49) / 2 * 1e-6)
    assert details["pct_of_step"] == pytest.approx(2)
    assert details["work_with_launch_ratio"] == 1


def test_a_launch_belongs_to_the_step_that_made_it_even_if_its_work_runs_later(tmp_path: Path) -> None:
    events = [step(1, 0, 100), step(2, 100, 200), launch(1, 90, 91), kernel("a", 1, 120, 130)]
    rows = table(write(tmp_path, events), "launching")
    assert rows["launches"].to_list() == [1, 0]
    assert rows["work"].to_list() == [1, 0]  # the device window of step 1 reaches to 130


def test_calls_without_a_correlation_are_not_counted(tmp_path: Path) -> None:
    events = [step(1, 0, 100), launch(0, 10, 30), launch(1, 40, 41), kernel("a", 1, 50, 60)]
    events += [kernel("b", 0, 70, 80)]
    (row,) = table(write(tmp_path, events), "launching").iter_rows(named=True)
    assert (row["launches"], row["call_ns"]) == (1, 1000)


def test_cpus_launch_nothing(tmp_path: Path) -> None:
    run = write(tmp_path, [step(1, 0, 100), op("aten::mm", 10, 20)], backend="gloo")
    assert result(run, "launch_overhead").status == "not_applicable"


@pytest.mark.parametrize("run", ON_DEVICE)
def test_launches_of_recorded_runs_equal_a_plain_count(corpus: Path, run: str) -> None:
    rows = tables_of(corpus / "kineto" / run)["launching"]
    for rank, path in enumerate(sorted((corpus / "kineto" / run).glob("*.gz"))):
        trace = trace_of(path)
        first: dict[int, tuple[int, int]] = {}
        for event in sorted(trace.work, key=lambda e: e["ts"]):
            first.setdefault(event["args"]["correlation"], (interval(event)[0], event["args"]["stream"]))
        own = rows.filter(pl.col("rank") == rank).iter_rows(named=True)
        for (_, (start, end), _), row in zip(trace.steps, own, strict=True):
            fruitful = {c: e for c, e in trace.launches.items() if start <= ns(e["ts"]) < end and c in first}
            assert row["launches"] - row["fruitless"] == len(fruitful)
            assert row["delay_ns"] == sum(max(0, first[c][0] - interval(e)[1]) for c, e in fruitful.items())
            latencies = _latencies_of_idle_streams(trace, fruitful, first)
            assert row["idle_launches"] == len(latencies)
            assert row["idle_delay_ns"] == statistics.median(latencies)


def _latencies_of_idle_streams(trace: Trace, fruitful: dict, first: dict) -> list[int]:
    """Return start of work minus start of call, where the stream had nothing left to do by the call."""
    streams: dict[int, list[tuple[int, int]]] = {}
    for event in trace.work:
        streams.setdefault(event["args"]["stream"], []).append(interval(event))
    found = []
    for correlation, call in fruitful.items():
        start, stream = first[correlation]
        before = [until for begin, until in streams[stream] if begin < start]
        if max(before, default=0) <= ns(call["ts"]):
            found.append(start - ns(call["ts"]))
    return found


# HolisticTraceAnalysis 0.5.0, get_cuda_kernel_launch_stats: launches, their CPU durations and delays, us.
@pytest.mark.parametrize(
    ("run", "rank", "launches", "calls_us", "delays_us"),
    [
        ("nccl-args", 0, 3774, 35864.776, 103192.246),
        ("dlrm-8rank", 0, 261, 2359.0, 15832.0),
        ("dlrm-8rank", 1, 262, 2334.0, 48988.0),
    ],
)
def test_launches_cost_what_hta_says(
    corpus: Path, run: str, rank: int, launches: int, calls_us: float, delays_us: float
) -> None:
    rows = tables_of(corpus / "kineto" / run)["launching"].filter(pl.col("rank") == rank)
    assert rows["launches"].sum() - rows["fruitless"].sum() == launches
    # HTA leaves out calls of which nothing came
    trace = trace_of(sorted((corpus / "kineto" / run).glob("*.gz"))[rank])
    started = {event["args"]["correlation"] for event in trace.work}
    calls = [e for c, e in trace.launches.items() if c not in started and e["name"].startswith("cudaMem")]
    assert (rows["call_ns"].sum() - sum(ns(e["dur"]) for e in calls)) / 1000 == pytest.approx(
        calls_us, abs=0.01
    )
    assert rows["delay_ns"].sum() / 1000 == pytest.approx(delays_us, abs=0.01)
