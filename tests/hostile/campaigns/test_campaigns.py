"""The campaign of `make fuzz`: a sample of it, and that its judge sees what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import judging
import pytest
import watching
from campaign import Campaign, cases, named
from judging import FACT, MUST_SHOW, NEUTRAL
from subjects import made
from watching import Answer, Watched

from ccl_bench.evaluate import compute

if TYPE_CHECKING:
    from pathlib import Path

    from subjects import Subject

SAMPLED = ("generated", "chakra")
"""Runs of text and of a binary format; `make fuzz` damages all."""

FINDING = {"code": "file-truncated", "file": "rank0.json", "message": "ends early"}
WHOLE = Answer(0, "[]", "", 0.5, 200 << 20)


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> list[Subject]:
    """Return the runs that need no real traces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CCL_BENCH_CORPUS", raising=False)
        return made(tmp_path_factory.mktemp("subjects"))


def result(value: float | None, *findings: dict[str, str]) -> judging.Results:
    status = "ok" if value is not None else "not measurable"
    found: dict[str, Any] = {
        "metric": "mfu",
        "status": status,
        "value": value,
        "reason": "",
        "findings": findings,
    }
    return {"mfu": found}


def promises(kind: str, before: judging.Results, after: judging.Results) -> list[str]:
    return [breach.promise for breach in judging.dishonesty(kind, before, after)]


def test_one_damage_of_each_sampled_kind_of_file_breaks_no_promise(
    subjects: list[Subject], tmp_path: Path
) -> None:
    sampled = [subject for subject in subjects if subject.name in SAMPLED]
    left = {kind for subject in sampled for kind in subject.files.values()}
    assert left == {"kineto", "card", "side file", "chakra"}
    campaign = Campaign(tmp_path / "damaged")
    try:
        for case in cases(sampled, seed=7):
            if case.subject.files[case.file] in left:
                left.remove(case.subject.files[case.file])
                campaign.tried(case)
            if not left:
                break
    finally:
        campaign.close()
    assert campaign.broken == {}
    assert campaign.report(1.0)["cases"] == 4


def test_the_name_of_a_case_repeats_it_byte_for_byte(subjects: list[Subject], tmp_path: Path) -> None:
    for case, _ in zip(cases(subjects, seed=3), range(8), strict=False):
        again = named(subjects, case.name)
        one, other = case.written(tmp_path / "one"), again.written(tmp_path / "other")
        assert (one / case.file).read_bytes() == (other / case.file).read_bytes()


def test_a_process_over_its_time_is_a_hang_and_the_next_case_is_answered(
    monkeypatch: pytest.MonkeyPatch, subjects: list[Subject]
) -> None:
    watched = Watched()
    command = ["ccl-bench", "inspect", str(subjects[0].folder)]
    try:
        monkeypatch.setattr(watching, "WAIT", 0.0)
        monkeypatch.setattr(watching, "_LOOK", 0.01)
        assert watched.answer(command).end == "hang"
        monkeypatch.setattr(watching, "WAIT", 120.0)
        assert watched.answer(command).status == 0
    finally:
        watched.close()


@pytest.mark.parametrize(
    ("answer", "promise"),
    [
        (replace(WHOLE, end="hang"), "hang"),
        (replace(WHOLE, end="death"), "death"),
        (replace(WHOLE, status=1), "traceback or status"),
        (replace(WHOLE, err="Traceback (most recent call last):"), "traceback or status"),
        (replace(WHOLE, peak=2 << 30), "memory"),
    ],
)
def test_what_no_command_may_do_is_a_breach(answer: Answer, promise: str) -> None:
    assert [breach.promise for breach in judging.breaches(answer, memory=1 << 30)] == [promise]
    assert list(judging.breaches(WHOLE, memory=1 << 30)) == []


def test_another_number_must_come_with_a_finding_that_was_not_there_before() -> None:
    assert promises(MUST_SHOW, result(40.0), result(39.0)) == ["silent"]
    assert promises(MUST_SHOW, result(40.0, FINDING), result(39.0, FINDING)) == ["silent"]
    assert promises(MUST_SHOW, result(40.0), result(39.0, FINDING)) == []
    assert promises(MUST_SHOW, result(40.0), result(None)) == []


def test_another_order_may_change_nothing() -> None:
    assert promises(NEUTRAL, result(40.0), result(40.0 + 1e-12)) == []
    assert promises(NEUTRAL, result(40.0), result(39.0, FINDING)) == ["not neutral"]
    assert promises(NEUTRAL, result(40.0), result(None)) == ["not neutral"]


def test_whatever_was_damaged_a_number_is_finite_and_no_metric_fails() -> None:
    assert promises(FACT, result(40.0), result(39.0)) == []
    assert promises(FACT, result(40.0), result(float("inf"))) == ["silent"]
    failed = result(None)
    failed["mfu"] |= {"status": "failed", "fix": compute._SEE_TRACEBACK}
    assert promises(FACT, result(40.0), failed) == ["failed"]
    failed["mfu"]["fix"] = "check tokens per step"
    assert promises(FACT, result(40.0), failed) == []


def test_results_are_read_from_what_a_command_prints() -> None:
    printed = json.dumps([{"metric": "mfu", "value": 40.0}])
    assert judging.results(replace(WHOLE, out=printed)) == {"mfu": {"metric": "mfu", "value": 40.0}}
    assert judging.results(replace(WHOLE, out="")) == {}
