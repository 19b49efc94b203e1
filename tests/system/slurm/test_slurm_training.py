"""A real Slurm job trains with real torchtitan over gloo on two nodes, through the scripts for Perlmutter.

What is measured agrees with counts in the traces, and with torchtitan's own log. Another job, with tensor
parallelism on one node, is in test_slurm_instructions.py; `make workloads` trains all seven.
"""

from __future__ import annotations

import importlib.util
import re
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
