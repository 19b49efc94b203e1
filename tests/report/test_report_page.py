"""The page of a run: its numbers are the results', its forms say the same, nothing is silent."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from observations import made, missing, ok, renamed, rows, tables

from ccl_bench.base.errors import InputError
from ccl_bench.report.page import SECTIONS, report_page
from ccl_bench.report.page_model import Quantity, Term
from ccl_bench.report.render import form_of, render, render_json
from ccl_bench.report.render.html import LIBRARY, SCRIPT, STYLES, html_page, run_page, shared_files
from ccl_bench.report.render.markdown import markdown
from ccl_bench.result.report_data import (
    Grid,
    MemoryCurve,
    MessageSize,
    ReportData,
    Spread,
    StepTimes,
    TimeParts,
    from_json,
    to_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_BYTES = 2_000_000
MOST_POINTS = 5000


class _Cells(HTMLParser):
    """The rows of a page's tables: text and exact value of each cell."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[tuple[str, str]]] = []
        self._open = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"} and self.rows:
            self.rows[-1].append(("", ""))
            self._open = True
        if tag == "data" and self._open:
            self.rows[-1][-1] = ("", dict(attrs)["value"] or "")

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag not in {"td", "th"}

    def handle_data(self, data: str) -> None:
        if self._open:
            text, value = self.rows[-1][-1]
            self.rows[-1][-1] = (text + data, value)


def test_every_number_on_the_page_is_the_value_of_its_result(observed: ReportData) -> None:
    cells = _Cells()
    cells.feed(run_page(report_page(observed)))
    known = {r.metric: r.value for r in observed.results if r.value is not None}
    rows = [row for row in cells.rows if len(row) == 7 and row[1][1] and row[0][0] in known]
    assert {row[0][0]: float(row[1][1]) for row in rows} == known


def test_every_tile_is_the_value_of_its_result(observed: ReportData) -> None:
    page = report_page(observed)
    values = {result.metric: result.value for result in observed.results}
    tiles = [*page.headline, *(number for section in page.sections for number in section.numbers)]
    assert len(tiles) >= 10
    assert {tile.metric: tile.quantity.value for tile in tiles} == {
        tile.metric: values[tile.metric] for tile in tiles
    }
    assert len({tile.metric for tile in tiles}) == len(tiles)


def test_every_term_and_tile_is_defined_on_the_page(observed: ReportData) -> None:
    page = report_page(observed)
    defined = {definition.metric for definition in page.definitions}
    used = {
        cell.metric
        for _, table in tables(page)
        for row in table.rows
        for cell in row
        if isinstance(cell, Term)
    }
    used |= {tile.metric for tile in page.headline}
    assert used
    assert used <= defined
    assert all(definition.manual for definition in page.definitions)


def test_the_parts_of_a_step_add_up_to_it_on_every_rank(observed: ReportData) -> None:
    page = report_page(observed)
    [table] = [chart.table for chart in page.charts() if chart.key == "time-parts"]
    for row in table.rows:
        *parts, step = [cell.value for cell in row if isinstance(cell, Quantity)]
        assert len(parts) == 5
        assert sum(parts) == pytest.approx(step, rel=1e-9)


def test_a_subject_is_shown_or_says_in_one_sentence_why_not(observed: ReportData) -> None:
    page = report_page(observed)
    assert len(page.sections) == len(SECTIONS)
    for section in page.sections:
        if section.absent:
            assert section.absent.endswith(".")
            assert (section.numbers, section.charts, section.tables) == ((), (), ())
        else:
            assert section.numbers or section.drawings() or section.tables
    absent = {section.key: section.absent for section in page.sections if section.absent}
    assert absent["pipeline"] == "Not applicable: the run has no pipeline (pp is 1 in workload card)."
    assert set(absent) == {"serving", "pipeline", "kernels", "memory", "experts"}


