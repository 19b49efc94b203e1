"""Baselines under names, and pipelines of tests that compare with them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, invoke
from compared_runs import STEP
from ruamel.yaml import YAML

pytestmark = pytest.mark.usefixtures("shared_cache")

Ended = subprocess.CompletedProcess[str]


def called(folder: Path, *words: object) -> Ended:
    """Call `ccl-bench` in a folder."""
    return invoke(["ccl-bench", *map(str, words)], folder=folder)


@pytest.fixture(scope="module")
def kept(before: Path, slower: Path) -> Path:
    """Return a folder with a run and a slower one, and a baseline of each."""
    folder = before.parent
    for name in (before.name, slower.name):
        ended = called(folder, "baseline", "set", name, name)
        assert ended.returncode == 0, ended.stderr
        assert f"compare baseline:{name} RUN" in ended.stdout
    return folder


@pytest.fixture
def work(kept: Path, tmp_path: Path) -> Path:
    """Return a folder of one's own with these baselines."""
    shutil.copytree(kept / ".ccl-bench", tmp_path / ".ccl-bench")
    return tmp_path


def slower_results(folder: Path) -> Path:
    """Return the results of the slower run, which need not be measured again."""
    return folder / ".ccl-bench" / "baselines" / "after"


def test_a_baseline_holds_results_and_statements_and_no_traces(kept: Path) -> None:
    folder = kept / ".ccl-bench" / "baselines" / "before"
    assert {path.name for path in folder.iterdir()} == {
        "results.json",
        "run_metadata.json",
        "workload_card.yaml",
    }
    card = (folder / "workload_card.yaml").read_bytes()
    assert card == (kept / "before" / "workload_card.yaml").read_bytes()


def test_a_run_is_compared_with_a_baseline_as_with_the_run_behind_it(kept: Path) -> None:
    words = ("-m", STEP, "--format", "json")
    by_name, by_run = (
        json.loads(called(kept, "compare", baseline, "after", *words).stdout)
        for baseline in ("baseline:before", "before")
    )
    assert by_name.pop("baseline") == "baseline:before"
    assert by_run.pop("baseline") == "before"
    assert by_name == by_run
    assert by_name["pairs"][0]["comparability"]["verdict"] == "comparable"


def test_baselines_are_listed_shown_and_removed(work: Path) -> None:
    lines = called(work, "baseline", "list").stdout.splitlines()
    results = json.loads((work / ".ccl-bench/baselines/before/results.json").read_text())
    (value,) = (each["value"] for each in results if each["metric"] == STEP)
    assert [line.split()[0] for line in lines] == ["BASELINE", "after", "before"]
    assert f"{1e3 * value:.3g} ms" in lines[2]
    assert STEP in called(work, "baseline", "show", "before").stdout
    assert called(work, "baseline", "remove", "before").returncode == 0
    ended = called(work, "compare", "baseline:before", slower_results(work))
    assert ended.returncode == 4
    assert "there is no baseline before" in ended.stderr
    assert called(work, "baseline", "remove", "after").returncode == 0
    assert "there is no baseline" in called(work, "baseline", "list").stderr


@pytest.mark.parametrize("name", ["../main", "a/b", "..", ".hidden", "", "-x", "a\nb", "x" * 101])
def test_a_name_that_leaves_the_folder_is_refused(work: Path, name: str) -> None:
    for words in (["set", "--", name, "run"], ["show", "--", name], ["remove", "--", name]):
        ended = called(work, "baseline", *words)
        assert ended.returncode == 2, words
        assert "is not a valid name of a baseline" in ended.stderr
    assert called(work, "compare", f"baseline:{name}", slower_results(work)).returncode == 2


def test_a_baseline_is_replaced_only_when_asked(work: Path) -> None:
    ended = called(work, "baseline", "set", "before", "nowhere")
    assert (ended.returncode, "give --force" in ended.stderr) == (2, True)
    ended = called(work, "baseline", "set", "before", "nowhere", "--force")
    assert ended.returncode == 4
    assert "before" in called(work, "baseline", "list").stdout


def test_a_folder_with_other_files_is_never_deleted(work: Path) -> None:
    (work / ".ccl-bench/baselines/before/notes.txt").write_text("mine")
    for words in (["remove", "before"], ["set", "before", "nowhere", "--force"]):
        ended = called(work, "baseline", *words)
        assert ended.returncode == 2
        assert "notes.txt" in ended.stderr


def test_a_run_without_a_number_is_no_baseline(work: Path) -> None:
    (work / "run").mkdir()
    (work / "run/workload_card.yaml").write_bytes((slower_results(work) / "workload_card.yaml").read_bytes())
    ended = called(work, "baseline", "set", "empty", "run")
    assert ended.returncode in {3, 4}
    assert not (work / ".ccl-bench/baselines/empty").exists()


def test_another_folder_is_taken_from_the_environment(work: Path) -> None:
    place = str(work / ".ccl-bench/baselines")
    ended = invoke(["ccl-bench", "baseline", "list"], folder=work.parent, CCL_BENCH_BASELINES=place)
    assert "before" in ended.stdout


def test_a_definition_that_has_changed_since_is_not_judged(work: Path) -> None:
    path = work / ".ccl-bench/baselines/before/results.json"
    results = json.loads(path.read_text())
    next(each for each in results if each["metric"] == STEP)["provenance"]["metric_revision"] += 1
    path.write_text(json.dumps(results))
    ended = called(
        work, "compare", "baseline:before", slower_results(work), "-m", STEP, "--fail-on", f"{STEP}>1%"
    )
    assert ended.returncode == 3
    assert f"limit {STEP}>1% cannot be judged" in ended.stdout


