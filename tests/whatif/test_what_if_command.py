"""`ccl-bench what-if`: what it takes, what it prints, and how it ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from commands import invoke
from made_tables import MadeTable

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a table in which rank 1 is slow."""
    return MadeTable(slow={(1, 0): 1.5, (1, 1): 1.5}).write(
        tmp_path_factory.mktemp("tables") / "slow +1.parquet"
    )


def test_the_answer_has_the_keys_that_programs_read(slow: str) -> None:
    asked = ["--without", "rank:1", "--ideal", "comm", "--format", "json"]
    ran = invoke(["ccl-bench", "what-if", slow, *asked])
    assert (ran.returncode, ran.stderr) == (0, "")
    found = json.loads(ran.stdout)
    assert {
        "t_original_s", "t_ideal_s", "slowdown", "launch_slowdown", "idealisation", "replay_error",
        "unexplained", "m_w", "m_s", "by", "scenarios", "steps", "findings",
    } <= set(found)  # fmt: skip
    assert {"rem", "add", "workers"} <= set(found["m_w"])
    assert {"rank", "stage", "operation"} <= set(found["by"])
    assert [each["name"] for each in found["scenarios"]] == ["without rank:1", "ideal comm"]
    first = found["scenarios"][0]
    assert len(first["step_s"]) == len(found["steps"]) == 3
    assert first["gain_s"] == pytest.approx(found["t_original_s"] - first["t_s"])
    assert first["gain_s"] > 0


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("rank:0,1", "rank:0,rank:1"),
        ("worker:1/0, 1/1", "worker:1/0,worker:1/1"),
        ("stage:0,rank:0,1", "stage:0,rank:0,rank:1"),
        ("RANK:1", "rank:1"),
        ("Operation:Optimizer", "operation:optimizer"),
    ],
)
def test_a_part_without_a_kind_has_that_of_the_part_before_it(slow: str, text: str, same: str) -> None:
    ran = invoke(["ccl-bench", "what-if", slow, "--without", text, "--without", same, "--format", "json"])
    assert ran.returncode == 0
    scenarios = json.loads(ran.stdout)["scenarios"]
    assert scenarios[0]["step_s"] == scenarios[1]["step_s"]


def test_the_text_names_the_gain_and_the_slow_rank(slow: str) -> None:
    ran = invoke(["ccl-bench", "what-if", slow, "--without", "rank:1", "--scale", "operation:optimizer=0"])
    assert (ran.returncode, ran.stderr) == (0, "")
    rows = {tuple(line.split()[:2]): line.split() for line in ran.stdout.splitlines()}
    assert rows["without", "rank:1"][3] == "ms"
    assert float(rows["operation:optimizer", "×"][5]) == 500.0
    assert float(rows["Rank", "1"][-1]) > float(rows["Rank", "0"][-1])


@pytest.mark.parametrize(
    ("options", "problem", "fix"),
    [
        (["--without", "rnk:1"], "'rnk:1' names no operations", "did you mean rank?"),
        (["--without", "rank:7"], "there is no rank '7'", "there are 0, 1"),
        (["--without", "operation:optimiser"], "there is no operation", "did you mean optimizer?"),
        (["--without", "rank:0,7"], "there is no rank '7'", "there are 0, 1"),
        (["--without", "7,rank:1"], "'7' names no operations", "write KIND:NAME"),
        (["--without", "rank:1,"], "'' names no operations", "write KIND:NAME"),
        (["--scale", "operation:optimizer"], "is not a change of durations", "operation:NAME=0.5"),
        (["--scale", "operation:optimizer=-1"], "is not a change of durations", "a factor from 0"),
        (["--scale", "operation:optimizer=nan"], "is not a change of durations", "a factor from 0"),
        (["--ideal", "gpu"], "'gpu' has no ideal time", "write all, compute or comm"),
        (["--marker", "step"], "has no ranges", "--steps"),
    ],
)
def test_a_scenario_that_is_not_understood_is_wrong_usage(
    slow: str, options: list[str], problem: str, fix: str
) -> None:
    ran = invoke(["ccl-bench", "what-if", slow, *options])
    assert (ran.returncode, ran.stdout) == (2, "")
    assert problem in ran.stderr
    assert fix in ran.stderr


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none.parquet"):
        ran = invoke(["ccl-bench", "what-if", str(place)])
        assert (ran.returncode, ran.stdout) == (4, "")
        assert "fix: " in ran.stderr


def test_a_step_that_is_not_explained_has_no_answer(tmp_path: Path) -> None:
    path = MadeTable(wait_s=2.0).write(tmp_path / "a.csv")
    ran = invoke(["ccl-bench", "what-if", path])
    assert (ran.returncode, ran.stdout) == (3, "")
    assert "differs from the recorded one by -1" in ran.stderr
