"""A search that measures: real processes record runs, and one that is killed goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import invoke

from ccl_bench.base.errors import InputError
from ccl_bench.collect.search_runs import Base, Search, _has_left_queue
from ccl_bench.predict.trials import read_trials

PROGRAM = Path(__file__).with_name("trial_program.py")
COMMAND = f"{sys.executable} {PROGRAM}"
VARY = ("tp", "dp", "pp", "micro_batch")

CARD = """\
version: 1
workload:
  model:
    phase: training
    model_family: tiny
    model_arch: {num_layers: 4, hidden_size: 1024, num_heads: 8, vocab_size: 32000}
  data: {batch_size: 8, batch_size_scope: global, seq_len: 1024}
  hardware:
    xpu_spec: {type: GPU, model: nvidia_a100_80g, total_count: 4, count_per_node: 4}
Model-executor:
  framework: {name: megatron-lm}
  model_plan_parallelization: {dp_replicate: 1, dp_shard: 1, tp: 4, pp: 1, pp_mb: 1}
"""


@pytest.fixture
def card(tmp_path: Path) -> Path:
    """Return the card of a tiny training on four devices."""
    path = tmp_path / "card.yaml"
    path.write_text(CARD)
    return path


def test_trials_are_measured_and_failures_of_memory_are_learnt(card: Path, tmp_path: Path) -> None:
    folder = tmp_path / "search"
    done = invoke(
        [
            "ccl-bench",
            "search",
            str(card),
            "--run",
            COMMAND,
            "--budget",
            "5",
            "-o",
            str(folder),
            "--vary",
            ",".join(VARY),
        ]
    )
    assert done.returncode == 0, done.stderr
    history = read_trials(folder / "history.csv")
    assert history.rows.height == 5
    first = history.rows.row(0, named=True)
    assert (first["tp"], first["dp"], first["micro_batch"], first["status"]) == (4, 1, 1, "measured")
    # Eight microbatches of four layers with 3 ms / 4 of compute and four collectives of 1.5 ms each.
    assert first["step_s"] == pytest.approx(8 * 4 * (0.003 / 4 + 4 * 0.0015), rel=0.02)
    failed = history.failed
    assert set(failed["status"]) <= {"oom"}
    assert failed["micro_batch"].min() is None or failed["micro_batch"].min() >= 4  # type: ignore[operator]
    best = history.measured.sort("step_s").row(0, named=True)
    assert f"best: tp {best['tp']:g} · dp {best['dp']:g} · pp {best['pp']:g}" in done.stdout
    assert "inside the interval" in done.stdout or "outside the interval" in done.stdout
    again = invoke(
        [
            "ccl-bench",
            "search",
            str(card),
            "--run",
            COMMAND,
            "--budget",
            "5",
            "-o",
            str(folder),
            "--vary",
            ",".join(VARY),
        ]
    )
    assert again.returncode == 0
    assert "1. tp" not in again.stdout
    assert all((path / "starts").read_text() == "started\n" for path in folder.glob("0*"))


def test_a_search_that_is_killed_goes_on_with_the_trial_that_runs(card: Path, tmp_path: Path) -> None:
    folder = tmp_path / "search"
    folder.mkdir()
    (folder / "delay").write_text("2")
    arguments = ["search", str(card), "--run", COMMAND, "--budget", "2", "-o", str(folder), "--vary", "tp,dp"]
    program = [sys.executable, "-m", "ccl_bench", *arguments]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    trial = folder / "01-tp4-dp1-pp1-mb1"
    while not (trial / "starts").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert read_trials(folder / "history.csv").rows["status"].to_list() == ["running"]
    (folder / "delay").write_text("0")
    search = Search(Base.of_card(card), folder, COMMAND, vary=("tp", "dp"), budget=2)
    ended = list(search)
    assert [(each.number, each.status) for each in ended] == [(1, "measured"), (2, "measured")]
    assert (trial / "starts").read_text() == "started\n"


def test_a_trial_whose_process_vanished_is_started_again(card: Path, tmp_path: Path) -> None:
    folder = tmp_path / "search"
    search = Search(Base.of_card(card), folder, COMMAND, vary=("tp", "dp"), budget=1)
    running = iter(search)
    (folder / "delay").write_text("60")
    row = search._next(None)
    assert row is not None
    search._keep(row)
    search._start(row)
    trial = folder / row["folder"]
    while not (trial / "starts").exists():
        time.sleep(0.02)
    (trial / "run").mkdir()
    (trial / "run" / "half").touch()
    os.killpg(int((trial / "process").read_text().split()[0]), signal.SIGKILL)
    (folder / "delay").write_text("0")
    assert [each.status for each in running] == ["measured"]
    assert (trial / "starts").read_text() == "started\n" * 2
    assert [path.name for path in trial.glob("run-cut-off-*/*")] == ["half"]
    assert not (trial / "run" / "half").exists()


def test_each_trial_has_the_card_of_its_configuration(card: Path, tmp_path: Path) -> None:
    base = Base.of_card(card)
    base.write({**base.row.row(0, named=True), "tp": 2, "dp": 2, "micro_batch": 4}, tmp_path / "trial")
    written = Base.of_card(tmp_path / "trial" / "workload_card.yaml").row.row(0, named=True)
    assert [written[name] for name in ("tp", "dp", "pp", "micro_batch", "global_batch")] == [2, 2, 1, 4, 8]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "a search needs a base and a command"),
        (["card.yaml"], "a search needs a base and a command"),
        (["missing.yaml", "--run", "true"], "missing.yaml"),
        (["card.yaml", "--run", "true", "--vary", "tpp"], "'tpp' cannot be varied"),
        (["no-such-workload", "--run", "true"], "no-such-workload"),
    ],
)
def test_a_wrong_call_is_explained(
    card: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(card.parent)
    done = invoke(["ccl-bench", "search", *arguments])
    assert done.returncode in {2, 4}
    assert message in done.stderr


def test_a_command_that_leaves_nothing_is_a_failed_trial(card: Path, tmp_path: Path) -> None:
    done = invoke(
        [
            "ccl-bench",
            "search",
            str(card),
            "--run",
            "true",
            "--budget",
            "1",
            "-o",
            str(tmp_path / "s"),
            "--format",
            "json",
        ]
    )
    assert done.returncode == 1
    assert '"reason": "the command left no run"' in done.stdout


def test_a_history_cannot_lead_out_of_its_folder(card: Path, tmp_path: Path) -> None:
    folder = tmp_path / "search"
    search = Search(Base.of_card(card), folder, "true", vary=("tp", "dp"), budget=1)
    row = search._next(None)
    assert row is not None
    search._keep({**row, "folder": "../elsewhere"})
    assert [each.status for each in search] == ["failed"]
    assert (folder / "01-tp4-dp1-pp1-mb1").is_dir()
    assert not (tmp_path / "elsewhere").exists()


def test_a_controller_that_does_not_answer_is_not_the_end_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeue = tmp_path / "squeue"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    answers = {
        "echo RUNNING": False,
        "true": True,
        "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1": True,
        "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1": False,
    }
    for script, has_left in answers.items():
        squeue.write_text(f"#!/bin/sh\n{script}\n")
        squeue.chmod(0o755)
        assert _has_left_queue("7") is has_left
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(InputError, match="squeue is missing"):
        _has_left_queue("7")
