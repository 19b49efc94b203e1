"""Lists to look into: every number against a count of the trace as plain JSON."""

from __future__ import annotations

import pickle
import re
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from observations import made, observation_of, ok, quantity, rows
from plain_json import document
from report_browser import opened

from ccl_bench.analysis.by_origin import innermost_at, nested, own_lengths
from ccl_bench.analysis.memory.timeline import category_outline
from ccl_bench.evaluate.drill_down import category_curves
from ccl_bench.report.charts.flames import flame
from ccl_bench.report.page import report_page
from ccl_bench.report.render.html import run_page
from ccl_bench.report.render.markdown import markdown
from ccl_bench.report.render.text import text
from ccl_bench.result.drill_down import CategoryCurves, DrillDown, KernelTime

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

    from ccl_bench.report.page_model import PageTable
    from ccl_bench.result.report_data import ReportData

RANKS = 8
Event = dict[str, Any]

same = lambda value: pytest.approx(float(value), rel=1e-9)  # noqa: E731


@pytest.fixture(scope="module")
def traces(corpus: Path) -> list[list[Event]]:
    """Return the events of the eight ranks of a run with one step."""
    folder = corpus / "kineto" / "megatron-tp8"
    files = [folder / f"megatron_kineto_{rank}.json.gz" for rank in range(RANKS)]
    return [[e for e in document(file)["traceEvents"] if e.get("ph") == "X"] for file in files]


@pytest.fixture(scope="module")
def observed(corpus: Path) -> ReportData:
    """Return that run, observed."""
    return observation_of(corpus / "kineto" / "megatron-tp8")


@pytest.fixture(scope="module")
def found(observed: ReportData) -> DrillDown:
    """Return its lists."""
    return observed.series.drill_down


def _of(events: list[Event], *categories: str) -> list[Event]:
    return [event for event in events if event.get("cat") in categories]


def _in_step(events: list[Event]) -> list[Event]:
    """Return the operators that begin in the only step."""
    step = next(e for e in events if e["name"] == "ProfilerStep#3" and e["cat"] == "user_annotation")
    return [e for e in _of(events, "cpu_op") if step["ts"] <= e["ts"] < step["ts"] + step["dur"]]


def _owners(operators: list[Event], moments: dict[int, int]) -> dict[int, Event]:
    """Return which operator is the innermost around each moment, by a stack."""
    ordered = sorted(operators, key=lambda e: (e["ts"], -e["dur"]))
    owners: dict[int, Event] = {}
    stack: list[Event] = []
    place = 0
    for key, moment in sorted(moments.items(), key=lambda item: item[1]):
        while place < len(ordered) and ordered[place]["ts"] <= moment:
            stack.append(ordered[place])
            place += 1
        stack = [each for each in stack if moment < each["ts"] + each["dur"]]
        if stack:
            owners[key] = stack[-1]
    return owners


def _launched(events: list[Event], *categories: str) -> list[tuple[Event, Event]]:
    """Return what ran on the device with the operator that launched it."""
    calls = {e["args"]["correlation"]: e["ts"] for e in _of(events, "cuda_runtime", "cuda_driver")}
    work = {e["args"]["correlation"]: e for e in _of(events, *categories)}
    owners = _owners(_in_step(events), {key: calls[key] for key in work if key in calls})
    return [(work[key], owner) for key, owner in owners.items()]


def test_operators_have_the_calls_and_times_of_the_trace(traces: list[list[Event]], found: DrillDown) -> None:
    calls: dict[str, int] = defaultdict(int)
    host: dict[str, int] = defaultdict(int)
    device: dict[str, int] = defaultdict(int)
    for events in traces:
        for each in _in_step(events):
            calls[each["name"]] += 1
            host[each["name"]] += each["dur"]
        for work, owner in _launched(events, "kernel", "gpu_memcpy", "gpu_memset"):
            device[owner["name"]] += work["dur"]
    assert {each.name for each in found.operators} == {*calls}
    for each in found.operators:
        assert each.calls == same(calls[each.name] / RANKS)
        assert each.host_s == same(host[each.name] / RANKS / 1e6)
        assert each.device_s == same(device[each.name] / RANKS / 1e6)
    assert sum(each.own_s for each in found.operators) == same(_covered(traces) / RANKS / 1e6)


