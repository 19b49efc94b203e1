"""Why the device was idle."""

from collections import Counter
from pathlib import Path
from time import process_time

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from local_plain import Trace, clip, interval, length, ns, trace_of, union
from local_traces import kernel, launch, note, op, result, step, table, tables, write
from recorded_runs import tables_of

from ccl_bench.analysis.device.breakdown import idle, stream_idle
from ccl_bench.metrics.idle_breakdown import _streams

Piece = tuple[int, int, int | None, int | None]
"""Start, end, stream and launch of a piece of work, in units."""
UNIT = 5_000
"""In ns, so that the threshold lies among the gaps."""
ON_DEVICE = ["nccl-args", "deepseek-dualpipe", "dlrm-8rank", "megatron-tp8"]


def test_each_gap_is_blamed_on_what_its_end_shows(tmp_path: Path) -> None:
    events = [
        step(1, 0, 1000),
        launch(1, 10, 12), kernel("a", 1, 20, 100),    # [0, 20): launched at 10, after the gap began
        launch(2, 40, 42), kernel("b", 2, 110, 200),   # [100, 110): launched at 40, short
        launch(3, 50, 52), kernel("c", 3, 300, 400),   # [200, 300): launched at 50, long
        launch(4, 450, 452), kernel("d", 4, 460, 500), # [400, 460): launched at 450
    ]  # fmt: skip
    run = write(tmp_path, events)
    (row,) = table(run, "idle").iter_rows(named=True)
    assert row["host_wait_ns"] == (20 + 60 + 500) * 1000  # nothing comes after 500
    assert row["kernel_wait_ns"] == 10 * 1000
    assert row["other_ns"] == 100 * 1000
    found = result(run, "idle_breakdown")
    assert found.value == pytest.approx(100 * 580 / 690)
    details = found.details
    assert details["idle_s"] == pytest.approx(690e-6)
    assert details["idle_pct_of_step"] == pytest.approx(69)
    assert details["per_cause_pct"] == pytest.approx(
        {"host": 100 * 580 / 690, "kernel": 100 * 10 / 690, "other": 100 * 100 / 690}
    )
    waits = [details[f"{cause}_wait_s"] for cause in ("host", "kernel", "other")]
    assert waits == pytest.approx([580e-6, 10e-6, 100e-6])


def test_a_gap_of_thirty_microseconds_is_no_longer_one_between_kernels(tmp_path: Path) -> None:
    events = [
        step(1, 0, 200),
        launch(1, 0, 1), kernel("a", 1, 10, 50),
        launch(2, 1, 2), kernel("b", 2, 79, 100),
        launch(3, 2, 3), kernel("c", 3, 130, 200),
    ]  # fmt: skip
    (row,) = table(write(tmp_path, events), "idle").iter_rows(named=True)
    assert (row["kernel_wait_ns"], row["other_ns"]) == (29_000 + 10_000, 30_000)


def test_a_stream_is_idle_while_another_works_but_the_device_is_not(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100),
        launch(1, 1, 2), kernel("a", 1, 2, 30),
        launch(2, 3, 4), kernel("b", 2, 25, 100, stream=8),
        launch(3, 5, 6), kernel("c", 3, 80, 90),
    ]  # fmt: skip
    found = tables(write(tmp_path, events), "idle", "stream_idle")
    assert found["idle"]["idle_ns"].to_list() == [2_000]
    assert found["stream_idle"].select("stream", "other_ns").rows() == [(7, 50_000)]


def test_work_without_its_launch_is_no_evidence_against_the_host(tmp_path: Path) -> None:
    events = [step(1, 0, 100), launch(1, 1, 2), kernel("a", 1, 1, 50), kernel("b", 99, 60, 100)]
    (row,) = table(write(tmp_path, events), "idle").iter_rows(named=True)
    assert row["other_ns"] == 10_000


def test_cpus_have_no_idle_breakdown(tmp_path: Path) -> None:
    run = write(tmp_path, [step(1, 0, 100), op("aten::mm", 10, 20)], backend="gloo")
    assert table(run, "idle").is_empty()
    assert result(run, "idle_breakdown").status == "not_applicable"


