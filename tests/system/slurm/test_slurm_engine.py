"""Reading a run's traces in jobs of a real Slurm: `--engine slurm`."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import EXAMPLE, ROOT

if TYPE_CHECKING:
    from slurm_cluster import Cluster

POISON = ROOT / "tests" / "system" / "engine"
"""Where the format lies whose files keep their reader until a file `go` appears."""
MEASURED = ("-m", "coll_call_num", "-m", "straggler", "-m", "iteration_wall_clock_time", "-m", "mfu")
PROGRAM = "import poison_format, sys; sys.exit(poison_format.main())"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Return a run of four ranks, the last of which keeps whoever reads it."""
    pytest.importorskip("dask_jobqueue", reason="the extra `cluster` is not installed: make test")
    (tmp_path / "readers").mkdir()
    run = Path(shutil.copytree(EXAMPLE, tmp_path / "run"))
    keep = {"poison": "keep", "rank": 3, "folder": str(tmp_path / "readers")}
    (run / "kineto_trace_3.json.gz").unlink()
    (run / "kineto_trace_3.json").write_text(json.dumps(keep))
    return run


def started(slurm: Cluster, run: Path, engine: str) -> subprocess.Popen[str]:
    """Start a command on the login node."""
    command = [sys.executable, "-c", PROGRAM, "--trace", str(run), *MEASURED, "--format", "json"]
    more = {
        "PYTHONPATH": str(POISON),
        "DASK_DISTRIBUTED__WORKER__PRELOAD": "poison_format",
        "CCL_BENCH_CACHE": str(run.parent / "cache"),
    }
    return subprocess.Popen(
        [*command, "--no-cache", "--jobs", "2", "--engine", engine],
        env={**slurm.environment, **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def reader(slurm: Cluster, run: Path, command: subprocess.Popen[str]) -> str:
    """Return the job that reads what keeps it, once one does."""
    deadline = time.monotonic() + 300
    while not (found := list((run.parent / "readers").iterdir())):
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < deadline, slurm.run("squeue").stdout
        time.sleep(0.1)
    environment = Path(f"/proc/{found[0].name}/environ").read_bytes().split(b"\0")
    return next(each.partition(b"=")[2].decode() for each in environment if each.startswith(b"SLURM_JOB_ID="))


def jobs(slurm: Cluster) -> list[str]:
    """Return the jobs that wait or run."""
    return slurm.run("squeue", "--noheader", "--format=%i").stdout.split()


def has_tidied_up(slurm: Cluster, run: Path) -> bool:
    """Whether no job is left, and of the command's keys and logs nothing."""
    deadline = time.monotonic() + 300
    while jobs(slurm) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not jobs(slurm) and not list((run.parent / "cache").glob("slurm-*"))


def test_a_job_that_is_cancelled_while_it_reads_changes_no_byte(slurm: Cluster, kept: Path) -> None:
    with started(slurm, kept, "slurm:queue=gpu,constraint=gpu") as command:
        lost = reader(slurm, kept, command)
        assert lost in jobs(slurm)
        slurm.run("scancel", lost)
        (kept.parent / "readers" / "go").touch()
        reported = command.communicate(timeout=180)

    with started(slurm, kept, "local") as here:
        assert here.communicate(timeout=300) == reported
    assert (command.returncode, here.returncode) == (0, 0)
    assert has_tidied_up(slurm, kept)


def test_a_command_that_is_stopped_cancels_its_jobs(slurm: Cluster, kept: Path) -> None:
    with started(slurm, kept, "slurm") as command:
        reader(slurm, kept, command)
        command.send_signal(signal.SIGTERM)
        out, err = command.communicate(timeout=300)

    assert (command.returncode, out, err) == (143, "", "")
    assert has_tidied_up(slurm, kept)


def test_what_slurm_refuses_is_reported_in_its_words(slurm: Cluster, kept: Path) -> None:
    with started(slurm, kept, "slurm:queue=debug") as command:
        out, err = command.communicate(timeout=300)

    assert (command.returncode, out) == (4, "")
    assert err.startswith("ccl-metrics: Slurm refuses the job: ")
    assert "nvalid partition name specified\n  fix: " in err
    assert has_tidied_up(slurm, kept)
