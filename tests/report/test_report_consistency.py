"""Every number that stands twice in a report is the same number, in every form and on real runs.

Whatever is compared here is compared with a result, or with what is written a second time; how a section
computes what it shows plays no part.
"""

from __future__ import annotations

import fnmatch
import json
import re
from html import unescape
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from observations import observation_of, quantity, tables, words

from ccl_bench.evaluate.report_data import DRAWN_WITH
from ccl_bench.report.formatting import percent, with_unit
from ccl_bench.report.page import report_page
from ccl_bench.report.page_model import Quantity, Term
from ccl_bench.report.render import render
from ccl_bench.result import details
from ccl_bench.result.report_data import from_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccl_bench.report.page_model import Page, PageChart, PageTable
    from ccl_bench.result import Result
    from ccl_bench.result.report_data import ReportData

CORPUS = (
    "kineto/megatron-tp8",
    "kineto/nccl-args",
    "kineto/deepseek-dualpipe",
    "nsys/cuda-graphs",
    "nsys/two-gpu-sendrecv",
    "serving/vllm-tp8",
    "serving/aiperf",
    "serving/llmperf",
)
EXAMPLES = ("llama-tiny-fsdp2-tp2-gloo", "llama-tiny-pp4-gloo")

SERIES = {
    "step_times": "step_times",
    "time_parts": "breakdown",
    "waits": "waits",
    "bus_bandwidth": "transfers",
    "memory": "memory_outline",
}

same = lambda value: pytest.approx(value, rel=1e-9, abs=1e-12)  # noqa: E731


@pytest.fixture(scope="module", params=[*CORPUS, *EXAMPLES])
def run(request: pytest.FixtureRequest, example: Path) -> ReportData:
    """Return each run, observed once for all tests."""
    if request.param in EXAMPLES:
        return observation_of(example.parent / request.param)
    return observation_of(request.getfixturevalue("corpus") / request.param)


@pytest.fixture(scope="module")
def page(run: ReportData) -> Page:
    """Return its report."""
    return report_page(run)


@pytest.fixture(scope="module")
def forms(run: ReportData) -> dict[str, str]:
    """Return its report in every form."""
    return {form: render(run, form) for form in ("html", "json", "markdown", "text")}


def _by_name(observed: ReportData) -> dict[str, Result]:
    return {result.metric: result for result in observed.results}


def _valued(observed: ReportData) -> dict[str, float]:
    return {name: found.value for name, found in _by_name(observed).items() if found.value is not None}


def _of_terms(page: Page) -> Iterator[tuple[str, PageTable, list[Quantity]]]:
    """Yield the metric of each row that begins with one, its table and the numbers in it."""
    for _, table in tables(page):
        for first, *rest in table.rows:
            if isinstance(first, Term):
                yield first.metric, table, [cell for cell in rest if isinstance(cell, Quantity)]


def test_what_is_refused_is_not_drawn(run: ReportData, page: Page) -> None:
    known = _valued(run)
    for series, table in SERIES.items():
        if DRAWN_WITH[table] not in known:
            assert not getattr(run.series, series), series
    shown = {number.metric for section in page.sections for number in section.numbers if number.metric}
    assert shown | {number.metric for number in page.headline} <= known.keys()


def test_details_are_what_their_types_say(run: ReportData) -> None:
    kinds = [
        kind
        for kind in vars(details).values()
        if (getattr(kind, "__doc__", "") or "").startswith("Details of")
    ]
    assert len(kinds) > 20
    for kind in kinds:
        for pattern in re.findall(r"`([\w*]+)`", kind.__doc__.splitlines()[0]):
            for name in fnmatch.filter(_valued(run), pattern):
                msgspec.convert(_by_name(run)[name].details, kind)


def test_tiles_and_tables_have_the_value_of_their_metric(run: ReportData, page: Page) -> None:
    known = _valued(run)
    for number in (*page.headline, *(n for section in page.sections for n in section.numbers)):
        assert number.quantity.value == known[number.metric]
    for metric, table, numbers in _of_terms(page):
        if metric in known and numbers and "latency" not in table.columns:
            assert numbers[0].value == known[metric]


def test_times_of_requests_are_one_distribution(run: ReportData, page: Page) -> None:
    results = _by_name(run)
    for metric, table, _ in _of_terms(page):
        if "latency" not in table.columns:
            continue
        row = next(row for row in table.rows if isinstance(row[0], Term) and row[0].metric == metric)
        reported = dict(zip(table.columns[1:], row[1:], strict=True))
        details = results[metric].details
        assert quantity(reported["mean"]).value == same(results[metric].value)
        curve = details.get("percentiles_s")
        for share in (50, 90, 95, 99):
            cell = reported.get(f"p{share}", "-")
            if curve and isinstance(cell, Quantity):
                assert cell.value == same(curve[share])
    for chart in (each for each in page.charts() if each.key.startswith("serving-")):
        _same_as_percentiles(chart, results)


def _same_as_percentiles(chart: PageChart, results: dict[str, Result]) -> None:
    metric = next(name for name in results if chart.key == f"serving-{name.lower().replace('_', '-')}")
    curve = results[metric].details["percentiles_s"]
    points = chart.spec["data"]["values"]
    scale = points[-1]["x"] / curve[99]
    assert [point["x"] for point in points] == [same(scale * value) for value in curve[:100]]
    assert [quantity(row[1]).value for row in chart.table.rows] == curve


