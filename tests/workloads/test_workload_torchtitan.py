"""torchtitan 0.2.2 itself reads the configurations, and has the models that the cards describe."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ccl_bench.catalog import models

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "workloads" / "torchtitan"
FOLDERS = sorted(path.parent for path in (ROOT / "trace_collection").glob("*/train_config.toml"))
RELEASE = "0.2.2"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed: make test"
)

# What each configuration comes to in torchtitan, with the parameters of its model counted without memory.
READING = """
import json, logging, sys
logging.disable()
import torch
from torchtitan.config import ConfigManager
from torchtitan.protocols.train_spec import get_train_spec

for path in sys.argv[1:]:
    config = ConfigManager().parse_args(["--job.config_file", path])
    if config.experimental.custom_import:
        __import__(config.experimental.custom_import)
    spec = get_train_spec(config.model.name)
    arguments = spec.model_args[config.model.flavor]
    arguments.update_from_config(config)
    with torch.device("meta"):
        model = spec.model_cls(arguments)
    plan = config.parallelism
    print(json.dumps({
        "path": path,
        "parameters": sum(p.numel() for p in model.parameters()),
        "layers": arguments.n_layers,
        "degrees": [plan.data_parallel_replicate_degree, plan.data_parallel_shard_degree,
                    plan.tensor_parallel_degree, plan.pipeline_parallel_degree],
        "active": config.profiling.profiler_active,
        "has_pipeline": spec.pipelining_fn is not None,
    }))
"""


def _ran(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": f"{LAUNCH}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def read() -> dict[str, dict[str, object]]:
    """Return name of a folder -> what torchtitan makes of its configuration."""
    lines = _ran(READING, *(str(folder / "train_config.toml") for folder in FOLDERS)).splitlines()
    return {Path(found["path"]).parent.name: found for found in map(json.loads, lines)}


def test_this_is_the_release_that_the_configurations_are_written_for() -> None:
    assert importlib.metadata.version("torchtitan") == RELEASE


def test_torchtitan_reads_all_seven(read: dict[str, dict[str, object]]) -> None:
    assert list(read) == [folder.name for folder in FOLDERS]
    assert all(found["active"] == 5 for found in read.values())


def test_torchtitans_flavour_is_the_model_of_the_card(read: dict[str, dict[str, object]]) -> None:
    for name, found in read.items():
        catalogued = {
            "llama3.1-8b": "meta-llama/Llama-3.1-8B",
            "deepseek-v2-lite": "deepseek-ai/DeepSeek-V2-Lite",
            "qwen3-32b": "Qwen/Qwen3-32B",
        }[name.partition("-torchtitan")[0]]
        expected = models.model(catalogued)
        assert (found["parameters"], found["layers"]) == (expected.parameters, expected.layers), name


def test_a_model_with_a_pipeline_can_be_divided(read: dict[str, dict[str, object]]) -> None:
    assert [
        name for name, found in read.items() if found["degrees"][3] > 1 and not found["has_pipeline"]
    ] == []


def test_torchtitan_itself_has_no_pipeline_for_qwen3() -> None:
    program = "from torchtitan.models.qwen3 import get_train_spec; print(get_train_spec().pipelining_fn)"
    assert _ran(program).strip() == "None", "workloads/torchtitan/pipelined_qwen3.py is no longer needed"


def test_synthetic_text_is_read_by_torchtitan(tmp_path: Path) -> None:
    folder = tmp_path / "synthetic data+1"
    subprocess.run([sys.executable, str(LAUNCH / "synthetic_data.py"), str(folder)], check=True)
    program = """
import sys
from torchtitan.components.tokenizer import HuggingFaceTokenizer
folder = sys.argv[1]
tokenizer = HuggingFaceTokenizer(folder + "/tokenizer")
tokens = tokenizer.encode("abc d", add_bos=True, add_eos=True)
first, *inner, last = tokens
print(len(tokens), first == tokenizer.bos_id, last == tokenizer.eos_id, tokenizer.decode(inner))
"""
    # Five letters, a beginning and an end.
    assert _ran(program, str(folder)).strip() == "7 True True abc d"
    lines = (folder / "text" / "data.jsonl").read_text().splitlines()
    assert len(lines) == 2000
    assert set(json.loads(lines[0])["text"]) <= set("abcdefghij ")
