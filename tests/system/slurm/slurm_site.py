"""A checkout at a path with a space and a plus on a machine with Slurm, and jobs submitted from it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from commands import invoke
from slurm_cluster import processes_with

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from slurm_cluster import Cluster

ROOT = Path(__file__).parents[3]
FORKING = ROOT / "tests" / "forking"
"""Where a `torchrun` lies that loads torchtitan once on a node, and not once a rank."""
PARTS = ("clusters", "perlmutter", "trace_collection", "workloads")

ATTEMPTS = 3
STEPS, ACTIVE = 8, 2
PLAIN = STEPS - 2 * ACTIVE
SHORT = (
    "--metrics.log_freq", str(ACTIVE),
    "--profiling.profile_freq", str(STEPS),
    "--profiling.profiler_active", str(ACTIVE),
    "--profiling.profiler_warmup", "2",
    "--training.steps", str(STEPS),
)  # fmt: skip
"""Eight steps instead of twenty: 3 and 4 run without the profiler, 7 and 8 are recorded, and the log has
a line for each of these pairs, at step PLAIN and at step STEPS."""


@dataclass
class Job:
    """A job, the traces it leaves, and what it printed."""

    site: Site
    number: int
    latest: Path
    """The link to the last good run of its workload."""
    output: Path
    """What Slurm wrote; the rest is in the run."""

    @property
    def log(self) -> Path | None:
        """The file in its run into which the job prints, once it has begun."""
        return next(self.latest.parent.glob(f"{self.latest.name}_*/logs/slurm-{self.number}.out"), None)

    @property
    def run(self) -> Path:
        """The run directory."""
        return self.log.parents[1] if self.log else self.latest

    @property
    def text(self) -> str:
        """What the job has printed so far: into its run, then into the file of Slurm."""
        files = [path for path in (self.log, self.output) if path and path.exists()]
        return "".join(path.read_text(errors="replace") for path in files)

    @property
    def shown(self) -> str:
        """The text without the lines of the ranks, for messages of tests."""
        return "\n".join(line for line in self.text.splitlines() if not line.startswith("[default"))[-4000:]

    def ended(self) -> str:
        """Wait for the end, and return the state: COMPLETED, FAILED, TIMEOUT."""
        return self.site.cluster.ended(self.number)

    def ranks(self) -> dict[int, int]:
        """Return rank -> process of those that are training; forked ones in the order of nodes and starts."""
        found, forked = {}, []
        for pid in processes_with(f"SLURM_JOB_ID={self.number}"):
            command = _read(pid, "cmdline")
            if b"on_cpu.py" not in command or b"rank.sh" in command:
                continue
            if rank := variable(pid, "RANK"):
                found[int(rank)] = pid
            elif b"forking/ranks.py" in command and _is_forked_rank(pid, command):
                node = command.partition(b"--node-rank\0")[2].partition(b"\0")[0]
                forked.append((int(node), pid))
        return found or {rank: pid for rank, (_, pid) in enumerate(sorted(forked))}

    def node_of(self, pid: int) -> str:
        """Return the node that a process runs on."""
        return variable(pid, "SLURMD_NODENAME")

    def until(
        self, holds: Callable[[], object], what: str, *, every_s: float = 0.2, within_s: float = 300
    ) -> None:
        """Wait until something holds; a job that says its next command has ended before, by a mistake."""
        deadline = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < deadline, f"waited {within_s} s for {what}\n{self.shown}"
            assert "\n  next: " not in self.text, f"the job ended before {what}\n{self.shown}"
            time.sleep(every_s)

    def logged_step_times(self, last: int) -> list[float]:
        """Return the seconds of a step on each rank, sorted, that torchtitan logged at step `last`.

        It logs the tokens per second and device that one data-parallel rank sees, so a rank's own tokens are
        those times the ranks that share them.
        """
        settings = self.card_values()
        tokens = settings["batch"] * settings["seq_len"] / settings["dp"]
        return sorted(tokens / (rate * settings["sharing"]) for rate in self._logged_rates(last))

    def _logged_rates(self, last: int) -> list[int]:
        logs = [path.read_text() for path in self.run.glob("logs/*/attempt_0/*/stdout.log")]
        return [
            int(found[1].replace(",", ""))
            for log in logs
            if "Profiling active" in log  # under Nsight Systems the profiler of torch is off
            and (found := re.search(rf" step: +{last} .* tps: ([\d,]+)", log))
        ]

    def card_values(self) -> dict[str, int]:
        """Return the sizes in the card of the run, which was filled with what was observed."""
        text = (self.run / "workload_card.yaml").read_text()

        def number(key: str) -> int:
            return int(re.search(rf"^ +{key}: (\d+)", text, flags=re.MULTILINE)[1])

        return {
            "batch": number("batch_size"),
            "seq_len": number("seq_len"),
            "dp": number("dp_replicate") * number("dp_shard"),
            "sharing": number("tp") * number("pp"),
        }


@dataclass
class Site:
    """A checkout, a scratch directory and a Slurm."""

    cluster: Cluster
    root: Path
    scratch: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a user has exported."""
        return {
            **self.cluster.environment,
            "PATH": f"{FORKING}:{self.root / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "CLUSTER": "cpu",
            "EXECUTION_TRACE": "0",
            "SCRATCH": str(self.scratch),
            "CCL_BENCH_CACHE": str(self.scratch.parent / "cache"),
            "COLUMNS": "100",
        }

    @property
    def plain_path(self) -> str:
        """The PATH with torch's own torchrun: its processes have their ranks, and it names the failed one."""
        return self.environment["PATH"].replace(f"{FORKING}:", "")

    def ran(
        self, *command: str, folder: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Return what a command came to in the checkout."""
        env = {**self.environment, **environment}
        return self.cluster.run(*command, cwd=folder or self.root, env=env)

    def submitted(
        self,
        name: str,
        *options: str,
        sbatch: tuple[str, ...] = (),
        short: tuple[str, ...] = SHORT,
        **environment: str,
    ) -> Job:
        """Submit the job of a workload, for eight short steps by default; `options` are torchtitan's."""
        folder = self.root / "trace_collection" / name
        words = ("--account=m1234", "--parsable", *sbatch, "run.sbatch", *short, *options)
        done = self.ran("sbatch", *words, folder=folder, **environment)
        assert done.returncode == 0, done.stderr
        number = int(done.stdout.partition(";")[0])
        return self.job(number, name, folder, Path(environment.get("SCRATCH", self.scratch)))

    def job(self, number: int, name: str, folder: Path, scratch: Path | None = None) -> Job:
        """Return the job of a workload that was submitted in a folder."""
        traces = (scratch or self.scratch) / "ccl-bench-traces"
        return Job(self, number, traces / name, folder / f"{name}-{number}.out")

    def completed(self, submit: Callable[[], Job], *, within_s: float = 420) -> Job:
        """Return a job that has recorded with nsys to its end, or the last attempt.

        On a busy machine nsys sometimes loses the agent that it has just started.
        """
        for _ in range(ATTEMPTS):
            job = submit()
            if self.cluster.ended(job.number, within_s=within_s) == "COMPLETED" or "nsys.log" not in _logs(
                job
            ):
                break
        return job

    def measured(self, run: Path, *metrics: str) -> dict[str, dict[str, object]]:
        """Return what ccl-metrics says of a run."""
        named = [word for metric in metrics for word in ("--metric", metric)]
        done = self.called("ccl-metrics", "--trace", str(run), *named, "--format", "json")
        return {result["metric"]: result for result in json.loads(done)}

    def called(self, *command: str) -> str:
        """Return what a command of ours prints that is called in this process, where no job is asked for."""
        done = invoke([*command], CCL_BENCH_CACHE=self.environment["CCL_BENCH_CACHE"])
        assert done.returncode == 0, done.stderr
        return done.stdout


def _logs(job: Job) -> list[str]:
    return [path.name for path in (job.run / "logs").iterdir()]


def variable(pid: int, name: str) -> str:
    """Return a variable of a process's environment, or nothing."""
    words = _read(pid, "environ").decode(errors="replace").split("\0")
    return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")


def _is_forked_rank(pid: int, command: bytes) -> bool:
    """Whether a process was forked by the copy of its launcher, and is neither of the two."""
    copy = _parent(pid)
    return _read(copy, "cmdline") == command and _read(_parent(copy), "cmdline") == command


def _parent(pid: int) -> int:
    """Return the parent of a process; 0 where it is gone."""
    state = _read(pid, "stat").rpartition(b")")[2].split()
    return int(state[1]) if state else 0


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def checkout(folder: Path) -> Path:
    """Return a copy of what the jobs read, with a Python to ask for versions that has no torch to load."""
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, symlinks=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python3").symlink_to("/usr/bin/python3")
    return folder
