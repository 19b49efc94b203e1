"""Wrapping commands, and recognising why they failed."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess

import pytest
from collected import collect

from ccl_bench.base.errors import InputError
from ccl_bench.collect.launch.failures import diagnose_failure
from ccl_bench.collect.launch.nsys import NsysProgram, split_srun
from ccl_bench.collect.launch.process import CommandResult


@pytest.mark.parametrize(
    ("options", "program"),
    [
        ("-N 2 --ntasks-per-node=1", "torchrun -N 3"),
        ("-N2 -n 4 -l -u", "python train.py"),
        ("--nodes 2 --gpus-per-node 4 --exact", "bash run.sh"),
        ("-lun4", "prog"),
        ("-K1 -I30 --exclusive --kill-on-bad-exit", "prog -c 1"),
        ("--cpu-bind=none --export ALL,A=1 -C gpu&hbm80g", "prog"),
        ("-w n1,n2 --", "--strange-name"),
        ("", "prog"),
    ],
)
def test_srun_and_the_program_are_distinguished(options, program):
    words = ["srun", *options.split(), *program.split()]
    assert split_srun(words) == (["srun", *options.split()], program.split())


def test_options_of_the_srun_that_is_installed_are_known(tmp_path):
    if not shutil.which("srun"):
        pytest.skip("srun is not installed: make services")
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=x\nSlurmctldHost=localhost\nNodeName=localhost\nPartitionName=a Nodes=localhost\n"
    )
    text = subprocess.run(
        ["srun", "--help"], env={"SLURM_CONF": str(tmp_path / "slurm.conf")}, capture_output=True, text=True
    ).stdout
    shown = re.findall(r"^(?:  -(\w),| {5}) --([a-z-]+)(=|\[=)?", text, flags=re.MULTILINE)
    assert len(shown) > 80
    for short, name, value in shown:
        if name == "container":  # its value is missing in the help of Slurm 22.05
            continue
        takes = value == "="
        assert split_srun(["srun", f"--{name}", "x", "y"]) == (
            (["srun", f"--{name}", "x"], ["y"]) if takes else (["srun", f"--{name}"], ["x", "y"])
        ), name
        if short:
            assert (split_srun(["srun", f"-{short}", "x", "y"])[1] == ["y"]) is takes, short


@pytest.fixture
def nsys(tmp_path):
    program = tmp_path / "nsys"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return NsysProgram({"PATH": str(tmp_path)}, ["--cuda-graph-trace=node"])


def test_nsys_stands_in_front_of_the_command(nsys, tmp_path):
    words = nsys.wrap(["torchrun", "x.py"], tmp_path / "a + 100%")
    assert words[:2] == [str(tmp_path / "nsys"), "profile"]
    assert words[-3:] == ["--cuda-graph-trace=node", "torchrun", "x.py"]
    # A percent sign of the path is no pattern.
    assert f"--output={tmp_path}/a + 100%%/a + 100%%" in words
    assert "--cuda-memory-usage=true" in words


def test_under_srun_every_node_has_a_report_and_a_session_of_its_own(nsys, tmp_path):
    words = nsys.wrap(["srun", "-N", "2", "torchrun", "x.py"], tmp_path)
    assert words[:4] == ["srun", "-N", "2", str(tmp_path / "nsys")]
    (output,) = (word for word in words if word.startswith("--output="))
    (session,) = (word for word in words if word.startswith("--session-new="))
    assert "%q{SLURM_NODEID}" in output
    assert "%q{SLURM_PROCID}" in output
    assert "%q{SLURM_PROCID}" in session


@pytest.mark.parametrize("options", ["--ntasks=1", "--ntasks 1", "-n1", "-N 1 -n 1"])
def test_the_report_of_a_single_task_has_the_name_of_the_run_alone(nsys, tmp_path, options):
    words = nsys.wrap(["srun", *options.split(), "torchrun", "x.py"], tmp_path / "run")
    assert f"--output={tmp_path}/run/run" in words


def test_two_recordings_have_different_sessions(tmp_path, nsys):
    assert nsys.session != NsysProgram({"PATH": str(tmp_path)}).session


def test_nsys_that_is_not_there_is_said_before_anything_runs(tmp_path):
    with pytest.raises(InputError, match="nsys is not on PATH"):
        NsysProgram({"PATH": str(tmp_path)})


# What programs write, and what it means. The words are those of the programs.
CAUSES = [
    ("slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-01-01 DUE TO TIME LIMIT ***", "its time limit"),
    ("OSError: [Errno 28] No space left on device: 'rank0_trace.json'", "the disk is full"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "a device ran out of memory"),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=5.0.", "the node ran out of memory"),
    (
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)",
        "a rank did not take part",
    ),
    ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356", "NCCL failed"),
    ("RuntimeError: The server socket has failed to listen. EADDRINUSE", "a port is in use"),
    ("ModuleNotFoundError: No module named 'torchtitan'", "the module torchtitan is not installed"),
]


@pytest.mark.parametrize(("text", "cause"), CAUSES)
def test_the_cause_of_a_failure_is_recognised(text, cause):
    found = diagnose_failure(CommandResult(1, f"before\n{text}\nafter\n", 12.0))
    assert cause in found.cause
    assert found.fix


def test_the_cause_comes_before_its_consequences():
    text = (
        "[rank2]: torch.OutOfMemoryError: CUDA out of memory.\nWatchdog caught collective operation timeout"
    )
    assert "out of memory" in diagnose_failure(CommandResult(1, text, 1.0)).cause


@pytest.mark.parametrize(
    ("status", "said"),
    [(3, "with status 3"), (-11, "by signal SIGSEGV"), (137, "by signal SIGKILL"), (255, "with status 255")],
)
def test_a_status_is_reported_in_words(status, said):
    assert f"ended {said}" in diagnose_failure(CommandResult(status, "", 5.0)).outcome


# What torchrun 2.13 prints where rank 1 was killed and rank 0 raised in the same second.
SAME_SECOND = """
============================================================
on_cpu.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-01_12:00:00
  host      : n1
  rank      : 1 (local_rank: 1)
  exitcode  : {other} (pid: 11)
  error_file: <N/A>
  traceback : <NONE>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_12:00:00
  host      : n1
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 10)
  error_file: /tmp/error.json
  traceback : RuntimeError: Connection closed by peer
============================================================
"""


@pytest.mark.parametrize(
    ("other", "rank", "said"),
    [(-9, 1, "by signal SIGKILL"), (-6, 0, "with status 1"), (1, 0, "with status 1")],
)
def test_a_rank_that_was_killed_failed_before_those_that_lost_their_connection_to_it(other, rank, said):
    found = diagnose_failure(CommandResult(1, SAME_SECOND.format(other=other), 5.0))
    assert found.rank == rank
    assert f"rank {rank} was the first to fail, {said}" in found.outcome


def test_a_signal_to_the_launcher_is_reported():
    found = diagnose_failure(CommandResult(-15, "working\n", 7.0, signal.SIGTERM))
    assert found.outcome == "stopped by SIGTERM after 7 s"
    assert found.lines == ("working",)


@pytest.mark.parametrize("written", ["-t nvtx,osrt -s none", "--cuda-graph-trace=node", ""])
def test_options_of_nsys_may_begin_with_a_dash_and_be_none(tmp_path, written):
    words = ("--output", "run", "--nsys-options", written)
    assert collect(tmp_path, *words, "--", "echo", "begun").stdout.startswith("begun\n")
