"""What a comparison says in words and draws, of changes that are written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ccl_bench.comparison.changes import Change
from ccl_bench.comparison.comparability import Comparability, Difference
from ccl_bench.comparison.compare import Comparison, Pair
from ccl_bench.comparison.noise import Interval
from ccl_bench.comparison.step_breakdown import Attribution, Division, StepPart, Untraced
from ccl_bench.report.comparison import phrases
from ccl_bench.report.comparison.page import changes_chart, parts_chart, sections
from ccl_bench.report.comparison.text import page
from ccl_bench.report.console import to_text


def part(name: str, before: float, after: float) -> StepPart:
    return StepPart(name, before, after, after - before)


def attribution(*parts: StepPart, divisions: tuple[Division, ...] = (), **more: Any) -> Attribution:
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


def test_steps_without_the_profiler_come_first_with_the_traced_ones_beside() -> None:
    untraced = Untraced(part("window", 1.0, 1.2), None, is_within_noise=False)
    assert said(replace(SLOWER, untraced=untraced)) == (
        "two is 20.0 % slower than one: 1.2 s a step (2.25 s while it is traced), 1 s there (2 s); "
        "of the traced step mostly compute (+500 ms)."
    )
    # traced steps that changed the other way, or within noise, do not explain it
    for traced in (FASTER, replace(SLOWER, is_within_noise=True)):
        assert "mostly" not in said(replace(traced, untraced=untraced))
    same = Untraced(part("window", 1.0, 1.2), Interval(-0.1, 0.5), is_within_noise=True)
    assert said(replace(SLOWER, untraced=same)) == (
        "two is as fast as one within the noise of the steps: 1.2 s a step (2.25 s while it is traced), "
        "1 s there (2 s)."
    )
    sentence = phrases.step_sentence(replace(SLOWER, untraced=untraced))
    assert sentence.startswith("The mean traced step got 250 ms longer (+12.5 %): ")


def test_a_changed_step_lists_the_parts_that_changed_the_largest_first() -> None:
    known = attribution(*SLOWER.parts, interval=Interval(0.1, 0.4))
    assert phrases.step_sentence(known) == (
        "The mean step got 250 ms longer (+12.5 %): compute +500 ms, exposed communication -250 ms."
    )
    assert phrases.step_sentence(FASTER) == (
        "The mean step got 250 ms shorter (-14.3 %): "
        "compute -500 ms, exposed communication +250 ms. Its noise is unknown."
    )
    near = attribution(*SLOWER.parts, interval=Interval(-0.1, 0.4), is_within_noise=True)
    assert phrases.step_sentence(near).endswith("250 ms longer (+12.5 %), which may be noise.")
    same = attribution(part("compute", 1.0, 1.5), part("idle", 1.0, 0.5))
    assert phrases.step_sentence(same) == "The mean step did not change: 2 s."
    new = attribution(part("compute", 0.0, 1.0), interval=Interval(1, 1))
    assert phrases.step_sentence(new) == "The mean step got 1 s longer: compute +1 s."


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
    assert shown[2] == ["idle", "500 ms", "500 ms", "0 s"]
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


def test_bars_of_changes_are_cut_at_the_edge_and_dots_are_filled() -> None:
    chart = changes_chart("key", [change("a", "worse", 0.5, (0.25, 0.75))])
    assert chart is not None
    zero, bar, dot = chart.spec["layer"]
    assert zero["encoding"] == {"x": {"datum": 0}}
    assert bar["mark"] == {"type": "rule", "strokeWidth": 5, "opacity": 0.55, "clip": True}
    assert dot["mark"] == {"type": "point", "filled": True, "size": 60, "clip": True}
    across = bar["encoding"]["x"]
    assert (across["scale"]["nice"], across["axis"]) == (False, {"tickCount": 7})
    parts = parts_chart("key", SLOWER).spec
    assert parts["mark"] == {"type": "bar", "height": {"band": 0.72}}
    assert parts["height"] == 3 * 24


def test_verdicts_come_in_the_order_of_their_weight() -> None:
    given = ("no change", "cannot tell", "changed", "better", "worse", "not comparable")
    changes = [change(name, verdict, 0.0, None) for verdict in given for name in ("B", "a")]
    shown = [(each.verdict, each.metric) for each in phrases.ordered(changes)]
    verdicts = ("worse", "better", "changed", "cannot tell", "no change", "not comparable")
    assert shown == [(verdict, name) for verdict in verdicts for name in ("a", "B")]
    assert phrases.headline(changes[:3]) == "1 cannot tell, 2 no change"
    assert phrases.headline([]) == "no metric"


def test_parts_of_at_least_a_twentieth_of_the_change_are_listed_five_at_most() -> None:
    def listed(*differences: float, left_out: int = 0, changed: float = 1.0, **more: Any) -> list[str]:
        kinds = Division(
            "types",
            "m",
            tuple(part(f"k{n}", 1.0, 1.0 + d) for n, d in enumerate(differences)),
            left_out=left_out,
        )
        step = attribution(part("compute", 1.0, 1.0 + changed), divisions=(kinds,), **more)
        pair = Pair("two", Comparability("comparable"), (), step)
        lines = to_text(page(Comparison("one", (pair,))), width=200).splitlines()
        return [line.strip() for line in lines if line.strip().startswith("types")]

    assert listed(0.5, 0.05, -0.25, 0.04) == ["types  k0 +500 ms, k1 +50 ms, k2 -250 ms, 1 smaller"]
    assert listed(*[0.25] * 6, left_out=2) == [
        "types  " + ", ".join(f"k{number} +250 ms" for number in range(5)) + ", 3 smaller"
    ]
    assert listed(0.04) == []
    assert listed(0.5, is_within_noise=True) == []
    # Of a change of 20 s, 1 s is a twentieth.
    assert listed(1.0, -1.0, 0.9375, changed=20.0) == ["types  k0 +1 s, k1 -1 s, 1 smaller"]


def test_a_comparison_is_laid_out_in_columns() -> None:
    changes = (
        change("step", "worse", 0.5, (0.25, 0.75)),
        change("alone", "cannot tell", 0.5, None, base=0.0),
    )
    pair = Pair("two", Comparability("unknown", unknown=("data.seq_len",)), changes)
    lines = to_text(page(Comparison("one", (pair,))), width=120).splitlines()
    assert lines == [
        "two against one",
        "  comparable only if they did the same work; to decide this, both cards must state data.seq_len",
        "",
        "METRIC  BASELINE     RUN   CHANGE          INTERVAL  VERDICT",
        "step         2 s   2.5 s  +25.0 %  +12.5 to +37.5 %  worse",
        "alone        0 s  500 ms        -                 -  cannot tell",
    ]
    differ = (Difference("data.seq_len", 8, 16, "workload", "longer sequences"),)
    apart = Pair("two", Comparability("not comparable", workload=differ), changes)
    lines = to_text(page(Comparison("one", (apart, apart))), width=120).splitlines()
    assert lines[1:9] == [
        "  not comparable: they did different work, because they differ in data.seq_len",
        "    FIELD         BASELINE  RUN",
        "    data.seq_len  8         16   longer sequences",
        "",
        "METRIC  BASELINE     RUN",
        "step         2 s   2.5 s",
        "alone        0 s  500 ms",
        "",
    ]
    assert lines[9] == "two against one"
