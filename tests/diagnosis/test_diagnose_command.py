"""`ccl-bench diagnose`: what it takes, what it prints, and how it ends."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from commands import EXAMPLE, invoke
from injected import SHARDED

from ccl_bench import diagnosis
from ccl_bench.testing import Straggler, write_run

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("shared_cache")


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a run in which the host of rank 2 is late by 2 of 4.4 ms."""
    folder = tmp_path_factory.mktemp("runs") / "late host"
    write_run(replace(SHARDED, stragglers=(Straggler(2, host_ns=2_000_000),)), folder)
    return str(folder)


def test_the_answer_has_the_keys_that_programs_read(late: str) -> None:
    ran = invoke(["ccl-bench", "diagnose", late, "--format", "json"])
    assert (ran.returncode, ran.stderr) == (0, "")
    found = json.loads(ran.stdout)
    assert set(found["verdict"]["parts"]) == {"compute", "waiting", "transfer", "copies", "idle"}
    assert sum(found["verdict"]["parts"].values()) == pytest.approx(1)
    [first] = found["diagnoses"]
    assert {"name", "kind", "ranks", "steps", "share", "gain_s", "gain_error", "evidence"} <= set(first)
    assert (first["name"], first["kind"], first["ranks"]) == ("late_ranks", "ranks", [2])
    assert first["share"] == pytest.approx(0.4975, abs=1e-4)
    assert first["evidence"][0]["rank"] == 2


def test_the_text_gives_the_verdict_first_then_the_gain(late: str) -> None:
    lines = invoke(["ccl-bench", "diagnose", late, "--why"]).stdout.splitlines()
    assert lines[1].startswith("  4.02 ms a step on 4 x NVIDIA A100-SXM4-80GB: 47 % compute, 37 % waiting")
    numbered = next(place for place, line in enumerate(lines) if line.startswith("  1 "))
    assert "Rank 2 comes late" in lines[numbered]
    assert "-2 ms (-50 %, ± 0.0 %)" in lines[numbered + 1]
    assert any(line.split()[:1] == ["slow_device"] for line in lines)


def test_a_run_without_a_device_speaks_of_operators() -> None:
    said = invoke(["ccl-bench", "diagnose", str(EXAMPLE)]).stdout
    assert "on 4 ranks without a device" in said
    assert "in operators" in said


@pytest.mark.parametrize(
    ("limit", "status"),
    [
        ("late_ranks", 5),
        ("late_ranks:40%", 5),
        ("late_ranks:0.4", 5),
        ("late_ranks:50%", 0),
        ("slow_device", 0),
    ],
)
def test_a_limit_ends_with_its_status(late: str, limit: str, status: int) -> None:
    assert invoke(["ccl-bench", "diagnose", late, "--fail-on", limit]).returncode == status


@pytest.mark.parametrize(
    ("options", "problem", "fix"),
    [
        (["--fail-on", "late_rank"], "unknown diagnosis 'late_rank'", "did you mean late_ranks"),
        (["--fail-on", "late_ranks>3"], "is no limit", "NAME:SHARE"),
        (["--fail-on", "late_ranks:5"], "more than the whole step", "late_ranks:5%"),
        (["--explain", "slow_devise"], "unknown diagnosis", "did you mean slow_device"),
        ([], "no run is given", "name a directory"),
    ],
)
def test_wrong_usage_names_the_way_out(options: list[str], problem: str, fix: str, late: str) -> None:
    run = [late] if "--fail-on" in options else []
    ran = invoke(["ccl-bench", "diagnose", *run, *options])
    assert ran.returncode == 2
    assert problem in ran.stderr
    assert fix in ran.stderr


def test_the_list_has_every_rule_and_explain_its_page() -> None:
    listed = invoke("ccl-bench diagnose --list").stdout
    for rule in diagnosis.load():
        assert f"\n{rule.name} " in listed
        assert rule.manual in invoke(f"ccl-bench diagnose --explain {rule.name}").stdout


def test_a_run_without_operations_gets_a_reason(tmp_path: Path) -> None:
    (tmp_path / "step_times_per_rank.json").write_text('{"0": {"0": 1.0, "1": 1.1}}')
    ran = invoke(["ccl-bench", "diagnose", str(tmp_path), "--fail-on", "late_ranks"])
    assert "No verdict: no trace holds operations with times." in ran.stdout
    assert ran.returncode == 3


@pytest.mark.parametrize("limits", [[], ["--fail-on", "late_ranks"]])
def test_a_trace_cut_at_its_beginning_gives_no_answer_and_the_status_says_so(
    limits: list[str], tmp_path: Path
) -> None:
    (tmp_path / "kineto_trace_0.json").write_bytes(b'{"traceEvents": [{"ph": "X"'[:18])
    ran = invoke(["ccl-bench", "diagnose", str(tmp_path), *limits])
    assert "No verdict: no trace holds operations with times." in ran.stdout
    assert "the file ends among its events, after 18 bytes" in ran.stdout
    assert ran.returncode == 3