def _covered(traces: list[list[Event]]) -> int:
    """Return the time in which any operator runs: no rank has two threads with operators at once."""
    covered = 0
    for events in traces:
        reach = 0
        for each in sorted(_in_step(events), key=lambda e: e["ts"]):
            end = each["ts"] + each["dur"]
            covered += max(end - max(each["ts"], reach), 0)
            reach = max(reach, end)
    return covered


def test_kernels_have_the_calls_and_times_of_the_trace(traces: list[list[Event]], found: DrillDown) -> None:
    times: dict[str, list[int]] = defaultdict(list)
    for events in traces:
        for each in _of(events, "kernel"):
            times[each["name"][:600]].append(each["dur"])
    whole = sum(map(sum, times.values()))
    assert {each.name for each in found.kernels} == {*times}
    for each in found.kernels:
        assert each.calls == same(len(times[each.name]) / RANKS)
        assert each.time_s == same(sum(times[each.name]) / RANKS / 1e6)
        assert each.pct == same(100 * sum(times[each.name]) / whole)
    assert [each.time_s for each in found.kernels] == sorted((e.time_s for e in found.kernels), reverse=True)


def test_products_have_the_shapes_of_the_trace_and_their_share_of_the_peak(
    traces: list[list[Event]], observed: ReportData, found: DrillDown
) -> None:
    calls: dict[tuple[int, ...], int] = defaultdict(int)
    times: dict[tuple[int, ...], int] = defaultdict(int)
    for events in traces:
        for each in _in_step(events):
            if each["name"] == "aten::mm":
                (m, k), (_, n) = each["args"]["Input Dims"]
                calls[m, k, n] += 1
        for kernel, owner in _launched(events, "kernel"):
            if owner["name"] == "aten::mm":
                (m, k), (_, n) = owner["args"]["Input Dims"]
                times[m, k, n] += kernel["dur"]
    multiplied = {(e.rows, e.inner, e.columns): e for e in found.products if e.name == "aten::mm"}
    assert {*multiplied} == {*calls}
    for (m, k, n), each in multiplied.items():
        assert each.calls == same(calls[m, k, n] / RANKS)
        assert each.time_s == same(times[m, k, n] / RANKS / 1e6)
        assert each.flops_per_s == same(2 * m * k * n * calls[m, k, n] / (times[m, k, n] / 1e6))
    shown = _table(observed, "Matrix products by shape")
    m, k, n = 8192, 2048, 4096
    row = next(r for r in shown.rows if [quantity(c).value for c in r[2:5]] == [m, k, n])
    cells = dict(zip(shown.columns, row, strict=True))
    rate = 2 * m * k * n * calls[m, k, n] / (times[m, k, n] / 1e6)
    assert (cells["operator"], cells["element type"]) == ("aten::mm", "fp16")
    assert quantity(cells["TFLOP/s"]).value == same(rate / 1e12)
    assert quantity(cells["of the peak"]).value == same(100 * rate / 312e12)


def _table(observed: ReportData, caption: str) -> PageTable:
    tables = [table for section in report_page(observed).sections for table in section.tables]
    return next(table for table in tables if table.caption == caption)


def test_kinds_of_calls_have_the_waits_skews_and_speeds_of_the_trace(
    traces: list[list[Event]], found: DrillDown
) -> None:
    for number, (name, members, size) in enumerate((("f16", 8, 67_108_864), ("f32", 8, 32_768))):
        own = [
            sorted((e for e in _of(events, "kernel") if f"AllReduce_Sum_{name}" in e["name"]), key=_start)
            for events in traces
        ]
        durations = [[e["dur"] for e in events] for events in own]
        shortest = [min(together) for together in zip(*durations, strict=True)]
        each = found.calls[number]
        assert (each.collective, each.size_bytes, each.size) == ("all_reduce", size, members)
        assert each.calls == len(shortest)
        assert each.time_s == same(sum(map(sum, durations)) / RANKS / 1e6)
        assert each.transfer_s == same(sum(shortest) / 1e6)
        assert each.waiting_s == same(each.time_s - each.transfer_s)
        assert each.unknown_s == 0
        assert each.bus_gb_per_s == same(median(2 * 7 / 8 * size / (1000 * dur) for dur in shortest))
        starts = [[e["ts"] for e in together] for together in zip(*own, strict=True)]
        skews = [max(together) - min(together) for together in starts]
        assert each.skew_s == pytest.approx(median(skews) / 1e6, abs=2e-5)  # clocks are moved by up to 9 µs


