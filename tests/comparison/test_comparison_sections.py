"""The page of a comparison: what its sections hold, of changes that are written by hand."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ccl_bench.comparison.changes import Change
from ccl_bench.comparison.comparability import Comparability, Difference
from ccl_bench.comparison.compare import Comparison, Pair
from ccl_bench.comparison.noise import Interval
from ccl_bench.comparison.step_breakdown import Attribution, StepPart
from ccl_bench.comparison.thresholds import Judgement
from ccl_bench.report.comparison import phrases
from ccl_bench.report.comparison.page import html, parts_chart, sections
from ccl_bench.report.comparison.text import page
from ccl_bench.report.console import to_text
from ccl_bench.report.page_model import Quantity, Term

if TYPE_CHECKING:
    from ccl_bench.report.page_model import PageSection

SAME = Comparability("comparable")
APART = Comparability("not comparable", workload=(Difference("seq_len", 8, 16, "workload", "longer"),))


def _change(metric: str, other: float | None = 2.5, **more: Any) -> Change:
    """Return a change from 2 s."""
    known = {"verdict": "worse", "baseline": 2.0, "other": other, "difference": 0.5, "relative": 0.25}
    return Change(metric, "s", "lower", **known | {"interval": Interval(0.25, 0.75)} | more)


def _step(name: str = "compute") -> Attribution:
    """Return a step of 2 s that takes 2.5 s."""
    return Attribution(StepPart("window", 2.0, 2.5, 0.5), (StepPart(name, 2.0, 2.5, 0.5),), ())


def _sections(pair: Pair) -> list[PageSection]:
    return list(sections(Comparison("one", (pair,))))


def test_names_of_metrics_lead_to_their_definitions_and_numbers_have_their_value() -> None:
    changes = (
        _change("mfu", remarks=("few steps", "one rank")),
        _change("mine", None, verdict="not comparable", difference=None, relative=None, interval=None),
    )
    *_, what = _sections(Pair("two", SAME, changes))
    assert what.tables[0].rows == (
        (
            Term("mfu"), Quantity(2.0, "2 s"), Quantity(2.5, "2.5 s"), "+25.0 %", "+12.5 to +37.5 %",
            "worse: few steps; one rank",
        ),
    )  # fmt: skip
    assert what.tables[1].rows == (("mine", Quantity(2.0, "2 s"), "-", "-", "-", "not comparable"),)
    assert (what.tables[0].folded, what.tables[1].folded) == ("", "1 of 2 numbers is not comparable")


def test_numbers_that_are_not_comparable_are_one_line_with_the_most_frequent_reason() -> None:
    none = {"difference": None, "relative": None, "interval": None, "verdict": "cannot tell"}
    missing = [
        _change(name, None, remarks=(f"the other run has no value: no {name}",), **none) for name in "abc"
    ]
    other = _change("d", is_blocked=True, remarks=("revision 1 and 2 differ",))
    assert phrases.apart(SAME, (_change("mfu"),)) == ""
    assert phrases.apart(SAME, (*missing, _change("mfu"))) == (
        "3 of 4 numbers are not comparable: the other run has no value"
    )
    assert phrases.apart(SAME, (*missing, other)) == (
        "4 of 4 numbers are not comparable: the other run has no value (3), or for another reason (1)"
    )
    assert phrases.apart(APART, (_change("mfu", verdict="not comparable"),)) == (
        "1 of 1 number is not comparable: the runs did different work"
    )


def test_changes_of_runs_that_did_other_work_are_not_drawn() -> None:
    *_, same = _sections(Pair("two", SAME, (_change("mfu"),)))
    assert [chart.key for chart in same.charts] == ["changes-0-chart"]
    *_, apart = _sections(Pair("two", APART, (_change("mfu"),)))
    assert apart.charts == ()


def test_a_pair_begins_with_the_verdict_if_there_is_one_and_names_its_limits() -> None:
    limits = (Judgement("5%", "kept"), Judgement("mfu:2%", "crossed", ("mfu", "busy")))
    whether, where, _ = _sections(Pair("two", SAME, (), _step(), limits))
    assert whether.about.startswith("two is 25.0 % slower than one")
    assert whether.about.endswith(". comparable: they did the same work.")
    assert [note.split()[1] for note in whether.notes] == ["5%", "mfu:2%"]
    assert whether.notes[1].endswith("mfu, busy")
    assert (whether.key, where.key) == ("pair-0", "where-0")
    whether, what = _sections(Pair("two", APART, ()))
    assert whether.about.startswith("not comparable")
    assert [row[:3] for row in whether.tables[0].rows] == [("seq_len", "8", "16")]
    assert (what.key, what.about) == ("changes-0", "no metric.")


def test_parts_have_a_colour_of_their_own_if_they_are_known() -> None:
    spec = parts_chart("key", _step()).spec
    assert spec["encoding"]["color"]["scale"] == {"domain": ["compute"], "range": ["var(--compute)"]}
    assert spec["encoding"]["y"]["sort"] == ["compute"]
    spec = parts_chart("key", _step("exposed_communication")).spec
    assert spec["encoding"]["color"]["scale"]["range"] == ["var(--communication)"]


def test_the_page_defines_the_metrics_that_it_names_in_order() -> None:
    changes = tuple(_change(name) for name in ("TTFT", "mine", "mfu", "gpu_busy"))
    whole = html(Comparison("one", (Pair("two", APART, changes),)))
    definitions = whole.partition('<section id="definitions">')[2]
    assert re.findall(r'id="metric-(\w+)"', definitions) == ["gpu_busy", "mfu", "TTFT"]
    assert re.findall(r'href="#((?:pair|where|changes)-\d)"', whole) == ["pair-0", "changes-0"]


def test_what_is_compared_and_limits_are_lists_of_the_text() -> None:
    studied = (Difference("tp", 2, 4, "studied", "degrees"), Difference("pp", 2, None, "studied", "stages"))
    limits = (
        Judgement("5%", "kept"),
        Judgement("mfu:2%", "crossed", ("mfu",)),
        Judgement("busy:3%", "not judged", reason="it has no noise"),
    )
    pair = Pair("two", Comparability("comparable", studied=studied), (_change("mfu"),), _step(), limits)
    lines = to_text(page(Comparison("one", (pair,))), width=120).splitlines()
    at = lines.index("  what is compared:")
    assert lines[at + 1 : at + 7] == [
        "    FIELD  BASELINE  RUN",
        "    tp     2         4    degrees",
        "  only one side states pp",
        "",
        "Where the step changed",
        "  The mean step got 500 ms longer (+25.0 %): compute +500 ms. Its noise is unknown.",
    ]
    limits_at = lines.index("Limits")
    assert lines[limits_at - 1] == ""
    assert [line.split()[1] for line in lines[limits_at + 1 :]] == ["5%", "mfu:2%", "busy:3%"]
