"""What goes wrong in a job ends in a message with cause and next command, and loses nothing that is there."""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib.util
import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
from slurm_site import STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from slurm_site import Job, Site

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed: make test"
)

TP = "llama3.1-8b-torchtitan-tp-perlmutter-16"
SOME_EVENTS = 100_000
"""Bytes of a trace, of nine million, that hold its head and some events."""

LITTLE = (
    "--training.local_batch_size", "1",
    "--training.seq_len", "32",
    "--activation_checkpoint.mode", "none",
)  # fmt: skip
"""The work of a step: how a job ends does not depend on it."""
ENDLESS = ("--training.steps", "100000")


def _submitted(
    site: Site, scratch: Path, *options: str, ranks: int, sbatch: tuple[str, ...] = (), **environment: str
) -> Job:
    """Submit a job of few ranks with a scratch directory of its own; the text to train on is shared."""
    places = {"SCRATCH": str(scratch), "ASSETS": str(site.scratch / "ccl-bench-assets")}
    given = {"RANKS_PER_NODE": str(ranks), **places, **environment}
    degree = ("--parallelism.tensor_parallel_degree", str(ranks))
    return site.submitted(TP, *degree, *LITTLE, *options, sbatch=sbatch, **given)


def _last_lines(job: Job) -> tuple[str, str]:
    """Return what is said at the end: what happened, and the next command."""
    what, following = job.text.strip().splitlines()[-2:]
    assert what.startswith("ccl-bench: ")
    assert following.startswith("  next: ")
    return what, following


Limited = tuple["Job", "Job", dict[int, "Path"]]


