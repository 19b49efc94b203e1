"""The numbers of a job's run against counts in its traces, and against torchtitan's own log."""

from __future__ import annotations

import re
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from slurm_site import ACTIVE, PLAIN, STEPS

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_site import Job


def calls_of_rank_0(run: Path) -> float:
    """Count what rank 0 calls gloo for in a step, from the JSON alone."""
    events = _events(run, 0)
    calls = [e["ts"] for e in events if e.get("name", "").startswith("gloo:") and e["ph"] == "X"]
    steps = _steps(events)
    return sum(begin <= ts < begin + length for begin, length in steps for ts in calls) / len(steps)


def step_seconds(run: Path, ranks: int) -> list[float]:
    """Return the mean step of each rank, s, sorted, from the JSON alone."""
    return sorted(fmean(length for _, length in _steps(_events(run, rank))) / 1e6 for rank in range(ranks))


def _events(run: Path, rank: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = msgspec.json.decode((run / f"kineto_trace_{rank}.json").read_bytes())[
        "traceEvents"
    ]
    return events


def _steps(events: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Return begin and length of each step, us."""
    steps = [
        (e["ts"], e["dur"])
        for e in events
        if re.fullmatch(r"ProfilerStep#\d+", e.get("name", "")) and e["ph"] == "X"
    ]
    assert len(steps) == ACTIVE
    return steps


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
    assert per_rank == pytest.approx(step_seconds(job.run, ranks), rel=1e-6)
    # What the profiler adds to a step is reported, so that the steps without it are known as well.
    overhead = sum(logged) / sum(plain) - 1
    assert f"{overhead:+.0%} step time under the profiler" in job.text