@pytest.mark.parametrize("content", ["", "{}", "[]x", '[{"metric": 1}]'])
def test_a_damaged_baseline_is_named(work: Path, content: str) -> None:
    path = work / ".ccl-bench/baselines/before/results.json"
    path.write_text(content)
    for words in (["compare", "baseline:before", slower_results(work)], ["baseline", "show", "before"]):
        ended = called(work, *words)
        assert ended.returncode == 4, words
        assert "before/results.json" in ended.stderr


def test_markdown_shows_limits_before_metrics_and_folds_the_unchanged_away(kept: Path) -> None:
    words = ("--fail-on", f"{STEP}>3%", "--fail-on", f"{STEP}>9%", "--format", "markdown")
    text = called(kept, "compare", "baseline:before", slower_results(kept), *words).stdout
    escaped = STEP.replace("_", r"\_")
    assert rf"- ❌ limit {escaped}\>3% is exceeded by {escaped}" in text
    assert rf"- ✅ limit {escaped}\>9% is met" in text
    head, _, folded = text.partition("<details><summary>")
    (line,) = (each for each in head.splitlines() if each.startswith(f"| {escaped} |"))
    assert re.fullmatch(r".*\| [\d.]+ ms \| [\d.]+ ms \| \+[\d.]+ % \| .* \| worse \|", line)
    assert "| worse" not in folded
    assert text.index("❌") < text.index("| metric |")


def _action() -> Any:
    return YAML(typ="safe").load(ROOT / "action.yml")


def _replaced(text: str, inputs: dict[str, str]) -> str:
    return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found[1]], text)


def _ran_action(work: Path, **given: str) -> tuple[Ended, dict[str, str], str]:
    """Run the last step of the Action as GitHub does; return its end, its outputs and the job's summary."""
    action = _action()
    step = action["runs"]["steps"][-1]
    inputs = {name: str(each.get("default", "")) for name, each in action["inputs"].items()} | given
    said = {"GITHUB_OUTPUT": work / "outputs", "GITHUB_STEP_SUMMARY": work / "job.md"}
    environment = {
        **os.environ,
        **{name: _replaced(str(text), inputs) for name, text in step["env"].items()},
        **{name: str(path) for name, path in said.items()},
        "GITHUB_ACTION_PATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    shell = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
    ended = subprocess.run(shell, cwd=work, env=environment, capture_output=True, text=True, timeout=300)
    outputs = dict(line.split("=", 1) for line in (work / "outputs").read_text().splitlines())
    return ended, outputs, (work / "job.md").read_text()


def test_the_action_passes_where_every_limit_is_kept(work: Path) -> None:
    limits = f"{STEP}>9%\n  backward_time>50%  \n"
    given = {"baseline": "baseline:before", "run": str(slower_results(work)), "fail-on": limits}
    ended, outputs, summary = _ran_action(work, **given)
    assert ended.returncode == 0, ended.stderr
    assert outputs == {
        "outcome": "passed",
        "exit-status": "0",
        "summary": "comparison.md",
        "page": "comparison.html",
    }
    assert summary.count("✅") == 2
    assert summary == (work / "comparison.md").read_text()
    assert (work / "comparison.html").read_text().startswith("<!DOCTYPE html>")


def test_the_action_fails_where_a_limit_is_crossed(work: Path) -> None:
    given = {"baseline": "baseline:before", "run": str(slower_results(work)), "page": "", "metrics": STEP}
    ended, outputs, summary = _ran_action(work, **given, **{"fail-on": f"{STEP}>3%"})
    assert ended.returncode == 5
    assert (outputs["outcome"], outputs["exit-status"], outputs["page"]) == ("regression", "5", "")
    assert "❌" in summary
    assert "backward" not in summary.partition("<details>")[2]


def test_the_action_states_why_a_run_cannot_be_read(work: Path) -> None:
    ended, outputs, summary = _ran_action(work, baseline="baseline:before", run="runs/$(touch x) `y`")
    assert ended.returncode == 4
    assert outputs["outcome"] == "unreadable"
    assert "was not compared" in summary
    assert "fix:" in summary
    assert not (work / "x").exists()


def test_the_action_names_only_inputs_and_outputs_that_exist() -> None:
    action = _action()
    text = (ROOT / "action.yml").read_text()
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(action["inputs"])
    script = (ROOT / "scripts/compare_in_pipeline.sh").read_text()
    assert set(action["runs"]["steps"][-1]["env"]) - {"BASELINE", "RUN"} == set(
        re.findall(r"\$\{([A-Z_]+):", script)
    ) - {"GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"}
    for each in action["outputs"].values():
        name = re.fullmatch(r"\$\{\{ steps\.compare\.outputs\.([\w-]+) \}\}", each["value"])
        assert name
        assert f" {name[1]} " in script


def test_the_hook_of_pre_commit_checks_the_cards_that_it_matches(kept: Path, tmp_path: Path) -> None:
    (hook,) = YAML(typ="safe").load(ROOT / ".pre-commit-hooks.yaml")
    wanted = re.compile(hook["files"])
    assert all(map(wanted.search, ("workload_card.yaml", "runs/a/workload_card_tp8.yml")))
    assert not any(map(wanted.search, ("my_workload_card.yaml", "workload_card.json", "train.yaml")))
    good = kept / "before/workload_card.yaml"
    bad = tmp_path / "workload_card.yaml"
    bad.write_text(re.sub(r"(tp|pp): \d+", r"\1: many", good.read_text()))
    entry = hook["entry"].split()
    assert invoke([*entry, str(good)]).returncode == 0
    ended = invoke([*entry, str(good), str(bad)])
    assert ended.returncode == 4
    assert "many" in ended.stdout