def test_a_trace_without_any_work_is_of_no_device() -> None:
    steps, origins = _tables([(0, 1, 7, 0)], [(0, 10)])
    assert idle(steps, origins).height == 1
    for table_of in (idle, stream_idle):
        assert table_of(steps, origins.clear()).is_empty()


def test_what_a_step_is_longer_than_its_window_waits_for_the_host() -> None:
    steps, origins = _tables([(10, 20, 7, 5)], [(0, 100)])
    longer = steps.with_columns(pl.col("length_ns") + 7 * UNIT)
    (row,), (before,) = (idle(table_of, origins).to_dicts() for table_of in (longer, steps))
    assert before["window_ns"] == 100 * UNIT
    more = {"window_ns": 7 * UNIT, "idle_ns": 7 * UNIT, "host_wait_ns": 7 * UNIT}
    assert row == {name: value + more.get(name, 0) for name, value in before.items()}


def test_idle_time_without_any_launch_cannot_be_explained(tmp_path: Path) -> None:
    run = write(tmp_path, [step(1, 0, 100), kernel("a", 1, 10, 50)])
    assert result(run, "idle_breakdown").status == "not_measurable"


SPANS = st.lists(
    st.tuples(
        st.integers(0, 300),
        st.integers(0, 60),
        st.integers(1, 3),
        st.one_of(st.none(), st.integers(-20, 300)),
    ),
    min_size=1,
    max_size=12,
)


@example([(1, 0, 1, None)], [(1, 0)])  # what takes no time ends no gap
@given(SPANS, st.lists(st.tuples(st.integers(1, 90), st.integers(0, 20)), min_size=1, max_size=4))
def test_every_instant_is_blamed_as_a_walk_along_the_timeline_blames_it(
    spans: list[tuple[int, int, int, int | None]], shapes: list[tuple[int, int]]
) -> None:
    work, windows = _timeline(spans, shapes)
    steps, origins = _tables(work, windows)
    found = idle(steps, origins.sort("start_ns"))
    for row, window in zip(found.iter_rows(named=True), windows, strict=True):
        counted = Counter(_cause(instant, work, windows[0][0]) for instant in range(*window))
        assert row["host_wait_ns"] == counted["host"] * UNIT
        assert row["kernel_wait_ns"] == counted["kernel"] * UNIT
        assert row["other_ns"] == counted["other"] * UNIT
        assert row["idle_ns"] + counted["busy"] * UNIT == row["window_ns"]


def _timeline(
    spans: list[tuple[int, int, int | None, int | None]], shapes: list[tuple[int, int]]
) -> tuple[list[Piece], list[tuple[int, int]]]:
    """Return pieces of work and the windows of steps, in units."""
    work = [(start, start + size, stream, launched) for start, size, stream, launched in spans]
    windows, at = [], 0
    for size, pause in shapes:
        windows.append((at, at + size))
        at += size + pause
    return work, windows


