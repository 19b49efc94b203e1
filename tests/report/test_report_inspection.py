"""An inspection as a page, and validations."""

from __future__ import annotations

from ccl_bench.base.findings import Issue
from ccl_bench.report import inspection
from ccl_bench.report.console import to_text
from ccl_bench.result.inspection import InspectedMetric, InspectedTrace, Inspection, Validation, to_json


def _lines(found: Inspection, width: int | None = None) -> list[str]:
    return [
        " ".join(line.split())
        for line in to_text(inspection.inspection_page(found), width=width).splitlines()
    ]


def _traces(count: int) -> list[InspectedTrace]:
    return [
        InspectedTrace(f"rank{rank}.json", "kineto", 1000, rank, "file", None, [1, 2], "ProfilerStep", 0.5)
        for rank in range(count)
    ]


def test_an_empty_run_is_a_short_page() -> None:
    assert _lines(Inspection("somewhere")) == [
        "somewhere",
        "traces none",
        "",
        "Can be measured (0 of 0 metrics)",
        "nothing",
    ]


def test_missing_ranks_are_drawn_together() -> None:
    found = Inspection("run", 8, [0, 3], [1, 2, 4, 5, 6, 7], _traces(2))
    assert "ranks 2 of 8: 0, 3; missing 1-2, 4-7" in _lines(found)


def test_a_run_of_a_thousand_ranks_shows_the_first_and_counts_the_rest() -> None:
    lines = _lines(Inspection("run", 1024, list(range(1024)), [], _traces(1024)))
    assert "... and 1,008 more; --format json lists all" in lines
    assert "ranks 1024 of 1024: 0-1023" in lines
    assert "traces 1,024 kineto files, 1.02 MB" in lines


def test_an_unreadable_trace_is_shown_as_such() -> None:
    found = Inspection("run", traces=[InspectedTrace("a.json", "kineto", 10, is_readable=False)])
    assert "? unreadable 10 B a.json" in _lines(found)


def test_what_holds_no_times_has_no_zeros_for_them() -> None:
    snapshot = InspectedTrace("m.pickle", "memory_snapshot", 10, 0, "file")
    lines = _lines(Inspection("run", None, [0], [], [*_traces(1), snapshot]))
    assert "0 - - - 10 B m.pickle" in lines
    assert "steps 2 steps in each trace, from ProfilerStep" in lines


def test_reasons_stand_beside_names_where_there_is_room_and_below_where_not() -> None:
    metric = InspectedMetric("mfu", "%", "not_measurable", "no peak", "write one", is_repairable=True)
    found = Inspection("run", metrics=[metric])
    assert "mfu not measurable: no peak" in _lines(found, 120)
    assert _lines(found, 60)[-3:] == ["mfu", "not measurable: no peak", "fix: write one"]


def test_metrics_for_other_kinds_of_runs_are_counted() -> None:
    ttft = InspectedMetric("TTFT", "s", "not_applicable", "this run is training")
    broken = InspectedMetric("mine", "s", "failed", "KeyError")
    found = Inspection("run", metrics=[InspectedMetric("mfu", "%", "ok"), ttft, broken])
    assert _lines(found)[-2:] == [
        "mine failed: KeyError",
        "1 measured, 1 for other kinds of runs (--why lists them): 1 because this run is training",
    ]
    page = to_text(inspection.inspection_page(found, why=True))
    assert "not applicable: this run is training" in page
    assert "--why" not in page


def test_an_issue_says_where_what_and_the_way_out() -> None:
    issue = Issue("error", "2.5 is no whole number", "", "card.yaml", 12, "parallelism.pp", "write 2")
    page = to_text(inspection.validation_page([Validation("card.yaml", "workload card", [issue])]))
    assert page.splitlines() == [
        "error   card.yaml:12: parallelism.pp: 2.5 is no whole number",
        "        fix: write 2",
        "",
        "card.yaml (workload card): 1 error",
    ]


def test_an_inspection_is_json() -> None:
    assert to_json(Inspection("run")).startswith(b'{\n  "run": "run"')
