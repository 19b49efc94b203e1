"""torchtitan 0.2.2 itself reads the configurations, and has the models that the cards describe."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import invoke
from launchers import LOADED, LOADED_FOR, asked
from shared import made_once

from ccl_bench.card import read_card
from ccl_bench.catalog import models

ROOT = Path(__file__).parents[3]
LAUNCH = ROOT / "workloads" / "torchtitan"
GUIDE = ROOT / "trace_gen" / "torchtitan" / "run.sh"
FOLDERS = sorted(ROOT / "trace_collection" / path.stem for path in (ROOT / "workloads").glob("*.toml"))
RELEASE = "0.2.2"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed: make test"
)

# What each configuration comes to in torchtitan, with the parameters of its model counted without memory, and
# what it makes of synthetic text. In one process, because importing torchtitan takes seconds.
READING = """
import gc, json, logging, sys
gc.disable()
logging.disable()
import torch
import without_triton
from torchtitan.components.tokenizer import HuggingFaceTokenizer
from torchtitan.config import ConfigManager
from torchtitan.models.qwen3 import get_train_spec as of_qwen3
from torchtitan.protocols.train_spec import get_train_spec

def read(path):
    config = ConfigManager().parse_args(["--job.config_file", path])
    if config.experimental.custom_import:
        __import__(config.experimental.custom_import)
    spec = get_train_spec(config.model.name)
    arguments = spec.model_args[config.model.flavor]
    arguments.update_from_config(config)
    with torch.device("meta"):
        model = spec.model_cls(arguments)
    plan = config.parallelism
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "layers": arguments.n_layers,
        "degrees": [plan.data_parallel_replicate_degree, plan.data_parallel_shard_degree,
                    plan.tensor_parallel_degree, plan.pipeline_parallel_degree],
        "steps": config.training.steps,
        "active": config.profiling.profiler_active,
        "has_pipeline": spec.pipelining_fn is not None,
    }

def options(words):
    found = ConfigManager().parse_args(words)
    profiling = found.profiling
    return {
        "window": [profiling.profiler_warmup, profiling.profiler_active, profiling.profile_freq],
        "enabled": profiling.enable_profiling,
        "steps": found.training.steps,
        "folder": found.job.dump_folder,
    }

text, guide, *paths = sys.argv[1:]
tokenizer = HuggingFaceTokenizer(text + "/tokenizer")
tokens = tokenizer.encode("abc d", add_bos=True, add_eos=True)
print(json.dumps({
    "qwen3_has_pipeline": of_qwen3().pipelining_fn is not None,
    "begins_and_ends": [tokens[0] == tokenizer.bos_id, tokens[-1] == tokenizer.eos_id],
    "tokens": len(tokens),
    "decoded": tokenizer.decode(tokens[1:-1]),
    "guide": options(json.loads(guide)),
    "configurations": {path: read(path) for path in paths},
}))
"""


def _asked_of_torchtitan(folder: Path) -> dict[str, Any]:
    """Fill a folder with synthetic data and a workload that a user made, and return what torchtitan says."""
    _run(str(LAUNCH / "synthetic_data.py"), str(folder))
    made = ["ccl-bench", "new", "my llama+1", "--from", FOLDERS[0].name, "--set", "training.steps=40"]
    assert invoke([*made, "--output", str(folder)]).returncode == 0
    paths = [*(each / "train_config.toml" for each in FOLDERS), folder / "my llama+1" / "train_config.toml"]
    (folder / "my config.toml").write_text('[model]\nname = "llama3"\n[training]\nsteps = 1000\n')
    words = asked(GUIDE, folder, "a run", "my config.toml", "4", "--training.seq_len", "64")
    options = words[words.index("torchtitan.train") + 1 :]
    given = (str(folder), json.dumps(options), *map(str, paths))
    return json.loads(_run("-c", READING, *given, folder=folder, program=LOADED))


@pytest.fixture(scope="module")
def asked_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return the folder of synthetic data, and what torchtitan says."""
    return made_once(tmp_path_factory, "synthetic data+1", _asked_of_torchtitan)


@pytest.fixture(scope="module")
def folder(asked_once: tuple[Path, dict[str, Any]]) -> Path:
    """Return a folder with synthetic data, and with a workload that a user made."""
    return asked_once[0]


@pytest.fixture(scope="module")
def torchtitan(asked_once: tuple[Path, dict[str, Any]]) -> dict[str, Any]:
    """Return what torchtitan says."""
    return asked_once[1]


@pytest.fixture(scope="module")
def read(torchtitan: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return name of a folder -> what torchtitan makes of its configuration."""
    return {Path(path).parent.name: found for path, found in torchtitan["configurations"].items()}


def _run(*arguments: str, folder: Path = ROOT, program: tuple[str, ...] = (sys.executable,)) -> str:
    paths = {"PYTHONPATH": f"{LAUNCH}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*program, *arguments],
        cwd=folder,
        env={**os.environ, **paths, **LOADED_FOR},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_this_is_the_release_that_the_configurations_are_written_for() -> None:
    assert importlib.metadata.version("torchtitan") == RELEASE


def test_torchtitan_reads_all_seven_and_one_that_was_made_from_them(read: dict[str, dict[str, Any]]) -> None:
    assert list(read) == [*(folder.name for folder in FOLDERS), "my llama+1"]
    assert all(found["active"] == 5 for found in read.values())
    changed = read.pop("my llama+1")
    assert changed == {**read[FOLDERS[0].name], "steps": 40}
    assert {found["steps"] for found in read.values()} == {20}


def test_torchtitans_flavour_is_the_model_of_the_card(read: dict[str, dict[str, Any]]) -> None:
    for folder in FOLDERS:
        card = read_card(folder / "workload_card.yaml").value
        expected = models.model(card.hf_url.removeprefix("https://huggingface.co/"))
        found = read[folder.name]
        assert (found["parameters"], found["layers"]) == (expected.parameters, expected.layers), folder.name


def test_torchtitan_reads_the_degrees_of_the_card(read: dict[str, dict[str, Any]]) -> None:
    for folder in FOLDERS:
        plan = read_card(folder / "workload_card.yaml").value.parallelism
        assert read[folder.name]["degrees"] == [plan.dp_replicate, plan.dp_shard, plan.tp, plan.pp], (
            folder.name
        )


def test_torchtitan_understands_the_options_of_the_guide(torchtitan: dict[str, Any]) -> None:
    expected = {"window": [5, 5, 20], "enabled": True, "steps": 20, "folder": "a run"}
    assert torchtitan["guide"] == expected


def test_a_model_with_a_pipeline_can_be_divided(read: dict[str, dict[str, Any]]) -> None:
    assert [
        name for name, found in read.items() if found["degrees"][3] > 1 and not found["has_pipeline"]
    ] == []


def test_torchtitan_itself_has_no_pipeline_for_qwen3(torchtitan: dict[str, Any]) -> None:
    assert not torchtitan["qwen3_has_pipeline"], "workloads/torchtitan/pipelined_qwen3.py is no longer needed"


def test_synthetic_text_is_read_by_torchtitan(torchtitan: dict[str, Any], folder: Path) -> None:
    # Five letters, a beginning and an end.
    assert (torchtitan["tokens"], torchtitan["decoded"]) == (7, "abc d")
    assert torchtitan["begins_and_ends"] == [True, True]
    lines = (folder / "text" / "data.jsonl").read_text().splitlines()
    assert len(lines) == 2000
    assert set(json.loads(lines[0])["text"]) <= set("abcdefghij ")
