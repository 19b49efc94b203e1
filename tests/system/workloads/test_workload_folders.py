"""The seven folders are what their definitions make, and their files and names agree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from ccl_bench.card import read_card
from ccl_bench.catalog import models
from ccl_bench.collect.workloads import folder_files, read_definition
from ccl_bench.side_files import read_train_config

ROOT = Path(__file__).parents[3]
COLLECTION = ROOT / "trace_collection"
FILES = {"pyproject.toml", "run.sbatch", "run.sh", "train_config.toml", "workload_card.yaml"}
GPUS_PER_NODE = 4
UV = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")

# dp, tp, pp, nodes
DEGREES = {
    "llama3.1-8b-torchtitan-tp-perlmutter-16": (1, 4, 1, 1),
    "llama3.1-8b-torchtitan-pp-perlmutter-16": (1, 1, 4, 1),
    "deepseek-v2-lite-torchtitan-dp+tp-perlmutter-16": (2, 2, 1, 1),
    "deepseek-v2-lite-torchtitan-dp+pp-perlmutter-16": (2, 1, 2, 1),
    "qwen3-32b-torchtitan-3d-perlmutter-16": (2, 2, 2, 2),
    "qwen3-32b-torchtitan-dp+tp-perlmutter-16": (2, 4, 1, 2),
    "qwen3-32b-torchtitan-dp+pp-perlmutter-16": (2, 1, 4, 2),
}

each = pytest.mark.parametrize("name", DEGREES)


def _config(name: str) -> dict[str, dict[str, object]]:
    return tomllib.loads((COLLECTION / name / "train_config.toml").read_text())


def _card(name: str) -> dict[str, object]:
    return YAML(typ="safe", pure=True).load((COLLECTION / name / "workload_card.yaml").read_text())


def _sbatch(name: str) -> dict[str, str]:
    text = (COLLECTION / name / "run.sbatch").read_text()
    return dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", text, flags=re.MULTILINE))


def test_there_are_exactly_these_seven() -> None:
    assert {path.stem for path in (ROOT / "workloads").glob("*.toml")} == set(DEGREES)


@each
def test_the_files_of_a_folder_are_what_its_definition_makes(name: str) -> None:
    made = folder_files(read_definition(ROOT / "workloads" / f"{name}.toml"))
    assert set(made) == FILES
    differing = [f for f, text in made.items() if (COLLECTION / name / f).read_text() != text]
    assert differing == [], "run: python workloads/generate.py"


@each
def test_the_degrees_fill_the_nodes_in_every_file(name: str) -> None:
    dp, tp, pp, nodes = DEGREES[name]
    assert dp * tp * pp == nodes * GPUS_PER_NODE

    plan = _config(name)["parallelism"]
    assert plan["data_parallel_replicate_degree"] == 1
    assert (plan["data_parallel_shard_degree"], plan["tensor_parallel_degree"]) == (dp, tp)
    assert plan["pipeline_parallel_degree"] == pp
    assert plan["context_parallel_degree"] == plan["expert_parallel_degree"] == 1

    asked = _sbatch(name)
    assert (int(asked["nodes"]), int(asked["gpus-per-node"])) == (nodes, GPUS_PER_NODE)
    assert asked["ntasks-per-node"] == "1"

    card = _card(name)
    written = card["Model-executor"]["model_plan_parallelization"]
    assert [written[key] for key in ("dp_replicate", "dp_shard", "tp", "pp")] == [1, dp, tp, pp]
    unit = card["workload"]["hardware"]["xpu_spec"]
    assert unit["total_count"] == nodes * GPUS_PER_NODE
    assert (unit["count_per_node"], unit["num_nodes"]) == (GPUS_PER_NODE, nodes)


@each
def test_the_name_says_what_is_parallel(name: str) -> None:
    degrees = dict(zip(("dp", "tp", "pp"), DEGREES[name][:3], strict=True))
    kinds = {kind for kind, degree in degrees.items() if degree > 1}
    named = re.search(r"-torchtitan-([\w+]+)-perlmutter-16$", name)[1]
    assert kinds == ({"dp", "tp", "pp"} if named == "3d" else set(named.split("+")))
    asked = _sbatch(name)
    assert asked["job-name"] == name
    assert "sharded data parallel (FSDP)" in _card(name)["description"] or degrees["dp"] == 1


@each
def test_a_step_is_as_large_in_the_card_as_in_the_configuration(name: str) -> None:
    config, card = _config(name), _card(name)
    batch = config["training"]["local_batch_size"] * DEGREES[name][0]
    data = card["workload"]["data"]
    assert (data["batch_size"], data["batch_size_scope"]) == (batch, "global")
    assert data["seq_len"] == config["training"]["seq_len"]
    assert card["description"].endswith(f"A step is {batch} sequences of {data['seq_len']} tokens.")
    if DEGREES[name][2] > 1:
        plan = card["Model-executor"]["model_plan_parallelization"]
        assert plan["pp_mb"] == 1
        assert plan["microbatches"] == config["training"]["local_batch_size"] >= DEGREES[name][2]
        assert plan["pp_schedule"] == "1F1B"


@each
def test_card_and_configuration_hold_no_mistake(name: str) -> None:
    assert read_card(COLLECTION / name / "workload_card.yaml").issues == []
    assert read_train_config(COLLECTION / name / "train_config.toml").issues == []


@each
def test_five_steps_are_recorded_after_five_of_warm_up(name: str) -> None:
    config = _config(name)
    window = config["profiling"]
    assert (window["profiler_warmup"], window["profiler_active"]) == (5, 5)
    assert window["profile_freq"] == config["training"]["steps"] == 20
    assert window["save_traces_folder"] == "profile_trace"
    # The log has a line, and so a loss, for every step.
    assert config["metrics"]["log_freq"] == 1


@each
def test_weights_gradients_and_optimizer_state_fit_the_memory(name: str) -> None:
    dp, tp, pp, _ = DEGREES[name]
    card = _card(name)
    parameters = models.model(card["hf_url"].removeprefix("https://huggingface.co/")).parameters / (tp * pp)
    # bf16: weight 2, gradient 2, two moments 2 each. In a pipeline FSDP keeps what it has gathered, and sums
    # gradients in FP32 over the microbatches: beside weight and moments of the shard, 2 and 4 for all.
    bytes_each = 6 / dp + 2 + 4 if dp > 1 and pp > 1 else 8 / dp
    memory_gb = card["workload"]["hardware"]["xpu_spec"]["memory_gb"]
    assert parameters * bytes_each / 1e9 < 0.94 * memory_gb
    assert f"hbm{memory_gb}g" in _sbatch(name)["constraint"]


@each
def test_the_project_of_a_folder_names_the_release_that_its_configuration_is_written_for(name: str) -> None:
    project = tomllib.loads((COLLECTION / name / "pyproject.toml").read_text())
    release = _card(name)["Model-executor"]["framework"]["version"]
    assert f"torchtitan=={release}" in project["project"]["dependencies"]
    assert project["tool"]["uv"]["sources"]["ccl-bench"] == {"workspace": True}
    assert re.fullmatch(r"[a-z0-9]+(?:[.-][a-z0-9]+)*", project["project"]["name"])


def test_the_folders_are_members_of_the_workspace_by_name() -> None:
    workspace = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["workspace"]
    assert set(workspace["members"]) == {f"trace_collection/{name}" for name in DEGREES}


def test_each_has_a_script_of_a_short_name_beside_the_shared_ones() -> None:
    scripts = (ROOT / "perlmutter").glob("*.sbatch")
    assert {path.readlink().as_posix() for path in scripts} == {
        f"../trace_collection/{name}/run.sbatch" for name in DEGREES
    }


@pytest.mark.skipif(not UV, reason="uv is not installed: pip install uv")
def test_uv_finds_the_workspace_beside_a_persons_folder(tmp_path: Path) -> None:
    for path in (ROOT / "pyproject.toml", *(COLLECTION / name / "pyproject.toml" for name in DEGREES)):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    (tmp_path / "trace_collection" / "my-model").mkdir()
    (tmp_path / "trace_collection" / "my-model" / "workload_card.yaml").touch()
    done = subprocess.run(
        [UV, "workspace", "list", "--offline", "--no-cache"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) == {"ccl-bench", *(re.sub(r"[.+]", "-", name) for name in DEGREES)}


def test_a_run_script_can_be_executed() -> None:
    assert all((COLLECTION / name / "run.sh").stat().st_mode & 0o111 for name in DEGREES)
