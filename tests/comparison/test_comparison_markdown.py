"""A comparison as Markdown, of changes that are written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ccl_bench.comparison.changes import Change
from ccl_bench.comparison.comparability import Comparability, Difference
from ccl_bench.comparison.compare import Comparison, Pair
from ccl_bench.comparison.noise import Interval
from ccl_bench.comparison.step_breakdown import Attribution, StepPart
from ccl_bench.comparison.thresholds import Judgement
from ccl_bench.report.comparison.markdown import markdown


def _change(metric: str, verdict: Any, *remarks: str) -> Change:
    """Return a change from 2 to 2.5 s."""
    return Change(
        metric, "s", "lower", verdict, 2.0, 2.5, 0.5, 0.25, Interval(0.25, 0.75), remarks=remarks
    )  # fmt: skip


def _blocks(*pairs: Pair) -> list[str]:
    text = markdown(Comparison("one", pairs, tolerance=0.025, confidence=0.9))
    assert text.endswith("\n")
    return text.removesuffix("\n").split("\n\n")


def _pair(*changes: Change, **more: Any) -> Pair:
    return Pair(**{"name": "two", "comparability": Comparability("comparable"), "changes": changes} | more)


def _names(table: str) -> list[str]:
    """Return the first cells of the rows of a table."""
    return [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]]


VERDICTS = ("no change", "changed", "cannot tell", "better", "not comparable", "worse")


def test_changes_stand_in_the_open_and_the_other_metrics_are_folded() -> None:
    title, same, changed, summary, folded, end, note = _blocks(
        _pair(*(_change(verdict, verdict) for verdict in VERDICTS))
    )
    assert (title, same.startswith("comparable:")) == ("## two against one", True)
    assert _names(changed) == ["worse", "better", "changed"]
    assert summary == "<details><summary>3 other metrics</summary>"
    assert _names(folded) == ["cannot tell", "no change", "not comparable"]
    assert end == "</details>"
    assert note.startswith("90 % of such intervals")
    assert "Below 2.5 %" in note


@pytest.mark.parametrize(
    ("verdicts", "summary"),
    [
        (("no change",), "1 metric"),
        (("no change", "cannot tell"), "2 metrics"),
        (("no change", "worse"), "1 other metric"),
    ],
)
def test_folded_metrics_are_counted_and_are_others_if_there_are_changes(
    verdicts: tuple[str, ...], summary: str
) -> None:
    text = markdown(Comparison("one", (_pair(*(_change(each, each) for each in verdicts)),)))
    assert f"<summary>{summary}</summary>" in text
    assert markdown(Comparison("one", (_pair(_change("a", "worse")),))).count("<details>") == 0


def test_a_change_has_its_numbers_at_the_right_and_its_remarks_behind_the_verdict() -> None:
    table = _blocks(_pair(_change("a_step", "worse", "few steps", "one rank"), _change("b", "better")))[2]
    assert table.splitlines() == [
        "| metric | baseline | run | change | interval | verdict |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
        "| a\\_step | 2 s | 2.5 s | +25.0 % | +12.5 to +37.5 % | worse: few steps; one rank |",
        "| b | 2 s | 2.5 s | +25.0 % | +12.5 to +37.5 % | better |",
    ]


def test_differences_limits_and_the_step_stand_before_the_changes() -> None:
    length = Difference("data.seq_len", 8, 16, "workload", "longer sequences")
    degrees = Difference("tp", 2, 4, "studied", "other degrees")
    one_sided = Difference("pp", 2, None, "studied", "other stages")
    limits = (
        Judgement("5%", "kept"),
        Judgement("mfu:2%", "crossed", ("mfu",)),
        Judgement("busy:3%", "not judged", reason="it has no noise"),
    )
    step = StepPart("window", 2.0, 2.5, 0.5)
    apart = Comparability("not comparable", workload=(length,), studied=(degrees, one_sided))
    pair = _pair(
        _change("a", "worse"),
        comparability=apart,
        judgements=limits,
        attribution=Attribution(step, (StepPart("compute", 2.0, 2.5, 0.5),), ()),
    )
    title, faster, same, judged, differences, changed_step, changes, _ = _blocks(pair)
    assert title == "## two against one"
    assert faster.startswith("**two is 25.0 % slower than one")
    assert same.startswith("not comparable")
    kept, crossed, open_ = judged.splitlines()
    assert [line.split()[1] for line in (kept, crossed, open_)] == ["✅", "❌", "⚠️"]
    assert kept.endswith("is met")
    assert crossed.endswith("by mfu")
    assert open_.endswith("it has no noise")
    assert differences.splitlines() == [
        "| field | baseline | run |  |",
        "| --- | --- | --- | --- |",
        "| data.seq\\_len | 8 | 16 | longer sequences |",
        "| tp | 2 | 4 | other degrees |",
    ]
    assert changed_step.startswith("The mean step got 500 ms longer")
    assert _names(changes) == ["a"]


def test_several_runs_follow_one_another_with_one_note_below() -> None:
    blocks = _blocks(_pair(_change("a", "worse")), _pair(_change("b", "worse"), name="three"))
    assert [block for block in blocks if block.startswith("##")] == [
        "## two against one",
        "## three against one",
    ]
    assert sum(block.startswith("90 %") for block in blocks) == 1
