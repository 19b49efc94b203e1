"""Making the folder of a workload from a definition."""

from __future__ import annotations

import os
import tomllib

import pytest
from commands import ROOT, invoke, ran

from ccl_bench.card import read_card, template

BASE = "llama3.1-8b-torchtitan-tp-perlmutter-16"


def test_without_a_definition_the_folder_holds_an_empty_card(tmp_path):
    ended = invoke(["ccl-bench", "new", "mine", "--output", str(tmp_path)])
    assert ended.stdout == f"{tmp_path}/mine/workload_card.yaml\n"
    assert (tmp_path / "mine/workload_card.yaml").read_text() == template()


def test_a_definition_gives_everything_that_is_needed_to_run(tmp_path):
    ended = ran(["ccl-bench", "new", "my + llama", "--from", BASE, "--output", str(tmp_path)])
    assert ended.returncode == 0, ended.stderr
    folder = tmp_path / "my + llama"
    assert {path.name for path in folder.iterdir()} == {
        "run.sh",
        "run.sbatch",
        "train_config.toml",
        "workload_card.yaml",
        "pyproject.toml",
    }
    assert os.access(folder / "run.sh", os.X_OK)
    assert read_card(folder / "workload_card.yaml").value.parallelism.tp == 4


def test_settings_are_changed_in_configuration_and_card_alike(tmp_path):
    wishes = [
        "--set",
        "training.steps=7",
        "--set",
        "training.seq_len=512",
        "--set",
        "training.dataset=c4_test",
    ]
    invoke(["ccl-bench", "new", "short", "--from", BASE, "--output", str(tmp_path), *wishes])
    config = tomllib.loads((tmp_path / "short/train_config.toml").read_text())
    card = read_card(tmp_path / "short/workload_card.yaml").value
    assert config["training"]["steps"] == card.model.steps == 7
    assert config["training"]["seq_len"] == card.data.seq_len == 512
    assert config["training"]["dataset"] == card.data.dataset == "c4_test"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["x", "--from", "llama3.1-8b-torchtitan-tp-perlmutter"], 2, f"did you mean {BASE}"),
        (["x", "--from", "missing.toml"], 4, "missing.toml: cannot be read"),
        (["a/b"], 2, "leave out the path"),
        (["x", "--set", "training.steps=1"], 2, "name one with --from"),
        (["x", "--from", BASE, "--set", "steps=1"], 2, "write section.key=value"),
    ],
)
def test_what_cannot_be_made_is_reported_with_a_way_out(words, status, said, tmp_path):
    ended = invoke(["ccl-bench", "new", *words, "--output", str(tmp_path)])
    assert ended.returncode == status
    assert said in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_overwritten_by_force_only(tmp_path):
    words = ["ccl-bench", "new", "mine", "--from", BASE, "--output", str(tmp_path)]
    invoke(words)
    changed = [*words, "--set", "training.steps=3"]
    assert invoke(changed).returncode == 2
    assert invoke([*changed, "--force"]).returncode == 0
    config = tomllib.loads((tmp_path / "mine/train_config.toml").read_text())
    assert config["training"]["steps"] == 3


def test_the_template_stands_at_the_root():
    assert (ROOT / "workload_card_template.yaml").is_file()
