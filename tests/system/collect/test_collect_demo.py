"""What `make demo-collect` does, from launch to report: four ranks, FSDP2 over 2 x tensor parallel over 2.

Its steps are fewer here.
"""

from __future__ import annotations

import json

import pytest
from collected import HERE, collect, torchrun
from commands import invoke

from ccl_bench.run import open_run

STEPS = 5
"""1 skipped, 1 timed, 1 to warm up, 1 recorded, 1 observed."""

OF_A_BUSY_MACHINE = {"warmup-steps", "outlier-steps"}


@pytest.fixture(scope="module")
def recorded(once):
    """Return the run directory, and what the launcher said."""
    command = torchrun(HERE / "short_demo.py", ranks=4)
    made = once("demo", lambda folder: collect(folder, "--output", "run", "--", *command))
    return made.run, made.ended


def test_the_training_is_seen_and_becomes_a_run(recorded):
    run, ended = recorded
    assert ended.returncode == 0, ended.stderr
    assert f"step {STEPS} of {STEPS} (observed): loss" in ended.stdout
    assert sorted((trace.form.name, trace.rank) for trace in open_run(run).traces) == [
        *(("execution_trace", rank) for rank in range(4)),
        *(("kineto", rank) for rank in range(4)),
    ]


def test_it_is_valid_measured_and_reported(recorded):
    run, _ = recorded
    (validated,) = json.loads(invoke(["ccl-bench", "validate", str(run), "--format", "json"]).stdout)
    assert {issue["code"] for issue in validated["issues"]} <= OF_A_BUSY_MACHINE
    # Each of 2 layers: 2 all-reduces of tensor parallelism forward and 2 backward. FSDP2 gathers the layers
    # and the rest forward, the layers again backward, and reduce-scatters the three.
    calls = invoke(["ccl-metrics", "--trace", str(run), "--metric", "coll_call_num"])
    assert int(calls.stdout) == 2 * 4 + 5 + 3
    assert "throughput_tokens_sec" in (run / "report.html").read_text()
