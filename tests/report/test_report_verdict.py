"""The verdict in words, and the page of diagnoses, from answers made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ccl_bench.base.findings import Issue
from ccl_bench.report.console import to_text
from ccl_bench.report.diagnosis import diagnose_page
from ccl_bench.report.verdict import gain, quality, remarks, verdict, verdict_sentence
from ccl_bench.result.diagnosis import Diagnosed, Evidence, Opportunity, Verdict
from ccl_bench.result.inspection import InspectedTrace, Inspection

STEP = Verdict(
    0.25, {"compute": 0.5, "waiting": 0.3951, "transfer": 0.0999, "copies": 0.005, "idle": 0.0},
    ranks=8, steps=3, on_device=True, devices="8 x A100",
)  # fmt: skip


def sentence(**changed: Any) -> str:
    return verdict_sentence(replace(STEP, **changed))


def test_the_verdict_names_parts_from_half_a_percent_on() -> None:
    parts = "50 % compute, 40 % waiting for other ranks, 10.0 % transfer, 0.5 % copies"
    assert verdict_sentence(STEP) == f"250 ms a step on 8 x A100: {parts}."
    small = {"compute": 0.9951, "copies": 0.0049}
    assert sentence(parts=small) == "250 ms a step on 8 x A100: 100 % compute."


def test_the_verdict_says_what_it_is_of() -> None:
    parts = {"compute": 0.1, "idle": 0.9}
    assert sentence(parts=parts, devices="").startswith("250 ms a step on 8 ranks: 10 % compute, 90 % idle")
    on_cpu = sentence(parts=parts, on_device=False)
    assert on_cpu == "250 ms a step on 8 ranks without a device: 10 % in operators, 90 % in no operator."
    assert sentence(is_whole_trace=True).startswith("250 ms traced on 8 x A100: ")
    assert sentence(traced_step_s=0.5).startswith("250 ms a step (500 ms while it is traced) on ")


def opportunity(name: str = "slow", **changed: Any) -> Opportunity:
    known = Opportunity(
        name, "host", "Hosts are slow", "Use graphs", [1], [1, 2], 0.5, 0.125, 0.0125, "hosts take half"
    )
    return replace(known, **changed)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({}, "-125 ms (-50 %, ± 5.0 %)"),
        ({"gain_error": None}, "-125 ms (-50 %)"),
        ({"gain_s": 0.0, "share": 0.0}, "-0 s (-0.0 %)"),
        ({"gain_s": None}, "gain unknown"),
        ({"share": None}, "gain unknown"),
    ],
)
def test_a_gain_has_its_error_as_a_share_of_the_step(changed: dict[str, Any], text: str) -> None:
    assert gain(opportunity(**changed)) == text


DIAGNOSED = Diagnosed("runs/one", STEP, [opportunity()], steps=[1, 2, 3])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, []),
        ({"diagnoses": []}, ["No cause of lost time exceeds the noise of the steps."]),
        ({"why_no_gains": "too short"}, ["The gains of changes are unknown: too short."]),
        ({"verdict": None, "why_no_verdict": "empty"}, ["No verdict: empty."]),
        ({"verdict": None, "why_no_verdict": "empty", "why_no_gains": "too short"}, ["No verdict: empty."]),
        ({"verdict": None, "why_no_verdict": "empty", "diagnoses": []}, ["No verdict: empty."]),
        ({"verdict": replace(STEP, unattributed=0.0049)}, []),
    ],
)
def test_remarks_state_the_limits_of_an_answer(changed: dict[str, Any], said: list[str]) -> None:
    assert list(remarks(replace(DIAGNOSED, **changed))) == said


def test_transfer_that_may_be_waiting_is_a_remark_from_half_a_percent_on() -> None:
    (said,) = remarks(replace(DIAGNOSED, verdict=replace(STEP, unattributed=0.005)))
    assert said.startswith("0.5 % of the step is counted as transfer")


@pytest.mark.parametrize(("count", "more"), [(3, []), (4, ["1 smaller cause"]), (6, ["3 smaller causes"])])
def test_three_causes_are_named_and_the_others_counted(count: int, more: list[str]) -> None:
    shown = verdict(replace(DIAGNOSED, diagnoses=[opportunity(str(number)) for number in range(count)]))
    assert [each.diagnosis for each in shown.causes] == ["0", "1", "2"]
    assert [each.partition(":")[0] for each in shown.remarks] == more


def trace(file: str, window: int | None, *steps: int) -> InspectedTrace:
    return InspectedTrace(file, "kineto", 10, window=window, steps=[*steps])


def test_quality_counts_ranks_and_steps_of_all_windows() -> None:
    traces = [trace("a", 10, 1, 2), trace("b", 10, 1, 2), trace("c", 20, 1)]
    assert quality(Inspection("run", 8, [0, 1], traces=traces)) == "complete, 2 of 8 ranks, 3 steps"
    doubtful = Inspection("run", None, [0], traces=traces[2:], issues=[Issue("note", "odd")])
    assert quality(doubtful) == "1 rank, 1 step"
    assert quality(Inspection("run", 1, [0])) == "complete, 1 of 1 rank"
    assert quality(Inspection("run", 2048, [*range(1024)])) == "complete, 1,024 of 2,048 ranks"
    assert quality(Inspection("run")) == "complete"


def test_diagnoses_are_numbered_with_their_evidence() -> None:
    evidence = [Evidence(3, 2, "gemm", 1_000, 2_501_000), Evidence(None, 2, "copy", 0, 40)]
    found = replace(
        DIAGNOSED, diagnoses=[opportunity(evidence=evidence), opportunity("other", steps=[])],
        unexplained=0.0125, silent={"quiet": "nothing to say"}, findings=[Issue("note", "odd")],
    )  # fmt: skip
    lines = to_text(diagnose_page(found, why=True), width=120).splitlines()
    assert lines[2:] == [
        "",
        "  1 Hosts are slow",
        "    -125 ms (-50 %, ± 5.0 %): hosts take half",
        "    fix: Use graphs (--explain slow)",
        "    seen in 2 of 3 steps: 1-2",
        "    such as rank 3, step 2: gemm, 2.5 ms",
        "    such as step 2: copy, 40 ns",
        "",
        "  2 Hosts are slow",
        "    -125 ms (-50 %, ± 5.0 %): hosts take half",
        "    fix: Use graphs (--explain other)",
        "",
        "  The replay leaves 1.25 % of the step unexplained.",
        "",
        "Silent",
        "  quiet  nothing to say",
        "",
        "Data quality",
        "  note    odd",
    ]
    brief = to_text(diagnose_page(replace(found, findings=[], unexplained=None)), width=120)
    assert "Silent" not in brief
    assert "unexplained" not in brief
    one_step = to_text(diagnose_page(replace(found, steps=[1])), width=120)
    assert "seen in" not in one_step
    two_steps = to_text(diagnose_page(replace(found, steps=[1, 2])), width=120)
    assert "seen in 2 of 2 steps: 1-2" in two_steps
