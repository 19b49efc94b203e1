"""Real Slurm jobs train with real torchtitan over gloo, through the scripts that run on Perlmutter.

What is measured agrees with counts in the traces, and with torchtitan's own log. Between them the two jobs
are sharded, tensor-parallel and pipelined, on one node and on two; `make workloads` trains all seven.
"""

from __future__ import annotations

import importlib.util
import json
import re
from statistics import fmean
from typing import TYPE_CHECKING

import pytest
from slurm_site import ACTIVE, PLAIN, STEPS

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_site import Job, Site

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed: make test"
)

TOLERANCE = 0.05
"""By how much a step may differ from the log's beyond its precision: it counts the profiler's own work."""

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


def _calls_of_rank_0(run: Path) -> float:
    """Count what rank 0 calls gloo for in a step, from the JSON alone."""
    events = json.loads((run / "kineto_trace_0.json").read_text())["traceEvents"]
    steps = [
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if re.fullmatch(r"ProfilerStep#\d+", e.get("name", "")) and e["ph"] == "X"
    ]
    calls = [e["ts"] for e in events if e.get("name", "").startswith("gloo:") and e["ph"] == "X"]
    assert len(steps) == ACTIVE
    return sum(begin <= ts < end for begin, end in steps for ts in calls) / len(steps)


def _agrees(job: Job, ranks: int) -> None:
    """Hold the three metrics against the traces and the log."""
    found = job.site.measured(job.run, "coll_call_num_16", "iter_time_16", "throughput_tokens_16")
    calls, seconds, tokens = (
        found[name]["value"] for name in ("coll_call_num_16", "iter_time_16", "throughput_tokens_16")
    )
    assert calls == _calls_of_rank_0(job.run) > 0
    sizes = job.card_values()
    assert tokens == pytest.approx(sizes["batch"] * sizes["seq_len"] / seconds, rel=1e-6)
    per_rank = sorted(found["iter_time_16"]["details"]["per_rank_s"].values())
    logged, plain = job.logged_step_times(STEPS), job.logged_step_times(PLAIN)
    assert len(per_rank) == len(logged) == len(plain) == ranks
    tolerance = TOLERANCE + job.logged_precision(STEPS)
    assert per_rank == pytest.approx(logged, rel=tolerance)
    # What the profiler adds to a step is reported, so that the steps without it are known as well.
    overhead = sum(logged) / sum(plain) - 1
    assert f"{overhead:+.0%} step time under the profiler" in job.text
    assert fmean(per_rank) / (1 + overhead) == pytest.approx(fmean(plain), rel=tolerance)


def _sizes(run: Path) -> dict[str, int]:
    text = (run / "workload_card.yaml").read_text()
    written = {name: re.search(rf"^ +{name}: (\d+)", text, flags=re.MULTILINE) for name in SIZES}
    return {name: int(found[1]) for name, found in written.items() if found}


def test_sharded_data_and_tensor_parallel_experts(site: Site) -> None:
    job = site.submitted("deepseek-v2-lite-torchtitan-dp+tp-perlmutter-16")
    run = _collected(job, ranks=4)
    _agrees(job, ranks=4)
    assert _sizes(run) == {"dp_shard": 2, "tp": 2, "pp": 1}


def test_a_pipeline_over_two_nodes_with_execution_traces(site: Site) -> None:
    name = "qwen3-32b-torchtitan-3d-perlmutter-16"
    degrees = (f"--parallelism.{name}_degree=1" for name in ("data_parallel_shard", "tensor_parallel"))
    job = site.submitted(name, *degrees, RANKS_PER_NODE="1", EXECUTION_TRACE="1")
    job.until(lambda: len(job.ranks()) == 2, "two ranks")
    assert {rank: job.node_of(pid) for rank, pid in job.ranks().items()} == {0: "n1", 1: "n2"}
    run = _collected(job, ranks=2)
    _agrees(job, ranks=2)
    assert _sizes(run) == {"dp_shard": 1, "tp": 1, "pp": 2, "pp_mb": 1, "microbatches": 4}
    traces = sorted(path.name for path in (run / "execution_trace").iterdir())
    assert traces == [f"rank{rank}_et.json" for rank in range(2)]
    assert (run / "torch_et_0.json").resolve() == (run / "execution_trace" / "rank0_et.json").resolve()
