"""Eight real ranks that write in turns, and one of them that cannot."""

from __future__ import annotations

import json
import subprocess

import pytest
from collected import ENVIRONMENT, HERE, collect
from launchers import LOADED

from ccl_bench.run import open_run

RANKS, WRITERS = 8, 2
OBSTACLE = "profile_trace/iteration_3/rank5_trace.json"


@pytest.fixture(scope="module")
def recorded(once):
    """Return the run directory, and what the ranks said; a folder lies where rank 5 wants to write."""

    def make(folder):
        (folder / "run" / OBSTACLE / "taken").mkdir(parents=True)
        return subprocess.run(
            [*LOADED, str(HERE / "many_ranks.py"), str(folder / "run")],
            env={**ENVIRONMENT, "TMPDIR": str(folder)},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )

    made = once("many ranks", make)
    assert made.ended.returncode == 0, made.ended.stderr
    return made.run, made.ended


def test_ranks_write_a_few_at_a_time(recorded):
    _, ended = recorded
    spans = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[")]
    assert len(spans) == RANKS - 1
    at_once = [sum(began <= moment < over for began, over in spans) for moment, _ in spans]
    assert max(at_once) <= WRITERS


def test_no_rank_waits_in_a_collective_for_those_that_write(recorded):
    """Collectives time out; the next one is called when the last rank has written."""
    _, ended = recorded
    lines = ended.stdout.splitlines()
    over = [json.loads(line)[1] for line in lines if line.startswith("[")]
    called = [float(line.split()[1]) for line in lines if line.startswith("next ")]
    assert len(called) == RANKS
    assert max(over) <= min(called)


def test_every_other_rank_has_its_trace(recorded):
    run, _ = recorded
    kineto = [trace.rank for trace in open_run(run).traces if trace.form.name == "kineto"]
    assert sorted(kineto) == [rank for rank in range(RANKS) if rank != 5]
    assert len(json.loads((run / "step_times_per_rank.json").read_text())) == RANKS


def test_the_rank_that_could_not_write_is_named(recorded):
    run, ended = recorded
    (remark,) = json.loads((run / "run_metadata.json").read_text())["recording"]["remarks"]
    assert remark == "rank 5: cannot write the trace: Is a directory"
    assert f"ccl-bench: {remark}" in ended.stderr


def test_what_a_rank_remarked_is_said_again_when_the_run_is_looked_at(recorded):
    run, _ = recorded
    ended = collect(run.parent, "--output", run)
    assert ended.returncode == 0
    assert "ccl-bench: rank 5: cannot write the trace: Is a directory" in ended.stderr
    assert "ranks     0-7" in ended.stdout