@pytest.fixture(scope="module", autouse=True)
def limited(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Limited:
    """Return a job that is warned of its time limit, one that is not, and the trace each leaves unfinished.

    Slurm looks at limits every half minute: the other tests run meanwhile.
    """
    scratch = tmp_path_factory.mktemp("limited")
    warned = _submitted(site, scratch / "warned", *ENDLESS, ranks=2)
    # A signal that does nothing stands for none, so that the limit itself ends the job.
    without = ("--signal=CONT@1",)
    unwarned = _submitted(site, scratch / "unwarned", *ENDLESS, ranks=2, sbatch=without)
    unfinished = {job.number: _stop_while_writing(job, rank=1) for job in (warned, unwarned)}
    _given(warned, 90)
    _given(unwarned, 2)
    return warned, unwarned, {number: path.with_suffix("") for number, path in unfinished.items()}


def test_a_rank_that_dies_is_named(site: Site, tmp_path: Path) -> None:
    job = _submitted(site, tmp_path, *ENDLESS, ranks=1, ACCOUNT="m1234", PATH=site.plain_path)
    job.until(lambda: "step:  2" in job.text, "the second step")
    os.kill(job.ranks()[0], signal.SIGKILL)
    assert job.ended() == "FAILED"
    assert "rank 0 was the first to fail, by signal SIGKILL" in job.text
    assert "cause: a process was killed" in job.text
    what, following = _last_lines(job)
    assert "the run failed for the cause above" in what
    assert "&& sbatch -A m1234 run.sbatch " in following
    assert following.endswith(" ".join(ENDLESS))


def test_a_second_job_records_beside_the_first_and_a_cancelled_one_keeps_what_it_recorded(
    site: Site, tmp_path: Path
) -> None:
    first = _submitted(site, tmp_path, *ENDLESS, ranks=1)
    first.until(lambda: _recorded(first), "a trace")

    with _standing_still(first):
        second = _submitted(site, tmp_path, ranks=1, DATA="c4")
        assert second.ended() == "FAILED"
    assert second.run != first.run
    assert "the tokenizer of meta-llama/Llama-3.1-8B is not in" in second.text

    site.ran("scancel", str(first.number))
    assert first.ended() == "CANCELLED"
    # One that failed hides no run with traces, neither by name nor in the state of the jobs.
    assert first.latest.resolve() == first.run.resolve()
    reported = site.ran("perlmutter/status.sh", TP, SCRATCH=str(tmp_path)).stdout
    assert reported.startswith(f"{TP}: job {second.number} FAILED; traces: ")
    assert f" in {first.run.resolve()}\n" in reported
    what, _ = _last_lines(first)
    assert "the job was stopped before the training ended: it was cancelled" in what
    found = site.measured(first.run, "iter_time_16")
    assert found["iter_time_16"]["value"] > 0


@contextlib.contextmanager
def _standing_still(job: Job) -> Iterator[None]:
    """Stop the ranks of a job for a while: one that trains takes a processor from what waits for it."""
    ranks = job.ranks().values()
    for rank in ranks:
        os.kill(rank, signal.SIGSTOP)
    yield
    for rank in ranks:
        os.kill(rank, signal.SIGCONT)


def _recorded(job: Job) -> list[Path]:
    return list((job.run / "profile_trace" / f"iteration_{STEPS}").glob("rank*_trace.json"))


def _stop_while_writing(job: Job, rank: int) -> Path:
    """Stop a rank in the middle of a trace, as storage that hangs would, and return the unfinished file."""
    job.until(lambda: rank in job.ranks(), "the ranks")
    process = job.ranks()[rank]
    while True:
        job.until(lambda: _unfinished(job, rank), "a trace that is being written", every_s=0.005)
        os.kill(process, signal.SIGSTOP)
        for path in _unfinished(job, rank):
            return path
        os.kill(process, signal.SIGCONT)


def _unfinished(job: Job, rank: int) -> list[Path]:
    found = job.run.glob(f"profile_trace/*/rank{rank}_trace.json.tmp")
    with contextlib.suppress(FileNotFoundError):
        return [path for path in found if path.stat().st_size > SOME_EVENTS]
    return []


def _given(job: Job, seconds: int) -> None:
    """Let the time limit of a job be up so much later; limits are counted in minutes, and ends in seconds."""
    end = dt.datetime.now() + dt.timedelta(seconds=seconds)
    job.site.ran("scontrol", "update", f"JobId={job.number}", f"EndTime={end:%Y-%m-%dT%H:%M:%S}")


def _gathered_as_asked(job: Job) -> None:
    """Run the command that the job named at its beginning for the case that it is killed."""
    reported = next(line for line in job.text.splitlines() if "should the job be killed" in line)
    command = reported.partition("killed: ")[2].removesuffix(" gathers what it left")
    done = job.site.ran("bash", "-c", command)
    assert done.returncode == 0, done.stderr
    assert "Measurable:" in done.stdout


def test_a_job_at_its_time_limit_while_it_writes_is_still_measurable(limited: Limited) -> None:
    warned, unwarned, unfinished = limited
    assert unwarned.ended() == "TIMEOUT"
    assert "DUE TO TIME LIMIT" in unwarned.text
    _gathered_as_asked(unwarned)
    _is_measurable_without_the_end(unwarned, unfinished[unwarned.number])

    assert warned.ended() == "FAILED"
    what, following = _last_lines(warned)
    assert what.endswith("the job was stopped before the training ended: its time limit was near")
    assert " --time=60 run.sbatch" in following
    trace = unfinished[warned.number]
    assert f"{trace} is incomplete" in warned.text
    _is_measurable_without_the_end(warned, trace)


def _is_measurable_without_the_end(job: Job, trace: Path) -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(trace.read_text())
    shown = job.site.called("ccl-bench", "inspect", str(job.run))
    assert trace.name in shown
    assert "file-truncated" in shown
    found = job.site.measured(job.run, "coll_call_num_16", "iter_time_16", "throughput_tokens_16")
    assert all(result["value"] > 0 for result in found.values())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a directory on a disk of four megabytes."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=False)
    if mounted.returncode:
        pytest.skip("mounting a file system is not permitted here, so no disk can be filled")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_named(site: Site, small_disk: Path) -> None:
    job = _submitted(site, small_disk, ranks=1)
    assert job.ended() == "FAILED"
    what, following = _last_lines(job)
    assert what.endswith("is full, so traces may be incomplete")
    assert "free space or export SCRATCH=/other/storage" in following
    found = site.measured(job.run, "iter_time_16")
    assert found["iter_time_16"]["value"] > 0
