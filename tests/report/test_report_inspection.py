"""An inspection as a page, and validations."""

from __future__ import annotations

import pytest

from ccl_bench.base.findings import Issue
from ccl_bench.report import inspection
from ccl_bench.report.console import Text, to_text
from ccl_bench.result.inspection import (
    InspectedDevice,
    InspectedFact,
    InspectedGroup,
    InspectedMetric,
    InspectedTrace,
    Inspection,
    Validation,
    to_json,
)


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


def test_metrics_without_a_value_for_one_reason_share_it_and_its_fix() -> None:
    names = ("mfu", "sm")
    missing = [
        InspectedMetric(name, "%", "not_measurable", "no peak", "write one", is_repairable=True)
        for name in names
    ]
    shown = _lines(Inspection("run", metrics=missing), 120)
    assert shown[-2:] == ["mfu, sm: not measurable: no peak", "fix: write one"]


def test_metrics_for_other_kinds_of_runs_are_counted() -> None:
    ttft = InspectedMetric("TTFT", "s", "not_applicable", "this run is training")
    broken = InspectedMetric("mine", "s", "failed", "KeyError")
    found = Inspection("run", metrics=[InspectedMetric("mfu", "%", "ok"), ttft, broken])
    assert _lines(found)[-2:] == [
        "mine: failed: KeyError",
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


def test_a_whole_inspection_is_laid_out_in_columns() -> None:
    traces = [
        InspectedTrace(
            "rank0.json", "kineto", 2000, 0, "file", 10, [1, 2, 3], "ProfilerStep", 0.5, 1200, 3, 40, 6
        ),
        InspectedTrace("rank1.json", "kineto", 1000, 1, "file", 20, [1, 2], "ProfilerStep", 0.25, 0, 0, 1, 0),
    ]
    found = Inspection(
        "runs/one", None, [0, 1], [], traces,
        devices=[InspectedDevice("A100", 80 * 10**9, 108, 2), InspectedDevice("odd", None, None, 1)],
        libraries={"nccl_version": ["2.27", "2.28"]},
        calls={"all_reduce": 1200, "barrier": 1},
        groups=[
            InspectedGroup("tensor", 2, [0, 1], "tp", 2), InspectedGroup("", None, None, "unknown", 0),
            InspectedGroup("pipe", 16, [0, 2, 4, 6, 8, 10, 12], "pp", 1),
        ],
        facts={"tp": InspectedFact(2, "card"), "peak": InspectedFact(312.123456789, "catalog")},
        files={"card.yaml": "card.yaml", "log.txt": "too large"}, unknown_files=["notes.txt"],
        metrics=[InspectedMetric("mfu", "%", "ok"), InspectedMetric("sm", "%", "failed", "KeyError")],
        choice="steps 1-3",
    )  # fmt: skip
    assert to_text(inspection.inspection_page(found), width=120).splitlines() == [
        "runs/one",
        "  traces         2 kineto files, 3 kB",
        "  ranks          2: 0-1",
        "  windows        10, 20",
        "  steps          2 to 3 steps in each trace, from ProfilerStep; chosen: steps 1-3",
        "  devices        2 x A100, 80 GB, 108 multiprocessors; 1 x odd",
        "  libraries      nccl_version 2.27 and 2.28",
        "  work           1,200 kernels, 3 copies and sets, 41 CPU operators",
        "  communication  1,201 calls: all_reduce 1,200, barrier 1",
        "",
        "Traces",
        "  RANK  WINDOW  STEPS                    SPAN  KERNELS  CPU OPS  CALLS  SIZE  FILE",
        "     0  10      3 steps (numbers 1-3)  500 ms    1,200       40      6  2 kB  rank0.json",
        "     1  20      2 steps (numbers 1-2)  250 ms        0        1      0  1 kB  rank1.json",
        "",
        "Process groups",
        "  DIMENSION  SIZE  RANKS                      USED BY  DESCRIPTION",
        "  tp            2  0-1                        2 ranks  tensor",
        "  -             ?  unknown                    nobody",
        "  pp           16  0, 2, 4, 6, 8, 10, ... 12  1 rank   pipe",
        "",
        "Facts",
        "  FACT  VALUE    FROM",
        "  tp    2        card",
        "  peak  312.123  catalog",
        "",
        "Other files",
        "  card.yaml  read",
        "  log.txt    too large",
        "  notes.txt  not recognised, not used",
        "",
        "Can be measured (1 of 2 metrics)",
        "  mfu  %",
        "",
        "No value for",
        "  sm: failed: KeyError",
    ]


def test_without_kernels_and_windows_their_columns_are_left_out() -> None:
    page = to_text(inspection.inspection_page(Inspection("run", 1, [0], [], _traces(1))), width=100)
    assert "  RANK  STEPS                    SPAN  CPU OPS  CALLS  SIZE  FILE" in page.splitlines()
    assert "     0  2 steps (numbers 1-2)  500 ms        0      0  1 kB  rank0.json" in page.splitlines()


@pytest.mark.parametrize(("count", "rest"), [(16, ""), (17, "... and 1 more"), (1216, "... and 1,200 more")])
def test_sixteen_rows_of_a_list_are_shown(count: int, rest: str) -> None:
    names = [f"f{number}" for number in range(count)]
    groups = [InspectedGroup(name, 2, [0, 1], "tp", 2) for name in names]
    lines = _lines(Inspection("run", unknown_files=names))
    assert sum("not recognised" in line for line in lines) == 16
    assert [line for line in lines if "more" in line] == ([rest] if rest else [])
    lines = _lines(Inspection("run", groups=groups))
    assert sum(line.startswith("tp 2 0-1") for line in lines) == 16
    assert [line.partition(";")[0] for line in lines if "more" in line] == ([rest] if rest else [])


def test_the_verdict_of_a_validation_counts_by_severity() -> None:
    def said(*severities: str) -> str:
        found = Validation("a", "run", [Issue(severity, "m") for severity in severities])
        return to_text(inspection.validation_page([found])).splitlines()[-1]

    assert said() == "a (run): nothing wrong"
    assert said("note", "error", "note", "warning") == "a (run): 1 error, 1 warning, 2 notes"


@pytest.mark.parametrize(
    ("severities", "colour"),
    [
        ((), "green"), (("note",), "green"), (("note", "warning"), "yellow"), (("error",), "red"),
        (("warning", "error"), "red"),
    ],
)  # fmt: skip
def test_the_verdict_of_a_validation_has_the_colour_of_the_worst(
    severities: tuple[str, ...], colour: str
) -> None:
    found = Validation("a", "run", [Issue(severity, "m") for severity in severities])
    last = inspection.validation_page([found]).renderables[-1]
    assert isinstance(last, Text)
    assert [span.style for span in last.spans] == [colour]


def test_the_place_of_an_issue_has_a_line_if_that_is_known() -> None:
    issues = [
        Issue("error", "m", file="a.yaml"), Issue("warning", "n", line=7), Issue("note", "o", "odd", "b", 7),
    ]  # fmt: skip
    lines = to_text(inspection.issues(issues)).splitlines()
    assert lines == ["error   a.yaml: m", "warning n", "note    b:7: o (odd)"]


def test_four_ranges_of_the_steps_of_a_trace_are_shown() -> None:
    def row(*steps: int) -> str:
        trace = InspectedTrace("a.json", "kineto", 10, 0, "file", None, [*steps], "ProfilerStep", 0.5)
        lines = _lines(Inspection("run", traces=[trace]))
        return lines[lines.index("Traces") + 2]

    assert row(1, 3, 4, 6, 8).startswith("0 5 steps (numbers 1, 3-4, 6, 8) 500 ms")
    assert row(1, 3, 4, 6, 8, 10).startswith("0 6 steps (numbers 1, 3-4, 6, 8, ... 10) 500 ms")


def test_windows_steps_and_calls_are_those_of_any_trace() -> None:
    traces = [
        InspectedTrace("a.json", "kineto", 10, 0, "file", None, [1, 2], "later", 0.5, kernels=7),
        InspectedTrace("b.json", "kineto", 10, 1, "file", 30, [1, 2, 3], "ProfilerStep", 0.5),
        InspectedTrace("c.json", "nsys", 10, 2, "file", 20, [], "", 0.5),
    ]
    lines = _lines(Inspection("run", traces=traces))
    assert "windows 20, 30" in lines
    assert "steps 0 to 3 steps in each trace, from ProfilerStep, later" in lines
    assert "communication no calls" in lines
    assert "traces 3 kineto, nsys files, 30 B" in lines
    assert "RANK WINDOW STEPS SPAN KERNELS CPU OPS CALLS SIZE FILE" in lines
    assert not any(line.startswith("communication") for line in _lines(Inspection("run")))


def test_the_name_of_a_file_is_cut_where_the_terminal_is_narrow() -> None:
    trace = InspectedTrace("x" * 200, "kineto", 10, 0, "file", None, [1], "ProfilerStep", 0.5)
    page = to_text(inspection.inspection_page(Inspection("run", traces=[trace])), width=80)
    lines = page.splitlines()
    row = lines[lines.index("Traces") + 2]
    assert (len(row), row[-2:]) == (80, "x…")
    assert lines[lines.index("Traces") + 3] == ""


def test_what_can_be_measured_is_counted() -> None:
    states = ("ok", "failed", "ok", "ok", "not_applicable")
    metrics = [InspectedMetric(f"m{n}", "s", state, "why") for n, state in enumerate(states)]
    lines = _lines(Inspection("run", metrics=metrics))
    at = lines.index("Can be measured (3 of 5 metrics)")
    assert lines[at + 1 : at + 4] == ["m0 s", "m2 s", "m3 s"]