def test_the_same_observation_gives_the_same_page(observed: ReportData) -> None:
    again = from_json(to_json(observed))
    assert again == observed
    for form in ("html", "markdown", "json", "text"):
        assert render(again, form) == render(observed, form)  # type: ignore[arg-type]


def test_a_page_of_an_empty_run_says_what_to_do() -> None:
    text = run_page(report_page(made(missing("gpu_busy", "the run holds no steps"))))
    assert "No metric has a value for this run" in text
    assert "the run holds no steps" in text
    assert 'id="charts"' not in text


def test_markdown_has_the_same_sections_numbers_and_tables(observed: ReportData) -> None:
    page = report_page(observed)
    text = markdown(page)
    for section in page.sections:
        assert section.absent or f"## {section.title}\n" in text
    for tile in page.headline:
        assert f"| [{tile.label}](#{tile.metric}) | {tile.quantity.text} |" in text
    for chart in page.charts():
        assert f"### {chart.title}\n\n{chart.summary}" in text.replace("\\", "")
    lines = set(text.replace("\\", "").splitlines())
    shown = [
        [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell) for cell in line.strip("| ").split(" | ")]
        for line in lines
    ]
    for _, table in tables(page):
        for row in rows(table):
            assert [cell.strip() for cell in " | ".join(row).strip().split(" | ")] in shown


def test_markdown_escapes_what_names_would_start(observed: ReportData) -> None:
    text = markdown(report_page(renamed(observed, "<img src=x> [a](javascript:b) `c` | d\n# e")))
    head = text.split("\n\n")[0]
    assert head == "# \\<img src=x\\> \\[a\\](javascript:b) \\`c\\` \\| d \\# e"


def _largest() -> ReportData:
    """Return an observation in which everything is as large as it may be."""
    ranks, steps = [str(rank) for rank in range(128)], [str(step) for step in range(31)]
    spread = [Spread(name, 100, 0.1, 0.1234567890123, 0.2) for name in map(str, range(400))]
    curve = MemoryCurve(
        "0",
        1000,
        True,
        [place * 0.123456789 for place in range(500)],
        *([10_000_000_000 + place * 1_234_567 for place in range(500)] for _ in range(3)),
    )
    sizes = [
        MessageSize(
            "reduce_scatter", "dp_shard", "between nodes", "wait-free", size, size, 9, 1.2345, 2.3456, 3.4567
        )
        for size in range(1000, 301_000, 1000)
    ]
    values = [0.1234567890123 + place / 7e5 for place in range(5000)]
    spread_s = {"mean": 0.12, "p50": 0.12, "p99": 0.13}
    return made(
        ok(
            "request_latency",
            0.12,
            values_s=values,
            percentiles_s=values[:101],
            distribution_s=spread_s,
            requests={"ok": 5000},
        ),
        ok("peak_memory_allocated", 10.0, "GB", highest_device="0"),
        ok(
            "training_quality",
            1.0,
            "nats",
            series={"loss": [{"step": n, "value": 7 / n} for n in range(1, 9999)]},
        ),
        step_times=StepTimes("ProfilerStep", spread, spread[:128], None, 1000, 8),
        time_parts=[TimeParts(rank, 0.4, 0.1234567890123, 0.1, 0.1, 0.0765432109877) for rank in ranks],
        waits=Grid(ranks, steps, [[0.0012345678901 * (n + 1) for n in range(31)] for _ in ranks], 8, 33),
        bus_bandwidth=sizes,
        memory=[curve] * 4,
    )


def _points(spec: object) -> Iterator[int]:
    if isinstance(spec, dict):
        if isinstance(spec.get("values"), list) and spec["values"] and isinstance(spec["values"][0], dict):
            yield len(spec["values"])
        for part in spec.values():
            yield from _points(part)
    elif isinstance(spec, list):
        for part in spec:
            yield from _points(part)


