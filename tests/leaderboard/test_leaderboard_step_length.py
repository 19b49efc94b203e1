"""A run has one step: every command, page and board states the same length of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from commands import ROOT, invoke
from leaderboard_bundles import Made, added
from leaderboard_client import Client

from ccl_bench.leaderboard.web.app import create_app
from ccl_bench.report.formatting import duration
from ccl_bench.result import from_json

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.leaderboard.store import Store

STEP = "iteration_wall_clock_time"
EXAMPLE = "llama-tiny-pp4-gloo"


def printed(*words: str) -> str:
    """Return what a command prints."""
    done = invoke([*words])
    assert done.returncode == 0, done.stderr
    return done.stdout


def data(*words: str) -> Any:
    return json.loads(printed(*words, "--format", "json"))


@pytest.mark.parametrize(
    ("run", "step_s", "traced_s"),
    [
        ("conclusions/resnet-backlog", 0.018839, None),
        (EXAMPLE, 0.307559, 0.467930),
    ],
)
def test_everything_that_states_the_step_of_a_run_states_the_same(
    corpus: Path, small: Store, tmp_path: Path, run: str, step_s: float, traced_s: float | None
) -> None:
    folder = str(ROOT / "examples" / "runs" / run if run == EXAMPLE else corpus / run)
    results = printed("ccl-metrics", folder, "--all", "--format", "json")
    values = {result.metric: result for result in from_json(results.encode())}
    step, busy = values[STEP], values["gpu_busy"]
    length = step.value
    assert length == pytest.approx(step_s, abs=1e-6)
    traced = busy.details["step_s"]
    assert traced == pytest.approx(traced_s or length, abs=1e-6)
    shown = duration(length)
    of_step = f"{shown} a step ({duration(traced)} while it is traced)" if traced_s else f"{shown} a step"

    found = data("ccl-bench", "diagnose", folder)["verdict"]
    assert (found["step_s"], found["traced_step_s"]) == (length, traced if traced_s else None)
    assert f"{of_step} on " in printed("ccl-bench", "inspect", folder)

    text = printed("ccl-bench", "report", folder, "--format", "text")
    assert f"{of_step} on " in text
    (tile,) = [line for line in text.splitlines() if line.strip().startswith("Step time  ")]
    assert tile.removeprefix("  Step time").strip().startswith(shown)
    printed("ccl-bench", "report", folder, "-o", str(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f">{shown}<" in page

    (pair,) = data("ccl-bench", "compare", folder, folder)["pairs"]
    attribution = pair["attribution"]
    assert attribution["step"]["other_s"] == traced
    assert sum(part["other_s"] for part in attribution["parts"]) == pytest.approx(traced, abs=1e-12)
    headline = attribution["untraced"] or attribution
    assert headline["step"]["baseline_s"] == headline["step"]["other_s"] == length
    (change,) = [each for each in pair["changes"] if each["metric"] == STEP]
    assert change["baseline"] == change["other"] == length
    there = f"{shown} there ({duration(traced)})" if traced_s else f"{shown} there"
    assert f": {of_step}, {there}." in printed("ccl-bench", "compare", folder, folder)

    # the replay is of the traced step
    assert data("ccl-bench", "what-if", folder)["t_recorded_s"] == pytest.approx(traced, rel=1e-12)

    added(small, Made(extra=(step,)))
    client = Client(create_app(small))
    (row,) = client.get("/api/v1/runs").json()["runs"]
    assert row["numbers"][STEP]["value"] == length
    assert f'<data class="value" value="{length}">' in client.get(f"/runs/{row['id']}").text
