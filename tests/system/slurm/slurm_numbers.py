"""The numbers of a job's run against counts in its traces, and against torchtitan's own log."""

from __future__ import annotations

import json
import re
from statistics import fmean
from typing import TYPE_CHECKING

import pytest
from slurm_site import ACTIVE, PLAIN, STEPS

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_site import Job

TOLERANCE = 0.05
"""By how much a step may differ from the log's beyond its precision: it counts the profiler's own work."""


def calls_of_rank_0(run: Path) -> float:
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


def assert_agrees(job: Job, ranks: int) -> None:
    """Hold three metrics of a run against its traces, as the JSON holds them, and torchtitan's log."""
    found = job.site.measured(job.run, "coll_call_num_16", "iter_time_16", "throughput_tokens_16")
    calls, seconds, tokens = (
        found[name]["value"] for name in ("coll_call_num_16", "iter_time_16", "throughput_tokens_16")
    )
    assert calls == calls_of_rank_0(job.run) > 0
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
