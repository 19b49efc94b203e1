"""Which step belongs to which phase, ranks that wait outside collectives, and turns on a node."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from collected import ENVIRONMENT, small_disk, torchrun
from launchers import LOADED
from shared import made_once

from ccl_bench.base.errors import UsageError
from ccl_bench.collect import Schedule, StepPhase, profile
from ccl_bench.collect.profiling import ranks
from ccl_bench.collect.profiling.recorders import export_trace


def test_phases_follow_each_other():
    schedule = Schedule(skip=1, timed=2, warmup=1, active=2, observed=1)
    phases = ["skip", "timed", "timed", "warmup", "active", "active", "observed", "after", "after"]
    assert [str(schedule.phase(step)) for step in range(9)] == phases
    assert schedule.length == 7


def test_five_steps_warm_up_and_five_are_recorded_unless_asked_otherwise():
    assert (Schedule().warmup, Schedule().active) == (5, 5)


def test_a_window_is_named_by_the_steps_that_were_run_when_it_ended():
    schedule = Schedule(skip=1, timed=2, warmup=1, active=2, observed=1)
    assert (schedule.end_of(StepPhase.ACTIVE), schedule.end_of(StepPhase.OBSERVED)) == (6, 7)


def test_the_last_step_of_a_phase_knows_that_it_is():
    schedule = Schedule(skip=0, timed=1, warmup=1, active=2, observed=0)
    assert [schedule.step(number).is_last for number in range(5)] == [True, True, False, True, False]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"active": -1}, "not a number of steps"),
        ({"timed": 1.5}, "not a number of steps"),
        ({"warmup": 0}, "warm-up"),
    ],
)
def test_a_schedule_that_no_loop_can_follow_is_refused(wrong, why):
    with pytest.raises(UsageError, match=why):
        Schedule(**wrong)


@pytest.mark.parametrize(
    ("wishes", "why"),
    [
        ({}, "has no directory to write to"),
        ({"output": "x", "execution_trace": "beside"}, "one of: apart, together, off"),
        (
            {"output": "x", "metadata": {"sequence_length": 1}},
            "run_metadata.json has no field sequence_length",
        ),
        ({"output": "x", "writers_per_node": 0}, "no rank could write"),
    ],
)
def test_wishes_that_cannot_be_met_are_refused_before_the_first_step(wishes, why, monkeypatch):
    monkeypatch.delenv("CCL_BENCH_OUTPUT", raising=False)
    with pytest.raises(UsageError, match=why), profile(**wishes):
        pass


def test_the_library_is_light_until_a_recording_starts():
    program = "import sys, ccl_bench.collect; print({'torch', 'polars', 'pydantic'} & {*sys.modules})"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (
            {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "SLURM_PROCID": "0"},
            ranks.ProcessRank(3, 8, 1),
        ),
        (
            {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"},
            ranks.ProcessRank(1, 4, 1),
        ),
        # A batch script knows the tasks that it may start, and is none of them.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, ranks.ProcessRank(0, 1, 0)),
        ({}, ranks.ProcessRank(0, 1, 0)),
    ],
)
def test_a_process_knows_its_rank_from_its_launcher(variables, expected, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ranks.process_rank() == expected


WAITING = """
import time
from datetime import timedelta
import torch, torch.distributed as dist
from torch.distributed import distributed_c10d
from ccl_bench.collect.profiling import ranks
from ccl_bench.collect.profiling.ranks import Barrier

def let_collectives_last(seconds):
    distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))
    distributed_c10d._get_default_store().set_timeout(timedelta(seconds=seconds))

def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    here, store = ranks.process_rank(), distributed_c10d._get_default_store()
    barrier = Barrier(here, "first")
    began = time.perf_counter()
    if here.rank == 0:
        store.set("waits", "")
    else:
        store.wait(["waits"])
        time.sleep(2)
    let_collectives_last(1)
    barrier.wait("export")
    waited = time.perf_counter() - began
    let_collectives_last(300)
    texts = barrier.gather("parts", f"from {here.rank}")
    dist.all_reduce(torch.ones(1))
    impatient = Barrier(here, "second", timeout_s=0.2)
    if here.rank == 0:
        impatient.wait("alone")
    print(here.rank, round(waited, 1), texts, repr(barrier.problem), bool(impatient.problem))

if __name__ == "__main__":
    main()
"""


def test_ranks_wait_longer_than_any_collective_may_last(tmp_path, torch_installed):
    program = tmp_path / "waiting.py"
    program.write_text(WAITING)
    ended = subprocess.run(torchrun(program), env=ENVIRONMENT, capture_output=True, text=True, check=True)
    first, second = sorted(ended.stdout.splitlines())
    # Rank 1 comes 2 s after rank 0, and a collective may last 1 s; afterwards one still works.
    assert float(first.split()[1]) >= 2
    assert first.endswith("['from 0', 'from 1'] '' True")
    assert second.endswith("[] '' False")


TURNS = """
import json, sys, time
from ccl_bench.collect.profiling.recorders import write_slot
with write_slot(int(sys.argv[1]), int(sys.argv[2])):
    began = time.monotonic()
    time.sleep(0.2)
    print(json.dumps([began, time.monotonic()]))
