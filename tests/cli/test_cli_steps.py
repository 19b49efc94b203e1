"""`--steps`, `--skip-steps`, `--marker` and `--program` in every command that measures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ccl_bench.cli.bench import main as bench
from ccl_bench.cli.metrics import main as ccl_metrics

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tools.main import main as tools_main

Captured = pytest.CaptureFixture[str]

STEP = "iteration_wall_clock_time"


def printed(status: int, capsys: Captured) -> str:
    """Return what a command that ended well printed."""
    out, err = capsys.readouterr()
    assert status == 0, err
    return out


def step_times(run: Path) -> dict[str, float]:
    """Return the length of each step on its slowest rank, as the run wrote them itself."""
    ranks = json.loads((run / "step_times_per_rank.json").read_text())
    return {str(step): max(lengths) for step, lengths in enumerate(zip(*ranks.values(), strict=True))}


def test_one_step_has_its_own_length(sharded: Path, capsys: Captured) -> None:
    for step, seconds in step_times(sharded).items():
        if step in {"2", "9"}:
            status = ccl_metrics(["-t", str(sharded), "-m", STEP, "--steps", step])
            assert float(printed(status, capsys)) == pytest.approx(seconds)


def test_traces_without_the_chosen_steps_give_no_number(sharded: Path, capsys: Captured) -> None:
    assert ccl_metrics(["-t", str(sharded), "-m", "coll_call_num", "--steps", "9"]) == 3
    said = capsys.readouterr().err.replace("ccl-metrics: ", "")
    assert "no trace holds what was chosen: step 9\n  fix: choose among 2, 3, 4" in said


def test_every_command_says_which_steps_were_chosen(small: Path, tmp_path: Path, capsys: Captured) -> None:
    run, chosen = str(small), ["--skip-steps", "1", "--marker", r"^ProfilerStep#(\d+)$"]
    words = "without the first 1 marked by"
    inspected = json.loads(printed(bench(["inspect", run, "--format", "json", *chosen]), capsys))
    assert inspected["choice"].startswith(words)
    assert {tuple(trace["steps"]) for trace in inspected["traces"]} == {(2, 3)}
    assert words in printed(bench(["report", run, *chosen]), capsys)
    everything = ["--workload-dir", run, "--tools", "throughput", *chosen]
    reported = json.loads(printed(tools_main(everything), capsys))["throughput"]
    assert reported["iterations_count"] == 2
    assert words in reported["windows"][0]
    assert words in printed(ccl_metrics(["-t", run, "-m", STEP, "-f", "csv", *chosen]), capsys)
    timeline = tmp_path / "t.json"
    printed(bench(["timeline", run, "-o", str(timeline), *chosen]), capsys)
    steps = {event.get("args", {}).get("step") for event in json.loads(timeline.read_text())["traceEvents"]}
    assert steps - {None} == {2, 3}


def test_runs_are_compared_over_the_chosen_steps(sharded: Path, capsys: Captured) -> None:
    command = ["compare", str(sharded), str(sharded), "-m", STEP, "-f", "json", "--steps", "3-4"]
    (pair,) = json.loads(printed(bench(command), capsys))["pairs"]
    lengths = step_times(sharded)
    assert pair["changes"][0]["baseline"] == pytest.approx((lengths["3"] + lengths["4"]) / 2)


def test_numbers_of_different_choices_are_not_judged(sharded: Path, tmp_path: Path, capsys: Captured) -> None:
    stored = tmp_path / "results.json"
    measure = ["-t", str(sharded), "-m", STEP, "--format", "json", "--steps", "3-4"]
    stored.write_text(printed(ccl_metrics(measure), capsys))
    assert bench(["compare", str(stored), str(sharded), "-m", STEP, "-f", "json"]) == 0
    ((change,),) = (pair["changes"] for pair in json.loads(capsys.readouterr().out)["pairs"])
    assert change["verdict"] == "cannot tell"
    assert change["is_blocked"]
    assert "choice steps 3-4 and every step: other steps were chosen" in change["remarks"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--steps", "8-11"], "no trace contains step 10, 11\n  fix: there are 0, 1, 2, 3, 4"),
        (["--steps", "4-2"], "'4-2' is not a list of steps"),
        (["--skip-steps", "-1"], "must be 0 or more"),
        (["--skip-steps", "10"], "no step remains of"),
        (["--marker", "("], "the marker '(' is not a regular expression: unclosed group"),
        (
            ["--marker", "ProfilerSteps"],
            "no range matches 'ProfilerSteps'\n  fix: did you mean ProfilerStep#",
        ),
        (
            ["--program", "jit_f"],
            "no trace has runs of a program 'jit_f'\n  fix: only profiles of XLA show programs",
        ),
        (["--program", ""], "the name of a program has 1 to 1,000 characters, not 0"),
        (["--program", "jit_f", "--marker", "pass"], "steps are either ranges or runs of a program"),
    ],
)
def test_steps_that_cannot_be_chosen_are_wrong_usage(
    sharded: Path, options: list[str], said: str, capsys: Captured
) -> None:
    for command in (["-t", str(sharded), "-m", STEP], ["-t", str(sharded), "-m", STEP, "-m", "gpu_busy"]):
        assert ccl_metrics([*command, *options]) == 2
        assert said in capsys.readouterr().err.replace("ccl-metrics: ", "")
