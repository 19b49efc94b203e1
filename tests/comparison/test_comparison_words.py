"""What a comparison says in words and draws, of changes that are written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ccl_bench.comparison.changes import Change
from ccl_bench.comparison.comparability import Comparability, Difference
from ccl_bench.comparison.compare import Comparison, Pair
from ccl_bench.comparison.noise import Interval
from ccl_bench.comparison.step_breakdown import Attribution, Division, Part
from ccl_bench.report.comparison import phrases
from ccl_bench.report.comparison.page import changes_chart, parts_chart, sections


def part(name: str, before: float, after: float) -> Part:
    return Part(name, before, after, after - before)


def attribution(*parts: Part, divisions: tuple[Division, ...] = (), **more: Any) -> Attribution:
    """Return a step that is the sum of its parts."""
    whole = part("window", sum(each.baseline_s for each in parts), sum(each.other_s for each in parts))
    return Attribution(whole, parts, divisions, **more)


SLOWER = attribution(
    part("compute", 1.0, 1.5), part("exposed_communication", 0.5, 0.25), part("idle", 0.5, 0.5)
)
FASTER = attribution(part("compute", 1.5, 1.0), part("exposed_communication", 0.25, 0.5))


def said(step: Attribution | None) -> str:
    pair = Pair("two", Comparability("comparable"), (), step)
    return phrases.verdict(Comparison("one", (pair,)), pair)


def test_the_verdict_names_the_part_that_moved_most_with_the_step() -> None:
    assert said(SLOWER) == (
        "two is 12.5 % slower than one: 2.25 s a step, 2 s there, mostly compute (+500 ms)."
    )
    assert said(FASTER) == (
        "two is 14.3 % faster than one: 1.5 s a step, 1.75 s there, mostly compute (-500 ms)."
    )


def test_the_verdict_is_silent_without_steps_and_careful_within_their_noise() -> None:
    assert said(None) == ""
    assert said(attribution(part("compute", 0.0, 1.0))) == ""
    near = attribution(part("compute", 1.0, 1.5), is_within_noise=True)
    assert said(near) == "two is as fast as one within the noise of the steps: 1.5 s a step, 1 s there."


def test_a_changed_step_lists_the_parts_that_changed_the_largest_first() -> None:
    known = attribution(*SLOWER.parts, interval=Interval(0.1, 0.4))
    assert phrases.step_sentence(known) == (
        "The mean step on the device got 250 ms longer (+12.5 %): "
        "compute +500 ms, exposed communication -250 ms."
    )
    assert phrases.step_sentence(FASTER) == (
        "The mean step on the device got 250 ms shorter (-14.3 %): "
        "compute -500 ms, exposed communication +250 ms. Its noise is unknown."
    )
    near = attribution(*SLOWER.parts, interval=Interval(-0.1, 0.4), is_within_noise=True)
    assert phrases.step_sentence(near).endswith("250 ms longer (+12.5 %), which may be noise.")
    same = attribution(part("compute", 1.0, 1.5), part("idle", 1.0, 0.5))
    assert phrases.step_sentence(same) == "The mean step on the device did not change: 2 s."
    new = attribution(part("compute", 0.0, 1.0), interval=Interval(1, 1))
    assert phrases.step_sentence(new) == "The mean step on the device got 1 s longer: compute +1 s."


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"), (0.0005, "+0.05 %"), (-0.0005, "-0.05 %"), (0.001, "+0.1 %"), (-0.001, "-0.1 %"),
        (0.125, "+12.5 %"), (0.999, "+99.9 %"), (1.0, "+100 %"), (-1.0, "-100 %"), (12.345, "+1234 %"),
    ],
)  # fmt: skip
def test_relative_changes_have_digits_by_their_size(share: float, text: str) -> None:
    assert phrases.signed_percent(share) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a" * 60, "a" * 60),
        ("a<b>" * 15, "a<b>" * 15),  # 60 letters
        ("void " + "a<b<c>>(d)" * 6, "aaaaaa"),
        ("a" * 61, "a" * 60 + "..."),
        ("a" * 60 + "<b>", "a" * 60),
        ("(anonymous namespace)::" + "k" * 20 + "<" + "t" * 40 + ">", "(anonymous namespace)::" + "k" * 20),
    ],
)
def test_long_names_lose_what_is_in_brackets(name: str, text: str) -> None:
    assert phrases.short_name(name) == text


def change(
    metric: str, verdict: Any, moved: float, bounds: tuple[float, float] | None, base: float | None = 2.0
) -> Change:
    interval = None if bounds is None else Interval(*bounds)
    return Change(
        metric, "s", "lower", verdict, base, base + moved, moved,
        moved / abs(base) if base else None, interval,
    )  # fmt: skip


def test_intervals_are_shares_of_the_baseline_s_size() -> None:
    assert phrases.interval(change("m", "worse", 0.5, (0.25, 0.75))) == "+12.5 to +37.5 %"
    assert phrases.interval(change("m", "worse", 0.5, (0.25, 0.75), base=-2.0)) == "+12.5 to +37.5 %"
    assert phrases.interval(change("m", "worse", 0.5, (0.5, 0.5))) == "+25.0 %"
    assert phrases.interval(change("m", "worse", 0.5, (0.25, 0.75), base=0.0)) == "+0.25 to +0.75"
    assert phrases.interval(change("m", "cannot tell", 0.5, None)) == "-"
    assert phrases.relative(change("m", "cannot tell", 0.5, None, base=0.0)) == "-"


def test_the_chart_reaches_a_quarter_beyond_the_largest_clear_change() -> None:
    given = [
        change("b", "better", -0.5, (-0.75, -0.25)),
        change("a", "worse", 0.25, (0.125, 0.375)),
        change("wide", "cannot tell", 0.0, (-0.25, 0.75)),
        change("cut", "cannot tell", 0.0, (-0.7, 0.1)),
        change("none", "cannot tell", 0.5, None),
        change("equal", "no change", 0.0, (0.0, 0.0)),
        change("zero", "changed", 1.0, (0.5, 1.5), base=0.0),
    ]
    chart = changes_chart("key", given)
    assert chart is not None
    near = pytest.approx
    assert chart.spec["data"]["values"] == [
        {"metric": "a", "verdict": "worse", "change": 12.5, "low": 6.25, "high": 18.75},
        {"metric": "b", "verdict": "better", "change": -25.0, "low": -37.5, "high": -12.5},
        {"metric": "cut", "verdict": "cannot tell", "change": 0.0, "low": near(-35), "high": near(5)},
        {"metric": "wide", "verdict": "cannot tell", "change": 0.0, "low": -12.5, "high": 37.5},
    ]  # fmt: skip
    assert chart.spec["height"] == 4 * 20
    domain = chart.spec["layer"][1]["encoding"]["x"]["scale"]["domain"]
    assert domain == [-25 * 1.25, 25 * 1.25]
    assert chart.note == "3 extend beyond the chart."
    assert chart.table.numeric == {1, 2, 3}


def test_small_changes_are_drawn_on_5_percent() -> None:
    chart = changes_chart(
        "key", [change("a", "worse", 0.05, (0.0, 0.125)), change("b", "worse", 0.05, (-0.125, 0.0))]
    )
    assert chart is not None
    assert chart.spec["layer"][1]["encoding"]["x"]["scale"]["domain"] == [-6.25, 6.25]
    assert chart.note == ""  # 6.25 % is as wide as the chart
    assert changes_chart("key", [change("c", "no change", 0.0, (0.0, 0.0))]) is None


def test_the_parts_of_a_step_are_drawn_with_the_step_below() -> None:
    chart = parts_chart("key", SLOWER)
    assert chart.spec["data"]["values"] == [
        {"part": "compute", "change": 500.0},
        {"part": "exposed communication", "change": -250.0},
        {"part": "idle", "change": 0.0},
    ]
    assert chart.spec["encoding"]["x"]["title"] == "change of the mean step, ms"
    shown = [[cell if isinstance(cell, str) else cell.text for cell in row] for row in chart.table.rows]  # type: ignore[union-attr]
    assert shown[0] == ["compute", "1 s", "1.5 s", "+500 ms"]
    assert shown[-1] == ["step", "2 s", "2.25 s", "+250 ms"]
    assert chart.table.numeric == {1, 2, 3}


def test_sections_of_several_runs_name_theirs_and_tables_align_numbers() -> None:
    kinds = Division("kernel types", "m", (part("gemm", 1.0, 1.5),), left_out=4)
    step = attribution(*SLOWER.parts, divisions=(kinds,))
    differ = (Difference("seq_len", 8, None, "studied", "why"), Difference("tp", 2, 4, "studied", "why"))  # type: ignore[call-arg]
    pairs = tuple(
        Pair(
            name,
            Comparability("comparable", studied=differ),
            (change("a", "worse", 0.5, (0.25, 0.75)),),
            step,
        )
        for name in ("two", "three")
    )
    several = list(sections(Comparison("one", pairs)))
    assert [each.title for each in several][:3] == [
        "two against one", "Where the step changed in two", "What changed in two",
    ]  # fmt: skip
    one = list(sections(Comparison("one", pairs[:1])))
    assert [each.title for each in one][1:] == ["Where the step changed", "What changed"]
    whether, where, what = one
    assert whether.notes == ("only one side states seq_len",)
    assert [row[0] for row in whether.tables[0].rows] == ["tp"]
    assert whether.tables[0].wide == {3}
    [division] = where.tables
    assert (division.numeric, division.wide, division.note) == (
        {1, 2, 3},
        {0},
        "4 more with smaller changes.",
    )
    assert (what.tables[0].numeric, what.tables[0].wide) == ({1, 2, 3, 4}, {5})
    assert what.about == "1 worse."
