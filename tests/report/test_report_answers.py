"""Answers in words: where a step goes, what changes are worth, and what scenarios gain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ccl_bench.analysis.execution import idle as idle_causes
from ccl_bench.catalog.host_stalls import COMPILATION, DATA_LOADING, GARBAGE_COLLECTION
from ccl_bench.report.console import to_text
from ccl_bench.report.diagnosis import diagnose_page
from ccl_bench.report.page_model import Page, Quantity, Tile
from ccl_bench.report.render.markdown import markdown
from ccl_bench.report.verdict import gain, remarks, verdict, verdict_sentence
from ccl_bench.report.what_if import what_if_page
from ccl_bench.result.diagnosis import Diagnosed, Evidence, IdlePart, Opportunity, Verdict, Waiting
from ccl_bench.result.what_if import CriticalPath, Explained, OnPath, ScenarioAnswer, WhatIf


def step(**more: Any) -> Verdict:
    known: dict[str, Any] = {"step_s": 0.5, "parts": {"compute": 0.9, "idle": 0.1}, "ranks": 2, "steps": 3}
    return Verdict(**known | {"on_device": True} | more)


def worth(
    gain_s: float | None, share: float | None = None, error: float | None = None, **more: Any
) -> Opportunity:
    known: dict[str, Any] = {"name": "rule", "kind": "host", "title": "It is slow.", "remedy": "be quick"}
    known |= {"ranks": [], "steps": [], "change": "it is quick"}
    return Opportunity(share=share, gain_s=gain_s, gain_error=error, **known | more)


def lines(page: Any) -> list[str]:
    return [" ".join(line.split()) for line in to_text(page, width=200).splitlines()]


def test_small_parts_of_a_step_are_not_named() -> None:
    parts = {"compute": 0.099, "waiting": 0.1, "transfer": 0.005, "copies": 0.0049, "idle": 0.7911}
    assert verdict_sentence(step(parts=parts, devices="2 x A100")) == (
        "500 ms a step on 2 x A100: 9.9 % compute, 10 % waiting for other ranks, 0.5 % transfer, 79 % idle."
    )


def test_a_run_without_a_device_and_a_whole_trace_are_called_so() -> None:
    assert verdict_sentence(step(on_device=False, devices="CPU")) == (
        "500 ms a step on 2 ranks without a device: 90 % in operators, 10 % in no operator."
    )
    assert verdict_sentence(step(is_whole_trace=True, ranks=1, traced_step_s=0.75)) == (
        "500 ms traced (750 ms while it is traced) on 1 rank: 90 % compute, 10 % idle."
    )


@pytest.mark.parametrize(
    ("opportunity", "text"),
    [
        (worth(0.2, 0.4), "-200 ms (-40 %)"),
        (worth(0.2, 0.4, 0.01), "-200 ms (-40 %, ± 2.0 %)"),  # 0.01 of 0.2 s is a twentieth of 40 %
        (worth(0.01, 0.02, 0.0), "-10 ms (-2.0 %, ± 0.0 %)"),
        (worth(0.0, 0.0, 0.01), "-0 s (-0.0 %)"),
        (worth(None), "gain unknown"),
        (worth(0.2, None), "gain unknown"),
    ],
)
def test_gains_have_their_share_and_error(opportunity: Opportunity, text: str) -> None:
    assert gain(opportunity) == text


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"verdict": None, "why_no_verdict": "it is short"}, ["No verdict: it is short."]),
        ({"verdict": step()}, ["No cause of lost time exceeds the noise"]),
        ({"verdict": step(), "diagnoses": [worth(None)]}, []),
        ({"verdict": step(), "why_no_gains": "it is odd"}, ["The gains of changes are unknown: it is odd."]),
        ({"verdict": None, "why_no_gains": "it is odd"}, ["No verdict: ."]),
        ({"verdict": step(unattributed=0.0049), "diagnoses": [worth(None)]}, []),
        ({"verdict": step(unattributed=0.005), "diagnoses": [worth(None)]}, ["0.5 % of the step is counted"]),
    ],
)
def test_what_an_answer_cannot_say_is_remarked(more: dict[str, Any], said: list[str]) -> None:
    found = list(remarks(Diagnosed("run", **more)))
    assert [text.startswith(start) for text, start in zip(found, said, strict=True)] == [True] * len(said)


def idle(share: float, *causes: str, **more: Any) -> Verdict:
    """Return a step that is idle for a share, in equal parts by cause."""
    parts = [IdlePart(cause, share / len(causes)) for cause in causes]
    return step(parts={"compute": 1 - share, "waiting": 0.0, "idle": share}, idle=parts, **more)


NO_CAUSE = "No cause of lost time exceeds the noise of the steps."
NO_CALL = "what they waited for is not known, since no call of a host was recorded"
OF_ONE_STEP = "No change gains 3 % of the step; with one step its noise is unknown."
ALL_THE_SAME = "The devices are idle for 72 % of the step all the same"


@pytest.mark.parametrize(
    ("breakdown", "text"),
    [
        (idle(0.72, "launching"), f"{NO_CAUSE} {ALL_THE_SAME}."),
        (
            idle(0.72, "unknown", "launching"),
            f"{NO_CAUSE} {ALL_THE_SAME}: the traces do not show what they waited for.",
        ),
        (
            idle(0.72, "ends of the recording"),
            f"{NO_CAUSE} {ALL_THE_SAME}: the traces do not show what they waited for.",
        ),
        (
            idle(0.72, "no host recorded", steps=1),
            f"{OF_ONE_STEP} {ALL_THE_SAME}: {NO_CALL}.",
        ),
        (idle(0.1, "launching"), f"{NO_CAUSE} The devices are idle for 10 % of the step all the same."),
        (idle(0.0999, "launching"), NO_CAUSE),
        (idle(0.72, "launching", on_device=False), NO_CAUSE),
    ],
)
def test_without_a_cause_idle_devices_are_mentioned_from_a_tenth_on(breakdown: Verdict, text: str) -> None:
    assert list(remarks(Diagnosed("run", breakdown)))[-1] == text


def test_idle_time_is_divided_in_words_by_what_hosts_did() -> None:
    parts = [
        IdlePart("data loading", 0.2, "next_batch"),
        IdlePart("launching", 0.005),
        IdlePart("unknown", 0.0049),
    ]
    breakdown = replace(idle(0.2099, "unknown"), idle=parts)
    first, *_ = remarks(Diagnosed("run", breakdown))
    assert first == (
        "Devices are idle for 21 % of the step: 20 % in data loading (next_batch), 0.5 % while hosts launch "
        "call after call."
    )


@pytest.mark.parametrize(
    "cause",
    [
        *(idle_causes.LAUNCHING, *idle_causes.PAUSES, idle_causes.BLOCKING_CALL, idle_causes.FIRST_USE),
        *(idle_causes.QUEUED, idle_causes.WAITING_LONG, idle_causes.ENDS, idle_causes.NO_HOST),
        *(DATA_LOADING, GARBAGE_COLLECTION, COMPILATION),
    ],
)
def test_every_cause_of_idle_time_has_words(cause: str) -> None:
    first, *_ = remarks(Diagnosed("run", idle(0.5, cause)))
    assert first.startswith("Devices are idle for 50 % of the step: 50 % ")


@pytest.mark.parametrize(
    ("of_latest_s", "more"),
    [
        (0.005, ""),
        (0.00499, " One rank alone gains less, because others are nearly as late, or late at other times."),
    ],
)
def test_who_waits_for_whom_is_a_sentence(of_latest_s: float, more: str) -> None:
    """Below half of what all ranks would gain, the latest one does not explain the waiting."""
    breakdown = step(parts={"compute": 0.6, "waiting": 0.4, "idle": 0.0})
    waiting = Waiting([2], [0], of_latest_s, 0.01)
    (said,) = remarks(Diagnosed("run", breakdown, [worth(0.2, 0.4)], waiting=waiting))
    assert said == (
        "Ranks wait 40 % of the step for others. Rank 2 is latest: with the times of the other ranks, a step "
        f"would be {1e3 * of_latest_s:.3g} ms shorter; if all ranks took the median of their times, 10 ms."
        f"{more}"
    )


@pytest.mark.parametrize(
    ("count", "more"),
    [(3, ()), (4, ("1 smaller cause: ccl-bench diagnose shows all.",)),
     (5, ("2 smaller causes: ccl-bench diagnose shows all.",))],
)  # fmt: skip
def test_a_report_names_three_causes_and_counts_the_rest(count: int, more: tuple[str, ...]) -> None:
    found = verdict(Diagnosed("run", step(), [worth(0.2, 0.4)] * count))
    assert len(found.causes) == 3
    assert found.remarks == more


def test_causes_say_in_how_many_of_several_steps_they_were_seen() -> None:
    evidence = [Evidence(3, 7, "gemm", 1_000_000, 3_500_000), Evidence(None, 8, "copy", 0, 1000)]
    causes = [worth(0.2, 0.4, steps=[7, 8], evidence=evidence), worth(None)]
    page = diagnose_page(Diagnosed("run", step(), causes, steps=[7, 8, 9], unexplained=0.0123))
    shown = lines(page)
    assert "1 It is slow." in shown
    assert "2 It is slow." in shown
    assert [text for text in shown if text.startswith("seen")] == ["seen in 2 of 3 steps: 7-8"]
    assert "such as rank 3, step 7: gemm, 2.5 ms" in shown
    assert "such as step 8: copy, 1 µs" in shown
    assert "The replay leaves 1.23 % of the step unexplained." in shown
    alone = diagnose_page(Diagnosed("run", step(), causes[:1], steps=[7]))
    assert not any(text.startswith("seen") for text in lines(alone))


def answer(**more: Any) -> WhatIf:
    parts = [OnPath(str(rank), "host", 0.01, 0.125) for rank in range(9)]
    path = CriticalPath(0.2, parts, 1.0, {"0 host": 0.001}, 0.1, [], {})
    known: dict[str, Any] = {
        "run": "run", "t_recorded_s": 0.25, "t_original_s": 0.2, "t_ideal_s": 0.16, "slowdown": 1.25,
        "launch_slowdown": 1.25, "idealisation": "median", "replay_error": -0.2, "unexplained": 0.2,
        "m_w": None, "m_s": None, "by": {}, "step_s": [0.2, 0.2], "critical_path": path, "scenarios": [],
        "steps": [1, 2],
    }  # fmt: skip
    return WhatIf(**known | more)


def test_scenarios_gain_a_share_of_the_replayed_step() -> None:
    shown = lines(what_if_page(answer(scenarios=[ScenarioAnswer("faster", 0.15, [0.15, 0.15], 0.05)])))
    assert shown[1] == "200.0 ms a step; 160.0 ms without stragglers: it takes 1.250 times as long"
    assert "mean of 2 steps; ideal: median" in shown
    assert "unexplained: 20.00 % of the recorded step, 250.0 ms" in shown
    assert "faster 150.0 ms 50.0 ms 25.0 %" in shown


def test_the_critical_path_lists_eight_parts_with_what_a_tenth_less_gains() -> None:
    shown = lines(what_if_page(answer()))
    listed = [text for text in shown if " host " in text]
    assert listed[:2] == ["0 host 10.0 ms 12.5 % 1.0 ms", "1 host 10.0 ms 12.5 %"]
    assert len(listed) == 8


def test_the_slowest_eight_of_a_kind_are_listed_and_the_rest_counted() -> None:
    ranks = {str(rank): 1 + rank / 10 for rank in range(9)}
    shown = lines(what_if_page(answer(by={"rank": ranks})))
    listed = [text for text in shown if text.startswith("Rank")]
    assert (listed[0], listed[7], listed[8:]) == ("Rank 8 1.8000", "Rank 1 1.1000", ["Rank 1 more"])
    ranks.popitem()
    assert "more" not in " ".join(lines(what_if_page(answer(by={"rank": ranks}))))


def test_the_worst_workers_and_the_last_stage_explain_a_share_of_the_slowdown() -> None:
    worst = Explained(0.5, 0.25, [(3, 1), (2, 0)])
    shown = lines(what_if_page(answer(m_w=worst, m_s=Explained(-0.1, 0.0))))
    said = "alone ideal: +50.0 % of the slowdown disappears; alone as recorded: +25.0 % returns"
    assert f"rank 3, rank 2: {said}" in shown
    assert (
        "last stage: alone ideal: -10.0 % of the slowdown disappears; alone as recorded: +0.0 % returns"
        in shown
    )
    of_stages = lines(what_if_page(answer(m_w=worst, by={"stage": {"0": 1.0}})))
    assert f"rank 3 of stage 1, rank 2 of stage 0: {said}" in of_stages


def test_numbers_align_right_in_markdown() -> None:
    tile = Tile("Busy", Quantity(50.0, "50 %"), "gpu_busy", "higher", "of a step", doubts=2)
    page = Page("run", (), (tile, Tile("Idle", Quantity(1.0, "1 s"), doubts=1)), (), ())
    shown = markdown(page).splitlines()
    at = shown.index("| --- | ---: | --- | --- |")
    assert shown[at + 1 : at + 3] == [
        "| [Busy](#gpu_busy) | 50 % | higher is better | of a step; 2 findings |",
        "| Idle | 1 s |  | 1 finding |",
    ]