def _start(event: Event) -> int:
    return int(event["ts"])


def test_who_sends_to_whom_is_what_the_ranks_recorded(example: Path) -> None:
    run = example.parent / "llama-tiny-pp4-gloo"
    lists = observation_of(run).series.drill_down
    for rank in range(4):
        events = document(run / f"kineto_trace_{rank}.json.gz")["traceEvents"]
        sent = [e for e in events if e.get("ph") == "X" and e["name"] == "gloo:send"]
        assert sum(pair.calls for pair in lists.pairs if pair.source == rank) == len(sent)
    assert {(p.source, p.target) for p in lists.pairs} == {(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)}


def _holds(around: Event, call: Event) -> bool:
    return bool(around["tid"] == call["tid"] and around["ts"] <= call["ts"] < around["ts"] + around["dur"])


def test_named_ranges_have_what_was_launched_in_them(corpus: Path) -> None:
    folder = corpus / "kineto" / "deepseek-dualpipe"
    lists = observation_of(folder).series.drill_down
    file = next(path for path in sorted(folder.iterdir()) if ".json" in path.name)
    events = [e for e in document(file)["traceEvents"] if e.get("ph") == "X"]
    ranges = [e for e in _of(events, "user_annotation") if e["name"] == "combine(F)"]
    calls = {e["args"]["correlation"]: e for e in _of(events, "cuda_runtime", "cuda_driver")}
    inside = [
        kernel
        for kernel in _of(events, "kernel", "gpu_memcpy", "gpu_memset")
        for call in [calls.get(kernel["args"]["correlation"])]
        if call and any(_holds(each, call) for each in ranges)
    ]
    each = next(each for each in lists.ranges if each.path == ["1F1B", "combine(F)"])
    assert each.calls == len(ranges)
    assert each.host_s == same(sum(e["dur"] for e in ranges) / 10**6)
    assert (each.launched, each.device_s) == (len(inside), same(sum(e["dur"] for e in inside) / 10**6))


def _peak(file: Path) -> int:
    """Return the most bytes that were allocated on the only device, undoing the events one by one."""
    with file.open("rb") as stream:
        snapshot = pickle.load(stream)
    peak = allocated = sum(segment["allocated_size"] for segment in snapshot["segments"])
    for event in reversed(snapshot["device_traces"][0]):
        allocated += {"alloc": -event["size"], "free_requested": event["size"]}.get(event["action"], 0)
        peak = max(peak, allocated)
    return peak


def test_call_sites_hold_the_whole_peak(corpus: Path) -> None:
    run = corpus / "memory"
    held = observation_of(run).series.drill_down.memory
    assert held is not None
    assert held.allocated_bytes == sum(site.bytes for site in held.sites)
    assert held.allocated_bytes == _peak(run / "rank0_memory_snapshot.pickle")
    assert held.sites[0].frames[0].startswith("<module> ")


def test_memory_by_category_is_its_state_at_the_end_of_each_stretch() -> None:
    timeline = pl.DataFrame({"device": [0] * 4, "order": [-1, 0, 1, 2], "time_ns": [None, 10, 20, 30]})
    states = {
        "device": [0] * 4,
        "category": ["weight", "gradient", "weight", "gradient"],
        "order": [-1, 0, 1, 2],
        "allocated_bytes": [5, 3, 7, 0],
    }
    outline = category_outline(pl.DataFrame(states), timeline)
    assert dict(outline.group_by("category", maintain_order=True).agg("allocated_bytes").iter_rows()) == {
        "gradient": [0, 3, 3, 0],
        "weight": [5, 5, 7, 7],
    }
    keyed = outline.with_columns(trace=pl.lit(0), rank=pl.lit(4))
    assert category_curves(keyed) == CategoryCurves(
        "rank 4, device 0", True, [0.0, 0.0, 1e-8, 2e-8], {"gradient": [0, 3, 3, 0], "weight": [5, 5, 7, 7]}
    )
    assert category_curves(keyed.filter(pl.col("category") == "weight")) is None