def test_the_largest_report_is_under_two_megabytes_with_few_points_in_each_chart() -> None:
    page = report_page(_largest())
    assert len(run_page(page).encode()) < MOST_BYTES
    counts = {chart.key: sum(_points(chart.spec)) for chart in page.charts()}
    assert counts["waits"] == 128 * 31
    assert max(counts.values()) <= MOST_POINTS


def test_a_page_forbids_all_but_its_own_scripts(observed: ReportData) -> None:
    text = run_page(report_page(observed))
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    rules = dict(rule.strip().split(" ", 1) for rule in unescape(policy).split(";"))
    assert rules["default-src"] == "'none'"
    assert re.fullmatch(r"('sha256-[\w+/=]{44}' ?){2}", rules["script-src"])
    own = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r'(?:src|href)="(?!#|data:)', own)


def test_pages_of_a_site_share_their_files() -> None:
    text = html_page("One", "<h1>One</h1>", charts={"a": {"mark": "bar"}}, assets="/static/")
    assert [name for name in (STYLES, SCRIPT, LIBRARY) if f'="/static/{name}"' in text] == [
        STYLES,
        SCRIPT,
        LIBRARY,
    ]
    assert len(text) < 10_000
    assert {name: bool(content) for name, content in shared_files().items()} == dict.fromkeys(
        (STYLES, SCRIPT, LIBRARY), True
    )
    assert LIBRARY not in html_page("Two", "<h1>Two</h1>", assets="/static")


def test_what_is_no_report_is_refused() -> None:
    with pytest.raises(InputError, match="this is not a report"):
        from_json(b'{"results": 3}')
    with pytest.raises(InputError, match="has schema 99"):
        from_json(to_json(ReportData(made().inspection, [], schema_version=99)))


def test_a_report_is_made_again_from_its_json(observed: ReportData) -> None:
    assert render_json(to_json(observed), "html") == render(observed, "html")


@pytest.mark.parametrize(
    "details", [{}, {"per_dimension": 3}, {"spread_s": "wide"}, {"late_ranks": {"a": None}}]
)
def test_a_report_with_other_details_is_refused_or_made_but_never_a_bug(details: dict[str, Any]) -> None:
    names = (
        "throughput_tokens_sec",
        "iteration_wall_clock_time",
        "straggler",
        "traffic_distribution",
        "TTFT",
    )
    foreign = made(*(ok(name, 1.0, **details) for name in names), waits=Grid(["0"], ["1"], [[0.1]]))
    try:
        text = render_json(to_json(foreign), "html")
    except InputError as error:
        assert "structure of this version" in error.message
    else:
        assert text.startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("name", "form"), [("a.html", "html"), ("b.HTM", "html"), ("c.md", "markdown"), ("d.txt", "text")]
)
def test_the_name_of_a_file_shows_the_form(name: str, form: str) -> None:
    assert form_of(name) == form


def test_metrics_for_other_kinds_of_runs_are_counted_and_listed_when_asked_for() -> None:
    observed = made(
        ok("gpu_busy", 90.0, "%"),
        missing("TTFT", "it is defined for inference", "not_applicable"),
        missing("peak_memory_allocated", "the run has no snapshot"),
        missing("mine", "KeyError", "failed"),
        replace(missing("mfu", "the precision is not known"), is_repairable=True),
    )
    said = (
        "1 measured, 2 for other kinds of runs (--why lists them): 1 because it is defined for inference; "
        "1 because the run has no snapshot"
    )
    hidden = ("it is defined for inference", "the run has no snapshot")
    for form in ("html", "markdown", "text"):
        short = " ".join(unescape(render(observed, form)).replace("\\", "").split())
        assert said in short
        assert "KeyError" in short.partition(said)[2]
        assert "the precision is not known" in short.partition(said)[2]
        assert not any(reason in short.partition(said)[2] for reason in hidden)
        whole = " ".join(unescape(render(observed, form, why=True)).replace("\\", "").split())
        assert said not in whole
        assert all(reason in whole for reason in hidden)
