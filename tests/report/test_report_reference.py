"""The reference sections of a report: every result, what is missing and why, facts, and files."""

from __future__ import annotations

from typing import Any

from observations import looked, missing, ok, quantity, rows

from ccl_bench import metrics
from ccl_bench.report.page_model import PageSection, Term
from ccl_bench.report.sections.reference import definitions, reference
from ccl_bench.result import Provenance, Result, ResultFinding, TraceProvenance
from ccl_bench.result.inspection import InspectedFact, InspectedTrace


def _sections(context: Any) -> dict[str, PageSection]:
    return {section.key: section for section in reference(context)}


def _finding(severity: str) -> ResultFinding:
    return ResultFinding("torn", severity, "it is torn")


def _missing(metric: str, status: Any = "not_measurable", **more: Any) -> Result:
    return Result(metric, status, "s", "neither", **{"reason": f"no {metric}"} | more)


def test_every_value_has_its_direction_its_doubts_and_its_steps() -> None:
    doubtful = [_finding("note"), _finding("error"), _finding("warning"), _finding("note")]
    results = (
        Result("gpu_busy", "ok", "%", "higher", 62.5, window="ProfilerStep", findings=doubtful),
        Result("peak", "ok", "GB", "lower", 0.0015, findings=[_finding("note")]),
        missing("mfu", "no peak"),
        ok("coll_call_num", 1200.0, "calls"),
    )
    sections = _sections(looked(*results))
    [shown] = sections["all-results"].tables
    assert rows(shown) == [
        ["gpu_busy", "62.50 %", "62.5", "%", "higher is better", "2 findings", "ProfilerStep"],
        ["peak", "1.5 MB", "0.0015", "GB", "lower is better", "-", "-"],
        ["coll_call_num", "1,200 calls", "1200", "calls", "-", "-", "-"],
    ]
    assert [quantity(row[1]).value for row in shown.rows] == [62.5, 0.0015, 1200.0]
    assert shown.rows[0][0] == Term("gpu_busy")
    assert [*sections] == ["all-results", "no-value"]
    assert [*_sections(looked(results[0]))] == ["all-results"]


def test_what_can_be_repaired_is_listed_and_the_rest_counted_unless_all_is_asked_for() -> None:
    results = (
        ok("gpu_busy", 62.5, "%"),
        _missing("mfu", fix="write it", is_repairable=True),
        _missing("TTFT", "not_applicable"),
        _missing("sm", "failed"),
        _missing("ITL"),
    )
    few = _sections(looked(*results))["no-value"]
    assert rows(few.tables[0]) == [
        ["mfu", "not measurable", "no mfu", "write it"],
        ["sm", "failed", "no sm", "-"],
    ]
    assert [note.startswith("1 measured, 2 for other kinds") for note in few.notes] == [True]
    context = looked(*results)
    every = _sections(type(context)(context.inspection, context.results, context.series, why_all=True))[
        "no-value"
    ]
    assert [row[0] for row in rows(every.tables[0])] == ["mfu", "TTFT", "sm", "ITL"]
    assert every.notes == ()
    counted = _sections(looked(results[0], results[2]))["no-value"]
    assert (counted.tables, counted.about) == ((), "")
    assert counted.notes[0].startswith("1 measured, 1 for other kinds")
    repairable = _sections(looked(results[1]))["no-value"]
    assert repairable.notes == ()


def test_facts_are_short_numbers_with_their_source() -> None:
    context = looked(facts={"tp": 2, "peak": 312.123456789})
    context.inspection.facts["model"] = InspectedFact("m", "configuration")
    [shown] = _sections(context)["facts"].tables
    assert rows(shown) == [
        ["tp", "2", "workload card"], ["peak", "312.123", "workload card"], ["model", "m", "configuration"],
    ]  # fmt: skip


def test_files_have_the_hashes_that_any_result_states() -> None:
    traces = [
        TraceProvenance("a.json", "aa", 10, "kineto", 1),
        TraceProvenance("b.json", "bb", 10, "kineto", 1),
    ]
    results = [
        ok("gpu_busy", 62.5, "%"),
        Result(
            "mfu", "ok", "%", "higher", 1.0, provenance=Provenance("1", 1, traces[:1], files={"c.yaml": "cc"})
        ),
        Result("sm", "ok", "%", "higher", 1.0, provenance=Provenance("1", 1, traces[1:])),
    ]
    context = looked(*results)
    context.inspection.traces = [
        InspectedTrace("a.json", "kineto", 1500, 0),
        InspectedTrace("b.json", "nsys", 20, None, is_readable=False),
        InspectedTrace("d.json", "nsys", 30, 7),
    ]
    context.inspection.files = {"c.yaml": "workload card", "e.txt": "too large"}
    [shown] = _sections(context)["files"].tables
    assert rows(shown) == [
        ["a.json", "0", "kineto", "1.5 kB", "aa"],
        ["b.json", "unknown", "nsys, unreadable", "20 B", "bb"],
        ["d.json", "7", "nsys", "30 B", "-"],
        ["c.yaml", "-", "workload card", "-", "cc"],
        ["e.txt", "-", "too large", "-", "-"],
    ]
    only_files, only_traces = looked(results[0]), looked(results[0])
    only_files.inspection.files = {"c.yaml": "workload card"}
    only_traces.inspection.traces = context.inspection.traces[:1]
    assert len(_sections(only_files)["files"].tables[0].rows) == 1
    assert len(_sections(only_traces)["files"].tables[0].rows) == 1


def test_only_metrics_of_this_installation_are_defined() -> None:
    found = definitions([ok("mfu", 1.0), ok("mine", 2.0), missing("TTFT", "no client")], metrics.load())
    assert [each.metric for each in found] == ["mfu", "TTFT"]
    assert found[0].revision == metrics.load().get("mfu").revision
