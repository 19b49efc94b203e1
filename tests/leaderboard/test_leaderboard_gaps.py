"""Which standard workloads have rows: counted by hand, with commands that can be run."""

from __future__ import annotations

import re
import shlex
import tomllib
from typing import TYPE_CHECKING

from commands import ROOT, invoke
from leaderboard_bundles import Made, added, changed

from ccl_bench.cli import commands
from ccl_bench.leaderboard.bundle.format import State
from ccl_bench.leaderboard.store.gaps import coverage, standard_workloads

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.leaderboard.store import Store


def test_coverage_is_that_of_a_count_by_hand(small: Store) -> None:
    served = Made(phase="inference", model="Qwen/Qwen3-4B", batch=64, seq_len=4096, values={"TPOT": 0.01})
    trained = Made(model="meta-llama/Llama-3.1-8B", batch=4, seq_len=512, values={"mfu": 40.0})
    for made in (
        served,
        changed(served, name="again"),
        changed(served, hardware="B200", library="MSCCL++"),
        changed(served, batch=65),  # another batch
        changed(served, batch=128, seq_len=1024, hardware="MI300X", library="RCCL"),
        changed(served, model="someone/else", hardware="TPU v6e"),
        trained,
        changed(trained, seq_len=1024),  # another length
        changed(trained, name="withdrawn", hardware="B200", state=State.WITHDRAWN),
        changed(trained, model="google/gemma-2-27b", seq_len=4096, batch=7, hardware="MI300X"),
        changed(trained, model="google/gemma-2-27b", seq_len=4096, batch=7, precision="fp8", hardware="B200"),
    ):
        added(small, made)
    with small.engine.connect() as connection:
        found = {each.workload.name: each for each in coverage(connection)}
    assert len(found) == len(standard_workloads()) == 26
    assert {name: each.rows for name, each in found.items() if each.rows} == {
        "Qwen3-4B, inference, batch 64, 4,096 tokens": {("B200", "MSCCL++"): 1, ("H100", "NCCL"): 2},
        "Qwen3-4B, inference, batch 128, 1,024 tokens": {("MI300X", "RCCL"): 1},
        "Llama-3.1-8B, training, batch 4, 512 tokens": {("H100", "NCCL"): 1},
        "gemma-2-27b, training, 4,096 tokens": {("MI300X", "NCCL"): 1},
    }
    assert {
        name: found[name].missing
        for name in (
            "Qwen3-4B, inference, batch 64, 4,096 tokens",
            "Qwen3-4B, inference, batch 128, 1,024 tokens",
            "Llama-3.1-8B, training, batch 4, 512 tokens",
            "gemma-2-27b, training, 4,096 tokens",
            "phi-4, training, 4,096 tokens",
        )
    } == {
        "Qwen3-4B, inference, batch 64, 4,096 tokens": ["MI300X", "TPU v6e"],
        "Qwen3-4B, inference, batch 128, 1,024 tokens": ["B200", "H100", "TPU v6e"],
        "Llama-3.1-8B, training, batch 4, 512 tokens": ["B200", "MI300X"],
        "gemma-2-27b, training, 4,096 tokens": ["B200", "H100"],
        "phi-4, training, 4,096 tokens": ["B200", "H100", "MI300X"],
    }


def test_every_command_of_a_gap_can_be_run(tmp_path: Path) -> None:
    lines = {each.command for each in standard_workloads()}
    assert len(lines) > 20
    definitions = {path.stem for path in (ROOT / "workloads").glob("*.toml")}
    for line in lines:
        words = shlex.split(line)
        app = commands.app([words[1]])
        _, bound, _ = app.parse_args(words[1:], exit_on_error=False, print_error=False)
        assert bound.arguments, line
        if words[1] == "new":
            assert "--from" not in words or words[words.index("--from") + 1] in definitions
            done = invoke([*words, "-o", str(tmp_path), "--force"])
            assert done.returncode == 0, done.stderr
            assert (tmp_path / words[2] / "workload_card.yaml").exists()
        for setting, value in re.findall(r"--set training\.(\w+)=(\d+)", line):
            config = tomllib.loads((tmp_path / words[2] / "train_config.toml").read_text())
            assert config["training"][setting] == int(value)
