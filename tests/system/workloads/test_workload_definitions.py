"""Definitions of workloads: what is wrong with one is said, and one makes another."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.collect.workloads import WorkloadDefinition, folder_files, read_definition, write_folder

ROOT = Path(__file__).parents[3]
TP = ROOT / "workloads" / "llama3.1-8b-torchtitan-tp-perlmutter-16.toml"

SMALL = """
description = "A small one."
model = "meta-llama/Llama-3.1-8B"

[machine]
device = "NVIDIA H100 80GB HBM3"
devices_per_node = 8
cluster = "mine"
sbatch = { partition = "h100" }

[train_config.parallelism]
data_parallel_shard_degree = 8
"""


def _written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def test_a_definition_may_bring_its_own_machine(tmp_path: Path) -> None:
    definition = read_definition(_written(tmp_path, SMALL))
    assert (definition.name, definition.devices, definition.nodes) == ("mine", 8, 1)
    files = folder_files(definition)
    assert "#SBATCH --partition=h100\n" in files["run.sbatch"]
    assert "#SBATCH --gpus-per-node=8\n" in files["run.sbatch"]
    assert "export CLUSTER=${CLUSTER:-mine}\n" in files["run.sh"]
    assert "model: NVIDIA H100 80GB HBM3" in files["workload_card.yaml"]


def test_a_variant_differs_in_what_was_changed_only() -> None:
    tp = read_definition(TP)
    variant = tp.replace(
        name="llama-fsdp",
        minutes=90,
        train_config={"parallelism": {"tensor_parallel_degree": 1, "data_parallel_shard_degree": 4}},
    )
    assert (variant.devices, variant.nodes) == (4, 1)
    before, after = (tomllib.loads(folder_files(d)["train_config.toml"]) for d in (tp, variant))
    assert {section for section in before if before[section] != after[section]} == {"parallelism"}
    assert "#SBATCH --time=01:30:00\n" in folder_files(variant)["run.sbatch"]


def test_names_and_descriptions_may_hold_what_shell_and_toml_read_otherwise(tmp_path: Path) -> None:
    name, description = "it's my $HOME+1", 'A "quoted" \\ one, \N{GREEK SMALL LETTER MU} and \N{ROCKET}.'
    files = folder_files(read_definition(TP).replace(name=name, description=description))
    assert tomllib.loads(files["pyproject.toml"])["project"]["description"] == description
    assert tomllib.loads(files["train_config.toml"])["job"]["description"] == description
    place = tmp_path / "trace_collection" / name
    place.mkdir(parents=True)
    (place / "run.sh").write_text('printf "%s\\n" "$0" "$@"\n')
    command = ["bash", "-c", files["run.sbatch"], "run.sbatch", "--training.steps", "3"]
    given = {**os.environ, "SLURM_SUBMIT_DIR": str(tmp_path)}
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(place / "run.sh"), "--training.steps", "3"]


WRONG = {
    'description = "x"': "required field `model`",
    SMALL.replace("description", "descripton"): "descripton",
    SMALL.replace("devices_per_node = 8", 'devices_per_node = "8"'): "devices_per_node",
    "description = ": "Invalid value",
}


@pytest.mark.parametrize("text", WRONG, ids=["missing", "misspelt", "type", "syntax"])
def test_a_mistake_is_named_with_its_file(tmp_path: Path, text: str) -> None:
    path = _written(tmp_path, text)
    with pytest.raises(InputError) as raised:
        read_definition(path)
    assert raised.value.where == str(path)
    assert WRONG[text] in raised.value.message


def test_a_definition_that_is_not_there_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_definition(tmp_path / "absent.toml")


def test_ranks_that_do_not_fill_nodes_are_refused() -> None:
    three = read_definition(TP).replace(train_config={"parallelism": {"tensor_parallel_degree": 3}})
    with pytest.raises(InputError, match="3 ranks do not fill nodes of 4 devices"):
        folder_files(three)


def test_a_machine_that_is_not_known_is_answered_with_a_similar_one() -> None:
    with pytest.raises(InputError) as raised:
        _ = read_definition(TP).replace(machine="perlmutter-a100-40g").resolved_machine
    assert "perlmutter-a100-40gb" in raised.value.fix


def test_a_setting_that_makes_no_sense_is_refused() -> None:
    wrong = read_definition(TP).replace(train_config={"training": {"seq_len": 0}})
    with pytest.raises(InputError) as raised:
        folder_files(wrong)
    assert "training.seq_len" in raised.value.where


def test_a_folder_of_other_content_is_overwritten_only_when_asked(tmp_path: Path) -> None:
    definition: WorkloadDefinition = read_definition(TP)
    folder = tmp_path / "a folder+1"
    assert [path.name for path in write_folder(definition, folder)] == list(folder_files(definition))
    write_folder(definition, folder)
    (folder / "workload_card.yaml").write_text("description: mine\n")
    with pytest.raises(UsageError, match=r"holds other files of these names: workload_card\.yaml"):
        write_folder(definition, folder)
    assert (folder / "workload_card.yaml").read_text() == "description: mine\n"
    write_folder(definition, folder, force=True)
    assert (folder / "workload_card.yaml").read_text() == folder_files(definition)["workload_card.yaml"]