_COMMUNICATION = ("exposed communication", "waiting", "transfer", "unknown communication")


def test_shares_of_the_step_are_those_of_the_metrics(run: ReportData, page: Page) -> None:
    known = _valued(run)
    charts = {chart.key: chart for chart in page.charts()}
    if "time-parts" not in charts:
        return
    chart = charts["time-parts"]
    *ranks, mean = chart.table.rows
    *busy, idle = (quantity(cell).value for cell in mean[1:-1])
    assert idle == same(known["gpu_idle"])
    assert sum(busy) == same(known["gpu_busy"])
    if "exposed_communication_time" in known:
        shown = dict(zip(chart.table.columns, mean, strict=True))
        whole = [quantity(shown[name]).value for name in _COMMUNICATION if name in shown]
        assert sum(whole) == same(_by_name(run)["exposed_communication_time"].details["pct_of_step"])
    for name, metric in (("waiting", "exposed_wait_time"), ("transfer", "exposed_transfer_time")):
        if metric in known:
            share = quantity(mean[chart.table.columns.index(name)]).value
            assert share == same(_by_name(run)[metric].details["pct_of_step"])
    parts = [[quantity(cell).value for cell in row[1:]] for row in ranks]
    for place in range(len(busy) + 1):
        shares = [100 * row[place] / row[-1] for row in parts if row[-1]]
        assert quantity(mean[place + 1]).value == same(fmean(shares))
    assert all(sum(row[:-1]) == same(row[-1]) for row in parts)
    said = dict(re.findall(r"([a-z][a-z ]+) (\S+ %)", chart.summary.partition(":")[2]))
    assert list(said.values()) == [words(cell) for cell in mean[1:-1]]


def test_idle_by_cause_is_the_metric_and_adds_up(run: ReportData, page: Page) -> None:
    found = _by_name(run).get("idle_breakdown")
    rows = [row for _, table in tables(page) if table.caption == "Idle time by cause" for row in table.rows]
    assert bool(rows) == bool(found and found.value is not None)
    if rows and found:
        assert quantity(rows[0][2]).value == same(found.value)
        assert sum(quantity(row[2]).value for row in rows) == same(100)
        assert sum(quantity(row[1]).value for row in rows) == same(found.details["idle_s"])


def _numbers_in(spec: Any) -> Iterator[float]:
    """Yield every number that is drawn."""
    for value in spec.get("data", {}).get("values", ()):
        yield from (each for each in value.values() if isinstance(each, float))
    for layer in spec.get("layer", ()):
        yield from _numbers_in(layer)


def test_what_is_drawn_stands_in_the_table_under_it(page: Page) -> None:
    for chart in page.charts():
        if not chart.key.startswith(("time-", "bytes-", "kernel-", "phases")):
            continue
        reported = sorted(
            cell.value for row in chart.table.rows for cell in row[1:2] if isinstance(cell, Quantity)
        )
        drawn = sorted(_numbers_in(chart.spec))
        if chart.key == "time-parts":
            *ranks, _ = chart.table.rows
            reported = sorted(quantity(cell).value for row in ranks for cell in row[1:-1])
        elif "waiting" in chart.table.columns:
            reported = sorted(quantity(cell).value for row in chart.table.rows for cell in row[2:])
        scale = drawn[-1] / reported[-1] if reported[-1] else 1.0
        assert drawn == [same(scale * value) for value in reported], chart.key


def test_all_forms_have_the_same_sections_in_the_same_order(page: Page, forms: dict[str, str]) -> None:
    outline = page.outline()
    keys, titles = zip(*outline, strict=True)
    places = re.findall(r'<(?:section|details)[^>]* id="([^"]+)"', forms["html"])
    assert [key for key in places if key in keys] == [*keys]
    markdown = forms["markdown"].replace("\\", "")
    assert re.findall(r"^## (.*)$", markdown, flags=re.MULTILINE) == [*titles]
    text = forms["text"]
    assert re.findall(r"^(\S.*)$", text, flags=re.MULTILINE)[1:] == [*titles]
    assert report_page(from_json(forms["json"].encode())).outline() == outline


def test_all_forms_have_the_same_numbers(run: ReportData, page: Page, forms: dict[str, str]) -> None:
    known = _valued(run)
    html = re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", forms["html"])))
    markdown = forms["markdown"].replace("\\", "")
    text = re.sub(r"\s+", " ", forms["text"])
    for number in (*page.headline, *(n for section in page.sections for n in section.numbers)):
        assert number.quantity.text in html
        assert number.quantity.text in markdown
        assert number.quantity.text in text
    stored = {result["metric"]: result["value"] for result in json.loads(forms["json"])["results"]}
    assert {name: value for name, value in stored.items() if value is not None} == known
    for metric in ("gpu_busy", "total_communication_time", "TTFT", "TPOT", "ITL", "request_latency"):
        if metric in known:
            assert with_unit(known[metric], _by_name(run)[metric].unit) in text
    if "exposed_communication_time" in known:
        share = percent(_by_name(run)["exposed_communication_time"].details["pct_of_step"])
        assert f"{share} of the traced step" in text
        assert f"{share} of the traced step" in markdown
