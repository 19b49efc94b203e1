"""A real Slurm job trains with real torchtitan over gloo on two nodes, through the scripts for Perlmutter.

What is measured agrees with counts in the traces, and with torchtitan's own log. Another job, with tensor
parallelism on one node, is in test_slurm_instructions.py; `make workloads` trains all seven.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from typing import TYPE_CHECKING

import pytest
from slurm_numbers import assert_agrees
from slurm_site import STEPS

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_site import Job, Site

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed: make test"
)

SIZES = ("dp_shard", "tp", "pp", "pp_mb", "microbatches")


def _collected(job: Job, ranks: int) -> Path:
    assert job.ended() == "COMPLETED", job.shown
    window = job.run / "profile_trace" / f"iteration_{STEPS}"
    assert sorted(path.name for path in window.iterdir()) == [
        f"rank{rank}_trace.json" for rank in range(ranks)
    ]
    assert (job.run / "kineto_trace_0.json").resolve() == (window / "rank0_trace.json").resolve()
    assert (job.run / "logs" / "torch.log").stat().st_size
    checked = job.site.ran("ccl-bench", "validate", str(job.run))
    assert checked.returncode == 0, checked.stdout
    # What was given to sbatch stands in all that describes the run.
    assert "facts-disagree" not in job.text
    return job.run


def _sizes(run: Path) -> dict[str, int]:
    text = (run / "workload_card.yaml").read_text()
    written = {name: re.search(rf"^ +{name}: (\d+)", text, flags=re.MULTILINE) for name in SIZES}
    return {name: int(found[1]) for name, found in written.items() if found}


def test_a_pipeline_over_two_nodes(site: Site) -> None:
    name = "qwen3-32b-torchtitan-3d-perlmutter-16"
    degrees = (f"--parallelism.{name}_degree=1" for name in ("data_parallel_shard", "tensor_parallel"))
    job = site.submitted(name, *degrees, RANKS_PER_NODE="1")
    job.until(lambda: len(job.ranks()) == 2, "two ranks")
    assert {rank: job.node_of(pid) for rank, pid in job.ranks().items()} == {0: "n1", 1: "n2"}
    run = _collected(job, ranks=2)
    assert_agrees(job, ranks=2)
    assert _sizes(run) == {"dp_shard": 1, "tp": 1, "pp": 2, "pp_mb": 1, "microbatches": 4}


PLAIN_LOOP = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", init_method=f"file://{os.environ['MEET']}", rank=rank, world_size=ranks)
model = DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.randn(8, 256)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_a_plain_program_that_srun_starts_on_two_nodes(site: Site, tmp_path: Path) -> None:
    """No torchrun names the ranks, and nobody edits the program: its ranks are those of Slurm's tasks."""
    program, run = tmp_path / "train.py", tmp_path / "run"
    program.write_text(PLAIN_LOOP)
    srun = ("srun", "--account=m1234", "--constraint=gpu", "--nodes=2", "--ntasks-per-node=1")
    words = ("ccl-bench", "collect", "--output", str(run), "--", *srun, sys.executable, str(program))
    done = site.ran(*words, MEET=str(tmp_path / "meet"), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    traces = [run / f"kineto_trace_{rank}.json" for rank in range(2)]
    assert all(json.loads(path.read_text())["distributedInfo"]["rank"] == n for n, path in enumerate(traces))
    recording = json.loads((run / "run_metadata.json").read_text())["recording"]
    assert [each["host"] for each in recording["processes"]] == ["n1", "n2"]
    # Each step reduces the gradients of weight and bias in one bucket.
    measured = site.measured(run, "coll_call_num")["coll_call_num"]
    assert measured["value"] == 1
