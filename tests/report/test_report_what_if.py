"""The page of `ccl-bench what-if`, from an answer made by hand."""

from __future__ import annotations

from dataclasses import replace

from ccl_bench.base.findings import Finding
from ccl_bench.report.console import to_text
from ccl_bench.report.what_if import critical_path_page, what_if_page
from ccl_bench.result.what_if import CriticalPath, Explained, OnPath, ScenarioAnswer, WhatIf

PATH = CriticalPath(
    length_s=1.0,
    parts=[OnPath(str(rank), "compute", 0.1 * (10 - rank), 0.01 * (10 - rank)) for rank in range(9)],
    hops=2.0,
    sensitivities={"0 compute": 0.05, "2 compute": 0.0},
    second_s=0.5,
    second=[],
    slack_s={},
)
ANSWER = WhatIf(
    run="runs/one", t_recorded_s=1.25, t_original_s=1.0, t_ideal_s=0.8, slowdown=1.25, launch_slowdown=1.25,
    idealisation="median", replay_error=-0.2, unexplained=0.0125, m_w=None, m_s=None,
    by={"rank": {str(rank): 1 + rank / 1000 for rank in range(9)}},
    step_s=[1.0, 1.0], critical_path=PATH, scenarios=[], steps=[1, 2],
)  # fmt: skip


def lines(answer: WhatIf) -> list[str]:
    return to_text(what_if_page(answer), width=120).splitlines()


def test_the_page_has_the_step_the_path_and_slowdowns_of_eight_rows_each() -> None:
    assert lines(ANSWER) == [
        "runs/one",
        "  1,000.0 ms a step; 800.0 ms without stragglers: it takes 1.250 times as long",
        "  mean of 2 steps; ideal: median",
        "  unexplained: 1.25 % of the recorded step, 1,250.0 ms",
        "",
        "Critical path",
        "  rank           on the path   of it  gain if 10 % shorter",
        "  0     compute   1,000.0 ms  10.0 %               50.0 ms",
        "  1     compute     900.0 ms   9.0 %",
        "  2     compute     800.0 ms   8.0 %                0.0 ms",
        "  3     compute     700.0 ms   7.0 %",
        "  4     compute     600.0 ms   6.0 %",
        "  5     compute     500.0 ms   5.0 %",
        "  6     compute     400.0 ms   4.0 %",
        "  7     compute     300.0 ms   3.0 %",
        "",
        "Slowdown if all but one take their ideal time",
        "                slowdown",
        "  Rank  8         1.0080",
        "  Rank  7         1.0070",
        "  Rank  6         1.0060",
        "  Rank  5         1.0050",
        "  Rank  4         1.0040",
        "  Rank  3         1.0030",
        "  Rank  2         1.0020",
        "  Rank  1         1.0010",
        "  Rank  1 more",
    ]


def test_a_narrow_page_wraps_what_was_waited_for() -> None:
    kind = "a kind of work with a long name"
    path = replace(PATH, parts=[OnPath("0", kind, 1.0, 0.1)], sensitivities={f"0 {kind}": 0.05})
    assert [line.strip() for line in to_text(critical_path_page(path), width=72).splitlines()] == [
        "rank                           on the path   of it  gain if 10 % shorter",
        "0     a kind of work with a     1,000.0 ms  10.0 %               50.0 ms",
        "long name",
    ]


def test_scenarios_have_their_gain_as_a_share_of_the_step() -> None:
    scenarios = [ScenarioAnswer("without rank:1", 0.9, [0.9], 0.1), ScenarioAnswer("all", 1.0, [1.0], 0.0)]
    shown = lines(replace(ANSWER, scenarios=scenarios, t_original_s=0.8))
    place = shown.index("Scenarios")
    assert shown[place - 1] == ""
    assert shown[place + 1 : place + 4] == [
        "  scenario              step      gain  of the step",
        "  without rank:1    900.0 ms  100.0 ms       12.5 %",
        "  all             1,000.0 ms    0.0 ms        0.0 %",
    ]


def test_shares_of_the_slowdown_have_their_sign() -> None:
    explained = replace(
        ANSWER, m_w=Explained(0.5, -0.25, [(1, 0), (2, 1)]), m_s=Explained(0.125, 0.0),
        findings=[Finding("replay-differs", "warning", "it differs")],
    )  # fmt: skip
    shown = lines(explained)
    said = "alone ideal: {} % of the slowdown disappears; alone as recorded: {} % returns"
    assert shown[2] == f"  rank 1, rank 2: {said.format('+50.0', '-25.0')}"
    assert shown[3] == f"  last stage: {said.format('+12.5', '+0.0')}"
    assert "Findings" in shown
    of_stages = replace(explained, by={"stage": {"0": 1.0}})
    assert lines(of_stages)[2].startswith("  rank 1 of stage 0, rank 2 of stage 1: ")


def test_up_to_eight_rows_are_all_listed() -> None:
    few = replace(ANSWER, by={"rank": {str(rank): 1.0 for rank in range(8)}})
    assert not any("more" in line for line in lines(few))
    short = replace(PATH, parts=PATH.parts[:1])
    assert to_text(critical_path_page(short), width=120).count("compute") == 1
