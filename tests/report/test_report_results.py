"""Results as text."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.text import Text

from ccl_bench.report import results as text
from ccl_bench.report.console import aligned, to_text
from ccl_bench.result import Result, ResultFinding


def _result(name: str = "sm", value: float | None = 35.25, **fields: Any) -> Result:
    status = "ok" if value is not None else "not_measurable"
    return Result(name, **{"status": status, "unit": "%", "better": "higher", "value": value, **fields})


def _finding(number: int, severity: str = "warning") -> ResultFinding:
    return ResultFinding("torn", severity, f"event {number} is torn", f"rank{number}.json", number)


class _Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_single_value_stands_alone_and_several_have_names() -> None:
    assert text.values([_result()]) == "35.25\n"
    assert text.values([_result(), _result("coll_call_num", 42.0)]) == "sm 35.25\ncoll_call_num 42\n"
    assert text.values([_result(value=None)]) == ""


def test_csv_shows_which_findings_touch_a_number() -> None:
    findings = [_finding(1), _finding(2), ResultFinding("late", "note", "it came late")]
    rows = text.as_csv([_result(findings=findings)]).splitlines()
    assert rows[0].endswith(",ranks,findings")
    assert rows[1].endswith(",torn late")


def test_csv_quotes_what_needs_it() -> None:
    rows = text.as_csv([_result(value=None, reason='no "sm", no number')]).splitlines()
    assert rows[1] == 'sm,,%,higher,not_measurable,"no ""sm"", no number",,,,'


def test_a_row_counts_the_findings_behind_its_number_but_no_notes() -> None:
    row = _result(findings=[_finding(0), _finding(1), _finding(2, "note")])
    assert to_text(text.table([row])).splitlines()[1].split("  ")[-1].strip() == "ok, 2 findings"


def test_a_finding_behind_several_numbers_is_reported_once() -> None:
    both = [_result(findings=[_finding(3)]), _result("gpu_busy", findings=[_finding(3)])]
    assert text.remarks(both) == ["warning: rank3.json: event 3 is torn (torn)"]


def test_many_findings_of_one_kind_are_counted() -> None:
    remarks = text.remarks([_result(findings=[_finding(number) for number in range(64)])])
    assert len(remarks) == 3
    assert remarks[-1] == "warning: 62 more findings like this (torn)"


@pytest.mark.parametrize(
    ("file", "message", "said"),
    [
        ("", "clocks differ", "warning: clocks differ (torn)"),
        ("a", "the folder cannot be read", "warning: a: the folder cannot be read (torn)"),
        ("a", "a: cannot be read", "warning: a: cannot be read (torn)"),
    ],
)
def test_a_remark_names_its_file_once_where_it_has_one(file: str, message: str, said: str) -> None:
    finding = ResultFinding("torn", "warning", message, file)
    assert text.remarks([_result(findings=[finding])]) == [said]


def test_findings_about_a_number_that_is_not_there_are_not_reported() -> None:
    assert text.remarks([_result(value=None, findings=[_finding(0)])]) == []


def test_a_table_in_a_pipe_is_never_wrapped_nor_coloured() -> None:
    rows = [("name", Text("word " * 100, "red"))]
    out = to_text(aligned(("A", "B"), rows), stream=io.StringIO())
    assert len(out.splitlines()) == 2
    assert "\x1b" not in out


def test_a_table_on_a_terminal_is_wrapped_to_its_width(monkeypatch: Any) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("name", Text("word " * 20, "red"))]
    out = to_text(aligned(("A", "B"), rows), stream=_Terminal())
    assert len(out.splitlines()) > 2
    assert "\x1b[" in out


def test_no_color_is_respected(monkeypatch: Any) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in to_text(Text("word", "red"), stream=_Terminal())


def test_a_name_cannot_break_the_table() -> None:
    out = to_text(aligned(("A", "B"), [("evil\nname\x1b[2J", "[bold]x[/bold]")]))
    assert out.splitlines()[1] == "evil name?[2J  [bold]x[/bold]"


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_no_cell_is_lost_or_cut_however_narrow_the_terminal_is(columns: int) -> None:
    rows = [
        ("bandwidth_utilization_reducescatter", "1234.5678", "GB/s", "ok, 1 finding"),
        ("mfu", "-", "%", "not applicable: the run names no accelerator, so there is no peak"),
    ]
    out = to_text(aligned(("METRIC", "VALUE", "UNIT", "STATUS"), rows, right=(1,)), width=columns)
    assert max(map(len, out.splitlines())) <= columns
    words = set(out.replace(";", "").split())
    assert words >= {word for row in rows for cell in row for word in cell.split() if cell != "-"}


@pytest.mark.parametrize(("count", "lines"), [(1, 1), (2, 2), (3, 3), (4, 3)])
def test_up_to_three_findings_of_one_kind_are_written_out(count: int, lines: int) -> None:
    remarks = text.remarks([_result(findings=[_finding(number) for number in range(count)])])
    assert len(remarks) == lines
    assert [line for line in remarks if "more finding" in line] == (
        ["warning: 2 more findings like this (torn)"] if count == 4 else []
    )


def test_a_table_has_a_dash_where_there_is_no_number() -> None:
    rows = to_text(text.table([_result(), _result("busy", None, reason="no kernel")])).splitlines()
    assert [row.split(maxsplit=3) for row in rows] == [
        ["METRIC", "VALUE", "UNIT", "STATUS"],
        ["sm", "35.25", "%", "ok"],
        ["busy", "-", "%", "not measurable: no kernel"],
    ]


def test_reasons_of_metrics_without_a_value_are_counted_the_three_most_frequent_by_name() -> None:
    reasons = ["a: one", "a: two", "a", "b", "b", "c", "c", "d"]
    expected = [_result(value=None, reason=reason) for reason in reasons]
    repairable = _result(value=None, reason="e", is_repairable=True)
    failed = _result(value=None, status="failed", reason="f")
    assert text.counts([_result(), *expected, repairable, failed]) == (
        "1 measured, 8 for other kinds of runs (--why lists them): "
        "3 because a; 2 because b; 2 because c; 1 for other reasons"
    )
    assert text.counts([*expected[:1]]).endswith("(--why lists them): 1 because a")
    assert text.counts([_result(), repairable, failed]) == ""


def test_metrics_without_a_value_for_one_reason_take_one_line_after_those_with_one() -> None:
    single = [_result(name, None, reason="nothing communicated", fix="f") for name in ("a", "c", "e")]
    other = [_result("b"), _result("g", None, reason="no price", fix="f"), _result("d")]
    shown = to_text(text.every_metric([single[0], *other, *single[1:]], why=True), width=100)
    assert [line.split()[0] for line in shown.splitlines()[:3]] == ["METRIC", "b", "d"]
    assert shown.splitlines()[3:] == [
        "",
        "No value for",
        "  a, c, e: not measurable: nothing communicated",
        "  g: not measurable: no price",
    ]
    assert len(text.refusals([*single, _result("g", None, reason=single[0].reason)], why=True)) == 2


def test_a_page_of_one_result_has_its_steps_and_findings() -> None:
    page = to_text(text.result_page(_result(window="ProfilerStep", findings=[_finding(1)])), width=100)
    assert page.splitlines() == [
        "sm", "  35.25 %", "  steps: ProfilerStep", "  warning: rank1.json: event 1 is torn (torn)",
    ]  # fmt: skip
    page = to_text(text.result_page(_result(value=None, reason="no kernel", fix="record one")), width=100)
    assert page.splitlines() == ["sm", "  sm: not measurable: no kernel", "    fix: record one"]


@pytest.mark.parametrize(
    ("severity", "code", "message", "counts"),
    [
        ("error", "torn", "it is torn", True),
        ("warning", "torn", "it is torn", False),
        ("warning", "file-mistakes", "it is torn", True),
        ("error", "torn", "no kernel", False),
    ],
)
def test_without_a_value_its_possible_causes_are_remarked(
    severity: Any, code: str, message: str, counts: bool
) -> None:
    finding = ResultFinding(code, severity, message)
    assert bool(text.remarks([_result(value=None, reason="no kernel", findings=[finding])])) is counts