def _tables(work: list[Piece], windows: list[tuple[int, int]]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the tables of steps and of origins."""
    times = dict.fromkeys(("step", "device_start_ns", "device_end_ns", "length_ns"), pl.Int64)
    placed = [
        (step, start * UNIT, end * UNIT, (end - start) * UNIT) for step, (start, end) in enumerate(windows)
    ]
    rows = [
        (start * UNIT, end * UNIT, stream, None if at is None else at * UNIT, True)
        for start, end, stream, at in work
    ]
    columns = dict.fromkeys(("start_ns", "end_ns", "stream", "launch_ns"), pl.Int64)
    return pl.DataFrame(placed, schema=times, orient="row"), pl.DataFrame(
        rows, schema=columns | {"on_device": pl.Boolean}, orient="row"
    )


def _cause(instant: int, work: list[Piece], first: int) -> str:
    """Return what the device did in [instant, instant + 1), looking at every piece of work."""
    real = [piece for piece in work if piece[0] < piece[1]]
    if any(start <= instant < end for start, end, *_ in real):
        return "busy"
    begin = max([end for _, end, *_ in real if end <= instant], default=first)
    starts = [start for start, *_ in real if start > instant]
    if not starts:
        return "host"
    end = min(starts)
    launches = [launched for start, _, _, launched in work if start == end and launched is not None]
    if launches and min(launches) > begin:
        return "host"
    return "kernel" if launches and (end - begin) * UNIT < 30_000 else "other"


ON_STREAMS = st.lists(
    st.tuples(
        st.integers(0, 120),
        st.integers(0, 30),
        st.one_of(st.none(), st.integers(0, 3)),
        st.one_of(st.none(), st.integers(-20, 120)),
    ),
    min_size=1,
    max_size=14,
)
STEPS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 20)), min_size=1, max_size=4)


@given(ON_STREAMS, STEPS)
def test_every_gap_of_every_stream_is_blamed_as_a_walk_along_its_own_timeline_blames_it(
    spans: list[tuple[int, int, int | None, int | None]], shapes: list[tuple[int, int]]
) -> None:
    work, windows = _timeline(spans, shapes)
    expected = []
    streams = sorted({piece[2] for piece in work}, key=lambda stream: -1 if stream is None else stream)
    for stream in streams:
        own = [piece for piece in work if piece[2] == stream]
        for step_, window in enumerate(windows):
            counted = Counter(_cause_on_stream(instant, own) for instant in range(*window))
            waits = [counted[cause] * UNIT for cause in ("host", "kernel", "other")]
            if any(waits):
                expected.append((step_, stream, sum(waits), *waits))
    assert stream_idle(*_tables(work, windows)).rows() == expected


def _cause_on_stream(instant: int, own: list[Piece]) -> str:
    """Return what one stream waited for in [instant, instant + 1); "" where it worked or was not in use."""
    if any(start <= instant < end for start, end, *_ in own):
        return ""
    ends = [end for _, end, *_ in own if end <= instant]
    starts = [start for start, *_ in own if start > instant]
    if not ends or not starts:
        return ""
    begin, end = max(ends), min(starts)
    launched = next(launched for start, _, _, launched in own if start == end)
    if launched is not None and launched > begin:
        return "host"
    return "kernel" if launched is not None and (end - begin) * UNIT < 30_000 else "other"


def test_many_streams_cost_little_more_than_few() -> None:
    def cost(streams: int) -> float:
        work = [(place, place + 1, place % streams, place) for place in range(40_000)]
        given = _tables(work, [(0, 20_000), (20_000, 40_000)])
        costs = []
        for _ in range(3):
            begin = process_time()
            stream_idle(*given)
            costs.append(process_time() - begin)
        return min(costs)

    assert cost(1_000) < 10 * cost(4)


@pytest.mark.parametrize("run", ON_DEVICE)
def test_idle_time_of_recorded_runs_equals_a_plain_walk(corpus: Path, run: str) -> None:
    rows = tables_of(corpus / "kineto" / run)["idle"]
    for rank, path in enumerate(sorted((corpus / "kineto" / run).glob("*.gz"))):
        trace = trace_of(path)
        steps = trace.steps
        gaps = _gaps(trace, steps[0][2][0], steps[-1][2][1])
        own = rows.filter(pl.col("rank") == rank).iter_rows(named=True)
        for (_, _, window), lacking, row in zip(steps, trace.lacking, own, strict=True):
            sums = Counter({cause: length(clip(spans, window)) for cause, spans in gaps.items()})
            sums["host"] += lacking
            assert (row["host_wait_ns"], row["kernel_wait_ns"], row["other_ns"]) == (
                sums["host"], sums["kernel"], sums["other"],
            )  # fmt: skip


def _gaps(trace: Trace, first: int, last: int) -> dict[str, list[tuple[int, int]]]:
    launched: dict[int, list[int]] = {}
    for event in trace.work:
        call = trace.launches.get(event["args"]["correlation"])
        launched.setdefault(interval(event)[0], []).extend([ns(call["ts"])] if call else [])
    busy = union([interval(event) for event in trace.work])
    found: dict[str, list[tuple[int, int]]] = {"host": [], "kernel": [], "other": []}
    edges = [first, *(end for _, end in busy)], [*(start for start, _ in busy), last]
    for begin, end in zip(*edges, strict=True):
        known = launched.get(end, [])
        late = end == last or (known and min(known) > begin)
        cause = "host" if late else "kernel" if known and end - begin < 30_000 else "other"
        found[cause].append((begin, end))
    return found


def test_the_wait_of_a_stream_is_a_mean_over_all_ranks_of_its_sum_a_step() -> None:
    steps = pl.DataFrame({"rank": [0, 0, 1, 1, 2, 2]})
    gaps = pl.DataFrame(
        {
            "rank": [0, 0, 1, 2],
            "stream": [7, 7, 7, 20],
            "host_wait_ns": [1_000_000_000, 3_000_000_000, 0, 600_000_000],
            "kernel_wait_ns": [0, 0, 500_000_000, 0],
            "other_ns": [0, 0, 1_000_000_000, 0],
        }
    )
    assert _streams(gaps, steps) == {
        "7": {
            "host": pytest.approx(2 / 3),
            "kernel": pytest.approx(0.25 / 3),
            "other": pytest.approx(0.5 / 3),
        },
        "20": {"host": pytest.approx(0.1), "kernel": 0.0, "other": 0.0},
    }


# HolisticTraceAnalysis 0.5.0, get_idle_time_breakdown over the whole trace with
# include_last_profiler_step and HTA_DISABLE_NS_ROUNDING: {stream: (host, kernel, other)}, us.
HTA = {
    ("nccl-args", 0): {7: (540091.32, 2150.34, 0), 40: (583924.26, 0, 0)},
    ("deepseek-dualpipe", 0): {27: (1107, 131, 10756), 7: (417, 1797, 8130), 23: (82308, 13, 4900)},
    ("dlrm-8rank", 0): {22: (145, 0, 0), 7: (11448, 123, 0), 24: (5906, 18, 0), 84: (4740, 3, 0)},
    ("megatron-tp8", 0): {7: (249335, 925, 213445), 24: (309915, 0, 35290)},
    ("megatron-tp8", 4): {7: (77009, 1017, 420543), 24: (1844, 0, 131037)},
}


@pytest.mark.parametrize(("run", "rank"), HTA)
def test_streams_are_idle_as_hta_has_it(corpus: Path, run: str, rank: int) -> None:
    origins = tables_of(corpus / "kineto" / run)["origins"].filter(pl.col("rank") == rank)
    whole = origins.select(
        step=pl.lit(0, dtype=pl.Int64),
        device_start_ns=pl.col("start_ns").min(),
        device_end_ns=pl.col("end_ns").max(),
    ).head(1)
    found = stream_idle(whole, origins)
    in_us = {row["stream"]: row for row in found.iter_rows(named=True)}
    assert in_us.keys() == HTA[run, rank].keys()
    for stream, expected in HTA[run, rank].items():
        ours = [in_us[stream][f"{cause}_ns"] / 1000 for cause in ("host_wait", "kernel_wait", "other")]
        assert ours == pytest.approx(expected, abs=0.01)


def test_idle_time_agrees_with_the_breakdown_of_the_step(corpus: Path) -> None:
    found = tables_of(corpus / "kineto" / "dlrm-8rank")
    assert found["idle"]["idle_ns"].to_list() == found["breakdown"]["idle_ns"].to_list()


def test_ranges_on_the_device_are_no_work(tmp_path: Path) -> None:
    twin = note("ProfilerStep#1", 0, 100, 7) | {"cat": "gpu_user_annotation"}
    events = [step(1, 0, 100), twin, launch(1, 1, 2), kernel("a", 1, 2, 52)]
    assert table(write(tmp_path, events), "idle")["idle_ns"].to_list() == [50_000]
