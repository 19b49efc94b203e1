"""Recording through the real Nsight Systems, and telling ranks in its reports apart."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from collected import collect, files, own_bounds, python
from training_loop_facts import ACTIVE

from ccl_bench.collect.launch.nsys import _ranks_by_node, _RecordedProcess
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run
from ccl_bench.trace.formats import Identity, TracePart

ATTEMPTS = 3
"""On a busy machine nsys sometimes loses the agent that it has just started."""


@pytest.fixture(scope="session")
def nsys_installed():
    """Skip where nothing can be recorded by nsys."""
    if shutil.which("nsys") is None:
        pytest.skip("nsys is not installed: make services")
    if importlib.util.find_spec("nvtx") is None:
        pytest.skip("nvtx is not installed: make test")


@pytest.fixture(scope="session")
def recorded(record, nsys_installed):
    """Two ranks of the training loop under nsys, which sees programs that are started and not forks."""
    return record("nsys", profile_mode="nsys", attempts=ATTEMPTS, launcher=("torchrun",))


def test_the_report_lies_in_the_run_and_its_processes_are_ranks(recorded):
    assert recorded.ended.returncode == 0, recorded.ended.stderr
    assert (recorded.run / f"{recorded.run.name}.nsys-rep").exists()
    run = open_run(recorded.run)
    assert {trace.form.name for trace in run.traces} == {"nsys"}
    assert run.ranks == [0, 1]
    named = json.loads((recorded.run / "ranks.json").read_text())
    processes = json.loads((recorded.run / "run_metadata.json").read_text())["recording"]["processes"]
    assert named == {f"{recorded.run.name}.nsys-rep#pid{each['pid']}": each["rank"] for each in processes}


def test_the_active_steps_are_marked_and_reach_around_those_of_the_loop(recorded, tmp_path):
    # Without the file of step times, the report itself has to tell them.
    for name in (f"{recorded.run.name}.nsys-rep", "ranks.json"):
        shutil.copy(recorded.run / name, tmp_path)
    (result,) = evaluate(open_run(tmp_path), ["iteration_wall_clock_time"], jobs=1)
    assert list(map(int, result.details["per_step_s"])) == list(ACTIVE)
    for step, length in result.details["per_step_s"].items():
        least, most = own_bounds(recorded, int(step))
        assert least < length < most


def test_no_session_is_left_behind(recorded):
    """Sessions of other runs of the tests have another cache; those of Slurm jobs end in a task's number."""
    own, agents = f"CCL_BENCH_CACHE={os.environ['CCL_BENCH_CACHE']}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if own in (process / "environ").read_bytes().split(b"\0"):
                agents += re.findall(
                    rb"--session-name=(ccl-bench-[0-9a-f]+)\0", (process / "cmdline").read_bytes()
                )
    assert agents == []


PROGRAM = """
import os, pathlib, time
mode = os.environ["CCL_BENCH_PROFILE_MODE"]
print("recorded by", mode, flush=True)
if mode == "torch":
    folder = pathlib.Path("outputs/profile_trace/iteration_3")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rank0_trace.json").write_text(pathlib.Path("trace.json").read_text())
else:
    import nvtx
    for step in range(3):
        with nvtx.annotate(f"step {step}"):
            time.sleep(0.05)
"""


@pytest.fixture
def both(nsys_installed, tmp_path, kineto_text):
    """Return the folder of a command that was recorded by both profilers, and what was said."""
    (tmp_path / "trace.json").write_text(kineto_text)
    words = ("--output", "run", "--profile-mode", "both", "--force", "--", *python(PROGRAM))
    for _ in range(ATTEMPTS):
        ended = collect(tmp_path, *words)
        if ended.returncode == 0 and "Agent lost" not in ended.stderr:
            break
    return tmp_path, ended


def test_both_profilers_record_one_after_the_other_into_one_run(both):
    folder, ended = both
    assert ended.returncode == 0, ended.stderr
    assert [line for line in ended.stdout.splitlines() if line.startswith("recorded by")] == [
        "recorded by torch",
        "recorded by nsys",
    ]
    found = files(folder / "run")
    assert {"profile_trace/iteration_3/rank0_trace.json", "run.nsys-rep", "environment.json"} <= found
    # Numbers come from one of the two, or everything would count twice.
    assert "traces of Nsight Systems (1) are not used" in ended.stdout


def _process(node, local):
    return _RecordedProcess(
        f"run_node{node}_task{node}.nsys-rep#pid{local}", node, TracePart(f"pid{local}", Identity(), local)
    )


def test_ranks_of_several_nodes_follow_the_nodes():
    found = _ranks_by_node([_process(node, local) for node in (0, 1) for local in (0, 1)])
    assert list(found.values()) == [0, 1, 2, 3]


def test_nodes_with_unlike_numbers_of_processes_show_no_ranks():
    assert _ranks_by_node([_process(0, 0), _process(0, 1), _process(1, 0)]) == {}
