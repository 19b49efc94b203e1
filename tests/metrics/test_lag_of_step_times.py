"""`straggler` and `straggler_lag_16` from a file of step times, where no trace shows who waits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from commands import invoke

from ccl_bench.evaluate.compute import evaluate
from ccl_bench.result.step_choice import StepChoice
from ccl_bench.run import open_run
from ccl_bench.testing import plans, write_run

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result import Result

NAMES = ("straggler", "straggler_lag_16")
FILE = "step_times_per_rank.json"
TIMES = {"0": [0.5, 0.7, 0.6], "1": [0.9, 0.8, 0.7], "2": [0.6, 0.6, 0.6]}
"""Means 0.6, 0.8 and 0.6 s; the slowest rank of each step takes 0.9, 0.8 and 0.7 s, 0.8 s in the mean."""


def _measured(folder: Path, times: Any = TIMES, **options: Any) -> list[Result]:
    (folder / FILE).write_text(json.dumps(times))
    return evaluate(open_run(folder, **options), NAMES)


def test_the_lag_is_the_largest_minus_the_smallest_mean_step_of_a_rank(tmp_path: Path) -> None:
    straggler, lag = _measured(tmp_path)
    assert lag.value == pytest.approx(0.8 - 0.6)
    assert straggler.value == pytest.approx(0.2 / 0.8)
    assert straggler.details["slowest_rank"] == "1"
    assert straggler.details["per_rank_s"] == pytest.approx({"0": 0.6, "1": 0.8, "2": 0.6})


def test_the_result_names_the_file_as_its_source(tmp_path: Path) -> None:
    for result in _measured(tmp_path):
        assert (result.window, result.details["source"], [*result.provenance.files]) == (FILE, FILE, [FILE])
        (finding,) = result.findings
        assert (finding.code, finding.file) == ("other-source", FILE)
    shown = invoke(f"ccl-metrics --trace {tmp_path} --metric straggler_lag_16")
    assert (float(shown.stdout), f"from {FILE}" in shown.stderr) == (pytest.approx(0.2), True)


def test_only_steps_that_all_ranks_have_and_that_were_chosen_count(tmp_path: Path) -> None:
    uneven = {"0": {"1": 0.5, "2": 0.7}, "1": {"2": 0.8, "3": 9.0}}
    assert _measured(tmp_path, uneven)[1].value == pytest.approx(0.8 - 0.7)
    assert _measured(tmp_path, choice=StepChoice("0"))[1].value == pytest.approx(0.9 - 0.5)


def test_a_lag_below_the_noise_makes_no_rank_late(tmp_path: Path) -> None:
    (straggler, _) = _measured(tmp_path, {"0": [1.0, 1.0], "1": [1.005, 1.005]})
    assert (straggler.details["slowest_rank"], straggler.details["late_ranks"]) == ("none", [])


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ({"0": [0.5, 0.5]}, f"{FILE} holds step times of rank 0 alone"),
        ({"0": [1.0, 1.2], "1": [1.5], "2": {"10": 2.0}}, f"the 3 ranks of {FILE} have no step in common"),
        ({"0": 1.1, "1": 1.3}, f"{FILE} contains no usable data"),
    ],
)
def test_ranks_that_cannot_be_compared_give_no_lag(tmp_path: Path, times: Any, reason: str) -> None:
    found = _measured(tmp_path, times)
    assert {(result.status, result.reason) for result in found} == {("not_measurable", reason)}
    assert all(FILE in result.fix or "validate" in result.fix for result in found)


def test_without_a_step_of_single_ranks_the_reason_names_the_file_that_holds_them(tmp_path: Path) -> None:
    (tmp_path / "step_times.json").write_text("[0.5, 0.6]")
    (tmp_path / "run_metadata.json").write_text('{"world_size": 2}')
    (found, _) = evaluate(open_run(tmp_path), NAMES)
    assert (found.status, found.reason) == ("not_measurable", f"the run has no {FILE}")


def test_values_that_could_not_be_used_are_named_beside_the_reason(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"0": [1.0, "x"], "2": null}')
    shown = invoke(f"ccl-metrics --trace {tmp_path} --metric straggler").stderr
    assert f"{FILE} holds step times of rank 0 alone" in shown
    assert f"warning: {FILE}: 0[1]: 'x' is not a number and is left out, and 1 more (file-mistakes)" in shown


def test_of_uneven_lists_the_shared_steps_count_and_the_note_says_so(tmp_path: Path) -> None:
    _, lag = _measured(tmp_path, {"0": [1.0, 1.2], "1": [1.5]})
    assert lag.value == pytest.approx(1.5 - 1.0)
    assert "of 2 ranks, over the steps that all of them have" in lag.findings[-1].message


def test_traces_that_show_who_waits_come_first(tmp_path: Path) -> None:
    write_run(replace(plans.late_rank(), dp_shard=4), tmp_path)
    traced = evaluate(open_run(tmp_path), NAMES)
    beside = _measured(tmp_path)
    assert [result.value for result in beside] == [result.value for result in traced]
    for result in beside:
        assert result.window == "matched collectives inside steps"
        assert FILE not in result.provenance.files
