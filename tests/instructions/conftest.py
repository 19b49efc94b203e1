"""A checkout to type commands in, and the runs that they are about."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "tools")]

RUNS = ROOT / "examples" / "runs"
SHARDED, PIPELINE = RUNS / "llama-tiny-fsdp2-tp2-gloo", RUNS / "llama-tiny-pp4-gloo"
CONFIG = """
[model]
name = "llama3"
flavor = "8B"

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder like the root of the checkout, to which users add files."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("tools", "scripts", "trace_collection"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True)
    for name in ("main.py", ".gitignore"):
        shutil.copy2(ROOT / name, folder)
    for path in ROOT.iterdir():
        if not (folder / path.name).exists() and path.name not in {".git", "trace_analysis"}:
            (folder / path.name).symlink_to(path)
    (folder / "trace_collection" / "llama3-8B_torchtitan_perlmutter").symlink_to(SHARDED)
    return folder


def _written(folder: Path, **files: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def _window(folder: Path, corpus: Path | None) -> Path:
    """Return a run with one recording window of two of four ranks, as torchtitan leaves it."""
    window = folder / "profile_traces" / "iteration_10"
    window.mkdir(parents=True)
    for rank in range(2):
        shutil.copy(SHARDED / f"kineto_trace_{rank}.json.gz", window / f"rank{rank}_trace.json.gz")
    for path in [*SHARDED.glob("*.json"), *SHARDED.glob("*.yaml")]:
        shutil.copy(path, folder)
    if corpus:
        snapshots = folder / "memory_snapshot" / "iteration_10"
        snapshots.mkdir(parents=True)
        shutil.copy(corpus / "memory" / "rank0_memory_snapshot.pickle", snapshots)
    return folder


def _exported(folder: Path, corpus: Path | None) -> Path | None:
    """Return a folder with the JSON that nsys exports of a rank; None without a report or without nsys."""
    if corpus is None or not shutil.which("nsys"):
        return None
    folder.mkdir()
    report = corpus / "nsys" / "jacobi-mpi" / "rank3_report1.qdrep"
    command = ["nsys", "export", "--quiet=true", "--type", "json", "-o", str(folder / "rank3.json")]
    subprocess.run([*command, str(report)], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path | None]:
    """Return the runs by the names that commands have for them; None where the corpus is not there."""
    import small_gpu_run

    made = tmp_path_factory.mktemp("runs")
    given = os.environ.get("CCL_BENCH_CORPUS")
    corpus = Path(given) if given else None
    gpu = small_gpu_run.write(_written(made / "gpu"))
    stated = json.loads((gpu / "run_metadata.json").read_text())
    stated |= {"model_flops_per_token": 1_000_000, "gpu_peak_tflops": 312, "gpu_hbm_bytes": 84_987_740_160}
    _written(gpu, run_metadata=stated)
    alone = _written(made / "alone", run_metadata={"world_size": 1})
    shutil.copy(gpu / "kineto_trace_0.json", alone)
    (made / "train.toml").write_text(CONFIG)
    window = _window(made / "run", corpus)
    return {
        "sharded": SHARDED,
        "pipeline": PIPELINE,
        "gpu": gpu,
        "alone": alone,
        "run": window if corpus else None,
        "iteration": window / "profile_traces" / "iteration_10",
        "config": made / "train.toml",
        "side_files": _written(
            made / "side_files",
            memory_stats={"0": {"peak_alloc_bytes": 60_000_000_000, "peak_reserved_bytes": 80_000_000_000}},
            moe_assignments={"expert_parallel_size": 2, "layers": {"0": [120, 80]}},
        ),
        "memory_snapshot": _written(
            made / "snapshot", memory_snapshot={"0": {"peak_alloc_bytes": 50_000_000_000}}
        ),
        "step_list": _written(made / "list", step_times=[0.4, 0.6]),
        "step_map": _written(made / "map", step_durations={"1": 0.5, "2": 1.0}),
        "rank_times": _written(made / "ranks", step_times_per_rank={"0": [0.5, 0.5], "1": [0.75, 0.75]}),
        "misspelt": _written(made / "misspelt", run_metadata={"world_siz": 4}),
        "copied": _written(made / "copied"),
        "leaderboard": made / "leaderboard",
        "serving": corpus and corpus / "serving" / "vllm-tp8",
        "nsys": corpus and corpus / "nsys" / "two-gpu-sendrecv",
        "nsys_json": _exported(made / "nsys_json", corpus),
        "execution_traces": corpus and corpus / "execution_trace" / "gloo-fsdp2-tp2-args",
    }