def test_ranges_nest_by_thread_and_time() -> None:
    spans = [(1, 0, 10), (1, 0, 4), (1, 1, 4), (1, 5, 5), (1, 6, 9), (2, 2, 8)]
    table = pl.DataFrame(spans, schema=["thread", "start_ns", "end_ns"], orient="row")
    found = nested(table)
    assert found["parent"].to_list() == [None, 0, 1, 0, None]
    assert own_lengths(found).to_list() == [3, 1, 3, 3, 6]
    asked = [(1, 0), (1, 3), (1, 4), (1, 9), (1, 10), (2, 2), (2, 1), (3, 5), (1, None)]
    points = pl.DataFrame(asked, schema=["thread", "at"], orient="row")
    assert innermost_at(points, found, "at").to_list() == [1, 2, 0, 0, None, 4, None, None, None]


def test_a_flame_graph_has_the_sum_of_what_is_below() -> None:
    spec = flame([(["a", "b"], 3.0), (["a"], 1.0), (["c"], 4.0)], of="frame", unit="GB", shorter={"a": "A"})
    boxes = {box["name"]: box for box in spec["data"]["values"]}
    shown = {name: (box["level"], box["x"], box["x2"], box["value"]) for name, box in boxes.items()}
    assert shown == {"a": (0, 0.0, 0.5, 4.0), "b": (1, 0.0, 0.375, 3.0), "c": (0, 0.5, 1.0, 4.0)}
    assert boxes["a"]["short"] == "A"


def _listed() -> ReportData:
    kernels = [
        KernelTime("void gemm<float>(int)", "gemm<...>", "gemm", 2.0, 0.0301, 60.0),
        KernelTime("copy", "copy", "memory", 1000.0, 0.019, 38.0),
        KernelTime("add", "add", "elementwise", 30.0, 0.001, 2.0),
    ]
    details = {"per_type_s": {"gemm": 1.0}, "per_type_pct": {"gemm": 100.0}, "kernels_per_step": 3}
    return made(ok("total_kernel_time", 1.0, **details), drill_down=DrillDown(kernels=kernels))


def test_a_terminal_shows_the_first_rows_of_a_list_and_markdown_all() -> None:
    kernels = [KernelTime(f"k{n}", f"k{n}", "other", 1.0, 1.0 - n / 100, 5.0) for n in range(25)]
    details = {"per_type_s": {"other": 1.0}, "per_type_pct": {"other": 100.0}, "kernels_per_step": 25}
    page = report_page(made(ok("total_kernel_time", 1.0, **details), drill_down=DrillDown(kernels=kernels)))
    shown = text(page)
    assert [f" k{n} " in shown for n in (0, 9, 10, 24)] == [True, True, False, False]
    assert "15 more rows in the other forms of the report" in shown
    assert all(f"| k{n} |" in markdown(page) for n in range(25))


def test_readers_sort_a_table_and_see_the_whole_name(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(run_page(report_page(_listed())), encoding="utf-8")
    plain = re.sub(r"<script.*?</script>", "", file.read_text(), flags=re.DOTALL)
    assert re.findall(r'<span class="short" title="([^"]+)">', plain) == ["void gemm&lt;float&gt;(int)"]
    assert rows(_table(_listed(), "Kernels of one rank in a mean step"))[0][0] == "gemm<...>"
    with opened(browser, file, width=390, scheme="light") as (page, complaints):
        table = page.locator("#kernels .tables table")
        names = table.locator("tbody th")
        assert names.all_inner_texts() == ["gemm<...>", "copy", "add"]
        calls = table.get_by_role("button", name="calls")
        calls.click()
        assert names.all_inner_texts() == ["copy", "add", "gemm<...>"]
        assert table.get_by_role("columnheader", name="calls").get_attribute("aria-sort") == "descending"
        calls.press("Enter")
        assert names.all_inner_texts() == ["gemm<...>", "add", "copy"]
        table.get_by_role("button", name="kernel", exact=True).click()
        assert names.all_inner_texts() == ["add", "copy", "gemm<...>"]
        assert complaints == []