"""


@pytest.mark.parametrize(("writers", "at_once"), [(1, 1), (2, 2)])
def test_no_more_ranks_write_at_once_than_may(writers, at_once, tmp_path):
    running = [
        subprocess.Popen(
            [sys.executable, "-c", TURNS, str(rank), str(writers)],
            env={**ENVIRONMENT, "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    spans = sorted(json.loads(each.communicate(timeout=300)[0]) for each in running)
    moments = [began for began, _ in spans]
    most = max(sum(began <= moment < ended for began, ended in spans) for moment in moments)
    assert most <= at_once
    if writers == 1:
        assert all(later[0] >= earlier[1] for earlier, later in pairwise(spans))


def test_a_rank_that_dies_gives_its_turn_back(tmp_path):
    environment = {**ENVIRONMENT, "TMPDIR": str(tmp_path)}
    holding = TURNS.replace("time.sleep(0.2)", "print('held', flush=True)\n    time.sleep(1000)")
    words = [sys.executable, "-c", holding, "0", "1"]
    holder = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE)
    holder.stdout.readline()
    waiter = subprocess.Popen(
        [sys.executable, "-c", TURNS, "0", "1"], env=environment, stdout=subprocess.PIPE
    )
    time.sleep(0.3)
    assert waiter.poll() is None
    holder.kill()
    assert waiter.wait(timeout=300) == 0
    holder.communicate()
    waiter.communicate()


SHORT = """
import gc, os, sys
gc.disable()
import torch
import torch._inductor.config
from ccl_bench.collect import Schedule, profile

def train(run, steps):
    schedule = Schedule(skip=1, timed=1, warmup=1, active=3, observed=0)
    with profile(run, schedule=schedule) as recording:
        for _ in range(steps):
            torch.ones(8) @ torch.ones(8)
            recording.step()

for run, steps in zip(sys.argv[1::2], map(int, sys.argv[2::2])):
    if not os.fork():
        os.dup2(os.open(f"{os.path.basename(run)}.said", os.O_WRONLY | os.O_CREAT), 2)
        train(run, steps)
        os._exit(0)
    assert os.wait()[1] == 0, run
os._exit(0)
"""
"""Loops of so many steps, each in a process that was forked: torch is loaded once, and never taken apart."""


@pytest.fixture
def short(tmp_path_factory, torch_installed):
    """Return a folder of recordings of 2 and 5 steps, and of 6 on a full disk, with what each said."""

    def recorded(folder):
        with small_disk(folder / "small") as disk:
            (disk / "more").write_bytes(b"x" * 45_000)
            words = ["two", "2", "five", "5", str(disk / "full"), "6"]
            command = [*LOADED, "-c", SHORT, *words]
            subprocess.run(command, cwd=folder, env=ENVIRONMENT, check=True)

    folder, _ = made_once(tmp_path_factory, "short loops", recorded)
    return folder


def test_a_full_disk_ends_no_training(short):
    said = (short / "full.said").read_text()
    assert "cannot write" in said or "is incomplete" in said


@pytest.mark.parametrize(
    ("name", "said", "recorded"),
    [("two", "nothing was recorded", []), ("five", "the recording is incomplete", [3, 4])],
)
def test_a_loop_that_is_too_short_is_reported_and_leaves_what_there_is(name, said, recorded, short):
    reported = (short / f"{name}.said").read_text()
    assert said in reported
    assert "run at least 6 steps" in reported
    found = {
        event["name"]
        for trace in (short / name).glob("profile_trace/*/rank0_trace.json")
        for event in json.loads(trace.read_text())["traceEvents"]
        if "ProfilerStep#" in str(event.get("name"))
    }
    assert found == {f"ProfilerStep#{step}" for step in recorded}
    assert (short / name / "step_times_per_rank.json").exists()


class Written:
    """Stands where a profiler does, with a trace that hardly gets smaller."""

    def export_chrome_trace(self, path):
        """Write 40 kB."""
        Path(path).write_bytes(b'{"traceEvents": ["' + random.Random(0).randbytes(40_000) + b'"]}')


def test_a_trace_that_cannot_be_packed_stays_whole(full_disk):
    file = full_disk / "rank0_trace.json"
    said = export_trace(Written(), file, compress=True, cut_step=None)
    assert said == "the trace is not compressed: No space left on device"
    assert file.stat().st_size > 40_000
    assert sorted(path.name for path in full_disk.iterdir()) == ["filler", "rank0_trace.json"]
